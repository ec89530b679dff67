"""What a reward must do on answers whose worth is known: judge right above wrong, and never break on odd ones."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.api import RewardError, Score, Unscored, Verdict
from vime_testing.suite import Suite, must, skip

if TYPE_CHECKING:
    from vime_core.api import Sample


@dataclass(frozen=True)
class Example:
    """A prompt with an answer that is right and some that are wrong."""

    right: str
    label: Any = None
    wrong: Sequence[str] = ("",)
    prompt: Any = "2+2="
    metadata: Mapping[str, Any] = field(default_factory=dict)


class RewardSuite(Suite):
    """Give ``examples``. The reward is called as a run calls it, with a deadline.

    Attributes:
        examples: answers whose worth is known.
        key: part to look at, where the reward returns parts by name (``--reward-key``).
        deterministic: the same answer gets the same score every time.
        deadline: seconds a call may take.
    """

    kind = "rewards"
    examples: ClassVar[Sequence[Example]] = ()
    key: ClassVar[str | None] = None
    deterministic: ClassVar[bool] = True
    deadline: ClassVar[float] = 30.0

    def make(self) -> Any:
        """The reward: a function of a sample, an object with ``score_group``, or a class of either."""
        return self.resolve()

    # the tests -----------------------------------------------------------------------------------------------
    def test_the_right_answer_scores_best(self) -> None:
        for example in self._examples():
            for wrong in example.wrong:
                best, other = self._values(example, [example.right, wrong])
                must(
                    best > other,
                    f"the right answer {example.right!r} scores {best:g}, the wrong answer {wrong!r} scores {other:g}; "
                    "the right one must score higher",
                )

    def test_odd_answers_are_judged_not_raised_on(self) -> None:
        for example in self._examples():
            half = example.right[: len(example.right) // 2]
            for odd in ("", " \n", half, "\\boxed{", "\u2028\ud7ff\U0001f600", "9" * 5000):
                (verdict,) = self._judge(example, [odd])
                raised = isinstance(verdict, Unscored) and verdict.reason.startswith("raised ")
                must(
                    not raised,
                    f"on the answer {odd[:20]!r}: {getattr(verdict, 'reason', '')}; catch it and return a score, or "
                    "Unscored(reason) where the answer cannot be judged",
                )

    def test_scores_are_finite_numbers(self) -> None:
        for example in self._examples():
            self._values(example, [example.right, *example.wrong])

    def test_a_batch_scores_like_its_answers_alone(self) -> None:
        for example in self._examples():
            answers = [example.right, *example.wrong, example.right]
            together = self._values(example, answers)
            alone = together
            if not self._judges_groups():
                alone = [self._values(example, [answer])[0] for answer in answers]
            must(
                together == alone,
                f"scored together {answers!r} get {together}, one by one {alone}; a call must not depend on others "
                "(no state between calls, no shared buffer)",
            )

    def test_the_same_answer_gets_the_same_score(self) -> None:
        if not self.deterministic:
            skip("deterministic = False")
        for example in self._examples():
            first, second = (self._values(example, [example.right, *example.wrong]) for _ in range(2))
            must(
                first == second,
                f"the same answers got {first} and then {second}; set deterministic = False if that is meant",
            )

    def test_the_sample_is_only_read(self) -> None:
        for example in self._examples():
            sample = self._sample(example, example.right, 0)
            before = copy.deepcopy(sample)
            self._score([sample])
            sample.reward = None
            changed = [f.name for f in dataclasses.fields(sample) if _shown(sample, f.name) != _shown(before, f.name)]
            must(not changed, f"the reward wrote to the sample's {', '.join(changed)}; work on a copy")

    # how it is called ----------------------------------------------------------------------------------------
    def _examples(self) -> Sequence[Example]:
        given = self.examples or getattr(self.resolve() if self.target is not None else None, "examples", ())
        if not given:
            skip("no examples: subclass RewardSuite and give examples = (Example(right=..., label=..., wrong=[...]),)")
        return tuple(given)

    def _judges_groups(self) -> bool:
        made = self.make()
        return callable(getattr(made, "score_group", None)) and not (callable(made) and not isinstance(made, type))

    def _sample(self, example: Example, answer: str, index: int) -> Sample:
        from vime_testing.samples import make_sample

        return make_sample(
            example.prompt, label=example.label, response=answer, metadata=example.metadata, rollout=index
        )

    def _score(self, samples: list[Sample]) -> list[Verdict]:
        from vime_core.config import RolloutSection
        from vime_core.rollout import Scorer

        name = str(self.target) if isinstance(self.target, str) else type(self).__name__
        try:
            rollout = RolloutSection(
                group_rm=self._judges_groups(),
                reward_key=self.key,
                reward_timeout_secs=self.deadline,
                reward_concurrency=4,
            )
            scorer = Scorer(self.make(), name, rollout)
        except RewardError as error:
            if "pip install" in str(error):
                skip(str(error))
            raise
        try:
            asyncio.run(scorer.score(samples))
        finally:
            scorer.close()
        return [sample.reward for sample in samples if sample.reward is not None]

    def _judge(self, example: Example, answers: Sequence[str]) -> list[Verdict]:
        return self._score([self._sample(example, answer, i) for i, answer in enumerate(answers)])

    def _values(self, example: Example, answers: Sequence[str]) -> list[float]:
        verdicts = self._judge(example, answers)
        for answer, verdict in zip(answers, verdicts, strict=True):
            must(
                isinstance(verdict, Score),
                f"the answer {answer!r} got no score: {getattr(verdict, 'reason', verdict)}; return a finite number",
            )
        return [verdict.value for verdict in verdicts if isinstance(verdict, Score)]


def _shown(sample: Sample, field_name: str) -> str:
    return repr(getattr(sample, field_name))  # NaN is not equal to itself, its text is
