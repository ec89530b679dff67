from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from tests.rollout.grading_table import ALONE, TABLE
from vime_core.api.errors import RewardError
from vime_core.api.reward import Unscored
from vime_core.api.sample import Sample
from vime_core.config.sections import RolloutSection
from vime_core.rollout.rewards import exact
from vime_core.rollout.rewards.answers import final_answer, last_boxed
from vime_core.rollout.rewards.math import MathReward
from vime_core.rollout.rewards.math_process import MathPool
from vime_core.rollout.rewards.quantity import read_quantity
from vime_core.rollout.rewards.reasoning_gym import ReasoningGymReward
from vime_core.rollout.scoring import Scorer


def sample(response, label=None, metadata=None):
    return Sample(0, 0, 0, 0, "p", [1], label=label, response=response, metadata=metadata or {}, source="f.jsonl:3")


def test_exact():
    assert exact.score(sample(" 102\n", "102")) == 1.0
    assert exact.score(sample("102", 102)) == 1.0
    assert exact.score(sample("1020", "102")) == 0.0
    assert exact.score(sample("", "102")) == 0.0
    assert isinstance(exact.score(sample("102")), Unscored)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{1} or rather \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x^{2}+{y}}.", "x^{2}+{y}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"open \boxed{1", None),
        ("work... #### 1,234", "1,234"),
        ("work\n#### 1,234 ", "1,234"),
        ("#### Result\nnothing", None),
        ("first 3 then 4.50 apples", "4.50"),
        ("it is -7.", "-7"),
        ("7-5", "5"),
        ("at (1, 2)", "(1, 2)"),
        ("a 2nd x1", None),
        ("no number", None),
        ("", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_an_open_box_is_an_answer_where_that_is_asked_for():
    assert final_answer(r"open \boxed{\frac12", unclosed_box=True) == r"\frac12"
    reward = MathReward(symbolic=False, unclosed_box=True)
    assert reward(sample(r"open \boxed{12", "12")) == 1.0


def test_boxes_are_linear_in_hostile_text():
    assert last_boxed("\\boxed{" * 50_000) is None
    assert last_boxed("\\boxed{a}" + "{" * 100_000) == "a"
    assert final_answer("#### " * 20_000 + "1 " * 20_000) == "1"
    assert final_answer("<think>" * 50_000) is None
    assert final_answer("(1, " * 20_000) == "1"
    assert final_answer("1,000" * 20_000) is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3.50", Fraction(-7, 2)),
        ("+.5", Fraction(1, 2)),
        ("1/3", Fraction(1, 3)),
        (r"-\frac{1}{4}", Fraction(-1, 4)),
        ("2^{-3}", Fraction(1, 8)),
        ("1/0", None),
        ("", None),
        (".", None),
        ("9**9**9", None),
        ("9^{9999}", None),
        ("1e999999999", None),
        ("9" * 400, None),
    ],
)
def test_numbers_are_exact_and_bounded(text, value):
    found = read_quantity(text)
    assert (found and found.value) == value


@pytest.fixture(scope="module")
def math() -> Iterator[MathReward]:
    pytest.importorskip("math_verify")
    reward = MathReward(deadline=2.0)
    yield reward
    reward.close()


@pytest.mark.parametrize(("label", "response", "right"), TABLE)
def test_every_answer_of_the_table(math, label, response, right):
    verdict = math(sample(response, label))
    assert (None if isinstance(verdict, Unscored) else verdict) == right


def test_where_math_verify_alone_differs_is_said_in_the_table():
    pytest.importorskip("math_verify")
    from math_verify import parse, verify

    assert len(TABLE) >= 150
    differing = set()
    for label, response, right in TABLE:
        if right is None or "9^{9" in response:
            continue
        gold = f"${label}$" if "\\" in str(label) else str(label)
        if verify(parse(gold), parse(response)) != bool(right):
            differing.add(response)
    assert differing == {response for responses in ALONE.values() for response in responses}


