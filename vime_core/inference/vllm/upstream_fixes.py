"""Gaps of vLLM that this project mends from outside, each named, bound to the versions it was seen in, and listed.

None of them touches anything unless the process belongs to an engine that was started to get weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.api import EngineError
from vime_core.inference.vllm.routing_runner import tap_routing
from vime_core.inference.vllm.version import vllm_version

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class UpstreamFix:
    """One mended gap. It applies for vLLM versions ``since <= version < until``."""

    name: str
    what: str
    since: str
    until: str

    def applies(self, version: str) -> bool:
        from packaging.version import Version

        return Version(self.since) <= Version(version) < Version(self.until)


SEEDED_CHUNKED_PREFILL = UpstreamFix(
    "seeded_chunked_prefill",
    "a seeded request whose step is only a partial prefill ends the CPU engine: CPU generators have no offset",
    "0.23",
    "0.34",
)
MOE_KERNEL_RESET = UpstreamFix(
    "moe_kernel_reset",
    "an update of a CPU MoE layer copies raw weights into its packed buffer: wrong outputs, no error",
    "0.32",
    "0.34",
)
ROUTED_EXPERTS = UpstreamFix(
    "routed_experts",
    "routed experts are returned by model runner V2 only, which needs Triton: none on the CPU",
    "0.32",
    "0.33",
)


def fixes() -> tuple[UpstreamFix, ...]:
    """All of them, for `vime doctor` and the documentation."""
    return (SEEDED_CHUNKED_PREFILL, MOE_KERNEL_RESET, ROUTED_EXPERTS)


def require(fix: UpstreamFix, version: str = "") -> None:
    """Raises EngineError where ``version``, or the installed vLLM, is not one that ``fix`` was made for."""
    version = version or vllm_version()
    if not fix.applies(version):
        seen = f"{fix.since} <= vLLM < {fix.until}"
        raise EngineError(f"{fix.name} ({fix.what}): mended for {seen} only, this is vLLM {version}")


def install_worker_fixes() -> list[str]:
    """Apply what belongs to a worker process for its whole life; idempotent. Returns the names of what is in force."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner: Any = GPUModelRunner
    applied = []
    if SEEDED_CHUNKED_PREFILL.applies(vllm_version()):
        applied.append(SEEDED_CHUNKED_PREFILL.name)
        if not hasattr(runner._sample, "vime_fix"):
            runner._sample = _keep_generators(runner._sample)
            runner._bookkeeping_sync = _hide_generators(runner._bookkeeping_sync)
    if ROUTED_EXPERTS.applies(vllm_version()):
        applied.append(ROUTED_EXPERTS.name)
        if not hasattr(runner.initialize_kv_cache, "vime_fix"):
            runner.initialize_kv_cache = tap_routing(runner.initialize_kv_cache)
    return applied


def _keep_generators(original: Callable[..., Any]) -> Callable[..., Any]:
    """A discarded sample must not advance its request's generator: its state is put back after sampling."""

    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        states = []
        if batch.generators:
            discarded = self.discard_request_mask.np[: batch.num_reqs]
            states = [
                (generator, generator.get_state())
                for row, generator in batch.generators.items()
                if row < len(discarded) and discarded[row] and generator.device.type == "cpu"
            ]
        output = original(self, *args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    sample.vime_fix = True  # type: ignore[attr-defined]
    return sample


def _hide_generators(original: Callable[..., Any]) -> Callable[..., Any]:
    """The bookkeeping would rewind with ``set_offset``; CPU generators are out of its sight meanwhile."""

    def bookkeeping(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        everything = batch.generators
        batch.generators = {row: g for row, g in everything.items() if g.device.type != "cpu"}
        try:
            return original(self, *args, **kwargs)
        finally:
            batch.generators = everything

    return bookkeeping


def reset_moe_kernels(model: torch.nn.Module, device: torch.device) -> int:
    """Before an update: let each CPU MoE layer pack its weights afresh. Returns the number of layers reset."""
    if device.type != "cpu" or not MOE_KERNEL_RESET.applies(vllm_version()):
        return 0
    count = 0
    for module in model.modules():
        method = getattr(module, "quant_method", None) or getattr(module, "_quant_method", None)
        if method is not None and getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
            count += 1
    return count
