"""Rewards for samples. Functions may be plain or async, of one sample or (declared by ``--group-rm``) of a group; each
call has a deadline; whatever goes wrong leaves the sample unscored, with a reason that names the reward.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from vime_core.api import RewardError, Sample, Score, Unscored, Verdict
from vime_core.config import RolloutSection
from vime_core.plugin import BLAMABLE, make, raised, short
from vime_core.rollout.calls import CallPool, Refused
from vime_core.rollout.read_only import read_only
from vime_core.runtime import warn

#: advantages are float32: beside a larger reward every other one of the group would be the same
LARGEST = 1e30


class Scorer:
    """Calls one reward.

    Args:
        reward: a function of a sample, an object with ``score_group``, or a class of either, which is made with
            ``reward_kwargs``. Its ``concurrency``, where it has one, bounds the calls at a time.
        name: for messages.
        rollout: says whether the reward judges whole groups (``group_rm``), the part to train on of a reward with
            several (``reward_key``), and timeout and concurrency of calls.

    Raises:
        RewardError: the reward cannot be called the way it will be.
    """

    def __init__(self, reward: Any, name: str, rollout: RolloutSection) -> None:
        self.name, self._group, self._key = name, rollout.group_rm, rollout.reward_key
        self._timeout = rollout.reward_timeout_secs
        self._reward = _made(reward, name, rollout.reward_kwargs)
        # a reward that says how many calls it takes at a time is not given more: none spends its time waiting
        own = getattr(self._reward, "concurrency", sys.maxsize)
        if type(own) is not int or own < 1:
            raise RewardError(f"reward {name}: its concurrency is {short(own)}; it must be a count of at least 1")
        self._concurrency = min(rollout.reward_concurrency, own)
        self._function = _callable_of(self._reward, name, self._group)
        self._file = _file_of(self._function)
        self._is_async = _is_async(self._function)
        self._pool = CallPool(self._concurrency, self._timeout, f"reward {name}")
        self._turns: tuple[Any, asyncio.Semaphore] = (None, asyncio.Semaphore(self._concurrency))

    async def score(self, samples: Sequence[Sample]) -> None:
        """Set ``reward`` of each sample of one group. Never raises for what a reward does."""
        seen = [read_only(sample) for sample in samples]
        answers = await self._ask([seen] if self._group else seen)
        verdicts = self._spread(answers[0], samples) if self._group else [self._judge(a) for a in answers]
        for sample, verdict in zip(samples, verdicts, strict=True):
            sample.reward = verdict
            if isinstance(verdict, Unscored) and not verdict.reason.startswith("raised "):  # which is warned of already
                what = verdict.reason.partition(":")[0]
                warn(f"unscored by {self.name}: {what}", f"{sample.name} has no score: {verdict.reason}")

    def close(self) -> None:
        self._pool.close()
        close = getattr(self._reward, "close", None)
        try:
            if callable(close):
                close()
        except BLAMABLE as error:  # the run is over, and its results are worth more
            raised(f"reward {self.name}: close", error)

    async def _ask(self, arguments: list[Any]) -> list[Any]:
        if self._is_async:
            return list(await asyncio.gather(*(self._awaited(self._function, argument) for argument in arguments)))
        answers = await self._pool.map(self._function, arguments)
        for index, answer in enumerate(answers):
            if inspect.isawaitable(answer):  # a plain function that hands out a coroutine
                answers[index] = await self._awaited(_itself, answer)
        return answers

    async def _awaited(self, function: Callable[[Any], Any], argument: Any) -> Any:
        async with self._turn():
            try:
                return await asyncio.wait_for(_leaving(function, argument), self._timeout)
            except TimeoutError as error:
                return error if error.args else TimeoutError(f"no result in {self._timeout:g} s")
            except Exception as error:
                return error

    def _turn(self) -> asyncio.Semaphore:
        """The semaphore of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._turns[0] is not loop:
            self._turns = (loop, asyncio.Semaphore(self._concurrency))
        return self._turns[1]

    def _judge(self, answer: Any) -> Verdict:
        if isinstance(answer, TimeoutError) and str(answer).startswith("no result in"):
            return Unscored(f"timeout: reward {self.name} gave {answer} (--reward-timeout-secs)")
        if isinstance(answer, Refused):
            return Unscored(f"refused: {answer}")
        if isinstance(answer, BaseException):
            line = raised(f"reward {self.name}", answer, self._file)
            return Unscored(f"raised {type(answer).__name__}: reward {self.name}: {line}")
        return judge(answer, self.name, self._key)

    def _spread(self, answer: Any, samples: Sequence[Sample]) -> list[Verdict]:
        """One answer for the group -> one verdict a sample. A list of another length judges nobody."""
        if isinstance(answer, BaseException):
            return [self._judge(answer)] * len(samples)
        if isinstance(answer, str) or not isinstance(answer, Sequence) or len(answer) != len(samples):
            size = f" of {len(answer)}" if isinstance(answer, Sequence) else ""
            got = f"{type(answer).__name__}{size} for {len(samples)} samples"
            return [Unscored(f"not a list of the group's length: reward {self.name} returned {got}")] * len(samples)
        return [self._judge(one) for one in answer]


