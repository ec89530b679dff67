from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest

from vime_core.api.reward import Unscored
from vime_core.api.sample import Sample
from vime_core.rollout.rewards import exact
from vime_core.rollout.rewards.answers import final_answer, last_boxed, normal_form, number
from vime_core.rollout.rewards.math import MathReward
from vime_core.rollout.rewards.math_process import MathProcess
from vime_core.rollout.rewards.reasoning_gym import ReasoningGymReward


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
        (r"open \boxed{1", "1"),
        ("work... #### 1,234", "1,234"),
        ("first 3 then 4.50 apples", "4.50"),
        ("it is -7.", "-7"),
        ("no number", None),
        ("", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_boxes_are_linear_in_hostile_text():
    assert last_boxed("\\boxed{" * 50_000) is None
    assert last_boxed("\\boxed{a}" + "{" * 100_000) == "a"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3.50", Fraction(-7, 2)),
        ("+.5", Fraction(1, 2)),
        ("1/3", Fraction(1, 3)),
        (r"-\frac{1}{4}", Fraction(-1, 4)),
        ("1/0", None),
        ("", None),
        (".", None),
        ("9**9**9", None),
        ("1e999999999", None),
        ("9" * 400, None),
    ],
)
def test_numbers_are_exact_and_bounded(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("label", "response", "right"),
    [
        ("1234", "The answer is 1,234.", 1),
        ("0.5", r"\boxed{\frac12}", 1),
        ("0.5", r"\boxed{1/2}", 1),
        (r"\frac{3}{4}", r"\boxed{\dfrac{3}{4}}", 1),
        ("12", r"\boxed{\text{12}}", 1),
        ("50", r"\boxed{50\%}", 1),
        ("12", r"\boxed{x=12}", 1),
        (42, "I think 41 no 42", 1),
        ("she has 5 #### 5", "#### 5", 1),
        ("42", "42 or 43", 0),
        ("0.1", r"\boxed{0.10000000000000001}", 0),
        ("12", "", 0),
        ("12", r"\boxed{}", 0),
    ],
)
def test_math_without_symbols(label, response, right):
    assert MathReward(symbolic=False)(sample(response, label)) == float(right)


def test_math_without_a_label():
    assert isinstance(MathReward(symbolic=False)(sample("1")), Unscored)


def test_math_verify_compares_symbols_and_never_runs_text(tmp_path: Path):
    pytest.importorskip("math_verify")
    proof = tmp_path / "ran"
    hostile = f"__import__('pathlib').Path('{proof}').touch()"
    reward = MathReward(deadline=60.0)
    try:
        assert reward(sample(r"\boxed{x(x+1)}", "x^2+x")) == 1.0
        assert reward(sample(r"\boxed{x(x+2)}", "x^2+x")) == 0.0
        assert reward(sample(rf"\boxed{{{hostile}}}", "x^2+x")) == 0.0
        assert reward(sample(r"\boxed{1}", hostile)) == 0.0
        assert reward(sample(r"\boxed{" + "9" * 400 + "}", "x")) == 0.0
    finally:
        reward.close()
    assert not proof.exists()


def test_comparison_that_never_ends_is_ended_and_the_next_one_works():
    pytest.importorskip("math_verify")
    process = MathProcess(deadline=3.0)
    try:
        assert process.equal("1", "9^{9^{9}}") is None
        assert process.equal("x^2", "x^2") is True
        assert process.equal("1", "2") is False
    finally:
        process.close()


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


def test_normal_form():
    assert normal_form(r"\left( 1,234 \right)") == "(1234)"
    assert normal_form("(1, 2)") == "(1,2)"
