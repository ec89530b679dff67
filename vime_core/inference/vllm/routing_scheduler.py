"""vLLM's scheduler with its own connector for routed experts switched on.

vLLM refuses its option ``enable_return_routed_experts`` where model runner V2 cannot run, although everything but that
runner serves any other. An engine that is started with ``scheduler_cls`` naming this class gets the scheduler's half of
it; its workers see the name too and attach the other half (:mod:`vime_core.inference.vllm.routing_runner`).
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector
from vllm.v1.core.sched.scheduler import Scheduler


class RoutingScheduler(Scheduler):
    """Counts which rows of routed experts each request has been given, and hands them out with its tokens."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aux_output_connector = AuxOutputSchedulerConnector()
