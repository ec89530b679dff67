"""Metrics of the trainer. Each is reduced as a pair (sum, count) over micro-batches and ranks and divided once, then
averaged over the optimizer steps of the rollout step."""

from __future__ import annotations

from vime_core.observe.names.metric import Mean, Metric


def _of(name: str, unit: str, mean: Mean, meaning: str, definition: str) -> Metric:
    return Metric(f"train/{name}", unit, meaning, definition, mean, "train/step")


_GAP = "|log-prob(trainer, before the step) - log-prob(sampler)|"

LOSS = (
    _of("step", "step", "value", "the optimizer step", "optimizer steps of the run; axis of all train/ metrics"),
    _of(
        "loss",
        "1",
        "weighted sum",
        "what is minimised",
        "train/pg_loss + kl_loss_coef * train/kl_loss - entropy_coef * train/entropy_loss",
    ),
    _of(
        "pg_loss",
        "1",
        "weighted sum",
        "the policy part of it",
        "sum over trainable tokens of weight * correction * surrogate",
    ),
    _of(
        "entropy_loss", "nat", "weighted sum", "the entropy part of it", "sum over trainable tokens of weight * entropy"
    ),
    _of(
        "entropy",
        "nat",
        "token mean",
        "how undecided the policy is",
        "mean entropy of the next-token distribution, in float32, over trainable tokens",
    ),
    _of("nll", "nat", "token mean", "supervised: how surprising the targets are", "mean of -logp over target tokens"),
    _of(
        "pg_clipfrac",
        "ratio",
        "token mean",
        "tokens held back by the clip",
        "fraction of trainable tokens where the clipped term is the larger loss: _low + _high",
    ),
    _of(
        "pg_clipfrac_low",
        "ratio",
        "token mean",
        "of those, the ones that fell too far",
        "fraction of trainable tokens with advantage < 0 and ratio < 1 - eps_clip",
    ),
    _of(
        "pg_clipfrac_high",
        "ratio",
        "token mean",
        "of those, the ones that rose too far",
        "fraction of trainable tokens with advantage > 0 and ratio > 1 + eps_clip_high",
    ),
    _of(
        "pg_clipfrac_lower",
        "ratio",
        "token mean",
        "tokens held back by the dual clip",
        "fraction of trainable tokens with advantage < 0 where the bound eps_clip_c is active",
    ),
    _of(
        "ppo_kl",
        "nat",
        "token mean",
        "how far the policy moved within the step; about 0 at its first update",
        "mean of old_logp - logp over trainable tokens (the k1 estimate)",
    ),
    _of(
        "ois",
        "1",
        "token mean",
        "importance ratio; about 1 at the first update of a step",
        "mean of exp(logp - old_logp), the log ratio clamped to +-20, over trainable tokens",
    ),
    _of("advantages/mean", "1", "token mean", "balance of good and bad", "mean advantage over trainable tokens"),
    _of("advantages/max", "1", "maximum", "spread of good and bad", "maximum over trainable tokens"),
    _of("advantages/min", "1", "minimum", "spread of good and bad", "minimum over trainable tokens"),
    _of(
        "zero_std_groups",
        "ratio",
        "group mean",
        "groups that teach a group-based algorithm nothing",
        "fraction of scored groups of two rollouts or more whose rewards are all equal",
    ),
    _of(
        "groups_of_one",
        "ratio",
        "group mean",
        "groups that have nothing to compare with",
        "fraction of scored groups with a single rollout; their advantage is 0",
    ),
)

MISMATCH = (
    _of(
        "train_rollout_logprob_abs_diff",
        "nat",
        "token mean",
        "health of weight sync and numerics: trainer and sampler must agree on the same tokens",
        f"mean of {_GAP} over trainable tokens that have both",
    ),
    _of(
        "train_rollout_logprob_abs_diff/max",
        "nat",
        "maximum",
        "the same, at the worst token",
        f"maximum of {_GAP} over the same tokens",
    ),
    _of(
        "missing_rollout_logprobs",
        "token",
        "count",
        "tokens that cannot be compared; should be 0",
        "trainable tokens without a finite log-prob of the sampler",
    ),
    _of(
        "routing_replay_diff",
        "ratio",
        "token mean",
        "with routing replay: how much of the trainer's own routing was replaced",
        "fraction of (token, layer with experts) in the training passes, prompts too, whose own top-k is another set",
    ),
)

UPDATE = (
    _of("grad_norm", "1", "value", "size of the update", "global L2 norm of the gradient before clipping"),
    _of("lr-pg_<group>", "1", "value", "learning rate", "learning rate of parameter group <group>"),
    _of(
        "skipped_steps",
        "1",
        "count",
        "updates that were not made; should be 0",
        "optimizer steps of this rollout step whose gradient norm was not finite",
    ),
    _of("global_batch_size", "rollout", "count", "how much one update saw", "rollouts an optimizer step"),
    _of("samples", "sample", "count", "size of the step", "samples of the rollout step"),
    _of(
        "unselected_samples",
        "sample",
        "count",
        "samples that did not count",
        "samples that the algorithm did not select, or without the reward it needs",
    ),
    _of(
        "empty_samples",
        "sample",
        "count",
        "samples with nothing to learn from",
        "selected samples without a trainable token",
    ),
    _of("tokens", "token", "count", "size of the step", "prompt and response tokens of the rollout step"),
    _of(
        "trainable_tokens",
        "token",
        "count",
        "how much was learned from",
        "response tokens with loss mask 1 in selected samples",
    ),
    _of(
        "micro_batches",
        "1",
        "count",
        "pieces of the step",
        "micro-batches of one data-parallel rank in the rollout step",
    ),
    _of(
        "packing_efficiency",
        "ratio",
        "value",
        "how well packing worked",
        "tokens of the rollout step / (micro-batches of all ranks * capacity of one)",
    ),
)

TRAIN = LOSS + MISMATCH + UPDATE
