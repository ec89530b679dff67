"""TRL's GRPO as a child of bench_vs_trl.py: one training step a question, in TRL's own environment.

Needs torch, trl, transformers, accelerate, datasets and reasoning_gym, and nothing of vime. The settings are those that
were fastest on a CPU: weights and arithmetic in bfloat16, no gradient checkpointing, no reference model (beta 0), one
generation batch of all samples, one optimizer step for each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

#: what the parent looks for among other output
MARK = "@@answer "


def main() -> None:
    args = arguments()
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    trainer = build(args)
    sys.stdin.readline()
    trainer.train()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="jsonl: prompt (messages), metadata (dataset, entry)")
    parser.add_argument("--work", type=Path, required=True, help="folder for what TRL writes")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16")
    return parser.parse_args()


def build(args: argparse.Namespace) -> Any:
    """A GRPOTrainer that asks for leave before each step."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class DeviceSharing(TrainerCallback):
        """Between two steps the process waits until its peer has had its turn."""

        def __init__(self) -> None:
            self.began, self.cpu, self.rows = time.perf_counter(), time.process_time(), 0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wall, cpu = time.perf_counter() - self.began, time.process_time() - self.cpu
            answer({"wall": wall, "cpu": cpu, **latest(trainer)})
            sys.stdin.readline()
            self.began, self.cpu = time.perf_counter(), time.process_time()

    samples = args.prompts * args.group
    settings = GRPOConfig(
        output_dir=str(args.work),
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=samples // args.micro_batch,
        num_generations=args.group,
        max_completion_length=args.max_tokens,
        temperature=1.0,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        beta=0.0,
        max_steps=args.steps,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": args.dtype},
        bf16=False,
        use_cpu=True,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    rows = [json.loads(line) for line in args.data.read_text().splitlines()]
    # A column of one type: the entry's inner shape differs from task to task.
    data = Dataset.from_list([{"prompt": r["prompt"], "task": json.dumps(r["metadata"])} for r in rows])
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    trainer = GRPOTrainer(
        model=str(args.model), reward_funcs=score, args=settings, train_dataset=data, processing_class=tokenizer
    )
    trainer.add_callback(DeviceSharing())
    return trainer


def score(completions: list[Any], task: list[str], **_: Any) -> list[float]:
    """reasoning_gym's own scorer, as vime's reward of that name calls it."""
    import reasoning_gym
    from reasoning_gym.utils import extract_answer

    rewards = []
    for completion, row in zip(completions, task, strict=True):
        text, meta = completion[0]["content"], json.loads(row)
        found = extract_answer(text)
        scorer = reasoning_gym.get_score_answer_fn(meta["dataset"])
        rewards.append(float(scorer(answer=text.strip() if found is None else found, entry=meta["entry"])))
    return rewards


def latest(trainer: Any) -> dict[str, float]:
    """Figures of the step that has just ended; they are not logged yet."""
    found = {name: values[-1] for name, values in trainer._metrics["train"].items() if values}
    return {
        "length": found["completions/mean_length"],
        "longest": found["completions/max_length"],
        "reward": found["reward"],
    }


def answer(value: Any) -> None:
    print(MARK + json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
