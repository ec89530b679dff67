from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from vime_cli.documents import metrics as document

from vime_core.observe.catalog import axis_of, find, known, metrics, unknown

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"


def test_the_page_is_what_the_catalogue_says():
    assert PAGE.read_text(encoding="utf-8") == document.render(), "run `python -m vime_cli.documents.metrics`"


def test_the_module_writes_the_page(tmp_path):
    page = tmp_path / "metrics.md"
    subprocess.run([sys.executable, "-m", "vime_cli.documents.metrics", str(page)], check=True)
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
        ("eval/addition-pass@16", "eval/<name>-pass@<k>"),
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
    assert axis_of("train/loss") == "train/step"
    assert axis_of("eval/addition") == "eval/step"
    assert {axis_of(name) for name in ("rollout/raw_reward", "perf/step_time", "sync/version")} == {"rollout/step"}
    for metric in metrics():
        assert metric.axis in {"rollout/step", "train/step", "eval/step"}
        assert known(metric.axis)


def test_every_kind_of_mean_is_one_of_a_few():
    kinds = {
        "token mean",
        "sample mean",
        "group mean",
        "weighted sum",
        "count",
        "maximum",
        "minimum",
        "median",
        "value",
    }
    assert {metric.mean for metric in metrics()} <= kinds


def names_in(source):
    """Metric names that stand in a source text; a value in an f-string counts as some word."""
    nodes = list(ast.walk(ast.parse(source)))
    pieces = {id(piece) for node in nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in nodes:
        if id(node) in pieces:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if re.fullmatch(r"(rollout|train|perf|sync|eval)/[a-z][\w/@{}-]*[\w}]", text):
            yield text.replace("{}", "word")


def test_every_metric_name_in_the_source_is_known():
    files = [p for p in (ROOT / "vime_core").rglob("*.py") if "observe" not in p.parts]
    found = {name: path for path in files for name in names_in(path.read_text(encoding="utf-8"))}
    assert len(found) > 10
    assert {name: str(found[name]) for name in unknown(found)} == {}


def test_names_in_a_source():
    source = 'a = "train/loss"; b = f"rollout/zero_std/count_{x:g}"; c = "see train/loss"; d = f"train/{x}"'
    assert sorted(names_in(source)) == ["rollout/zero_std/count_word", "train/loss"]
