# ruff: noqa: RUF009  (opt() returns a dataclass field, whose containers are factories)
"""The typed sections of a run. One frozen dataclass a section; field metadata holds the help text.

A field is one flag (``rollout_batch_size`` -> ``--rollout-batch-size``) and one TOML key, in ``[section]`` or at the
top of a recipe. Names are unique over all sections. ``None`` means "not given". Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vime_core.config.algorithm_section import AlgorithmSection
from vime_core.config.cluster_section import ClusterSection
from vime_core.config.option import opt


@dataclass(frozen=True)
class RunSection:
    """What to run, where to put it, when to stop."""

    run_dir: str = opt("runs/{name}-{time}", "run folder; {name} and {time} are filled in")
    name: str = opt("run", "name of the run")
    prepare: str | None = opt(
        None,
        "pkg.mod:function or file.py:function, called with a folder before anything starts; "
        "what it returns fills {prepared.KEY} in other values",
    )
    stop_when: str | None = opt(None, "end early once true after an evaluation, e.g. 'eval/addition >= 0.5'")
    target: str | None = opt(None, "must be true at the end, else exit code 1, e.g. 'eval/addition >= 0.9'")
    seed: int = opt(1234, "seed of the trainer (Megatron's --seed)")


@dataclass(frozen=True)
class ModelSection:
    """Checkpoints in and out."""

    hf_checkpoint: str | None = opt(None, "Hugging Face folder of model and tokenizer")
    megatron_to_hf_mode: Literal["bridge"] = opt("bridge", "how weights travel between Megatron and Hugging Face names")
    ref_load: str | None = opt(None, "Hugging Face folder of the reference model; default: hf_checkpoint")
    ref_update_interval: int | None = opt(None, "steps after which the reference becomes the current policy")
    critic_load: str | None = opt(None, "Hugging Face folder that the critic starts from; default: hf_checkpoint")
    critic_lr: float | None = opt(None, "peak learning rate of the critic; default: lr")
    opd_teacher_load: str | None = opt(None, "Hugging Face folder of the teacher, for --opd-type megatron")
    opd_teacher_model: str | None = opt(None, "Hugging Face folder of the teacher, for --opd-type engine")
    load: str | None = opt(None, "folder of vime checkpoints to resume from")
    ckpt_step: int | None = opt(None, "step to resume from; default: the latest complete one")
    save: str | None = opt(None, "folder for vime checkpoints; {run} is the run folder")
    save_interval: int | None = opt(None, "steps between checkpoints")
    save_hf: str | None = opt(None, "folder for a Hugging Face export at the end; {run} is the run folder")
    save_optim: bool = opt(True, "keep the optimizer in checkpoints")
    load_optim: bool = opt(True, "load the optimizer from the checkpoint")
    keep_checkpoints: int = opt(2, "checkpoints to keep (the newest)")


@dataclass(frozen=True)
class DataSection:
    """Prompts in."""

    prompt_data: list[str] = opt([], "jsonl or parquet files; path@[a:b] takes a slice of rows")
    input_key: str = opt("input", "key of the prompt")
    label_key: str | None = opt(None, "key of the label")
    metadata_key: str = opt("metadata", "key of the metadata (may be absent in a row)")
    tool_key: str = opt("tools", "key of the tools (may be absent in a row)")
    apply_chat_template: bool = opt(False, "render prompts with the tokenizer's chat template")
    apply_chat_template_kwargs: dict[str, Any] = opt({}, "keyword arguments of the chat template (JSON)")
    rollout_shuffle: bool = opt(False, "shuffle prompts every epoch")
    rollout_seed: int = opt(42, "seed of shuffling and sampling")
    rollout_max_prompt_len: int | None = opt(None, "longest prompt in tokens; longer rows follow --on-bad-row")
    on_bad_row: Literal["error", "skip"] = opt(
        "error", "a row that cannot be used ends the run, or is counted and skipped"
    )


@dataclass(frozen=True)
class RolloutSection:
    """How many samples, how they are drawn, how they are scored."""

    rollout_function: str = opt(
        "generate", "registered rollout or path: 'generate' (engines) or 'sft' (labels as responses)"
    )
    rollout_batch_size: int | None = opt(None, "prompts a step")
    n_samples_per_prompt: int = opt(1, "samples a prompt (the group)")
    over_sampling_batch_size: int | None = opt(None, "groups to keep in flight; default: rollout_batch_size")
    num_rollout: int | None = opt(None, "steps of the run")
    num_epoch: int | None = opt(None, "epochs of the run, when num_rollout is not given")
    start_rollout_id: int | None = opt(None, "first step; default: after the loaded checkpoint, else 0")
    rollout_temperature: float = opt(1.0, "sampling temperature")
    rollout_top_p: float = opt(1.0, "nucleus sampling; only 1.0 keeps train and rollout log-probs comparable")
    rollout_top_k: int = opt(-1, "top-k sampling; -1 is off")
    rollout_max_response_len: int | None = opt(None, "longest response in tokens")
    rollout_max_context_len: int | None = opt(None, "longest prompt and response in tokens; default: the model's")
    rollout_stop: list[str] = opt([], "stop strings")
    rollout_stop_token_ids: list[int] = opt([], "stop token ids")
    rollout_seeded: bool = opt(False, "give every sample its own seed, so that a run repeats exactly")
    reward: str | None = opt(
        None,
        "registered reward or pkg.mod:function / file.py:function (vime: --rm-type, --custom-rm-path)",
        aliases=("rm_type", "custom_rm_path"),
    )
    reward_kwargs: dict[str, Any] = opt({}, "arguments of a reward that is a class (JSON)")
    group_rm: bool = opt(False, "the reward judges a whole group (it has score_group)")
    reward_key: str | None = opt(None, "part of a reward with several parts to train on")
    reward_timeout_secs: float = opt(60.0, "deadline of one reward call")
    reward_concurrency: int = opt(32, "reward calls at a time")
    dynamic_sampling_filter_path: str | None = opt(
        None, "registered filter or path: keeps or drops a scored group, e.g. check_reward_nonzero_std"
    )
    max_filter_rounds: int = opt(20, "give up when this many times the batch was sampled without filling it")
    rollout_max_failure_ratio: float = opt(0.5, "a step with a larger share of failed or unscored groups stops the run")
    generate_timeout_secs: float | None = opt(
        None, "deadline of one group's generation; default: by lengths at 2 tokens/s, later by the measured speed"
    )


@dataclass(frozen=True)
class EngineSection:
    """Engines and the router in front of them. ``--vllm-*`` and ``--router-*`` pass through to vLLM and vllm-router."""

    engine_transport: Literal["auto", "direct", "router"] = opt(
        "auto", "auto: direct for one local engine, router otherwise"
    )
    rollout_external_engine_addrs: list[str] = opt([], "host:port of engines that vime does not start")
    vllm_router_ip: str | None = opt(None, "address of a router that vime does not start")
    vllm_router_port: int | None = opt(None, "port of that router")
    engine_key_file: str | None = opt(
        None, "file with the key of engines and router that others start; by default a run makes a key of its own"
    )
    vllm_server_concurrency: int = opt(512, "requests in flight an engine")
    engine_retries: int = opt(3, "times a request is sent again after a connection error")


@dataclass(frozen=True)
class MegatronSection:
    """Megatron's own parameters under their own names. Any other field of its TransformerConfig, OptimizerConfig or
    DistributedDataParallelConfig is accepted too and kept in ``Config.megatron``."""

    tensor_model_parallel_size: int = opt(1, "tensor parallel size")
    pipeline_model_parallel_size: int = opt(1, "pipeline parallel size")
    context_parallel_size: int = opt(1, "context parallel size")
    expert_model_parallel_size: int = opt(1, "expert parallel size")
    expert_tensor_parallel_size: int | None = opt(
        None, "tensor parallel size of experts; default: tensor parallel size"
    )
    sequence_parallel: bool = opt(False, "sequence parallelism beside tensor parallelism")
    use_distributed_optimizer: bool = opt(False, "shard optimizer state over data parallel ranks")
    bf16: bool = opt(False, "train in bfloat16 with float32 master weights; default: float32")
    lr: float = opt(1e-6, "peak learning rate")
    min_lr: float = opt(0.0, "lowest learning rate of the schedule")
    lr_decay_style: Literal["constant", "linear", "cosine"] = opt("constant", "learning rate schedule")
    lr_warmup_iters: int = opt(0, "optimizer steps of linear warm-up")
    lr_decay_iters: int | None = opt(None, "optimizer steps of the schedule; default: all of the run's")
    weight_decay: float = opt(0.0, "decoupled weight decay")
    adam_beta1: float = opt(0.9, "Adam beta 1")
    adam_beta2: float = opt(0.999, "Adam beta 2")
    adam_eps: float = opt(1e-8, "Adam epsilon")
    clip_grad: float = opt(1.0, "gradient norm limit; 0 is off")
    recompute_granularity: Literal["full", "selective"] | None = opt(None, "activation recomputation")


@dataclass(frozen=True)
class TrainSection:
    """Batches of the trainer."""

    loss_type: Literal["policy_loss", "sft_loss"] = opt(
        "policy_loss", "policy loss of the chosen algorithm, or supervised"
    )
    global_batch_size: int | None = opt(None, "rollouts an optimizer step; default: all of the step's")
    num_steps_per_rollout: int | None = opt(None, "optimizer steps a rollout step; instead of global_batch_size")
    micro_batch_size: int = opt(1, "samples a micro-batch without dynamic batches")
    use_dynamic_batch_size: bool = opt(False, "pack samples into micro-batches of max_tokens_per_gpu tokens")
    max_tokens_per_gpu: int | None = opt(None, "tokens a packed micro-batch and context-parallel rank")
    log_probs_max_tokens_per_gpu: int | None = opt(None, "the same for forward passes; default: max_tokens_per_gpu")
    use_routing_replay: bool = opt(False, "experts of the log-prob pass are used again in the training pass")
    use_rollout_routing_replay: bool = opt(
        False, "experts that the engine chose are used in every pass (R3); goes before use_routing_replay"
    )
    log_probs_chunk_size: int = opt(1024, "tokens whose float32 logits are held at a time; -1: all of a micro-batch")
    balance_data: bool = opt(False, "deal micro-batches by estimated cost instead of round-robin")
    calculate_per_token_loss: bool = opt(
        False, "every trainable token of the step weighs alike (aggregation token_mean)"
    )
    aggregation: str | None = opt(
        None, "sample_mean, rollout_mean, token_mean, fixed_length or prompt_mean; default: the algorithm's"
    )
    train_timeout_secs: float = opt(7200.0, "deadline of one training step")


@dataclass(frozen=True)
class EvalSection:
    """Evaluation on held-out prompts."""

    eval_interval: int | None = opt(None, "steps between evaluations")
    eval_prompt_data: list[str] = opt([], "name path [name path ...]")
    n_samples_per_eval_prompt: int = opt(1, "samples a prompt")
    eval_temperature: float | None = opt(None, "0 is greedy; default: rollout_temperature")
    eval_top_p: float | None = opt(None, "default: rollout_top_p")
    eval_top_k: int | None = opt(None, "default: rollout_top_k")
    eval_max_response_len: int | None = opt(None, "default: rollout_max_response_len")
    eval_input_key: str | None = opt(None, "default: input_key")
    eval_label_key: str | None = opt(None, "default: label_key")
    eval_reward: str | None = opt(None, "default: reward")
    skip_eval_before_train: bool = opt(False, "no evaluation before the first step")


@dataclass(frozen=True)
class SyncSection:
    """Weights from trainer to engines."""

    weight_sync: str | None = opt(None, "registered weight sync; default: chosen by the device and the topology")
    update_weights_interval: int = opt(1, "steps between weight syncs")
    update_weight_buffer_size: int = opt(
        512 * 1024 * 1024, "bytes of a bucket; through shared memory no more than 64 MiB"
    )
    vllm_weight_transfer_timeout_sec: float = opt(900.0, "deadline of one sync")
    sync_canary_tolerance: float | None = opt(
        None, "largest log-prob gap of the canary before the run stops; default: 1e-4 in float32, 0.25 in bfloat16"
    )
    sync_fault: str | None = opt(None, "test hook: 'corrupt:N' flips a byte of the N-th sync")


@dataclass(frozen=True)
class ObserveSection:
    """What is shown and kept."""

    use_tensorboard: bool = opt(True, "write TensorBoard events to the run folder")
    progress: Literal["auto", "rich", "plain", "off"] = opt("auto", "live view on a terminal, a line a step elsewhere")
    save_samples: bool = opt(True, "keep the samples of every step in the run folder")
    save_loss_inputs: bool = opt(True, "keep what vime explain loss needs of every step in the run folder")
    strict_plugins: bool = opt(False, "any broken plugin ends the run")
    trace_hooks: bool = opt(False, "print each call of a plugin's hook in the driver: hook, plugin, milliseconds")


SECTIONS: Mapping[str, type] = {
    "run": RunSection,
    "cluster": ClusterSection,
    "model": ModelSection,
    "data": DataSection,
    "rollout": RolloutSection,
    "engine": EngineSection,
    "megatron": MegatronSection,
    "train": TrainSection,
    "algorithm": AlgorithmSection,
    "eval": EvalSection,
    "sync": SyncSection,
    "observe": ObserveSection,
}


@dataclass(frozen=True)
class Config:
    """The resolved, frozen configuration of one run (of one stage, where a recipe has several).

    ``vllm``, ``router``: passed through under the names of the installed versions. ``megatron_extra``: further fields
    of Megatron's config classes. ``plugins``: option dataclasses of plugins by plugin name. ``provenance``: field ->
    layer that set it ("default", "recipe quickstart.toml", "environment VIME_LR", "flag --lr").
    """

    run: RunSection = field(default_factory=RunSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    rollout: RolloutSection = field(default_factory=RolloutSection)
    engine: EngineSection = field(default_factory=EngineSection)
    megatron: MegatronSection = field(default_factory=MegatronSection)
    train: TrainSection = field(default_factory=TrainSection)
    algorithm: AlgorithmSection = field(default_factory=AlgorithmSection)
    eval: EvalSection = field(default_factory=EvalSection)
    sync: SyncSection = field(default_factory=SyncSection)
    observe: ObserveSection = field(default_factory=ObserveSection)
    vllm: Mapping[str, Any] = field(default_factory=dict)
    router: Mapping[str, Any] = field(default_factory=dict)
    megatron_extra: Mapping[str, Any] = field(default_factory=dict)
    plugin_specs: tuple[str, ...] = ()
    plugins: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)

    # derived sizes: one place for the arithmetic, so that nobody counts again --------------------------------
    @property
    def trainer_ranks(self) -> int:
        return self.cluster.actor_num_nodes * self.cluster.actor_num_gpus_per_node

    @property
    def model_parallel_size(self) -> int:
        m = self.megatron
        return m.tensor_model_parallel_size * m.pipeline_model_parallel_size * m.context_parallel_size

    @property
    def data_parallel_size(self) -> int:
        return self.trainer_ranks // self.model_parallel_size

    @property
    def num_engines(self) -> int:
        """Engines that vime starts (0 when all are external)."""
        if self.engine.rollout_external_engine_addrs:
            return 0
        per = self.cluster.rollout_num_gpus_per_engine
        return self.engine_devices // per

    @property
    def engine_devices(self) -> int:
        """Devices of all engines that vime starts together."""
        default = self.trainer_ranks if self.cluster.colocate else self.cluster.rollout_num_gpus_per_engine
        return self.cluster.rollout_num_gpus or default

    @property
    def samples_per_step(self) -> int:
        return (self.rollout.rollout_batch_size or 0) * self.rollout.n_samples_per_prompt

    @property
    def global_batch(self) -> int:
        """Rollouts an optimizer step."""
        if self.train.global_batch_size:
            return self.train.global_batch_size
        return self.samples_per_step // (self.train.num_steps_per_rollout or 1)

    @property
    def needs_engines(self) -> bool:
        """An SFT run without evaluation generates nothing."""
        return self.rollout.rollout_function != "sft" or bool(self.eval.eval_interval)

    @property
    def teacher_engine(self) -> bool:
        """Beside the policy's engines there is a teacher's."""
        return self.train.loss_type == "policy_loss" and self.algorithm.opd_type == "engine"

    def engines_sleep(self, possible: bool) -> bool:
        """Engines give devices up while the trainer works. possible: they can (``supports_sleep`` of the device)."""
        wish = self.cluster.offload_rollout
        return self.cluster.colocate and (possible if wish is None else wish)

    def offloads_trainer(self, possible: bool) -> bool:
        """The trainer gives the devices up while engines generate. possible: as for :meth:`engines_sleep`; beside
        engines that keep their memory it would be of no use."""
        wish = self.cluster.offload_train
        return self.cluster.colocate and (possible if wish is None else wish)

    def replace(self, section: str, **values: Any) -> Config:
        """A copy with values of one section changed (for tests and stages; a run never changes its own)."""
        return dataclasses.replace(self, **{section: dataclasses.replace(getattr(self, section), **values)})
