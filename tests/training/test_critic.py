"""The critic in one process: its values and gradients beside plain torch, its learning, its checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.support import critic_ranks
from tests.support.critic_ranks import Targets, plans_of
from tests.support.models import build_model
from tests.support.train_ranks import make_batch, make_config
from vime_core.algorithms.critic_loss import ValueColumns, micro_value_loss, value_quality
from vime_core.algorithms.metrics import finish
from vime_core.algorithms.objective import Objective
from vime_core.algorithms.prepare import Prepared, prepare_step
from vime_core.api.errors import CheckpointError, TrainerError
from vime_core.batch.step_batch import StepBatch
from vime_core.runtime.ports import free_port

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.training.critic import Critic

CLIP = 0.2
BONUS = {"bonus": 0.1}


@dataclass(frozen=True)
class Bench:
    """One trainer rank in this process, and two tiny models: the second has its embedding tied."""

    config: Config
    device: Any
    layout: Any
    folder: str
    tied: str

    def critic(self, folder: str | None = None, **model: Any) -> Critic:
        from vime_core.training.critic import Critic

        config = self.config.replace("model", **model)
        return Critic.build(config, self.device, self.layout, folder or self.folder, 100)

    def values(self, critic: Critic, batch: StepBatch) -> torch.Tensor:
        found = critic.values(batch, [list(range(len(batch)))])
        assert found is not None
        return found

    def train(self, critic: Critic, batch: StepBatch, **options: Any) -> dict[str, float]:
        return critic_ranks.train(critic, self.config, batch, **options)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    from vime_core.devices.cpu import CpuBackend
    from vime_core.training.parallel import destroy_parallel, init_parallel

    root = tmp_path_factory.mktemp("critic")
    folders = [str(build_model(root / str(tied), "qwen3", tied=tied, vocab_size=100)) for tied in (False, True)]
    config = make_config({"megatron": {"clip_grad": 0.0}, "rollout": {"rollout_temperature": 0.5}}, 1)
    device = CpuBackend()
    port = free_port("127.0.0.1")
    layout = init_parallel(config, device, 0, 1, f"127.0.0.1:{port}")
    yield Bench(config, device, layout, *folders)
    destroy_parallel()


def with_head(critic: Critic, seed: int = 7) -> torch.Tensor:
    """Give the critic a head that is not zero; the head [h]."""
    head = critic.model.modules[0].value_head.weight
    drawn = torch.randn(head.shape, generator=torch.Generator().manual_seed(seed)) * 0.1
    head.data.copy_(drawn)
    return drawn[0]


def plain_values(folder: str, head: torch.Tensor, batch: StepBatch) -> tuple[torch.Tensor, torch.nn.Module]:
    """[R] with gradient, one sample at a time through transformers: the row before each response token."""
    from transformers import AutoModel

    body = AutoModel.from_pretrained(folder, dtype=torch.float32)
    found = []
    for i, (start, length) in enumerate(zip(batch.token_starts, batch.response_lengths, strict=False)):
        ids = torch.from_numpy(batch.tokens[start : batch.token_starts[i + 1]].copy())
        hidden = body(ids[None]).last_hidden_state[0]
        found.append(hidden[len(ids) - int(length) - 1 : -1] @ head)
    return torch.cat(found), body


@pytest.mark.parametrize("tied", [False, True])
def test_values_are_those_of_plain_torch_whatever_the_temperature(bench: Bench, tied: bool) -> None:
    folder = bench.tied if tied else bench.folder
    critic, batch = bench.critic(folder), make_batch(1)
    want, _ = plain_values(folder, with_head(critic), batch)
    assert want.std() > 0.1
    torch.testing.assert_close(bench.values(critic, batch), want.detach(), rtol=1e-5, atol=1e-5)


def test_the_first_critic_says_zero(bench: Bench) -> None:
    assert not bench.values(bench.critic(), make_batch(1)).any()


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_are_those_of_plain_torch(bench: Bench, tied: bool) -> None:
    folder = bench.tied if tied else bench.folder
    critic, batch = bench.critic(folder), make_batch(2)
    head = with_head(critic).requires_grad_()
    values, body = plain_values(folder, head, batch)
    row = bench.train(critic, batch)

    prepared = prepare_step(Objective(Targets(), BONUS, "rollout_mean"), batch.with_columns(values=values.detach()))
    weight = prepared.weight(range(len(batch))).float()
    assert prepared.returns is not None
    loss = (weight * (values - prepared.returns) ** 2)[prepared.mask].sum()
    loss.backward()
    assert row["train/value_loss"] == pytest.approx(loss.item(), rel=1e-5)
    model = critic.model.modules[0]
    for ours, theirs in (
        (model.value_head.weight.main_grad[0], head.grad),
        (model.decoder.final_layernorm.weight.main_grad, body.norm.weight.grad),
        (model.embedding.word_embeddings.weight.main_grad, body.embed_tokens.weight.grad),
    ):
        assert theirs is not None
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    norm = torch.sqrt(sum(p.grad.square().sum() for p in [head, *body.parameters()]))
    assert row["train/critic-grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


def test_a_critic_learns_a_constant_return(bench: Bench) -> None:
    critic, batch = bench.critic(), dataclasses.replace(make_batch(3), reward=np.ones(12))
    losses = [bench.train(critic, batch, clip=1.0, bonus=0.0)["train/value_loss"] for _ in range(15)]
    assert losses[0] == pytest.approx(11 / 12)  # one of the samples has no trainable token
    assert losses[-1] < losses[0] / 10


def test_its_learning_rate_is_its_own(bench: Bench) -> None:
    batch = make_batch(3)
    assert bench.train(bench.critic(), batch)["train/critic-lr-pg_0"] == bench.config.megatron.lr == 1e-3
    assert bench.train(bench.critic(critic_lr=0.5), batch)["train/critic-lr-pg_0"] == 0.5


def test_values_move_at_most_the_clip_in_the_loss(bench: Bench) -> None:
    """Values that have moved far towards their returns have no gradient: all of the loss is the clipped term."""
    critic, batch = bench.critic(), make_batch(4)
    plans = plans_of(bench.config, bench.layout, batch)
    far = batch.with_columns(values=torch.full((batch.response_tokens,), -9.0))
    prepared = prepare_step(Objective(Targets(), BONUS, "rollout_mean"), far)
    row = critic.train(far, plans, prepared, CLIP)
    assert row["train/value_clipfrac"] == 1.0
    assert row["train/critic-grad_norm"] == 0.0


def weights_after(bench: Bench, batch: StepBatch, spoil: bool = False) -> tuple[dict[str, float], torch.Tensor]:
    critic = bench.critic()
    with_head(critic)
    values = bench.values(critic, batch)
    plans = plans_of(bench.config, bench.layout, batch)
    prepared = prepare_step(Objective(Targets(), BONUS, "token_mean"), batch.with_columns(values=values))
    if spoil:
        prepared = spoiled(prepared)
    row = critic.train(prepared.batch, plans, prepared, CLIP)
    return row, bench.values(critic, make_batch(99))


def spoiled(prepared: Prepared) -> Prepared:
    """NaN under the mask, wherever a critic reads."""
    values, returns = prepared.batch.t("values").clone(), prepared.returns
    assert returns is not None
    values[~prepared.mask] = torch.nan
    held = torch.where(prepared.mask, returns, torch.nan)
    return dataclasses.replace(prepared, batch=prepared.batch.with_columns(values=values), returns=held)


def test_nan_under_the_mask_changes_nothing(bench: Bench) -> None:
    batch = make_batch(5)
    (row, after), (spoiled_row, spoiled_after) = (weights_after(bench, batch, spoil) for spoil in (False, True))
    assert spoiled_row == row
    assert torch.equal(spoiled_after, after)


def test_an_all_masked_sample_changes_nothing(bench: Bench) -> None:
    batch = make_batch(5)
    assert batch.trainable_counts()[4] == 0
    without = batch.take([i for i in range(len(batch)) if i != 4])
    (row, after), (less_row, less_after) = (weights_after(bench, one) for one in (batch, without))
    assert less_row == pytest.approx(row, rel=1e-5)
    torch.testing.assert_close(less_after, after, rtol=1e-5, atol=1e-5)


def test_a_step_without_a_trainable_token_moves_nothing(bench: Bench) -> None:
    critic, batch = bench.critic(), make_batch(5).take([4])
    with_head(critic)
    before = {name: tensor.clone() for name, tensor in critic.model.tensors().items()}
    row = bench.train(critic, batch)
    assert row["train/critic-skipped_steps"] == 1.0
    assert not {"train/value_loss", "train/critic-grad_norm", "train/explained_variance"} & set(row)
    assert all(torch.equal(tensor, before[name]) for name, tensor in critic.model.tensors().items())


def test_a_resumed_critic_goes_on_to_the_bit(bench: Bench) -> None:
    first = bench.critic()
    bench.train(first, make_batch(6))
    kept = {name: tensor.clone() for name, tensor in first.tensors().items()}
    state = first.state()
    second = bench.critic(bench.tied)
    second.load_tensors({**kept, "model.0.of_the_policy": torch.zeros(1)})
    second.load_state(state)
    rows = [bench.train(critic, make_batch(7)) for critic in (first, second)]
    assert rows[0] == rows[1]
    assert first.tensors().keys() == second.tensors().keys()
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items())


def test_checkpoints_without_a_critic_or_its_optimizer_are_refused(bench: Bench) -> None:
    critic = bench.critic()
    with pytest.raises(CheckpointError, match="no critic"):
        critic.load_tensors({"model.0.of_the_policy": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="no-load-optim"):
        critic.load_tensors(critic.tensors(optimizer=False))
    critic.load_tensors(critic.tensors(optimizer=False), optimizer=False)


def test_an_exported_critic_is_what_another_starts_from(bench: Bench, tmp_path: Path) -> None:
    first, batch = bench.critic(bench.tied), make_batch(8)
    with_head(first)
    first.save_hf(str(tmp_path / "critic"))
    second = bench.critic(critic_load=str(tmp_path / "critic"))
    assert torch.equal(bench.values(second, batch), bench.values(first, batch))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"score.weight": torch.zeros(2, 64)}, "shape"), ({"score.bias": torch.zeros(1)}, "bias")],
)
def test_other_heads_are_refused(bench: Bench, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    from safetensors.torch import load_file, save_file

    critic = bench.critic()
    critic.save_hf(str(tmp_path))
    save_file({**load_file(tmp_path / "model.safetensors"), **changes}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        critic.model.load_hf(str(tmp_path))


def test_tokens_that_the_critic_does_not_know_are_an_error(bench: Bench) -> None:
    critic, batch = bench.critic(), make_batch(1, vocabulary=200)
    with pytest.raises(TrainerError, match="critic-load"):
        critic.values(batch, [list(range(len(batch)))])


def test_returns_are_needed(bench: Bench) -> None:
    critic, batch = bench.critic(), make_batch(1)
    batch = batch.with_columns(values=torch.zeros(batch.response_tokens))
    prepared = prepare_step(Objective(Targets(), BONUS, "token_mean"), batch)
    with pytest.raises(TrainerError, match="returns"):
        critic.train(batch, [], dataclasses.replace(prepared, returns=None), CLIP)


# the arithmetic alone ----------------------------------------------------------------------------------------
def test_the_loss_by_hand() -> None:
    """Four tokens: inside the clip; past it, where the clipped square is larger; past it, where it is not; masked."""
    values = torch.tensor([0.1, 1.0, 1.0, torch.nan], requires_grad=True)
    old, returns = torch.tensor([0.0, 0.0, 0.0, torch.nan]), torch.tensor([1.0, 1.0, -1.0, torch.nan])
    weight, mask = torch.tensor([0.5, 0.25, 0.25, torch.nan]), torch.tensor([True, True, True, False])
    total, pairs = micro_value_loss(values, ValueColumns(old, returns, weight, mask), 0.2)
    assert total.item() == pytest.approx(0.5 * 0.9**2 + 0.25 * 0.8**2 + 0.25 * 2.0**2)
    assert finish(pairs) == pytest.approx({"value_loss": total.item(), "value_clipfrac": 2 / 3})
    total.backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.5 * 2 * -0.9, 0.0, 0.25 * 2 * 2.0, 0.0])


def test_no_token_is_a_zero_that_touches_the_graph() -> None:
    values = torch.zeros(3, requires_grad=True)
    none = torch.zeros(0)
    total, pairs = micro_value_loss(values[:0], ValueColumns(none, none, none, none.bool()), 0.2)
    total.backward()
    assert values.grad is not None
    assert finish(pairs) == {"value_loss": 0.0}


def test_explained_variance() -> None:
    mask = torch.tensor([True, True, True, False])
    returns = torch.tensor([1.0, 2.0, 3.0, torch.nan])
    same = {"values/mean": 2.0, "returns/mean": 2.0}
    assert value_quality(returns, returns, mask) == {**same, "explained_variance": 1.0}
    assert value_quality(torch.full((4,), 2.0), returns, mask) == {**same, "explained_variance": 0.0}
    assert value_quality(returns, torch.full((4,), 0.1), mask).keys() == same.keys()
    assert value_quality(returns, returns, mask & False) == {}
