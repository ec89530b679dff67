"""Methods that our engines add to vLLM's worker class, callable by name through ``collective_rpc``, over HTTP too."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any


class VimeWorkerExtension:
    """Mixed into the worker (``worker_extension_cls``)."""

    weight_transfer_engine: Any
    vllm_config: Any
    get_model: Callable[[], Any]

    def vime_receipt(self) -> str:
        """JSON of this worker's :class:`~vime_core.engine.outcome.Outcome`."""
        return json.dumps(dataclasses.asdict(self.weight_transfer_engine.outcome))

    def vime_rollback(self, version: str) -> str:
        """Take ``version`` back; JSON of the outcome."""
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            self.weight_transfer_engine.rollback(int(version))
        return self.vime_receipt()

    def vime_divide_logits(self, temperature: str) -> str:
        """From here on the model's logits are divided by ``temperature``: those of prompts too, which vLLM's own
        sampling temperature does not reach.

        Raises:
            RuntimeError: the model has not exactly one layer that scales logits.
        """
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        layers = [module for module in self.get_model().modules() if isinstance(module, LogitsProcessor)]
        if len(layers) != 1:
            raise RuntimeError(f"{type(self.get_model()).__name__} has {len(layers)} layers that scale logits, not one")
        layers[0].scale /= float(temperature)
        return f"{layers[0].scale}"
