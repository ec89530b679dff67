"""From a Hugging Face folder to Megatron's configuration and weights, and back, through mbridge's name tables.

mbridge knows, for each model type, the TransformerConfig, the names and the reshaping of each weight. Around it, this
module mends what its callers would trip over (rotary settings of transformers 5, tables shared between tied and untied
models of one process) and exports with one plan instead of a handshake a tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError
from vime_core.config import Facts, read_model, stage_faults
from vime_core.training.models.families import FAMILIES, not_honoured, refusal, rope_of

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from vime_core.api import DeviceBackend
    from vime_core.config import Config


def read_hf_config(hf_folder: str) -> Any:
    """The folder's configuration, checked.

    Raises:
        ConfigError: no such folder, an unsupported model type, or a feature of it that would be ignored.
    """
    from transformers import AutoConfig

    raw = read_model(hf_folder)
    if raw is None:
        raise ConfigError(f"hf_checkpoint {hf_folder}: no config.json there; give a Hugging Face model folder")
    kind = str(raw.get("model_type"))
    if (reason := refusal(kind)) is not None:
        raise ConfigError(f"hf_checkpoint {hf_folder}: model type {kind!r} is not supported: {reason}")
    hf = AutoConfig.from_pretrained(hf_folder)
    if found := not_honoured(hf):
        raise ConfigError(
            f"hf_checkpoint {hf_folder}: the trainer does not compute {kind} with {', '.join(found)}; "
            "its log-probs would be another model's"
        )
    rope = rope_of(hf)  # transformers 5 keeps the settings there; mbridge reads them here
    hf.rope_theta, hf.partial_rotary_factor = rope["rope_theta"], rope.get("partial_rotary_factor", 1.0)
    if getattr(hf, "head_dim", None) is None:
        hf.head_dim = hf.hidden_size // hf.num_attention_heads
    return hf


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
    _read_direct_names(bridge)
    known = {field.name for field in dataclasses.fields(bridge.TransformerConfigClass)}
    values = {**_values(config, hf), **device.megatron_overrides(), **{k: v for k, v in extra.items() if k in known}}
    bridge.set_extra_args(**values)
    return bridge


def _read_direct_names(bridge: Any) -> None:
    """GLM's bridge has a table of its own for these names, which knows no tied output layer and no critic's head."""
    inner = bridge._weight_name_mapping_mcore_to_hf

    def names(weight: str) -> list[str]:
        direct = bridge._DIRECT_MAPPING.get(weight)
        return inner(weight) if direct is None else [direct]

    bridge._weight_name_mapping_mcore_to_hf = names


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
    return values | FAMILIES[hf.model_type].values(hf)


def check_division(config: Config, hf: Any) -> None:
    """Raises ConfigError, with all violations, when heads, layers or experts do not divide over the layout."""
    m = config.megatron
    facts = Facts(model=hf.to_dict())
    wanted = {
        "num_attention_heads": m.tensor_model_parallel_size,
        "num_key_value_heads": m.tensor_model_parallel_size,
        "intermediate_size": m.tensor_model_parallel_size,
        "moe_intermediate_size": m.expert_tensor_parallel_size or m.tensor_model_parallel_size,
        "shared_expert_intermediate_size": m.tensor_model_parallel_size,
    }
    sizes = {name: (getattr(hf, name, None), parts) for name, parts in wanted.items()}
    sizes["experts"] = (facts.experts, m.expert_model_parallel_size)
    violations = [
        f"{name} {size} of the model does not divide by {parts} (parallel size)"
        for name, (size, parts) in sizes.items()
        if size and size % parts
    ]
    violations += stage_faults(config, hf.num_hidden_layers)
    if facts.experts and m.tensor_model_parallel_size > 1 and not m.sequence_parallel:
        violations.append("a model with experts and tensor_model_parallel_size > 1 needs sequence_parallel")
    if m.expert_model_parallel_size > 1 and not facts.experts:
        violations.append(f"expert_model_parallel_size {m.expert_model_parallel_size}: the model has no experts")
    if violations:
        raise ConfigError(violations)


def set_rotary(model: Any, hf: Any) -> None:
    """Give the model Hugging Face's own rotary frequencies, scaled as the checkpoint says."""
    kind = rope_of(hf)["rope_type"]
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

    def names(self) -> list[str]:
        """The Hugging Face name of each tensor that a weight of the model is made of, over all ranks; a tied output
        layer has none of its own. Collective the first time."""
        tied = bool(getattr(self._bridge.hf_config, "tie_word_embeddings", False))
        plan = self._agreed([_weights(chunk) for chunk in self._chunks])
        return [
            hf_name
            for weight in plan
            if not (tied and weight.name == "output_layer.weight")
            for name in self._global_names(weight)
            for hf_name in self._bridge._weight_name_mapping_mcore_to_hf(name)
        ]

    def _global_names(self, weight: ShardedParameter) -> list[str]:
        """Megatron's names of a weight over all ranks: one, or one an expert-parallel rank."""
        if not weight.of_expert:
            return [weight.name]
        size = self._bridge.mpu.ep_size
        stem, local = weight.name.rsplit(".weight", 1)
        each = self._bridge.config.num_moe_experts // size
        return [f"{stem}.weight{int(local) + rank * each}" for rank in range(size)]

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
        experts = _gather(part, mpu.ep_group, mpu.ep_size)
        for name, expert in zip(self._global_names(weight), experts, strict=True):
            shards = _gather(expert, mpu.etp_group, mpu.etp_size)
            yield name, merge_shards(weight.name, shards, weight.partition_dim or 0, gated)


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
