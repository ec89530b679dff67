from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vime_core.observe import document
from vime_core.observe.catalog import axis_of, find, known, metrics, unknown

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_what_the_catalogue_says():
    assert PAGE.read_text(encoding="utf-8") == document.render(), "run `python -m vime_core.observe.document`"


def test_the_module_writes_the_page(tmp_path):
    page = tmp_path / "metrics.md"
    subprocess.run([sys.executable, "-m", "vime_core.observe.document", str(page)], check=True)
    assert page.read_text(encoding="utf-8") == document.render()


def test_every_row_of_a_table_has_all_its_cells():
    rows = [line for line in document.render().splitlines() if line.startswith("| `")]
    assert len(rows) == len(metrics())
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


def test_names_are_unique_and_fully_described():
    names = [metric.name for metric in metrics()]
    assert len(names) == len(set(names))
    for metric in metrics():
        assert all([metric.unit, metric.meaning, metric.definition, metric.mean, metric.axis]), metric


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("train/ppo_kl", "train/ppo_kl"),
        ("train/train_rollout_logprob_abs_diff/max", "train/train_rollout_logprob_abs_diff/max"),
        ("train/lr-pg_0", "train/lr-pg_<group>"),
        ("rollout/dynamic_filter/drop_zero_std_1.0", "rollout/dynamic_filter/drop_<reason>"),
        ("rollout/reward_parts/format", "rollout/reward_parts/<part>"),
        ("eval/addition", "eval/<name>"),
        ("eval/addition-truncated_ratio", "eval/<name>-truncated_ratio"),
        ("eval/addition/response_len/mean", "eval/<name>/response_len/mean"),
        ("eval/step", "eval/step"),
    ],
)
def test_a_name_finds_its_metric(name, metric):
    found = find(name)
    assert found is not None
    assert found.name == metric


@pytest.mark.parametrize(
    "name", ["train/ppo_kI", "rollout/raw_rewards", "loss", "", "eval/", "eval/a/b", "train/lr-pg_", "perf/step_time/x"]
)
def test_a_misspelt_name_is_not_known(name):
    assert not known(name)


def test_unknown_names_come_sorted_and_once():
    assert unknown(["train/loss", "train/zz", "train/aa", "train/zz"]) == ["train/aa", "train/zz"]


def test_the_axis_follows_from_the_prefix():
    for metric in metrics():
        assert axis_of(metric.name) == metric.axis
