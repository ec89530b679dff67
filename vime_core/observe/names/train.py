"""Metrics of the trainer. Each is reduced as a pair (sum, count) over micro-batches and ranks and divided once."""

from __future__ import annotations

from vime_core.observe.names.metric import Mean, Metric


def _of(name: str, unit: str, mean: Mean, meaning: str, definition: str) -> Metric:
    return Metric(f"train/{name}", unit, meaning, definition, mean, "train/step")


TRAIN = (
    _of("step", "step", "value", "the optimizer step", "optimizer steps of the run; axis of all train/ metrics"),
    _of(
        "loss",
        "1",
        "weighted sum",
        "what is minimised",
        "sum over trainable tokens of weight * correction * surrogate, minus weight * entropy_coef * entropy",
    ),
    _of(
        "pg_loss",
        "1",
        "weighted sum",
        "the policy part of the loss",
        "sum over trainable tokens of weight * correction * surrogate",
    ),
    _of(
        "entropy_loss",
        "nat",
        "weighted sum",
        "how undecided the policy is",
        "sum over trainable tokens of weight * entropy of the next-token distribution, in float32",
    ),
    _of(
        "pg_clipfrac",
        "share",
        "token mean",
        "tokens held back by the clip",
        "share of trainable tokens where the clipped term is the larger loss",
    ),
    _of(
        "pg_clipfrac_low",
        "share",
        "token mean",
        "of those, the ones that fell too far",
        "share of trainable tokens with advantage < 0 and ratio < 1 - eps_clip",
    ),
    _of(
        "pg_clipfrac_high",
        "share",
        "token mean",
        "of those, the ones that rose too far",
        "share of trainable tokens with advantage > 0 and ratio > 1 + eps_clip_high",
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
        "mean of exp(logp - old_logp) over trainable tokens",
    ),
    _of(
        "train_rollout_logprob_abs_diff",
        "nat",
        "token mean",
        "health of weight sync and numerics: trainer and sampler must agree on the same tokens",
        "mean of |log-prob(trainer, before the step) - log-prob(sampler)| over trainable tokens",
    ),
    _of(
        "train_rollout_logprob_abs_diff/max",
        "nat",
        "maximum",
        "the same, at the worst token",
        "maximum of the same over trainable tokens",
    ),
    _of("grad_norm", "1", "value", "size of the update", "global L2 norm of the gradient before clipping"),
    _of("lr-pg_<group>", "1", "value", "learning rate", "learning rate of parameter group <group> in this step"),
    _of("global_batch_size", "rollout", "count", "how much one update saw", "rollouts in the optimizer step"),
    _of(
        "trainable_tokens",
        "token",
        "count",
        "how much one update learned from",
        "response tokens with loss mask 1 in selected samples",
    ),
    _of("micro_batches", "1", "count", "pieces of one update", "micro-batches of a data-parallel rank in the step"),
    _of(
        "fill",
        "share",
        "value",
        "how well packing worked",
        "tokens of the step / (micro-batches over all ranks * capacity of one)",
    ),
)
