"""Sequence reductions over real processes: torch's differentiable all-reduce is what the view asks for."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from vime_testing.toy_step import Case, Subject, random_case, zigzag

from vime_core.algorithms.common import bounded_exp
from vime_core.algorithms.grpo import Grpo
from vime_core.runtime.ports import free_port


class SequenceRatio(Grpo):
    name = "sequence-ratio"

    def surrogate(self, view: Any, advantage: torch.Tensor, options: Any) -> Any:
        return -advantage * view.broadcast_to_tokens(bounded_exp(view.seq_mean(view.logp - view.old_logp))), {}


SUBJECT = Subject(SequenceRatio(), "sample_mean")


def grad_of_rank(case: Case, rank: int, ranks: int, reduce: Any) -> torch.Tensor:
    """[R, V] gradient that one context rank ends up with: of its own tokens."""
    samples = range(len(case.batch))
    leaf = case.logits.clone().requires_grad_()
    index = zigzag(case.batch, samples, ranks)[rank]
    loss, _ = SUBJECT.loss_of_rank(SUBJECT.begin(case, leaf), samples, index, reduce)
    loss.backward()
    assert leaf.grad is not None
    return leaf.grad


def work(rank: int, port: int, folder: str) -> None:
    from torch.distributed.nn.functional import all_reduce

    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, datetime.timedelta(seconds=60), world_size=2, rank=rank)
    grad = grad_of_rank(random_case(4), rank, 2, all_reduce)
    dist.all_reduce(grad)
    torch.save(grad, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    torch.multiprocessing.spawn(work, (port, str(tmp_path)), nprocs=2)
    want = SUBJECT.run(random_case(4)).grad
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-12)
