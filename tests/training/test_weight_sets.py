"""Weights go in and the policy's come back to the bit, whatever holds the parameters and however the use ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vime_core.api.errors import CheckpointError, TrainerError
from vime_core.runtime.ports import free_port

KINDS = {
    "fp32": {},
    "bf16": {"bf16": True},
    "distributed": {"use_distributed_optimizer": True},
    "bf16-distributed": {"bf16": True, "use_distributed_optimizer": True},
}


@pytest.fixture(scope="module")
def world() -> Iterator[Any]:
    """Process groups of one rank, and the device."""
    from vime_core.config.sections import Config
    from vime_core.plugin.plugins import Plugins
    from vime_core.training.parallel import destroy_parallel, init_parallel

    device = Plugins.load(autoload=False).choose_device("cpu").load()()
    init_parallel(Config(), device, 0, 1, f"127.0.0.1:{free_port('127.0.0.1')}")
    yield device
    destroy_parallel()


class Policy:
    """A model with an optimizer, and a way to see every bit of both."""

    def __init__(self, device: Any, folder: str, megatron: dict[str, Any]) -> None:
        from vime_core.config.sections import Config
        from vime_core.training.model import MegatronModel
        from vime_core.training.optimizer import Optimizer

        config = Config().replace("megatron", lr=1e-2, **megatron)
        self.model = MegatronModel.build(config, device, folder, trainable=True)
        self.model.load_hf()
        self.optimizer = Optimizer.build(config, self.model.chunks, 10)

    def train(self) -> None:
        """One optimizer step on made-up gradients, so that main parameters and bfloat16 copies are apart."""
        for chunk in self.model.chunks:
            chunk.zero_grad_buffer()
            for number, parameter in enumerate(chunk.parameters()):
                parameter.main_grad.copy_(torch.sin(torch.arange(parameter.numel()) + number).view_as(parameter))
        self.optimizer.step()

    def bits(self) -> dict[str, torch.Tensor]:
        return {name: x.clone() for name, x in {**self.model.tensors(), **self.optimizer.tensors()}.items()}

    def places(self) -> list[int]:
        return [parameter.data_ptr() for chunk in self.model.chunks for parameter in chunk.parameters()]


def differing(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors that are not equal to the bit."""
    assert ours.keys() == theirs.keys()
    return [name for name, x in ours.items() if not torch.equal(_raw(x), _raw(theirs[name]))]


def _raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8) if x.dim() else x


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def policy(request: pytest.FixtureRequest, world: Any, folders: dict[str, str]) -> Policy:
    made = Policy(world, folders["policy"], request.param)
    made.train()
    return made


@pytest.fixture
def sets(policy: Policy, world: Any) -> Any:
    from vime_core.training.weight_swap import WeightSwap

    return WeightSwap(policy.model, world)


def test_the_policy_comes_back_to_the_bit(policy: Policy, sets: Any, folders: dict[str, str]) -> None:
    before, places = policy.bits(), policy.places()
    sets.load("other", folders["other"])
    assert differing(policy.bits(), before) == []
    with sets.use("other"):
        swapped = differing(policy.model.tensors(), {k: before[k] for k in policy.model.tensors()})
        inside = exported(policy)
    assert {name for name in swapped if "linear" in name}, "nothing was swapped"
    assert differing(policy.bits(), before) == []
    assert policy.places() == places
    assert_holds(inside, folders["other"])


def exported(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in policy.model.export_hf()}


def assert_holds(weights: dict[str, torch.Tensor], folder: str) -> None:
    from safetensors.torch import load_file

    stored = load_file(f"{folder}/model.safetensors")
    assert weights.keys() == stored.keys()
    assert [name for name, x in weights.items() if not torch.equal(x, stored[name].to(x.dtype))] == []


def test_training_goes_on_as_if_nothing_had_happened(world: Any, folders: dict[str, str]) -> None:
    from vime_core.training.weight_swap import WeightSwap

    for megatron in KINDS.values():
        one, two = (Policy(world, folders["policy"], megatron) for _ in range(2))
        sets = WeightSwap(two.model, world)
        sets.load("other", folders["other"])
        for _ in range(3):
            one.train()
            with sets.use("other"):
                pass
            two.train()
        assert differing(one.bits(), two.bits()) == []


def test_it_comes_back_when_the_body_raises(policy: Policy, sets: Any, folders: dict[str, str]) -> None:
    before = policy.bits()
    sets.load("other", folders["other"])
    with pytest.raises(RuntimeError, match="inside"), sets.use("other"):
        raise RuntimeError("inside")
    assert differing(policy.bits(), before) == []
    with sets.use("other"):  # and can be used again
        assert differing(policy.model.tensors(), {k: before[k] for k in policy.model.tensors()})
    assert differing(policy.bits(), before) == []


def test_it_comes_back_when_a_folder_does_not_fit(policy: Policy, sets: Any, folders: dict[str, str]) -> None:
    before = policy.bits()
    with pytest.raises(CheckpointError, match="shallow"):
        sets.load("other", folders["shallow"])
    assert differing(policy.bits(), before) == []
    assert "other" not in sets


def test_a_kept_copy_does_not_move_with_the_policy(world: Any, folders: dict[str, str]) -> None:
    from vime_core.training.weight_swap import WeightSwap

    policy = Policy(world, folders["policy"], {"bf16": True})
    sets = WeightSwap(policy.model, world)
    sets.keep("ref")
    policy.train()
    moved = policy.bits()
    with sets.use("ref"):
        assert_holds(exported(policy), folders["policy"])
    assert differing(policy.bits(), moved) == []


def test_one_use_at_a_time(policy: Policy, sets: Any) -> None:
    before = policy.bits()
    sets.keep("a")
    with pytest.raises(TrainerError, match="swapped already"), sets.use("a"), sets.use("a"):
        pass
    assert differing(policy.bits(), before) == []


def test_a_copy_travels_through_a_checkpoint(policy: Policy, sets: Any, folders: dict[str, str]) -> None:
    sets.load("other", folders["other"])
    saved = {name: x.clone() for name, x in sets.tensors("other").items()}
    sets.keep("other")
    sets.put_tensors("other", saved)
    with sets.use("other"):
        assert_holds(exported(policy), folders["other"])
    wrong = {**saved, next(iter(saved)): torch.zeros(3)}
    with pytest.raises(CheckpointError, match="not those of this model"):
        sets.put_tensors("other", wrong)
    with pytest.raises(CheckpointError, match="not those of this model"):
        sets.put_tensors("other", dict(list(saved.items())[1:]))
