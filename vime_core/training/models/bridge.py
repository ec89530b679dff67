"""From a Hugging Face folder to Megatron's configuration and weights, and back, through mbridge's name tables.

mbridge knows, for each model type, the TransformerConfig, the names and the reshaping of each weight. Around it, this
module mends what its callers would trip over (rotary settings of transformers 5, tables shared between tied and untied
models of one process) and exports with one plan instead of a handshake a tensor.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError, TrainerError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from vime_core.api import DeviceBackend
    from vime_core.config import Config

#: how rotary frequencies may be scaled (those whose formula is a fixed vector without a factor on attention)
_ROPE_TYPES = ("default", "linear", "llama3")


def supported_model_types() -> frozenset[str]:
    """``model_type`` values of text models that mbridge registers. Read from its source; imports nothing heavy."""
    spec = find_spec("mbridge")
    if spec is None or spec.origin is None:
        raise TrainerError("mbridge is not installed: pip install 'vime-core[stack]'")
    models = (Path(spec.origin).parent / "models").glob("*.py")
    return frozenset(name for file in models for name in _registered(ast.parse(file.read_text())))


def _registered(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for call in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "register_model":
                names = ast.literal_eval(call.args[0])
                yield from [names] if isinstance(names, str) else names


def read_hf_config(hf_folder: str) -> Any:
    """The folder's configuration, checked.

    Raises:
        ConfigError: no such folder, an unsupported model type, or a feature of it that would be ignored.
    """
    from transformers import AutoConfig

    if not (Path(hf_folder) / "config.json").is_file():
        raise ConfigError(f"hf_checkpoint {hf_folder}: no config.json there; give a Hugging Face model folder")
    hf = AutoConfig.from_pretrained(hf_folder)
    if hf.model_type not in supported_model_types():
        known = ", ".join(sorted(supported_model_types()))
        raise ConfigError(
            f"hf_checkpoint {hf_folder}: model type {hf.model_type!r} is not supported; supported: {known}"
        )
    ignored = [
        f"{name} = {getattr(hf, name)!r}"
        for name, only in _ONLY.items()
        if getattr(hf, name, only) not in (only, None) and not (name == "attention_bias" and hf.model_type == "llama")
    ]
    if ignored:
        raise ConfigError(f"hf_checkpoint {hf_folder}: {hf.model_type} with {', '.join(ignored)} is not supported")
    rope = dict(getattr(hf, "rope_parameters", None) or {"rope_theta": hf.rope_theta, "rope_type": "default"})
    if rope.get("rope_type", "default") not in _ROPE_TYPES:
        raise ConfigError(
            f"hf_checkpoint {hf_folder}: rope type {rope['rope_type']!r}; supported: {', '.join(_ROPE_TYPES)}"
        )
    hf.rope_theta = rope["rope_theta"]  # transformers 5 keeps it in rope_parameters; mbridge reads it here
    return hf


#: settings that the bridge does not carry over, and the only value at which that is right
_ONLY: Mapping[str, Any] = {
    "mlp_bias": False,
    "attention_bias": False,
    "use_sliding_window": False,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
}


def make_bridge(config: Config, device: DeviceBackend, hf_folder: str) -> Any:
    """An mbridge ``Bridge`` whose TransformerConfig has the device's and then the user's values.

    Raises:
        ConfigError: see :func:`read_hf_config`; or the model cannot be divided as the layout asks.
    """
    import torch
    from mbridge import AutoBridge

    hf = read_hf_config(hf_folder)
    check_division(config, hf)
    tp = config.megatron.tensor_model_parallel_size
    extra = dict(config.megatron_extra)
    multiple = int(extra.get("make_vocab_size_divisible_by", 1)) * tp
    dtype = torch.bfloat16 if config.megatron.bf16 else torch.float32
    bridge = AutoBridge.from_config(hf, dtype=dtype, make_vocab_size_divisible_by=multiple)
    tied = getattr(hf, "tie_word_embeddings", False)
    # mbridge writes this entry into a table of the class, where it would outlive this model.
    output = "model.embed_tokens.weight" if tied else "lm_head.weight"
    bridge._DIRECT_MAPPING = {**bridge._DIRECT_MAPPING, "output_layer.weight": output}
    known = {field.name for field in dataclasses.fields(bridge.TransformerConfigClass)}
    values = {**_values(config, hf), **device.megatron_overrides(), **{k: v for k, v in extra.items() if k in known}}
    bridge.set_extra_args(**values)
    return bridge


def no_op_init(weight: torch.Tensor) -> torch.Tensor:
    """An initialisation that draws nothing."""
    return weight


def _values(config: Config, hf: Any) -> dict[str, Any]:
    m = config.megatron
    values: dict[str, Any] = {
        "sequence_parallel": m.sequence_parallel,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "variable_seq_lengths": True,
        "calculate_per_token_loss": True,
        "recompute_granularity": m.recompute_granularity,
        # All weights come from the checkpoint. Initialisation stays on, because it also marks how weights are divided.
        "init_method": no_op_init,
        "output_layer_init_method": no_op_init,
        "embedding_init_method": no_op_init,
    }
    if m.recompute_granularity == "full":
        values |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    if hasattr(hf, "norm_topk_prob"):
        # Softmax over the chosen experts is softmax over all, renormalised over the chosen.
        values["moe_router_pre_softmax"] = not hf.norm_topk_prob
    return values


def check_division(config: Config, hf: Any) -> None:
    """Raises ConfigError, with all violations, when heads, layers or experts do not divide over the layout."""
    m = config.megatron
    wanted = {
        "num_attention_heads": m.tensor_model_parallel_size,
        "num_key_value_heads": m.tensor_model_parallel_size,
        "intermediate_size": m.tensor_model_parallel_size,
        "num_hidden_layers": m.pipeline_model_parallel_size,
        "num_experts": m.expert_model_parallel_size,
    }
    violations = [
        f"{name} {getattr(hf, name)} of the model does not divide by {parts} (parallel size)"
        for name, parts in wanted.items()
        if getattr(hf, name, None) and getattr(hf, name) % parts
    ]
    experts = getattr(hf, "num_experts", None)
    if experts and m.tensor_model_parallel_size > 1 and not m.sequence_parallel:
        violations.append("a model with experts and tensor_model_parallel_size > 1 needs sequence_parallel")
    if m.expert_model_parallel_size > 1 and not experts:
        violations.append(f"expert_model_parallel_size {m.expert_model_parallel_size}: the model has no experts")
    if violations:
        raise ConfigError(violations)


def set_rotary(model: Any, hf: Any) -> None:
    """Give the model Hugging Face's own rotary frequencies, scaled as the checkpoint says."""
    rope = dict(getattr(hf, "rope_parameters", None) or {})
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    embedding = model.rotary_pos_emb
    frequencies, _ = ROPE_INIT_FUNCTIONS[kind](hf, embedding.inv_freq.device)
    embedding.inv_freq, embedding.seq_len_interpolation_factor = frequencies, None


