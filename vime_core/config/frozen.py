"""A dict that can be read, copied, pickled and written as JSON, but not changed.

A configuration is frozen after it was resolved; ``MappingProxyType`` would do but cannot travel to another process.
"""

from __future__ import annotations

from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """``dict(frozen)`` gives a changeable copy."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("the configuration of a run is frozen; take dict(...) of it to change a copy")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)
