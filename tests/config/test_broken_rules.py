"""Every rule, broken one at a time from a run that breaks none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vime_core.config import rules
from vime_core.config.facts import Facts
from vime_core.config.rules import (
    batches,
    colocation,
    inputs,
    layout,
    learning,
    needs,
    reference_models,
    required,
    routing,
    terms,
    violations,
)
from vime_core.config.sections import Config

Make = Callable[..., Config]
EXTERNAL = "--rollout-external-engine-addrs h:1"
EVAL = "--eval-interval 1 --eval-prompt-data held {held}"
MOE = {"num_experts": 8}
GRPO = Facts(group_based=True, algorithm_defaults={"eps_clip": 0.2, "eps_clip_high": None}, needs=frozenset({"reward"}))

#: rule, flags added to the valid run, changes to the model's config.json, facts, what the violation says
CASES: list[tuple[rules.Rule, str, Mapping[str, Any], Facts, str]] = [
    # required
    (
        required.save_needs_a_folder,
        "--save-interval 5",
        {},
        Facts(),
        "--save-interval 5 (flag --save-interval) has nowhere",
    ),
    (required.evaluation_needs_data, "--eval-interval 5", {}, Facts(), "has no data set: give --eval-prompt-data"),
    (required.evaluation_pairs, "--eval-interval 5 --eval-prompt-data x", {}, Facts(), "must be pairs"),
    (
        required.evaluation_pairs,
        "--eval-interval 5 --eval-prompt-data a {held} a {held}",
        {},
        Facts(),
        "names 'a' twice",
    ),
    (required.goals, "--target eval/x", {}, Facts(), "--target (flag --target): 'eval/x' is not a comparison"),
    (required.goals, "--stop-when=eval/x>1", {}, Facts(), "looks at an evaluation: give --eval-interval"),
    (required.ranges, "--num-rollout 0", {}, Facts(), "--num-rollout 0 (flag --num-rollout) must be at least 1"),
    (required.ranges, "--lr=-1", {}, Facts(), "--lr -1.0 (flag --lr) must be at least 0"),
    (
        required.ranges,
        "--rollout-temperature 0",
        {},
        Facts(),
        "--rollout-temperature 0.0 (flag --rollout-temperature) must be",
    ),
    (required.ranges, "--rollout-max-failure-ratio 2", {}, Facts(), "is a share"),
    # inputs
    (inputs.checkpoint_folder, "--hf-checkpoint {tmp}/none", {}, Facts(), "is not a folder here"),
    (inputs.checkpoint_folder, "--hf-checkpoint {tmp}", {}, Facts(), "holds no config.json"),
    (inputs.data_files, "--prompt-data {tmp}/trian.jsonl", {}, Facts(), "no such file; did you mean train.jsonl?"),
    (
        inputs.data_files,
        "--prompt-data {tmp}/x.jsonl@[0:3]",
        {},
        Facts(),
        "x.jsonl@[0:3] (flag --prompt-data): there is no",
    ),
    (inputs.data_files, "--eval-interval 1 --eval-prompt-data a {tmp}/no", {}, Facts(), "--eval-prompt-data {tmp}/no"),
    (inputs.resume_folder, "--load {tmp}/none", {}, Facts(), "leave it out to start from --hf-checkpoint"),
    (inputs.resume_folder, "--ckpt-step 3", {}, Facts(), "--ckpt-step 3 (flag --ckpt-step) needs --load"),
    (inputs.code_files, "--reward {tmp}/none.py:score", {}, Facts(), "there is no file {tmp}/none.py"),
    (inputs.code_files, "--reward {tmp}/none.py", {}, Facts(), "name the function in it too"),
    (
        inputs.model_type,
        "",
        {"model_type": "qwen33"},
        Facts(model_types=frozenset({"qwen3", "llama"})),
        "is of model type 'qwen33', which the trainer cannot load; did you mean qwen3? (it loads: llama, qwen3)",
    ),
    # reference models
    (reference_models.same_architecture, "--ref-load {tmp}/none", {}, Facts(), "{tmp}/none (flag --ref-load) holds no"),
    (
        reference_models.same_architecture,
        "--opd-teacher-load {model}",
        {"hidden_size": 96},
        Facts(),
        "is another architecture than --hf-checkpoint",
    ),
    # learning
    (
        learning.group_of_one,
        "--n-samples-per-prompt 1",
        {},
        GRPO,
        "--n-samples-per-prompt 1 (flag --n-samples-per-prompt)",
    ),
    (
        learning.reward_is_given,
        "--loss-type sft_loss --rollout-function sft --label-key l " + EVAL,
        {},
        Facts(),
        "to score",
    ),
    (learning.loss_and_rollout, "--loss-type sft_loss", {}, Facts(), "do not go together"),
    (learning.loss_and_rollout, "--rollout-function sft --label-key l", {}, Facts(), "do not go together"),
    (learning.labels_for_sft, "--loss-type sft_loss --rollout-function sft", {}, Facts(), "give --label-key"),
    (
        learning.unread_options,
        "--eps-clip-c 3",
        {},
        GRPO,
        "--eps-clip-c 3.0 (flag --eps-clip-c) is not read by grpo; did you",
    ),
    (
        learning.unread_options,
        '--algorithm-options {{"eps_clp":1}}',
        {},
        GRPO,
        "eps_clp (flag --algorithm-options) is not read",
    ),
    (
        learning.unread_options,
        '--eps-clip 1 --algorithm-options {{"eps_clip":1}}',
        {},
        GRPO,
        "eps_clip is given twice: --eps-clip and --algorithm-options",
    ),
    (
        learning.comparable_log_probs,
        "--rollout-temperature 0.005",
        {},
        Facts(),
        "--rollout-temperature 0.005 (flag --rollout-temperature): vLLM samples at 0.01 instead",
    ),
    (
        learning.comparable_log_probs,
        "--eval-temperature 0.005",
        {},
        Facts(),
        "--eval-temperature 0.005 (flag --eval-temperature): vLLM samples at 0.01; give it, or 0 (greedy)",
    ),
    (learning.comparable_log_probs, "--rollout-top-p 0.9", {}, Facts(), "leave it at 1.0 (--eval-top-p is free)"),
    (learning.comparable_log_probs, "--rollout-top-k 40", {}, Facts(), "leave it at -1 (--eval-top-k is free)"),
    (learning.aggregation, "--aggregation token_men", {}, Facts(), "is unknown; did you mean token_mean?"),
    (learning.aggregation, "--aggregation token_mean --calculate-per-token-loss", {}, Facts(), "give one of them"),
    (learning.group_reward, "--group-rm " + EVAL, {}, Facts(), "give --eval-reward"),
    (learning.learning_rates, "--lr 1e-6 --min-lr 1e-5 --lr-decay-style cosine", {}, Facts(), "is above --lr 1e-06"),
    # batches: 4 prompts x 8 samples = 32
    (
        batches.step_by_global_batch,
        "--global-batch-size 12",
        {},
        Facts(),
        "32 samples a step (--rollout-batch-size 4 (flag",
    ),
    (batches.step_by_optimizer_steps, "--num-steps-per-rollout 5", {}, Facts(), "does not divide 32 samples a step"),
    (
        batches.step_by_optimizer_steps,
        "--num-steps-per-rollout 2 --global-batch-size 8",
        {},
        Facts(),
        "give one of them",
    ),
    (
        batches.global_batch_by_data_parallel,
        "--actor-num-gpus-per-node 8 --global-batch-size 4",
        {},
        Facts(),
        "leaves some of 8 data parallel ranks without a sample",
    ),
    (
        batches.global_batch_by_data_parallel,
        "--actor-num-gpus-per-node 4 --micro-batch-size 3",
        {},
        Facts(),
        "a global batch of 32 is not a multiple of data parallel 4 x --micro-batch-size 3",
    ),
    (batches.dynamic_batches, "--use-dynamic-batch-size", {}, Facts(), "needs --max-tokens-per-gpu"),
    (
        batches.tokens_by_longest_sample,
        "--use-dynamic-batch-size --max-tokens-per-gpu 50 --rollout-max-prompt-len 40",
        {},
        Facts(),
        "holds 50 tokens, a sample may have 56",
    ),
    (
        batches.tokens_by_longest_sample,
        "--use-dynamic-batch-size --max-tokens-per-gpu 64 --log-probs-max-tokens-per-gpu 32 --vllm-max-model-len 64",
        {},
        Facts(),
        "--log-probs-max-tokens-per-gpu 32",
    ),
    (
        batches.prompt_and_response_by_context,
        "--rollout-max-response-len 256",
        {},
        Facts(),
        "max_position_embeddings = 256",
    ),
    (
        batches.prompt_and_response_by_context,
        "--rollout-max-prompt-len 60 --rollout-max-context-len 64",
        {},
        Facts(),
        "do not fit into --rollout-max-context-len = 64",
    ),
    (
        batches.prompt_and_response_by_context,
        "--vllm-max-model-len 16",
        {},
        Facts(),
        "do not fit into --vllm-max-model-len = 16",
    ),
    (batches.context_by_model, "--rollout-max-context-len 257", {}, Facts(), "is longer than the model's"),
    (batches.evaluation_by_context, "--eval-max-response-len 256", {}, Facts(), "leaves no room for a prompt"),
    (batches.over_sampling, "--over-sampling-batch-size 3", {}, Facts(), "cannot fill a step"),
    # layout
    (
        layout.ranks_by_model_parallel,
        "--actor-num-gpus-per-node 3 --tensor-model-parallel-size 2",
        {},
        Facts(),
        "3 trainer ranks cannot hold whole replicas of 2 ranks",
    ),
    (
        layout.ranks_by_expert_parallel,
        "--actor-num-gpus-per-node 2 --expert-model-parallel-size 4",
        MOE,
        Facts(),
        "2 trainer ranks are not a multiple of 4",
    ),
    (
        layout.heads_by_tensor_parallel,
        "--actor-num-gpus-per-node 8 --tensor-model-parallel-size 8",
        {},
        Facts(),
        "must be a divisor of the model's 4 key-value heads",
    ),
    (
        layout.heads_by_tensor_parallel,
        "--rollout-num-gpus-per-engine 3",
        {},
        Facts(),
        "must be a divisor of the model's 8 att",
    ),
    (
        layout.layers_by_pipeline,
        "--actor-num-gpus-per-node 8 --pipeline-model-parallel-size 8",
        {},
        Facts(),
        "does not divide the model's 4 layers",
    ),
    (
        layout.experts_by_expert_parallel,
        "--actor-num-gpus-per-node 2 --expert-model-parallel-size 2",
        {},
        Facts(),
        "the model has no experts",
    ),
    (
        layout.experts_by_expert_parallel,
        "--actor-num-gpus-per-node 3 --expert-model-parallel-size 3 --n-samples-per-prompt 3",
        MOE,
        Facts(),
        "does not divide the model's 8 experts",
    ),
    (layout.sequence_parallel, "--sequence-parallel", {}, Facts(), "needs more than --tensor-model-parallel-size 1"),
    (
        layout.sequence_parallel,
        "--actor-num-gpus-per-node 2 --tensor-model-parallel-size 2",
        MOE,
        Facts(),
        "of a model with experts needs --sequence-parallel",
    ),
    (
        layout.engines_by_devices,
        "--rollout-num-gpus 3 --rollout-num-gpus-per-engine 2",
        {},
        Facts(),
        "is not a multiple of",
    ),
    (layout.external_engines, EXTERNAL + " --rollout-num-gpus 1", {}, Facts(), "excludes --rollout-num-gpus 1"),
    (layout.external_engines, EXTERNAL + " --colocate", {}, Facts(), "excludes --colocate (flag --colocate)"),
    (
        layout.external_engines,
        EXTERNAL + " --vllm-dtype auto",
        {},
        Facts(),
        "excludes --vllm-dtype (flag --vllm-dtype)",
    ),
    (layout.transport, "--engine-transport direct --rollout-num-gpus 2", {}, Facts(), "serves one engine, here are 2"),
    (layout.transport, "--engine-transport direct " + EXTERNAL, {}, Facts(), "reaches only an engine that vime starts"),
    (layout.transport, "--engine-transport direct --router-policy random", {}, Facts(), "uses no router"),
    (layout.external_router, "--vllm-router-ip h", {}, Facts(), "give both, or neither"),
    (
        layout.external_router,
        "--vllm-router-ip h --vllm-router-port 1 --router-policy random",
        {},
        Facts(),
        "--router-policy cannot reach it",
    ),
    (routing.routing_replay, "--use-routing-replay", {}, Facts(), "but the model has no experts"),
    (
        routing.routing_replay,
        "--use-rollout-routing-replay --loss-type sft_loss --rollout-function sft --label-key label",
        MOE,
        Facts(),
        "(flag --use-rollout-routing-replay): supervised training has no pass before it",
    ),
    (
        routing.routing_replay,
        "--use-rollout-routing-replay --moe-router-fusion",
        MOE,
        Facts(),
        "needs a router that is not fused",
    ),
    (
        routing.routing_replay,
        "--use-routing-replay --moe-router-load-balancing-type sinkhorn",
        MOE,
        Facts(),
        "a sinkhorn router takes no choice",
    ),
    (colocation.shareable, "--colocate", {}, Facts(supports_colocate=False), "cannot be shared; use --no-colocate"),
    (
        colocation.nobody_to_make_room_for,
        "--offload-train --rollout-sleep-level 2",
        {},
        Facts(),
        "--offload-train (flag --offload-train) and --rollout-sleep-level 2 (flag --rollout-sleep-level): trainer and",
    ),
    (
        colocation.nobody_to_make_room_for,
        "--offload-rollout " + EXTERNAL,
        {},
        Facts(),
        "have devices of their own; add --colocate or leave it out",
    ),
    (
        colocation.engines_on_the_trainers_devices,
        "--colocate --rollout-num-gpus 4 --actor-num-gpus-per-node 2",
        {},
        Facts(),
        "--rollout-num-gpus 4 (flag --rollout-num-gpus) and --rollout-num-gpus-per-engine 1 (default); use as few",
    ),
    (
        colocation.engines_on_the_trainers_devices,
        "--colocate --rollout-num-gpus-per-engine 2",
        {},
        Facts(),
        "the trainer has the devices of --actor-num-nodes 1 (default) and --actor-num-gpus-per-node 1 (default)",
    ),
    (
        colocation.engines_on_the_trainers_devices,
        "--colocate --rollout-num-gpus-per-engine 4 --actor-num-nodes 2 --actor-num-gpus-per-node 2",
        {},
        Facts(),
        "an engine has one node, so the first must divide the second",
    ),
    (
        colocation.sleep,
        "--colocate --vllm-no-enable-sleep-mode",
        {},
        Facts(supports_sleep=True),
        "(flag --vllm-no-enable-sleep-mode): colocated, the engines have to give their memory back",
    ),
    (colocation.sleep, "--colocate --no-offload-rollout --rollout-sleep-level 2", {}, Facts(), "no engine sleeps with"),
    (
        colocation.sleep,
        "--colocate --rollout-sleep-level 2 --update-weights-interval 2",
        {},
        Facts(),
        "--update-weights-interval 2 (flag --update-weights-interval) does not bring others every step",
    ),
]


def with_model(facts: Facts, model: Mapping[str, Any]) -> Facts:
    return dataclasses.replace(facts, model=model)


@pytest.mark.parametrize(
    ("rule", "flags", "changes", "facts", "message"), CASES, ids=lambda v: getattr(v, "__name__", None)
)
def test_broken_rule(
    rule: rules.Rule,
    flags: str,
    changes: Mapping[str, Any],
    facts: Facts,
    message: str,
    config: Make,
    model: dict[str, Any],
    tmp_path: Path,
) -> None:
    names = {"tmp": str(tmp_path), "held": f"{tmp_path}/held.jsonl", "model": f"{tmp_path}/model"}
    given = list(flags.format(**names).split())
    made = config(*given) if rule is not learning.reward_is_given else drop_reward(config(*given))
    facts = with_model(facts, {**model, **changes}) if rule is not inputs.checkpoint_folder else facts
    message = message.replace("{tmp}", str(tmp_path))
    broken = rule(made, facts)
    lines = [broken] if isinstance(broken, str) else list(broken or [])
    assert len(lines) == 1, lines
    assert message in lines[0]
    assert lines[0] in violations(made, facts)


def drop_reward(config: Config) -> Config:
    return config.replace("rollout", reward=None)


def test_every_rule_has_a_case() -> None:
    without_cases = {"must_be_given", "length_of_run", "response_length"}  # in test_rules.py
    without_cases |= {rule.__name__ for rule in (*needs.RULES, *terms.RULES)}  # in test_term_rules.py
    names = {rule.__name__ for rule in rules.RULES}
    assert names == {case[0].__name__ for case in CASES} | without_cases
