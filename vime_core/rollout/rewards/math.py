"""Mathematical answers: the answer of the response against the label's.

Compared in this order: the same text; numbers with units, exactly; lists part by part; words; what is left goes to
math-verify, which parses both as LaTeX (never as code) in processes of their own, each comparison with a deadline.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from vime_core.api import RewardError, Sample, Unscored
from vime_core.rollout.rewards.answers import final_answer, gold_answer
from vime_core.rollout.rewards.math_process import MathPool
from vime_core.rollout.rewards.quantity import Quantity, read_quantity, same_float
from vime_core.rollout.rewards.values import Items, Word, assigned, read_value

#: longer answers are no answers; also bounds what a parser is given
_LONGEST = 300
#: parts of parts of a list that are looked into
_DEPTH = 3


class MathReward:
    """1.0 for the right answer, else 0.0. Registered as "math".

    A label that is no answer, and an answer that could not be compared in time, leave the sample unscored.

    Args:
        deadline: seconds for one comparison by math-verify, from when a process begins with it.
        processes: that compare at a time; by default as many as there are processors, at most 4.
        symbolic: compare by math-verify what cannot be compared without.
        units: "optional": a unit that only one side has does not count; "required": it does.
        unclosed_box: a box that the end of the response cut off holds an answer.

    Raises:
        RewardError: ``units`` is neither.
    """

    def __init__(
        self,
        deadline: float = 3.0,
        processes: int | None = None,
        symbolic: bool = True,
        units: str = "optional",
        unclosed_box: bool = False,
    ) -> None:
        if units not in ("optional", "required"):
            raise RewardError(f"reward math: units is 'optional' or 'required', not {units!r}")
        #: calls at a time: one more would only wait for a process
        self.concurrency = processes or max(1, min(4, os.cpu_count() or 1))
        self._bare, self._unclosed = units == "optional", unclosed_box
        self._pool = MathPool(self.concurrency, deadline) if symbolic and find_spec("math_verify") else None

    def __call__(self, sample: Sample) -> float | Unscored:
        if sample.label is None:
            return Unscored("no label: reward math compares with it; --label-key names its key")
        gold = gold_answer(sample.label)
        if not gold or len(gold) > _LONGEST:
            return _no_answer(gold or str(sample.label), sample)
        answer = final_answer(sample.response, self._unclosed)
        if answer is None or not answer.strip() or len(answer) > _LONGEST:
            return 0.0
        if isinstance(sample.label, float):
            found = read_quantity(assigned(answer))
            return float(found is not None and _is_label(sample.label, found))
        verdict = self._equal(gold, answer)
        return _no_answer(gold, sample) if verdict is None else verdict

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _equal(self, gold: str, answer: str, depth: int = 0) -> float | Unscored | None:
        """None: ``gold`` cannot be read."""
        if ("=" in gold) != ("=" in answer) or "\\in" in gold + answer:
            gold, answer = assigned(gold), assigned(answer)
        mine, theirs = read_value(gold), read_value(answer)
        if mine is not None and gold.strip() == answer.strip():
            return 1.0
        if isinstance(mine, Items) and isinstance(theirs, Items) and depth < _DEPTH:
            return self._same_items(mine, theirs, depth)
        if isinstance(mine, Quantity) and isinstance(theirs, Quantity):
            return float(mine.equals(theirs, bare=self._bare))
        if mine is not None and theirs is not None:
            return float(mine == theirs if isinstance(mine, Word) else False)
        return self._compared(gold, answer)

    def _same_items(self, mine: Items, theirs: Items, depth: int) -> float | Unscored | None:
        if mine.brackets != theirs.brackets or len(mine.parts) != len(theirs.parts):
            return 0.0
        left = list(theirs.parts)
        for part in mine.parts:
            for other in left[:1] if mine.brackets else list(left):
                same = self._equal(part, other, depth + 1)
                if not isinstance(same, float):
                    return same
                if same:
                    left.remove(other)
                    break
            else:
                return 0.0
        return 1.0

    def _compared(self, gold: str, answer: str) -> float | Unscored | None:
        if self._pool is None:
            return Unscored(
                "not compared: reward math: only math-verify can compare these answers; pip install 'vime-core[math]'"
            )
        return self._pool.equal(gold, answer)


def _is_label(label: float, found: Quantity) -> bool:
    number = found.value / 100 if found.unit == "%" else found.value
    return same_float(label, number) or (found.unit == "%" and abs(label) > 1 and same_float(label, found.value))


def _no_answer(gold: str, sample: Sample) -> Unscored:
    return Unscored(f"the label is not an answer: reward math cannot read {gold[:60]!r} ({sample.source})")
