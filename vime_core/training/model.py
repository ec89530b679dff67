"""A Hugging Face checkpoint as a Megatron model on this rank's share of the layout.

Built from mbridge's provider with three changes: the output layer is deferred (``output_layer.py``), rotary frequencies
are Hugging Face's, and gradients are plain sums, so that a loss whose weights were counted over the whole step needs no
undoing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import unwrap_model

from vime_core.api import CheckpointError
from vime_core.training.models.bridge import Exporter, make_bridge, set_rotary
from vime_core.training.models.families import FAMILIES
from vime_core.training.models.hf_files import copy_companions, write_weights
from vime_core.training.models.inventory import Expected
from vime_core.training.output_layer import LanguageModelOutput, OutputLayer

if TYPE_CHECKING:
    from megatron.core.transformer import TransformerConfig

    from vime_core.api import DeviceBackend
    from vime_core.config import Config


class MegatronModel:
    """The model chunks of one rank and their way to and from Hugging Face.

    Attributes:
        chunks: model chunks of this pipeline rank (one without virtual pipelining). With ``trainable`` each is wrapped
            in Megatron's DistributedDataParallel: call ``chunk.zero_grad_buffer()`` before a step; pass ``chunks`` to
            ``get_megatron_optimizer`` and to ``get_forward_backward_func``.
        tconfig: Megatron's TransformerConfig. ``calculate_per_token_loss`` is on and ``finalize_model_grads_func``
            ignores token counts: the gradient is the plain sum over micro-batches and over data and context ranks. The
            loss closure returns the triple ``(loss_sum, num_tokens, metrics)``; ``num_tokens`` is any int tensor.
        vocab_size: the checkpoint's vocabulary (without padding).
        hf_folder: the checkpoint it was built from.
    """

    def __init__(
        self,
        bridge: Any,
        chunks: list[torch.nn.Module],
        device: DeviceBackend,
        hf_folder: str,
        output_layer: OutputLayer,
    ) -> None:
        self.chunks = chunks
        self.hf_folder = hf_folder
        self.vocab_size: int = bridge.hf_config.vocab_size
        self.tconfig: TransformerConfig = bridge.config
        self._bridge, self._output_layer = bridge, output_layer
        self._exporter = Exporter(bridge, self.modules, device.torch_device())

    @classmethod
    def build(
        cls,
        config: Config,
        device: DeviceBackend,
        hf_folder: str,
        *,
        trainable: bool,
        output_layer: OutputLayer | None = None,
    ) -> MegatronModel:
        """Build for this rank (after ``init_parallel``); weights are not loaded yet. Collective.

        Args:
            output_layer: what comes behind the last layer; default: the checkpoint's output layer.

        Raises:
            ConfigError: unknown model type, or a layout that the model cannot be cut into.
        """
        output_layer = output_layer or LanguageModelOutput()
        bridge = make_bridge(config, device, hf_folder)
        output_layer.adapt(bridge)
        modules = [_build_chunk(bridge, stage, output_layer) for stage in _virtual_stages()]
        bridge.config.finalize_model_grads_func = sum_gradients
        for module in modules:
            module.to(device.torch_device())
            module.requires_grad_(trainable).train(trainable)
        chunks: list[torch.nn.Module] = list(modules)
        if config.megatron.bf16:
            chunks = [Float16Module(bridge.config, chunk) for chunk in chunks]
        if trainable:
            chunks = _data_parallel(config, bridge.config, chunks)
        return cls(bridge, chunks, device, hf_folder, output_layer)

    @property
    def modules(self) -> list[Any]:
        """The GPTModels inside the chunks' wrappers."""
        return [unwrap_model(chunk) for chunk in self.chunks]

    def load_hf(self, folder: str | None = None) -> None:
        """Load weights from a Hugging Face folder (default: the one it was built from). Collective. An optimizer with
        its own copy of the weights has to reload them afterwards (``optimizer.reload_model_params()``).

        Raises:
            CheckpointError: weights are missing or have other shapes, or a tensor has no place in the model.
        """
        source = folder or self.hf_folder
        try:
            self._expected().check(self._bridge._get_safetensor_io(source).load_hf_weight_names(), source)
            with torch.no_grad():
                self._output_layer.load(self._bridge, self.modules, source)
        except (KeyError, ValueError, AssertionError, OSError, NotImplementedError) as error:
            raise CheckpointError(f"cannot load weights from {source}: {type(error).__name__}: {error}") from error

    def _expected(self) -> Expected:
        output = self._output_layer
        return Expected.of(self._exporter.names(), self._bridge.hf_config, output.unused, output.optional)

    def wait_param_gather(self) -> None:
        """Gather the parameters that ``overlap_param_gather`` leaves to the next training pass, so that whoever reads
        or swaps weights has all of them. Collective; nothing to do without that option."""
        for chunk in self.chunks:
            if isinstance(chunk, DistributedDataParallel) and chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of this rank's chunks, in place, by stable names."""
        found: dict[str, torch.Tensor] = {}
        for i, chunk in enumerate(self.chunks):
            for kind in (chunk.named_parameters(), chunk.named_buffers()):
                found |= {f"model.{i}.{name}": tensor.data for name, tensor in kind if tensor is not None}
        return found

    def gradients(self) -> Iterator[torch.Tensor]:
        """The flat buffers that gradients are summed in; none without ``trainable``."""
        for chunk in self.chunks:
            if isinstance(chunk, DistributedDataParallel):
                yield from (buffer.grad_data for buffer in chunk.buffers + chunk.expert_parallel_buffers)

    @torch.no_grad()
    def export_hf(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under Hugging Face names, in a fixed order, in the model's dtype, on every rank. Collective:
        every rank must exhaust it. A tensor may share memory with the model; copy what you keep."""
        yield from self._exporter

    def save_hf(self, folder: str) -> None:
        """Write weights, configuration and tokenizer files (rank 0). Tensors of the checkpoint that are not trained are
        written as they are. Collective."""
        stream = self.export_hf()
        if dist.get_rank() == 0:
            stream = chain(stream, self._untrained())
            target = Path(folder)
            target.mkdir(parents=True, exist_ok=True)
            write_weights(target, stream)
            copy_companions(Path(self.hf_folder), target)
        else:
            for _ in stream:
                pass
        dist.barrier()

    def _untrained(self) -> Iterator[tuple[str, torch.Tensor]]:
        starts = FAMILIES[self._bridge.hf_config.model_type].untrained(self._bridge.hf_config)
        files = self._bridge._get_safetensor_io(self.hf_folder)
        for name in sorted(files.load_hf_weight_names()):
            if starts and name.startswith(starts):
                yield name, files.load_one_hf_weight(name)


def sum_gradients(model: list[torch.nn.Module], num_tokens: torch.Tensor | None = None, **more: Any) -> None:
    """Megatron's end of a backward pass (reduction over data and context ranks, sequence-parallel and tied weights)
    without its division by a token count."""
    finalize_model_grads(model, None, **more)


def own_fields(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that are fields of the dataclass ``cls``."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def _virtual_stages() -> Sequence[int | None]:
    size = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    return [None] if size is None else range(size)


def _build_chunk(bridge: Any, stage: int | None, output_layer: OutputLayer) -> Any:
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=stage is None, vp_stage=stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=stage is None, vp_stage=stage)
    module = bridge._model_provider([])(pre_process=first, post_process=last, vp_stage=stage)
    module.vp_stage = stage
    set_rotary(module, bridge.hf_config)
    if last:
        output_layer.install(module, bridge)
    for parameter in module.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    return module


def _data_parallel(config: Config, tconfig: Any, chunks: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    values = {
        "use_distributed_optimizer": config.megatron.use_distributed_optimizer,
        "grad_reduce_in_fp32": True,
        **own_fields(DistributedDataParallelConfig, config.megatron_extra),
    }
    wrapped = [
        DistributedDataParallel(tconfig, DistributedDataParallelConfig(**values), chunk, disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]
    if values.get("overlap_grad_reduce"):
        # without it, gradients are reduced after the first micro-batch already
        tconfig.no_sync_func = [chunk.no_sync for chunk in wrapped] if len(wrapped) > 1 else wrapped[0].no_sync
    return list(wrapped)
