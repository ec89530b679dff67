"""Token weights: each name against its formula, written out sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from vime_testing.toy_step import random_case

from vime_core.api.errors import ConfigError
from vime_core.batch.aggregate import AGGREGATIONS, StepTokens, check_aggregation, token_weights

LENGTH = 11


def by_hand(name: str, losses: list[np.ndarray], group: np.ndarray, rollout: np.ndarray) -> float:
    """Means of means with plain loops; losses: trainable ones of each sample."""

    def mean_by(ids: np.ndarray) -> float:
        families = [np.concatenate([losses[i] for i in np.flatnonzero(ids == k)]) for k in np.unique(ids)]
        return float(np.mean([f.mean() if len(f) else 0.0 for f in families]))

    means = [x.mean() if len(x) else 0.0 for x in losses]
    sums = [x.sum() for x in losses]
    return {
        "sample_mean": lambda: float(np.mean(means)),
        "sample_mean_nonempty": lambda: float(np.mean([x.mean() for x in losses if len(x)])),
        "sample_sum_mean": lambda: float(np.mean(sums)),
        "fixed_length": lambda: float(np.mean(sums)) / LENGTH,
        "rollout_mean": lambda: mean_by(rollout),
        "prompt_mean": lambda: mean_by(group),
        "token_mean": lambda: float(np.concatenate(losses).mean()),
    }[name]()


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize("seed", range(5))
def test_weights_are_the_mean_they_are_named_after(name: str, seed: int) -> None:
    batch = random_case(seed).batch
    rng = np.random.default_rng(seed)
    loss = rng.normal(size=batch.response_tokens)
    selected = rng.random(len(batch)) < 0.8
    weights = token_weights(
        name,
        StepTokens(
            mask=batch.t("mask"),
            seg=batch.seg(),
            rollout=batch.t("rollout"),
            group=batch.t("group"),
            selected=torch.from_numpy(selected),
            length=LENGTH,
        ),
    )
    starts = batch.response_starts
    pieces = [slice(starts[i], starts[i + 1]) for i in np.flatnonzero(selected)]
    losses = [loss[piece][batch.mask[piece]] for piece in pieces]
    want = by_hand(name, losses, batch.group[selected], batch.rollout[selected])
    assert float((weights.numpy() * loss).sum()) == pytest.approx(want, abs=1e-14)
    assert not weights.numpy()[~batch.mask].any()
    assert torch.isfinite(weights).all()


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_nothing_selected_gives_zeros(name: str) -> None:
    batch = random_case(0).batch
    weights = token_weights(
        name,
        StepTokens(
            mask=batch.t("mask"),
            seg=batch.seg(),
            rollout=batch.t("rollout"),
            group=batch.t("group"),
            selected=torch.zeros(len(batch), dtype=torch.bool),
            length=LENGTH,
        ),
    )
    assert not weights.any()


def test_every_name_says_what_it_does() -> None:
    assert all(function.__doc__ for function in AGGREGATIONS.values())
    assert {name: function.__name__ for name, function in AGGREGATIONS.items()} == {n: n for n in AGGREGATIONS}


def test_an_unknown_name_comes_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown aggregation 'rolout'; nearest: 'rollout_mean'"):
        check_aggregation("rolout")
