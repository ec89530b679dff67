"""Every surrogate: loss, gradient, clip marks and totals against numbers that public implementations agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from vime_testing.toy_step import small_batch

from vime_core.algorithms.baselines import Rloo
from vime_core.algorithms.cispo import Cispo
from vime_core.algorithms.dppo import Dppo
from vime_core.algorithms.grpo import Dapo, DrGrpo
from vime_core.algorithms.gspo import Gmpo, Gspo
from vime_core.algorithms.loss import MicroBatchSlice, TokenColumns, micro_loss
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.opd import Opd
from vime_core.algorithms.options import merge_options
from vime_core.algorithms.ppo import Ppo
from vime_core.algorithms.prepare import prepare_step
from vime_core.algorithms.reinforce import Reinforce, ReinforcePlusPlus, ReinforcePlusPlusBaseline
from vime_core.algorithms.sapo import Sapo
from vime_core.algorithms.sft import Sft

Golden = dict[str, Any]


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def close(got: torch.Tensor | float, want: Any, tolerance: float = 1e-6) -> None:
    got, want = (torch.as_tensor(x, dtype=torch.float64) for x in (got, want))
    torch.testing.assert_close(got, want, atol=tolerance, rtol=0)


class Micro:
    """The six samples as one micro-batch; ``masked`` False makes every token trainable, as the table's losses of tokens
    are written."""

    def __init__(self, golden: Golden, *, masked: bool) -> None:
        inputs = golden["inputs"]
        masks = inputs["masks"] if masked else [[1] * len(row) for row in inputs["masks"]]
        batch = small_batch(masks, reward=inputs["rewards"], group=inputs["groups"])
        sampler = flat(inputs["rollout_logp"])
        self.prepared = prepare_step(Objective(Sft(), {}, "sample_mean"), batch)
        self.weights = {
            name: prepare_step(Objective(Sft(), {}, name), batch).weight(range(6))
            for name in ("sample_mean", "token_mean")
        }
        self.logp = flat(inputs["logp"]).requires_grad_()
        share = MicroBatchSlice.of(self.prepared, self.weights["sample_mean"], range(6), dtype=torch.float64)
        self.view = replace(share, old_logp=flat(inputs["old_logp"])).view(self.logp)
        self.view.extra["rollout_logp"] = sampler  # type: ignore[index]
        self.tokens = flat(inputs["adv_tok"])
        self.sequences = torch.tensor(inputs["adv_seq"], dtype=torch.float64)

    def surrogate(self, algorithm: Any, advantage: torch.Tensor, given: Any) -> Any:
        return algorithm.surrogate(self.view, advantage, merge_options(algorithm, given))

    def total(self, algorithm: Any, advantage: torch.Tensor, given: Any, aggregation: str) -> torch.Tensor:
        options = merge_options(algorithm, given)
        return micro_loss(Objective(algorithm, options), self.view, TokenColumns(advantage, self.weights[aggregation]))[
            0
        ]

    def grad(self, loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, self.logp)[0]


TOKENWISE = {
    "cispo.lo0.2_hi0.28": (Cispo(), {"eps_clip": 0.2, "eps_clip_high": 0.28}),
    "cispo.lo1_hi4_canonical": (Cispo(), {}),
    "cispo.lo1_hi0.2": (Cispo(), {"eps_clip_high": 0.2}),
    "sapo": (Sapo(), {}),
    "reinforce": (Reinforce(), {}),
}


@pytest.mark.parametrize(("algorithm", "given"), TOKENWISE.values(), ids=TOKENWISE)
def test_token_losses(golden_algorithms: Golden, request: Any, algorithm: Any, given: Any) -> None:
    section, _, row = request.node.callspec.id.partition(".")
    want = golden_algorithms[section][row] if row else golden_algorithms[section]
    micro = Micro(golden_algorithms, masked=False)
    loss, _ = micro.surrogate(algorithm, micro.tokens, given)
    close(loss.detach(), flat(want["loss"]))
    close(micro.grad(loss.sum()), flat(want["grad_logp"]))
    masked = Micro(golden_algorithms, masked=True)
    for name in ("sample_mean", "token_mean"):
        close(masked.total(algorithm, masked.tokens, given, name).detach(), want[f"total_{name}"])


@pytest.mark.parametrize(
    "algorithm",
    [DrGrpo(), Rloo(), ReinforcePlusPlus(), ReinforcePlusPlusBaseline(), Ppo(), Opd()],
    ids=lambda a: a.name,
)
@pytest.mark.parametrize("name", ["eps0.2", "eps0.2_0.28", "eps0.2_0.28_c1.3", "eps0.2_c3"])
def test_all_that_clip_share_ppos_surrogate(
    golden_algorithms: Golden, golden: Golden, algorithm: Any, name: str
) -> None:
    high = 0.28 if "0.28" in name else None
    dual = 1.3 if name.endswith("c1.3") else 3.0 if name.endswith("c3") else None
    want, micro = golden["ppo"][name], Micro(golden_algorithms, masked=True)
    given = {"eps_clip_high": high, "eps_clip_c": dual}
    for aggregation in ("sample_mean", "token_mean"):
        close(micro.total(algorithm, micro.tokens, given, aggregation).detach(), want[f"total_{aggregation}"])


def test_dapos_defaults(golden_algorithms: Golden, golden: Golden) -> None:
    micro = Micro(golden_algorithms, masked=True)
    assert Dapo.aggregate == "token_mean"
    got = micro.total(Dapo(), micro.tokens, {}, Dapo.aggregate)
    close(got.detach(), golden["ppo"]["eps0.2_0.28"]["total_token_mean"])


@pytest.mark.parametrize(
    ("name", "given"), [("eps0.2", {"eps_clip": 0.2, "eps_clip_high": 0.2}), ("eps3e-4_4e-4", {})], ids=str
)
def test_gspo(golden_algorithms: Golden, name: str, given: Any) -> None:
    want, micro = golden_algorithms["gspo"][name], Micro(golden_algorithms, masked=True)
    advantage = micro.view.broadcast_to_tokens(micro.sequences)
    loss, metrics = micro.surrogate(Gspo(), advantage, given)
    mask = micro.view.mask
    for got, right in (
        (metrics["ois"], want["ratio"]),
        (loss, want["loss"]),
        (metrics["pg_clipfrac"], want["clipped"]),
    ):
        close(got[mask].detach().double(), torch.tensor(right, dtype=torch.float64)[micro.view.seg][mask])
    total = micro.total(Gspo(), advantage, given, "sample_mean")
    close(total.detach(), want["total_sample_mean"])
    close(micro.grad(total), flat(want["grad_logp_of_total"]))


def test_gmpo(golden_algorithms: Golden) -> None:
    micro = Micro(golden_algorithms, masked=True)
    loss, _ = micro.surrogate(Gmpo(), micro.view.broadcast_to_tokens(micro.sequences), {})
    want = torch.tensor(golden_algorithms["gmpo"]["loss"], dtype=torch.float64)
    close(loss[micro.view.mask].detach(), want[micro.view.seg][micro.view.mask])
    close(micro.total(Gmpo(), micro.view.broadcast_to_tokens(micro.sequences), {}, "sample_mean").detach(), want.mean())


def test_dppo(golden_algorithms: Golden) -> None:
    micro = Micro(golden_algorithms, masked=False)
    loss, metrics = micro.surrogate(Dppo(), micro.tokens, {"eps_clip": 0.05})
    keep = flat(golden_algorithms["dppo_keep"]).bool()
    assert torch.equal(~metrics["pg_clipfrac"], keep)
    r = (micro.logp - micro.view.extra["rollout_logp"]).exp()
    close(loss.detach(), torch.where(keep, -r * micro.tokens, 0.0).detach())
    close(micro.grad(loss.sum()), torch.where(keep, -r * micro.tokens, 0.0).detach())


def test_dppo_without_the_samplers_log_prob() -> None:
    batch = small_batch([[1, 1, 1]], rollout_logp=[-1.0, float("nan"), -float("inf")])
    prepared = prepare_step(Objective(Dppo(), merge_options(Dppo(), {}), "token_mean"), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight([0]), [0])
    logp = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    loss, _ = Dppo().surrogate(share.view(logp), -torch.ones(3), merge_options(Dppo(), {}))
    assert loss[:2].tolist() == [1.0, 1.0]
    loss.sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [1.0, 1.0, 0.0]


def test_sft_is_the_negative_log_likelihood(golden_algorithms: Golden) -> None:
    micro = Micro(golden_algorithms, masked=True)
    loss, metrics = micro.surrogate(Sft(), torch.ones_like(micro.tokens), {})
    assert torch.equal(loss, -micro.view.logp)
    assert torch.equal(metrics["nll"], loss)


@pytest.mark.parametrize("algorithm", [Cispo(), Sapo(), Gspo(), Gmpo(), Ppo(), Reinforce()], ids=lambda a: a.name)
@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_far_ratio_is_finite_in_float32(algorithm: Any, gap: float, advantage: float) -> None:
    batch = small_batch([[1]])
    prepared = prepare_step(Objective(Sft(), {}, "token_mean"), batch)
    share = MicroBatchSlice.of(prepared, prepared.weight([0]), [0])
    share = replace(share, old_logp=torch.tensor([-1.0 - gap]))
    logp = torch.tensor([-1.0], requires_grad=True)
    loss, _ = algorithm.surrogate(share.view(logp), torch.tensor([advantage]), merge_options(algorithm, {}))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logp.grad is not None
    assert logp.grad.isfinite().all()
