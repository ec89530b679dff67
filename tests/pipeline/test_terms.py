"""What the framework adds around an algorithm, from the command line: refused together, and seen in a run's figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import flags, step_rows, vime
from vime_core.api.errors import ConfigError, PluginError
from vime_core.config.resolution import resolve
from vime_core.observe.loss_inputs import read_loss_inputs
from vime_core.pipeline.checks import check_before_start
from vime_core.plugin.plugins import Plugins

Options = Callable[..., dict[str, Any]]


def check(options: dict[str, Any]) -> None:
    options |= {"reward": "exact"}
    plugins = Plugins.load(autoload=False)
    check_before_start(resolve(flags(**options), {}).stages[0].config, plugins)


def test_rules_algorithm_and_correction_are_heard_together(grpo: Options) -> None:
    options = grpo(
        eps_clip=3.0,
        correction="mis",
        correction_options='{"levle": "token"}',
        use_opd=True,
        use_kl_loss=True,
        kl_loss_type="k1",
        critic_lr=1e-3,
        kl_coef=0.1,
    )
    with pytest.raises(ConfigError) as error:
        check(options)
    for expected in (
        "algorithm 'grpo': eps_clip is 3.0; give a number from 0 to 1",
        "correction 'mis' does not read levle (it reads: level, mode, low,",
        "needs teacher_logp (give --opd-type engine",
        "pulls nowhere",
        "nothing in this run needs a critic",
        "--kl-coef 0.1 (flag --kl-coef) is not read by grpo",
        "put the KL in the reward and in the loss",
    ):
        assert sum(expected in line for line in error.value.violations) == 1, (expected, error.value.violations)


def test_a_correction_that_is_not_there_names_those_that_are(grpo: Options) -> None:
    with pytest.raises(PluginError, match=r"no correction named 'tsi'; did you mean 'tis'.*are: tis, icepop, mis"):
        check(grpo(correction="tsi"))


def test_a_correction_from_a_file(grpo: Options, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from vime_core.algorithms.correction import CorrectionResult\n"
        "def halve(batch, advantage, *, by=2.0):\n"
        "    return CorrectionResult(weight=batch.t('old_logp') * 0 + 1 / by)\n"
        "def greedy(batch):\n"
        "    return CorrectionResult()\n"
    )
    check(grpo(correction=f"{tmp_path}/mine.py:halve", correction_options='{"by": 4}'))
    with pytest.raises(ConfigError, match="does not read to"):
        check(grpo(correction=f"{tmp_path}/mine.py:halve", correction_options='{"to": 4}'))
    with pytest.raises(PluginError, match=r"greedy\(batch\) cannot be called with a batch and its advantages"):
        check(grpo(correction=f"{tmp_path}/mine.py:greedy"))


@pytest.mark.slow
def test_all_of_them_in_a_run(tmp_path: Path, grpo: Options) -> None:
    options = grpo(
        num_steps_per_rollout=2,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        kl_loss_type="k3",
        use_unbiased_kl=True,
        normalize_advantages=True,
        use_tis=True,
        use_opsm=True,
        opsm_delta=0.5,
        get_mismatch_metrics=True,
        overlong_buffer_len=2,
    )
    run = vime(tmp_path, "train", *flags(**options))
    assert run.code == 0, run.text
    first, *_, last = step_rows(tmp_path / "run")
    # two optimizer steps: the reference is left in the first one
    assert 0 <= first["train/ref_kl"] < last["train/ref_kl"]
    assert first["train/tis"] == pytest.approx(1.0, abs=1e-3)
    assert first["train/mismatch_ess"] == pytest.approx(1.0, abs=1e-3)
    assert first["train/mismatch_kl"] == pytest.approx(0.0, abs=1e-3)
    assert first["train/opsm_clipfrac"] == first["train/rejected_tokens"] == first["train/tis_clipfrac"] == 0.0
    assert first["train/overlong_penalty"] <= 0.0
    assert first["train/advantages/mean"] == pytest.approx(0.0, abs=1e-6)
    whole = first["train/pg_loss"] + 0.1 * first["train/kl_loss"]
    assert first["train/loss"] == pytest.approx(whole, abs=1e-6)


@pytest.mark.slow
def test_the_sampler_as_the_old_policy(tmp_path: Path, grpo: Options) -> None:
    run = vime(tmp_path, "train", *flags(**grpo(use_rollout_logprobs=True, num_steps_per_rollout=2)))
    assert run.code == 0, run.text
    first = step_rows(tmp_path / "run")[0]
    assert 0.0 < first["train/train_rollout_logprob_abs_diff"] < 1e-2
    kept = read_loss_inputs(tmp_path / "run" / "loss", 0).columns
    assert "old_logp" not in kept  # no pass was made for it
