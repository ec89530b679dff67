"""Mathematical answers: the last boxed answer (or last number) of the response against the label.

Numbers are compared exactly, other answers by their normal form. Where that does not settle it and math-verify is
installed, a process of its own parses both as LaTeX (never as code) and compares them; it is ended at a deadline.
"""

from __future__ import annotations

from importlib.util import find_spec

from vime_core.api import Sample, Unscored
from vime_core.rollout.rewards.answers import final_answer, gold_answer, normal_form, number
from vime_core.rollout.rewards.math_process import MathProcess

#: longer answers are no answers; also bounds what a parser is given
_LONGEST = 300


class MathReward:
    """1.0 for the right answer, else 0.0. Registered as "math".

    Args:
        deadline: seconds for one comparison by math-verify.
        symbolic: use math-verify where it is installed.
    """

    def __init__(self, deadline: float = 10.0, symbolic: bool = True) -> None:
        self._process = MathProcess(deadline) if symbolic and find_spec("math_verify") else None

    def __call__(self, sample: Sample) -> float | Unscored:
        if sample.label is None:
            return Unscored("no label: reward math compares with it; --label-key names its key")
        answer = final_answer(sample.response)
        if answer is None or len(answer) > _LONGEST:
            return 0.0
        return self._compare(normal_form(gold_answer(sample.label)), normal_form(answer))

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _compare(self, gold: str, answer: str) -> float | Unscored:
        if gold == answer:
            return 1.0
        gold_number, answer_number = number(gold), number(answer)
        if gold_number is not None and answer_number is not None:
            return float(gold_number == answer_number)
        if self._process is None or not answer:
            return 0.0
        equal = self._process.equal(gold, answer)
        if equal is None:
            return Unscored("timeout: reward math: math-verify did not compare the answer in time")
        return float(equal)
