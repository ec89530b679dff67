"""A Hugging Face checkpoint as a Megatron model on this rank's share of the layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer import TransformerConfig

    from vime_core.config.sections import Config
    from vime_core.interfaces.device import DeviceBackend


class MegatronModel:
    """The model chunks of one rank and their way to and from Hugging Face.

    Attributes:
        chunks: model chunks of this pipeline rank (one without virtual pipelining). With ``trainable`` each is wrapped in
            Megatron's DistributedDataParallel: ``chunk.zero_grad_buffer()`` before a step; pass ``chunks`` to
            ``get_megatron_optimizer`` and to ``get_forward_backward_func``.
        tconfig: Megatron's TransformerConfig. ``calculate_per_token_loss`` is on and ``finalize_model_grads_func`` ignores
            token counts: the gradient is the plain sum over micro-batches and over data and context ranks, so the loss
            closure returns ``(loss_sum, num_tokens, metrics)`` (a triple; ``num_tokens`` any int tensor on the device).
        vocab_size: the checkpoint's vocabulary (without padding).
        hf_folder: the checkpoint it was built from.
    """

    chunks: list[torch.nn.Module]
    tconfig: TransformerConfig
    vocab_size: int
    hf_folder: str

    @classmethod
    def build(cls, config: Config, device: DeviceBackend, hf_folder: str, *, trainable: bool) -> MegatronModel:
        """Build for this rank (after ``init_parallel``); weights are not loaded yet. Collective.

        Raises:
            ConfigError: unknown model type, or a layout that the model cannot be cut into.
        """
        raise NotImplementedError

    def load_hf(self, folder: str | None = None) -> None:
        """Load weights from a Hugging Face folder (default: the one it was built from). Collective."""
        raise NotImplementedError

    def export_hf(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under Hugging Face names, in a fixed order, in the model's dtype, on every rank. Collective: every
        rank must exhaust it. A tensor may share memory with the model; copy what you keep."""
        raise NotImplementedError

    def save_hf(self, folder: str) -> None:
        """Write safetensors, config and tokenizer files (rank 0). Collective."""
        raise NotImplementedError

    def ddp_arguments(self) -> dict[str, Any]:
        raise NotImplementedError
