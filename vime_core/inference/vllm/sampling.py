"""From the run's sampling parameters to vLLM's, the same for both transports."""

from __future__ import annotations

from typing import Any

from vime_core.api import SamplingParams


def vllm_sampling(params: SamplingParams, seed: int | None) -> dict[str, Any]:
    """Keyword arguments of vLLM's SamplingParams for one continuation.

    Every value that a server could take from the model's generation_config.json is given, so that a run samples what it
    was told to and not what the checkpoint suggests.
    """
    chosen = {
        "max_tokens": params.max_tokens,
        "min_tokens": params.min_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": 0 if params.top_k < 0 else params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": params.ignore_eos,
        "skip_special_tokens": params.skip_special_tokens,
        # text is only needed to look for stop strings in it
        "detokenize": bool(params.stop),
        # one more than wanted: the server's list has the sampled token in it, the likeliest or not
        "logprobs": params.top_logprobs + 1 if params.top_logprobs else 0,
    }
    if seed is None:
        seed = params.seed
    if seed is not None:
        chosen["seed"] = seed
    return {**chosen, **params.extra}
