"""Routed experts out of vLLM's model runner V1: the worker's half of :mod:`vime_core.inference.vllm.routing_scheduler`.

vLLM's connector does the work: it hangs a capture function into every router, cuts a step's rows by request, keeps the
rows of full blocks beside the blocks of the prefix cache under the same hashes, and forgets all of them when the cache
is reset (a weight update). What is added is the call before a step and the one after it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.inference.spec import ROUTING_SCHEDULER

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput


class RoutingTap:
    """Around one runner's steps. The engine has to run without asynchronous scheduling."""

    def __init__(self, runner: Any) -> None:
        from vllm.distributed.aux_output_connector.worker import get_aux_output_connector

        self.runner = runner
        self.connector = get_aux_output_connector(runner.model, runner.vllm_config, runner.kv_cache_config)
        self._execute, self._sample = runner.execute_model, runner.sample_tokens
        self._scheduled: SchedulerOutput | None = None
        runner.execute_model, runner.sample_tokens = self.execute_model, self.sample_tokens

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        self.connector.begin_step(scheduler_output.aux_output_connector_metadata)
        self._scheduled = scheduler_output
        return self._execute(scheduler_output, *args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        output = self._sample(*args, **kwargs)
        if output.req_ids:
            output.aux_output_connector_output = self._rows(output)
        return output

    def _rows(self, output: ModelRunnerOutput) -> Any:
        """What the scheduler hands out with the tokens of this step; None on all workers but the first."""
        batch, n = self.runner.input_batch, len(output.req_ids)
        step = SimpleNamespace(
            req_ids=output.req_ids,
            query_start_loc_np=self.runner.query_start_loc.np[: n + 1].copy(),
            num_computed_tokens_np=batch.num_computed_tokens_cpu[:n].copy(),
        )
        pending = self.connector.prepare_output(step)  # type: ignore[arg-type]
        if pending is None:
            return None
        sampled = np.array([len(tokens) for tokens in output.sampled_token_ids])
        pending.enqueue_cpu_copy(sampled, self._rejected(output.req_ids, sampled))
        return pending.process_output()

    def _rejected(self, ids: list[str], sampled: np.ndarray) -> np.ndarray:
        """Drafted tokens of speculative decoding that were routed and then not taken."""
        assert self._scheduled is not None
        drafts = self._scheduled.scheduled_spec_decode_tokens
        drafted = np.array([len(drafts.get(id, ())) for id in ids])
        return np.where(sampled > 0, np.maximum(drafted - (sampled - 1), 0), 0)


def tap_routing(original: Callable[..., None]) -> Callable[..., None]:
    """``GPUModelRunner.initialize_kv_cache`` that taps the runner of an engine with our scheduler afterwards."""

    def initialize_kv_cache(self: Any, kv_cache_config: Any, is_profiling: bool = False, **kwargs: Any) -> None:
        original(self, kv_cache_config, is_profiling, **kwargs)
        if self.vllm_config.scheduler_config.scheduler_cls == ROUTING_SCHEDULER and not is_profiling:
            RoutingTap(self)

    initialize_kv_cache.vime_fix = True  # type: ignore[attr-defined]
    return initialize_kv_cache
