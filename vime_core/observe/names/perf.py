"""Metrics of time, of weight sync, and of evaluation."""

from __future__ import annotations

from vime_core.observe.names.metric import Axis, Mean, Metric


def _of(
    name: str, unit: str, meaning: str, definition: str, mean: Mean = "value", axis: Axis = "rollout/step"
) -> Metric:
    return Metric(name, unit, meaning, definition, mean, axis)


PERF = (
    _of(
        "perf/step_time",
        "s",
        "how long a step takes",
        "wall time of the step as the driver sees it, without evaluation and checkpoints",
    ),
    _of("perf/rollout_time", "s", "time to get samples", "wall time of generation, rewards, teacher and filters"),
    _of(
        "perf/teacher_time",
        "s",
        "time for the teacher of a distillation to read what was sampled",
        "wall time of the rollout step during which at least one group waited for the teacher's log-probs",
    ),
    _of("perf/train_time", "s", "time to learn from them", "wall time of the training call: log-probs and updates"),
    _of("perf/log_probs_time", "s", "its forward part", "wall time of the policy's log-prob passes, slowest rank"),
    _of(
        "perf/<model>_log_probs_time",
        "s",
        "the same of the reference (ref) or the teacher (teacher)",
        "wall time of putting its weights in, its log-prob passes, and putting the policy's back, last rank",
    ),
    _of("perf/values_time", "s", "the critic's forward part", "wall time of its passes before the step, last rank"),
    _of("perf/critic_train_time", "s", "the critic's update part", "wall time of its optimizer steps, last rank"),
    _of("perf/actor_train_time", "s", "its update part", "wall time of the optimizer steps, slowest rank"),
    _of("perf/train_wait_time", "s", "time the trainer stood idle", "perf/step_time - perf/train_time"),
    _of("perf/update_weights_time", "s", "time to bring weights to the engines", "wall time of the sync transaction"),
    _of("perf/update_weights_bytes", "byte", "size of a sync", "bytes of all tensors sent, once"),
    _of("perf/update_weights_gbps", "GB/s", "speed of a sync", "1e-9 * bytes / seconds of the sync transaction"),
    _of(
        "perf/offload_time",
        "s",
        "time to hand shared devices over",
        "wall time in which trainer memory moves, and engines go to sleep or wake",
    ),
    _of(
        "perf/offload_bytes",
        "byte",
        "device memory that the trainer gives up for the engines",
        "bytes of weights, gradients, main parameters and optimizer state that go, all ranks",
    ),
    _of("perf/eval_time", "s", "time of an evaluation", "wall time of all evaluation sets"),
    _of("perf/save_model_time", "s", "time of a checkpoint", "wall time until the checkpoint is complete"),
    _of(
        "perf/tokens_per_sec",
        "token/s",
        "speed of the whole step",
        "prompt and response tokens of the step / perf/step_time",
    ),
    _of("perf/samples_per_sec", "sample/s", "speed of the whole step", "samples trained on / perf/step_time"),
    _of(
        "perf/overhead_ratio",
        "ratio",
        "what the framework itself costs",
        "fraction of perf/step_time outside generation, log-probs, training and weight sync",
    ),
)

SYNC = (
    _of("sync/version", "version", "weights that the engines serve", "version of the last committed sync"),
    _of("sync/names", "1", "completeness of a sync", "Hugging Face tensors sent; every engine loaded as many", "count"),
    _of(
        "sync/canary_gap",
        "nat",
        "proof that the weights work",
        "maximum over engines and canary tokens of |log-prob(engine) - log-prob(trainer)|",
        "maximum",
    ),
)

_SETS = "of one evaluation set"

EVAL = (
    _of(
        "eval/step",
        "step",
        "when it was measured",
        "rollout steps finished by then; axis of all eval/ metrics",
        axis="eval/step",
    ),
    _of("eval/<name>", "1", f"result {_SETS}", "mean reward over its samples", "sample mean", "eval/step"),
    _of(
        "eval/<name>-truncated_ratio",
        "ratio",
        f"responses {_SETS} cut off by the length limit",
        "fraction of samples whose generation ended by length",
        "sample mean",
        "eval/step",
    ),
    _of(
        "eval/<name>/response_len/mean", "token", f"length {_SETS}", "mean response tokens", "sample mean", "eval/step"
    ),
    _of("eval/<name>/response_len/median", "token", f"length {_SETS}", "median of them", "median", "eval/step"),
    _of("eval/<name>/response_len/max", "token", f"length {_SETS}", "maximum of them", "maximum", "eval/step"),
    _of("eval/<name>/response_len/min", "token", f"length {_SETS}", "minimum of them", "minimum", "eval/step"),
    _of(
        "eval/<name>-pass@<k>",
        "ratio",
        f"best of k {_SETS}",
        "mean over prompts of 1 - C(n - c, k) / C(n, k): n samples, c of them right; for rewards of 0 or 1",
        "group mean",
        "eval/step",
    ),
    _of(
        "eval/<name>-without_result",
        "1",
        f"prompts {_SETS} that failed or were not scored",
        "their number; they are left out of the means",
        "count",
        "eval/step",
    ),
)
