"""The optimizer and its learning-rate schedule: Megatron's own, built from the run's configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vime_core.config import Config


@dataclass
class Optimizer:
    """Megatron's optimizer beside its scheduler. One :meth:`step` is one optimizer step."""

    inner: Any
    scheduler: Any

    @classmethod
    def build(cls, config: Config, chunks: list[torch.nn.Module], total_steps: int) -> Optimizer:
        """``total_steps`` is the number of optimizer steps of the run, the default length of the schedule."""
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        m = config.megatron
        values: dict[str, Any] = {
            "optimizer": "adam",
            "lr": m.lr,
            "min_lr": m.min_lr,
            "weight_decay": m.weight_decay,
            "adam_beta1": m.adam_beta1,
            "adam_beta2": m.adam_beta2,
            "adam_eps": m.adam_eps,
            "clip_grad": m.clip_grad,
            "bf16": m.bf16,
            "params_dtype": torch.bfloat16 if m.bf16 else torch.float32,
            "use_distributed_optimizer": m.use_distributed_optimizer,
        }
        values |= _fields_of(OptimizerConfig, config.megatron_extra)
        inner = get_megatron_optimizer(OptimizerConfig(**values), chunks)
        return cls(inner, schedule_of(config, inner, total_steps))

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> dict[str, float]:
        """Apply the gradients. Returns ``grad_norm`` (before clipping), ``lr-pg_<i>`` and ``skipped``: 1 when the
        norm was not finite, and then neither parameters nor schedule have moved."""
        overflow = self.inner.prepare_grads()
        norm = float("nan") if overflow else float(self.inner.get_grad_norm())
        if not math.isfinite(norm):
            return {"grad_norm": norm, **self.skip()}
        set_rate(self.scheduler)
        self._clip(norm)
        self.inner.step_with_ready_grads()
        self.scheduler.num_steps += 1
        return {"grad_norm": norm, "skipped": 0.0, **self.learning_rates()}

    def step_on(self, weight: torch.Tensor) -> dict[str, float]:
        """:meth:`step`, if any token has a weight: else there is no gradient, and weight decay alone is no update."""
        return self.step() if bool((weight != 0).any()) else self.skip()

    def skip(self) -> dict[str, float]:
        """What :meth:`step` returns for an update that is not made."""
        return {"skipped": 1.0, **self.learning_rates()}

    def _clip(self, norm: float) -> None:
        from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

        for wrapper in self._wrappers():
            parameters = wrapper.get_parameters()
            if parameters and wrapper.config.clip_grad > 0:
                clip_grad_by_total_norm_fp32(parameters, max_norm=wrapper.config.clip_grad, total_norm=norm)

    def _wrappers(self) -> list[Any]:
        every = getattr(self.inner, "chained_optimizers", [self.inner])
        return [w for w in every if not getattr(w, "is_stub_optimizer", False)]

    def learning_rates(self) -> dict[str, float]:
        return {f"lr-pg_{i}": float(group["lr"]) for i, group in enumerate(self.inner.param_groups)}

    # state, for checkpoints ----------------------------------------------------------------------------------
    def torch_optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """The torch optimizers under Megatron's wrappers, in a fixed order."""
        for wrapper in self._wrappers():
            yield wrapper.optimizer

    def tensors(self) -> dict[str, torch.Tensor]:
        """Main parameters and Adam state of this rank by stable names. Shards of the distributed optimizer appear as
        they are on this rank."""
        found: dict[str, torch.Tensor] = {}
        for i, optimizer in enumerate(self.torch_optimizers()):
            for j, param in enumerate(_parameters(optimizer)):
                found[f"optimizer.{i}.{j}.param"] = param.data
                for name, value in optimizer.state.get(param, {}).items():
                    found[f"optimizer.{i}.{j}.{name}"] = torch.as_tensor(value)
        return found

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Put back what :meth:`tensors` gave; the optimizer must have been built for the same layout."""
        for i, optimizer in enumerate(self.torch_optimizers()):
            for j, param in enumerate(_parameters(optimizer)):
                prefix = f"optimizer.{i}.{j}."
                mine = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
                param.data.copy_(mine.pop("param"))
                if mine:
                    optimizer.state[param] = {k: v.clone() for k, v in mine.items()}


def schedule_of(config: Config, inner: Any, total_steps: int) -> Any:
    """Megatron's ``OptimizerParamScheduler`` over the parameter groups of ``inner``; its ``num_steps`` are updates that
    were made."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    m = config.megatron
    # a constant rate may warm up for the whole run; Megatron wants a schedule that is longer
    decay = max(m.lr_decay_iters or max(total_steps, 1), m.lr_warmup_iters + 1)
    return OptimizerParamScheduler(
        inner,
        init_lr=0.0,
        max_lr=m.lr,
        min_lr=m.min_lr,
        lr_warmup_steps=m.lr_warmup_iters,
        lr_decay_steps=decay,
        lr_decay_style=m.lr_decay_style,
        start_wd=m.weight_decay,
        end_wd=m.weight_decay,
        wd_incr_steps=max(total_steps, 1),
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
    )


def set_rate(scheduler: Any) -> None:
    """The rate of the next update, so that none is made for nothing: warm-up begins above 0 and is over at its last
    update; a decay begins at its first, and would reach its end with the update after the last."""
    done = scheduler.num_steps
    scheduler.num_steps = done + 1 if done < scheduler.lr_warmup_steps else done
    scheduler.step(0)
    scheduler.num_steps = done


def mean_of_steps(done: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics averaged over the optimizer steps of one rollout step; skipped ones are counted as ``skipped_steps``, not
    averaged. Where all were skipped only the rates are left."""
    made = [one for one in done if not one["skipped"]]
    names = {name for one in made for name in one} | {name for name in done[0] if name.startswith("lr-")}
    values = {name: [one[name] for one in made or done if name in one] for name in names - {"skipped"}}
    return {name: sum(x) / len(x) for name, x in values.items()} | {"skipped_steps": float(len(done) - len(made))}


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _fields_of(kind: type, extra: Any) -> dict[str, Any]:
    import dataclasses

    names = {f.name for f in dataclasses.fields(kind)}
    return {k: v for k, v in extra.items() if k in names}
