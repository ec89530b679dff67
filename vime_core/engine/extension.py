"""Methods that our engines add to vLLM's worker class, callable by name through ``collective_rpc``, over HTTP too."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


class VimeWorkerExtension:
    """Mixed into the worker (``worker_extension_cls``)."""

    weight_transfer_engine: Any
    vllm_config: Any

    def vime_receipt(self) -> str:
        """JSON of this worker's :class:`~vime_core.engine.transfer.Outcome`."""
        return json.dumps(dataclasses.asdict(self.weight_transfer_engine.outcome))

    def vime_rollback(self, version: str) -> str:
        """Take ``version`` back; JSON of the outcome."""
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.rollback(int(version))
        return self.vime_receipt()
