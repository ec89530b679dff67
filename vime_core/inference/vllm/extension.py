"""Methods that our engines add to vLLM's worker class, callable by name through ``collective_rpc``, over HTTP too."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.inference.vllm.weight_loader import WeightLoader


class VimeWorkerExtension:
    """Mixed into the worker (``worker_extension_cls``). Arguments and answers are text, as a server passes them on.

    An update goes through these methods and not through vLLM's own weight-transfer interface, which has had three forms
    in half a year and calls the model's loader before anything could be checked.
    """

    vllm_config: Any
    device: Any
    get_model: Callable[[], Any]

    def vime_receipt(self) -> str:
        """JSON of this worker's last :class:`~vime_core.weights.UpdateResult`."""
        return json.dumps(dataclasses.asdict(self.vime_loader().result))

    def vime_receive(self, version: str, terms: str, rank_offset: str) -> str:
        """Take what the trainer sends as ``version``. ``terms``: JSON of where to meet."""
        self.vime_loader().receive(int(version), json.loads(terms), int(rank_offset))
        return self.vime_receipt()

    def vime_load(self, version: str) -> str:
        """Load what was received."""
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            self.vime_loader().load(int(version))
        return self.vime_receipt()

    def vime_discard(self, version: str) -> str:
        """Forget what was received of ``version`` and not loaded."""
        self.vime_loader().discard()
        return self.vime_receipt()

    def vime_loader(self) -> WeightLoader:
        """This worker's, made at the first call: vLLM leaves a mixed-in class no constructor."""
        from vime_core.inference.vllm.weight_loader import WeightLoader
        from vime_core.weights import chosen_receiver

        made: WeightLoader | None = self.__dict__.get("_vime_loader")
        if made is None:
            config = self.vllm_config
            made = WeightLoader(
                self.get_model(), config.model_config, config.parallel_config, self.device, chosen_receiver()
            )
            self.__dict__["_vime_loader"] = made
        return made

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
