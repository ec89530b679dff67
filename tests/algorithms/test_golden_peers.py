"""Conventions of other systems that are not ours: their numbers out of our own parts, so that the difference is known.

Each is right for somebody's code and would be a silent change of ours: which tokens are steps, what a group of one is
worth, what stands under a root, what an empty sample counts for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.baselines import Rloo
from vime_core.algorithms.common import GroupStats, group_stats, whiten
from vime_core.algorithms.grpo import Grpo
from vime_core.algorithms.kl import kl_estimate
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.returns import Discount, at_last, discounted, gae
from vime_core.batch.aggregate import StepTokens, token_weights
from vime_core.training.logprobs import VocabShard, token_logprobs
from vime_core.training.mismatch import mismatch

Golden = dict[str, Any]


@pytest.fixture(scope="module")
def peers() -> Golden:
    return json.loads((Path(__file__).parent / "data" / "golden_peers.json").read_text())


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=0)


class Step:
    """The six samples of the table."""

    def __init__(self, golden: Golden) -> None:
        inputs = golden["inputs"]
        self.mask = flat(inputs["masks"]).bool()
        self.batch = small_batch(
            inputs["masks"], reward=inputs["rewards"], group=inputs["groups"], rollout=list(range(6))
        )
        self.seg, self.reward, self.group = self.batch.seg(), self.batch.t("reward"), self.batch.t("group")
        self.penalty = 0.05 * kl_estimate(flat(inputs["old_logp"]) - flat(inputs["ref_logp"]), "k1")
        self.logp, self.old, self.values = (flat(inputs[name]) for name in ("logp", "old_logp", "values"))

    @property
    def stats(self) -> GroupStats:
        return group_stats(self.reward, self.group, torch.arange(6))


@pytest.fixture
def step(golden_algorithms: Golden) -> Step:
    return Step(golden_algorithms)


# which tokens are steps ----------------------------------------------------------------------------------------------
def test_advantages_where_masked_tokens_are_steps_too(step: Step, peers: Golden) -> None:
    want, every = peers["gae_of_all_tokens"], torch.ones_like(step.mask)
    rewards = at_last(step.reward, every, step.seg) - step.penalty
    advantage, returns = gae(rewards, step.values, every, step.seg, Discount(0.99, 0.95))
    close(rewards, flat(want["token_rewards"]))
    close(advantage, flat(want["adv"]))
    close(returns, flat(want["ret"]))
    ours, _ = gae(rewards, step.values, step.mask, step.seg, Discount(0.99, 0.95))
    assert float((ours - advantage)[step.mask].abs().max()) > 0.02


def test_returns_that_discount_masked_tokens(step: Step, peers: Golden) -> None:
    want, every = peers["rpp_decay_every_position"], torch.ones_like(step.mask)
    rewards = torch.where(step.mask, at_last(step.reward, step.mask, step.seg) - step.penalty, 0.0)
    returns = torch.where(step.mask, discounted(rewards, every, step.seg, 0.9), 0.0)
    close(returns, flat(want["returns"]))
    close(whiten(returns, step.mask), flat(want["adv"]))


# groups ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "eps"), [("grpo_std_eps1e-4_trl", 1e-4), ("grpo_std_eps1e-9_openrlhf", 1e-9)])
def test_another_eps_beside_the_deviation(step: Step, peers: Golden, name: str, eps: float) -> None:
    close((step.reward - step.stats.mean) / (step.stats.std + eps), torch.tensor(peers["group"][name]))


@pytest.mark.parametrize(
    ("algorithm", "name"), [(Grpo(), "grpo_std_raw_singleton_verl"), (Rloo(), "rloo_raw_singleton")]
)
def test_a_group_of_one_that_keeps_its_reward(step: Step, peers: Golden, algorithm: Any, name: str) -> None:
    """Theirs differs from ours there and nowhere else."""
    ours = algorithm.advantages(step.batch, merge_options(algorithm, {}))
    alone = (step.stats.rollouts == 1)[step.seg]
    close(torch.where(alone, step.reward[step.seg], ours.double()), torch.tensor(peers["group"][name])[step.seg])
    assert alone.any()
    assert not ours[alone].any()


def test_groups_that_are_lost(step: Step, peers: Golden) -> None:
    """The mistake itself: all samples as one group."""
    lost = group_stats(step.reward, torch.zeros(6, dtype=torch.int64), torch.arange(6))
    wrong = torch.tensor(peers["group"]["whole_batch_if_groups_lost_WRONG"])
    close((step.reward - lost.mean) / (lost.std + 1e-6), wrong)
    ours = Grpo().advantages(step.batch, merge_options(Grpo(), {}))
    assert float((ours - wrong[step.seg]).abs().min()) > 1e-2


# statistics ------------------------------------------------------------------------------------------------------
def test_rewards_less_the_mean_and_their_biased_whitening(step: Step, golden_algorithms: Golden, peers: Golden) -> None:
    raw = torch.where(step.mask, (step.reward - step.stats.mean)[step.seg] - step.penalty, 0.0)
    close(raw, flat(golden_algorithms["rpp_baseline"]["unwhitened"]))
    count = int(step.mask.sum())
    close(whiten(raw, step.mask) * (count / (count - 1)) ** 0.5, flat(peers["whiten_biased_openrlhf"]), tolerance=2e-6)


def test_an_empty_sample_that_counts_as_a_token(golden: Golden) -> None:
    inputs, want = golden["inputs"]["B"], golden["aggregate"]
    batch = small_batch(inputs["masks"], group=inputs["groups"])
    weights = token_weights(
        "token_mean",
        StepTokens(
            mask=batch.t("mask"),
            seg=batch.seg(),
            rollout=batch.t("rollout"),
            group=batch.t("group"),
            selected=batch.all_samples(),
        ),
    )
    total, tokens = float((weights * flat(want["loss"])).sum()), int(batch.t("mask").sum())
    empty = int((batch.trainable_counts() == 0).sum())
    assert total * tokens / (tokens + empty) == pytest.approx(want["token_mean_slime_counts_empty_as_1"], abs=1e-6)


@pytest.mark.parametrize("name", ["ppo_kl", "train_rollout_logprob_abs_diff"])
def test_metrics_as_means_of_samples(step: Step, golden_loss: Golden, name: str) -> None:
    """Ours are token means; the aggregation's weights give theirs."""
    sampler = flat(golden_loss["inputs"]["A"]["rollout_logp"])
    value = step.old - step.logp if name == "ppo_kl" else (step.old - sampler).abs()
    for kind in ("sample_mean", "token_mean"):
        weights = token_weights(
            kind,
            StepTokens(
                mask=step.mask, seg=step.seg, rollout=torch.arange(6), group=step.group, selected=torch.ones(6) > 0
            ),
        )
        assert float((weights * value).sum()) == pytest.approx(golden_loss["metrics"][f"{name}_{kind}"], abs=1e-6)


