"""How long a prompt and a response may be: one place for the arithmetic, when data is read and when it is sampled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vime_core.config import Config


@dataclass(frozen=True)
class LengthLimits:
    """Tokens; None is no limit. ``context`` bounds prompt and response together."""

    context: int | None = None
    prompt: int | None = None

    @classmethod
    def of(cls, config: Config) -> LengthLimits:
        given = config.rollout.rollout_max_context_len
        engine = config.vllm.get("max_model_len")
        bounds = [given if given is not None else model_context(config.model.hf_checkpoint)]
        bounds += [int(engine)] if isinstance(engine, int | float) else []
        known = [bound for bound in bounds if bound is not None]
        return cls(
            context=min(known) if known else None,
            prompt=config.data.rollout_max_prompt_len,
        )

    def budget(self, prompt_tokens: int, wanted: int) -> int:
        """Tokens that may still be sampled after a prompt of this length."""
        return wanted if self.context is None else min(wanted, self.context - prompt_tokens)

    def violation(self, prompt_tokens: int, response_tokens: int = 1) -> str | None:
        """Why a row of this length cannot be used, or None."""
        if prompt_tokens == 0:
            return "the prompt has no tokens"
        if self.prompt is not None and prompt_tokens > self.prompt:
            return f"the prompt has {prompt_tokens} tokens, --rollout-max-prompt-len is {self.prompt}"
        if self.context is not None and prompt_tokens + response_tokens > self.context:
            length = f"prompt of {prompt_tokens} tokens"
            if response_tokens == 1:
                return f"a {length} leaves no room for a response in a context of {self.context}"
            return f"a {length} and a response of {response_tokens} do not fit into a context of {self.context}"
        return None


def model_context(folder: str | None) -> int | None:
    """``max_position_embeddings`` of the model in a Hugging Face folder, or None where it does not say."""
    file = Path(folder or "") / "config.json"
    if folder is None or not file.is_file():
        return None
    values = json.loads(file.read_text(encoding="utf-8"))
    value = values.get("max_position_embeddings") or values.get("text_config", {}).get("max_position_embeddings")
    return int(value) if value else None