def _made(reward: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    if not inspect.isclass(reward):
        if arguments:
            raise RewardError(f"reward {name}: --reward-kwargs are for a class, this is a {type(reward).__name__}")
        return reward
    try:
        inspect.signature(reward).bind(**arguments)
    except TypeError as error:
        raise RewardError(
            f"reward {name}: {reward.__name__}{inspect.signature(reward)} cannot be made with --reward-kwargs "
            f"{dict(arguments)}: {error}"
        ) from error
    return make(f"reward {name}", lambda: reward(**arguments))


def _callable_of(reward: Any, name: str, group: bool) -> Callable[[Any], Any]:
    function = getattr(reward, "score_group", None) if group else reward
    if group and not callable(function):
        raise RewardError(f"reward {name}: --group-rm needs an object with score_group(samples)")
    if not callable(function):
        hint = "; it has score_group: set --group-rm" if hasattr(reward, "score_group") else ""
        raise RewardError(f"reward {name}: {type(reward).__name__} cannot be called with a sample{hint}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature: only a call can tell
        return function
    try:
        signature.bind(object())
    except TypeError as error:
        raise RewardError(
            f"reward {name}: its signature is {signature}, it is called with one argument "
            f"({'the samples of a group' if group else 'a sample'}): {error}"
        ) from error
    return function


async def _leaving(function: Callable[[Any], Any], argument: Any) -> Any:
    """sys.exit ends the call, and not the event loop that its task belongs to."""
    try:
        return await function(argument)
    except SystemExit as error:
        return error


def _itself(waiting: Any) -> Any:
    return waiting


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _file_of(function: Callable[..., Any]) -> str | None:
    """The file whose line a message should name, if the function is written in Python."""
    own = inspect.unwrap(function)
    code = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
    return getattr(code, "co_filename", None)


def judge(value: Any, name: str, key: str | None) -> Verdict:
    """What a reward returned, as a score or as the reason why there is none. A zero is never made up.

    Args:
    value: as returned: a number, a Score, an Unscored, or parts by name.
    name: of the reward, for the reason.
    key: the part to train on (``--reward-key``).
    """
    if isinstance(value, Unscored):
        return value
    if isinstance(value, Score):
        return _of_parts(value.parts, name, key) if key is not None else _number(value.value, value.parts, name)
    if isinstance(value, Mapping):
        return _of_parts(value, name, key)
    return _number(value, {}, name)


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python has it; a bool is a number here."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _of_parts(parts: Mapping[Any, Any], name: str, key: str | None) -> Verdict:
    if key is None:
        return Unscored(f"no reward key: reward {name} returned parts {short(dict(parts))}; --reward-key chooses one")
    if key not in parts:
        return Unscored(f"no part {key}: reward {name} returned parts {', '.join(map(str, parts)) or '(none)'}")
    return _number(parts[key], parts, name)


def _number(value: Any, parts: Mapping[Any, Any], name: str) -> Verdict:
    value, parts = _plain(value), {part: _plain(x) for part, x in parts.items()}
    strange = [part for part, x in parts.items() if not isinstance(x, Real)]
    if not isinstance(value, Real):
        return Unscored(f"not a number: reward {name} returned {short(value)}")
    number = _float(value)
    if not math.isfinite(number):
        return Unscored(f"not finite: reward {name} returned {number}")
    if abs(number) > LARGEST:
        return Unscored(f"too large: reward {name} returned {number}; float32 needs at most {LARGEST:g}")
    if strange:
        return Unscored(f"not a number: reward {name} returned part {strange[0]!r} = {short(parts[strange[0]])}")
    return Score(number, {str(part): _float(x) for part, x in parts.items()})


def _float(value: Any) -> float:
    """Infinite where an integer is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