def test_perplexity_of_the_trainer(step: Step, golden_loss: Golden) -> None:
    """Mean over samples of log-perplexities, as in the logged difference; that alone is their number."""
    sampler = flat(golden_loss["inputs"]["A"]["rollout_logp"])
    batch = small_batch(golden_loss["inputs"]["A"]["masks"], rollout_logp=sampler)
    counts = batch.trainable_counts()
    means = [float(step.old[step.mask & (step.seg == i)].sum() / counts[i]) for i in range(6)]
    assert golden_loss["metrics"]["training_ppl"] == pytest.approx(
        sum(torch.tensor(means).neg().exp().tolist()) / 6, abs=1e-6
    )
    theirs = [float(sampler[step.mask & (step.seg == i)].sum() / counts[i]) for i in range(6)]
    logged = mismatch(batch, step.old, detailed=True)["train/mismatch_log_ppl_diff"]
    assert logged == pytest.approx(sum(a - b for a, b in zip(theirs, means)) / 6, abs=1e-6)


def test_log_probs_of_a_cut_distribution(golden_loss: Golden) -> None:
    """A sampler with top-p renormalizes over what it kept, which is why top-p has to be 1."""
    logits, want = torch.tensor(golden_loss["inputs"]["logits"]), golden_loss["logits"]
    rows = zip(logits, golden_loss["inputs"]["targets"], want["top_p_kept_ids"], want["logp_on_kept_ids"])
    for row, target, kept, expected in rows:
        logp, _ = token_logprobs(
            row[kept][None], torch.eye(len(kept)), torch.tensor([kept.index(target)]), VocabShard(0, len(kept))
        )
        assert float(logp) == pytest.approx(expected, abs=3e-6)
