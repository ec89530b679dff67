"""Filters: a scored group is kept or dropped, with a reason that is counted (dynamic sampling of DAPO, arXiv
2503.14476, section 3.2). A filter is a function ``(group) -> (keep, reason)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vime_core.api import Group, PluginError, Sample, Score, equal_rewards
from vime_core.plugin import raised, short
from vime_core.rollout.calls import CallPool
from vime_core.rollout.read_only import read_only_group

Filter = Callable[[Group], "bool | tuple[bool, str]"]
#: seconds that a filter may take for one group
_DEADLINE = 60.0


class FilterError(Exception):
    """The filter raised, or took too long; the group is lost, the run goes on."""


class GroupFilter:
    """Calls one filter, a group at a time, in a thread of its own.

    Args:
        name: for messages; by default the function's.
    """

    def __init__(self, function: Filter, name: str = "", deadline: float = _DEADLINE) -> None:
        own = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
        self._function, self._who = function, f"filter {name or own}"
        self._pool = CallPool(1, deadline, self._who)

    async def __call__(self, group: Group) -> tuple[bool, str]:
        """(keep, reason).

        Raises:
            FilterError: there is no answer.
            PluginError: the answer is none: to drop every group for a forgotten return would look like a reward that
                tells nothing apart.
        """
        (answer,) = await self._pool.map(self._function, [read_only_group(group)])
        if isinstance(answer, BaseException):
            raise FilterError(f"filter raised {type(answer).__name__}: {self._who}: {raised(self._who, answer)}")
        return self._verdict(answer)

    def close(self) -> None:
        self._pool.close()

    def _verdict(self, answer: Any) -> tuple[bool, str]:
        kept, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
        if type(kept).__name__ not in ("bool", "bool_") or not isinstance(reason, str):
            raise PluginError(f"{self._who} returned {short(answer)}: it must return True or False, or (keep, reason)")
        return bool(kept), reason


def check_reward_nonzero_std(group: Group) -> tuple[bool, str]:
    """Keep the group if its rewards differ; else nothing can be learned by comparing them."""
    values = reward_values(group.samples)
    if values and not equal_rewards(min(values), max(values)):
        return True, ""
    return False, f"zero_std_{round(values[0], 1)}" if values else "no_reward"


def reward_values(samples: Sequence[Sample]) -> list[float]:
    """Values of those samples that have a score."""
    return [sample.reward.value for sample in samples if isinstance(sample.reward, Score)]