# export ----------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class ShardedParameter:
    """One Megatron weight: on which pipeline rank and chunk, under which names, along which dimension it is divided."""

    stage: int
    chunk: int
    local_name: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    partition_dim: int | None

    @property
    def of_expert(self) -> bool:
        return ".mlp.experts.linear_fc" in self.name


class Exporter:
    """Full weights under Hugging Face names. The plan is agreed on once (collective); each export only moves tensors.

    Args:
        bridge: mbridge's ``Bridge``.
        chunks: unwrapped model chunks of this rank.
        device: where tensors of other stages are received.
    """

    def __init__(self, bridge: Any, chunks: Sequence[Any], device: torch.device) -> None:
        self._bridge, self._chunks, self._device = bridge, chunks, device
        self._plan: list[ShardedParameter] | None = None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        seen: set[str] = set()
        states = [_weights(chunk) for chunk in self._chunks]
        for weight in self._agreed(states):
            mine = weight.stage == self._bridge.mpu.pp_rank
            part = self._from_stage(weight, states[weight.chunk][weight.local_name].detach() if mine else None)
            for name, tensor in self._whole(weight, part):
                for hf_name, hf_tensor in zip(*self._bridge._weight_to_hf_format(name, tensor), strict=True):
                    if hf_name not in seen:  # a tied output layer of the last stage is the first stage's embedding
                        seen.add(hf_name)
                        yield hf_name, hf_tensor

    def _agreed(self, states: Sequence[Mapping[str, torch.Tensor]]) -> list[ShardedParameter]:
        if self._plan is None:
            import torch.distributed as dist

            mpu = self._bridge.mpu
            mine: list[ShardedParameter] = []
            for number, (chunk, state) in enumerate(zip(self._chunks, states, strict=True)):
                names = self._bridge._weight_name_mapping_mcore_local_to_global(chunk, consider_ep=False)
                for local, tensor in state.items():
                    facts = tuple(tensor.shape), tensor.dtype, _partition_dim(tensor)
                    mine.append(ShardedParameter(mpu.pp_rank, number, local, names[local], *facts))
            stages: list[list[ShardedParameter]] = [mine] * mpu.pp_size
            dist.all_gather_object(stages, mine, group=mpu.pp_group)
            self._plan = [weight for stage in stages for weight in stage]
        return self._plan

    def _from_stage(self, weight: ShardedParameter, mine: torch.Tensor | None) -> torch.Tensor:
        import torch
        import torch.distributed as dist

        mpu = self._bridge.mpu
        part = torch.empty(weight.shape, dtype=weight.dtype, device=self._device) if mine is None else mine
        if mpu.pp_size > 1:
            dist.broadcast(part, dist.get_global_rank(mpu.pp_group, weight.stage), group=mpu.pp_group)
        return part

    def _whole(self, weight: ShardedParameter, part: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Megatron's global name and full tensor: one, or one an expert-parallel rank."""
        mpu = self._bridge.mpu
        gated = self._bridge.config.gated_linear_unit
        if not weight.of_expert:
            shards = _gather(part, mpu.tp_group, mpu.tp_size) if weight.partition_dim is not None else [part]
            yield weight.name, merge_shards(weight.name, shards, weight.partition_dim or 0, gated)
            return
        stem, local = weight.name.rsplit(".weight", 1)
        for rank, expert in enumerate(_gather(part, mpu.ep_group, mpu.ep_size)):
            number = int(local) + rank * self._bridge.config.num_moe_experts // mpu.ep_size
            shards = _gather(expert, mpu.etp_group, mpu.etp_size)
            yield f"{stem}.weight{number}", merge_shards(weight.name, shards, weight.partition_dim or 0, gated)


def _partition_dim(tensor: torch.Tensor) -> int | None:
    return getattr(tensor, "partition_dim", 0) if getattr(tensor, "tensor_model_parallel", False) else None


def merge_shards(name: str, shards: Sequence[torch.Tensor], dim: int, gated: bool) -> torch.Tensor:
    """The whole of a weight from its tensor-parallel shards; a gated first linear holds gate and up halves a shard."""
    import torch

    if len(shards) == 1:
        return shards[0]
    if gated and ".linear_fc1." in name and "layer_norm" not in name:
        halves = [shard.chunk(2) for shard in shards]
        return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
    return torch.cat(list(shards), dim=dim)


def _gather(part: torch.Tensor, group: dist.ProcessGroup, size: int) -> list[torch.Tensor]:
    import torch
    import torch.distributed as dist

    if size == 1:
        return [part]
    parts = [torch.empty_like(part) for _ in range(size)]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts


def _weights(chunk: Any) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers (the router's bias) of a chunk."""
    state = chunk.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if tensor is not None and "_extra_state" not in name}
