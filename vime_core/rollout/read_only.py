"""Samples as rewards and filters see them: like the real ones, but what they hold cannot be changed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NoReturn

from vime_core.api import Group, Sample

_MESSAGE = "a reward or filter may not change its sample; copy.deepcopy(sample) gives one that may be changed"
#: lists of numbers, which hold nothing that could be changed: copied whole, without a look at every token
_NUMBERS = frozenset({"prompt_tokens", "response_tokens", "loss_mask", "logprobs", "versions"})


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(_MESSAGE)


class ReadOnlyList(list[Any]):
    """``list(x)``, and a copy or a pickle of it, can be changed."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class ReadOnlyDict(dict[Any, Any]):
    """``dict(x)``, and a copy or a pickle of it, can be changed."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ReadOnlySample(Sample):
    """Made by :func:`read_only`."""

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise TypeError(f"{name}: {_MESSAGE}")

    def __delattr__(self, name: str) -> NoReturn:
        raise TypeError(f"{name}: {_MESSAGE}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Sample, tuple(getattr(self, field.name) for field in fields(Sample))


def read_only(sample: Sample) -> Sample:
    """A view of the sample: scalars are its own, containers are copies that refuse to be changed."""
    made = object.__new__(ReadOnlySample)
    for field in fields(Sample):
        value = getattr(sample, field.name)
        object.__setattr__(made, field.name, ReadOnlyList(value) if field.name in _NUMBERS else _frozen(value))
    return made


def read_only_group(group: Group) -> Group:
    return Group(group.id, ReadOnlyList(read_only(sample) for sample in group.samples))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return ReadOnlyDict((key, _frozen(one)) for key, one in value.items())
    if isinstance(value, list):
        return ReadOnlyList(map(_frozen, value))
    if hasattr(value, "setflags") and hasattr(value, "view"):  # an array of numpy
        view = value.view()
        view.setflags(write=False)
        return view
    return value