def test_what_needs_math_verify_is_unscored_without_it():
    verdict = MathReward(symbolic=False)(sample(r"\boxed{x(x+1)}", "x^2+x"))
    assert isinstance(verdict, Unscored)
    assert "pip install 'vime-core[math]'" in verdict.reason
    assert MathReward(symbolic=False)(sample(r"\boxed{1/2}", "0.5")) == 1.0


def test_units_count_where_that_is_asked_for():
    reward = MathReward(symbolic=False, units="required")
    assert reward(sample(r"\boxed{12}", r"12\text{ cm}")) == 0.0
    assert reward(sample(r"\boxed{12 cm}", r"12\text{ cm}")) == 1.0
    with pytest.raises(RewardError, match="units is 'optional' or 'required', not 'some'"):
        MathReward(units="some")


def test_a_label_that_is_no_answer_is_said(math):
    assert isinstance(math(sample("1")), Unscored)
    verdict = math(sample("5", r"\frac{"))
    assert verdict.reason.startswith("the label is not an answer: reward math cannot read ")
    assert "f.jsonl:3" in verdict.reason


def test_text_is_never_run(math, tmp_path: Path):
    proof = tmp_path / "ran"
    hostile = f"__import__('pathlib').Path('{proof}').touch()"
    assert math(sample(rf"\boxed{{{hostile}}}", "x^2+x")) == 0.0
    math(sample(r"\boxed{1}", hostile))
    assert math(sample(r"\boxed{" + "9" * 400 + "}", "x")) == 0.0
    assert not proof.exists()


def test_hostile_answers_among_right_ones_hold_up_no_one():
    """8 of 32 cannot be compared in time, by two processes: the deadline is an answer's own, and waiting costs none."""
    pytest.importorskip("math_verify")
    hostile = (r"\boxed{(x+1)^{10^6}-x}", "x^2")
    answers = [hostile if n % 4 == 0 else (rf"\boxed{{x(x+{n})}}", f"x^2+{n}x") for n in range(32)]
    samples = [sample(response, label) for response, label in answers]
    scorer = Scorer(MathReward(deadline=3.0, processes=2), "math", RolloutSection(reward_timeout_secs=30.0))
    try:
        asyncio.run(scorer.score(samples))
    finally:
        scorer.close()
    unscored = [n for n, one in enumerate(samples) if isinstance(one.reward, Unscored)]
    assert unscored == list(range(0, 32, 4))
    assert [one.reward.value for n, one in enumerate(samples) if n % 4] == [1.0] * 24


def test_a_comparison_that_never_ends_is_ended_and_the_next_one_works():
    pytest.importorskip("math_verify")
    pool = MathPool(1, deadline=1.0)
    try:
        verdict = pool.equal("x^2", "(x+1)^{10^6}-x")
        assert isinstance(verdict, Unscored)
        assert "did not compare the answer in 1 s" in verdict.reason
        assert pool.equal("x^2", "x^2") == 1.0
        assert pool.equal("1", "2") == 0.0
    finally:
        pool.close()


def test_reasoning_gym_scores_with_the_tasks_own_scorer():
    gym = pytest.importorskip("reasoning_gym")
    entry = gym.create_dataset("basic_arithmetic", size=1, seed=1)[0]
    reward = ReasoningGymReward()
    metadata = {"dataset": "basic_arithmetic", "entry": entry}
    assert (
        reward(sample(f"thinking <answer>9</answer> no <answer> {entry['answer']} </answer>", metadata=metadata)) == 1
    )
    assert reward(sample(entry["answer"] + "\n", metadata=metadata)) == 1.0
    assert reward(sample("", metadata=metadata)) < 0.1
    assert ReasoningGymReward(bare=False)(sample(entry["answer"], metadata=metadata)) < 0.1
    missing = reward(sample("1"))
    assert isinstance(missing, Unscored)
    assert "f.jsonl:3" in missing.reason


def test_nothing_heavy_is_imported_before_a_reward_is_made():
    import subprocess

    code = (
        "from vime_core.rollout.rewards import exact, math, reasoning_gym; import sys; "
        "assert not {'math_verify', 'sympy', 'reasoning_gym', 'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
