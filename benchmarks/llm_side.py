"""vLLM's own ``LLM`` in this process: the peer of bench_generation.py. One batch of requests a question.

    python benchmarks/llm_side.py --workload FILE

The work is what a step of reinforcement learning asks for: token ids in, token ids and log-probs of the sampled tokens
out, no text.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import answer, questions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    work = json.loads(parser.parse_args().workload.read_text())
    from vllm import LLM, SamplingParams

    llm = LLM(model=work["model"], logprobs_mode="processed_logprobs", disable_log_stats=True, **work["engine"])
    params = SamplingParams(
        max_tokens=work["max_tokens"], temperature=1.0, ignore_eos=work["ignore_eos"], logprobs=0, detokenize=False
    )
    prompts: list[Any] = [{"prompt_token_ids": tokens} for tokens in work["prompts"]]
    for _ in questions():
        outputs = llm.generate(prompts, params, use_tqdm=False)
        answer(sum(len(output.outputs[0].token_ids) for output in outputs))


if __name__ == "__main__":
    main()
