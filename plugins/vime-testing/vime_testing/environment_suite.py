"""What an environment must do: start from metadata, answer every action, end, and share nothing with its neighbours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vime_core.api import Environment, Observation
from vime_testing.suite import Suite, must, skip

#: what a model may say
_ODD = ("", "   ", "\u2028\U0001f600", "{'a': [", "<tool>", "x" * 20000)


class EnvironmentSuite(Suite):
    """Give ``metadata`` and ``actions``: a start, and actions of which the last one ends the episode.

    Attributes:
        metadata: of a sample, as ``reset`` gets it. None tries an empty one.
        actions: a whole episode.
        deterministic: the same metadata and actions give the same observations.
    """

    kind = "environments"
    metadata: ClassVar[Mapping[str, Any] | None] = None
    actions: ClassVar[Sequence[str]] = ()
    deterministic: ClassVar[bool] = True
    deadline: ClassVar[float] = 30.0

    def make(self) -> Environment:
        """A new environment, as a rollout makes one for each sample."""
        made: Environment = self.resolve()()
        return made

    # the tests -----------------------------------------------------------------------------------------------
    def test_reset_says_something(self) -> None:
        (first,) = self._run_episode([])
        must(first.text.strip(), "reset returned an observation without text; the model needs to be told what to do")
        must(not first.done, "reset returned an observation that is done; an episode has at least one action")

    def test_the_actions_end_the_episode_at_their_last(self) -> None:
        if not self.actions:
            skip("no actions: give actions = (...), of which the last one ends the episode")
        done = [observation.done for observation in self._run_episode(self.actions)[1:]]
        must(
            done == [False] * (len(done) - 1) + [True],
            f"done after each of the actions is {done}; only the last action may end the episode, and must",
        )

    def test_every_action_is_answered(self) -> None:
        self._run_episode([])  # skips where there is nothing to start from
        for action in _ODD:
            try:
                self._run_episode([action])
            except Exception as error:
                raise AssertionError(
                    f"the action {action[:20]!r} raised {type(error).__name__}: {error}; answer it with an "
                    "observation: a model says anything"
                ) from error

    def test_the_same_actions_get_the_same_answers(self) -> None:
        if not self.deterministic:
            skip("deterministic = False")
        first, second = (self._run_episode(self.actions or _ODD[:1]) for _ in range(2))
        must(
            first == second,
            f"two episodes from the same metadata differ: {_difference(first, second)}; draw randomness from the "
            "metadata's seed, or set deterministic = False",
        )

    def test_episodes_side_by_side_do_not_mix(self) -> None:
        if not self.deterministic:
            skip("deterministic = False")
        actions = self.actions or _ODD[:1]
        alone = self._run_episode(actions)
        both = self._run(self._side_by_side(actions))
        for played in both:
            must(
                played == alone,
                f"an episode beside another one differs from one alone: {_difference(alone, played)}; keep the state "
                "in the object, not in the class or module",
            )

    def test_reset_starts_afresh(self) -> None:
        if not self.deterministic:
            skip("deterministic = False")
        actions = self.actions or _ODD[:1]
        first, second = self._run(self._again(actions))
        must(first == second, f"after a second reset: {_difference(first, second)}; reset must forget the last episode")

    def test_observations_are_plain_data(self) -> None:
        for observation in self._run_episode(self.actions or _ODD[:1]):
            must(
                isinstance(observation, Observation), f"{observation!r} is not an Observation; return Observation(text)"
            )
            must(isinstance(observation.text, str), f"text is {type(observation.text).__name__}; it must be a str")
            try:
                json.dumps(dict(observation.info))
            except TypeError as error:
                raise AssertionError(f"info is not plain data: {error}; it is written to the run folder") from error

    def test_close_is_harmless(self) -> None:
        async def close() -> None:
            environment = self.make()
            await environment.close()
            await environment.close()

        try:
            self._run(close())
        except Exception as error:
            raise AssertionError(
                f"close before reset, then again, raised {type(error).__name__}: {error}; it is called in every case"
            ) from error

    # how it is played ----------------------------------------------------------------------------------------
    def _run_episode(self, actions: Sequence[str]) -> list[Observation]:
        return self._run(self._episode(self.make(), actions))

    async def _episode(self, environment: Environment, actions: Sequence[str]) -> list[Observation]:
        try:
            seen = [await self._reset(environment)]
            for action in actions:
                seen.append(await environment.step(action))
            return seen
        finally:
            await environment.close()

    async def _reset(self, environment: Environment) -> Observation:
        if self.metadata is not None:
            return await environment.reset(dict(self.metadata))
        try:
            return await environment.reset({})
        except Exception as error:
            skip(f"no metadata: give metadata = {{...}}; reset({{}}) raised {type(error).__name__}: {error}")

    async def _side_by_side(self, actions: Sequence[str]) -> list[list[Observation]]:
        """Two episodes, the second one action behind."""
        first, second = self.make(), self.make()
        seen, later = [await self._reset(first)], []
        for place, action in enumerate(actions):
            seen.append(await first.step(action))
            later.append(await second.step(actions[place - 1]) if place else await self._reset(second))
        later.append(await second.step(actions[-1]))
        for environment in (first, second):
            await environment.close()
        return [seen, later]

    async def _again(self, actions: Sequence[str]) -> tuple[list[Observation], list[Observation]]:
        environment = self.make()
        runs = []
        for _ in range(2):
            runs.append([await self._reset(environment), *[await environment.step(action) for action in actions]])
        await environment.close()
        return runs[0], runs[1]

    def _run(self, work: Any) -> Any:
        return asyncio.run(asyncio.wait_for(work, self.deadline))


def _difference(first: Sequence[Observation], second: Sequence[Observation]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
    shown = [repr(seen[at]) if at < len(seen) else "nothing" for seen in (first, second)]
    return f"observation {at} is {shown[0]} and {shown[1]}"
