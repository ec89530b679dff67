"""Memory given up by resizing: values, views and addresses of what is built on it. Same code on every device."""

from __future__ import annotations

import pytest
import torch

from vime_core.api.errors import TrainerError
from vime_core.training.offload import Offload


def flat_model() -> tuple[torch.Tensor, list[torch.nn.Parameter]]:
    """Parameters that are views of one buffer, as Megatron's are."""
    buffer = torch.arange(24, dtype=torch.float32)
    return buffer, [torch.nn.Parameter(buffer[:8].view(2, 4)), torch.nn.Parameter(buffer[8:].view(4, 4))]


def test_views_come_back_with_their_values() -> None:
    buffer, parameters = flat_model()
    before = [p.detach().clone() for p in parameters]
    released: list[int] = []
    offload = Offload(lambda: released.append(buffer.untyped_storage().nbytes()))
    assert offload.out([buffer, *parameters]) == 96
    assert released == [0]
    assert offload.away
    assert offload.back() == 96
    assert all(torch.equal(p, b) for p, b in zip(parameters, before))
    buffer.add_(1)
    assert torch.equal(parameters[1].detach(), before[1] + 1)
    assert not offload.away


def test_what_is_not_needed_comes_back_as_zeros() -> None:
    weights, gradients = torch.ones(5, dtype=torch.bfloat16), torch.ones(7)
    offload = Offload(lambda: None)
    assert offload.out([weights], drop=[gradients, weights]) == 10 + 28
    offload.back()
    assert weights.tolist() == [1.0] * 5
    assert gradients.tolist() == [0.0] * 7


def test_an_optimizer_goes_on_as_if_nothing_had_been() -> None:
    def run(park: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 3)
        adam = torch.optim.AdamW(model.parameters(), lr=0.1)
        offload = Offload(lambda: None)
        for _ in range(3):
            model(torch.ones(2, 6)).square().sum().backward()
            adam.step()
            adam.zero_grad(set_to_none=False)
            if park:
                state = [v for s in adam.state.values() for v in s.values() if torch.is_tensor(v)]
                offload.out([*model.parameters(), *state], drop=[p.grad for p in model.parameters()])
                offload.back()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(run(False), run(True))


def test_giving_up_twice_is_an_error_and_taking_back_twice_is_not() -> None:
    tensor = torch.ones(3)
    offload = Offload(lambda: None)
    offload.out([tensor])
    with pytest.raises(TrainerError, match="given up already"):
        offload.out([tensor])
    assert offload.back() == 12
    assert offload.back() == 0


def test_empty_tensors_take_no_part() -> None:
    offload = Offload(lambda: None)
    assert offload.out([torch.empty(0), torch.empty(3, 0)]) == 0
    assert offload.back() == 0
