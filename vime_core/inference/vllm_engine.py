"""An engine that is vLLM: it starts and reads a prompt by the same steps, in this process or behind HTTP."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vime_core.inference.sleep_mode import SleepingEngine
from vime_core.inference.vllm.outputs import prompt_scores

#: sampling of a request that reads a prompt; the one token that vLLM has to sample is thrown away
READING: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}


@dataclass(frozen=True)
class StartedEngine:
    """What the driver knows of an engine that is up.

    Attributes:
        url: of its server; empty where there is none.
        workers: vLLM worker processes.
        pid: of the engine's actor, on its node.
    """

    url: str
    workers: int
    pid: int


class VllmEngine(SleepingEngine):
    """Methods are coroutines, so a control call passes running generations by."""

    url = ""

    @abc.abstractmethod
    async def come_up(self, timeout: float) -> int:
        """Until it can serve; how many workers it has.

        Raises:
            EngineError: it could not.
        """

    @abc.abstractmethod
    async def prompt_logprobs(self, tokens: Sequence[int]) -> Sequence[Any] | None:
        """vLLM's answer to :data:`READING`: None, then {token: Logprob, ...} for each of tokens[1:]."""

    async def start(self, timeout: float) -> StartedEngine:
        """Serve the model that it was started with, as version 0.

        Raises:
            EngineError: it did not come up; the message says why.
        """
        workers = await self.come_up(timeout)
        await self.set_version(0)
        return StartedEngine(self.url, workers, os.getpid())

    async def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs [len(tokens) - 1] of tokens[1:] given their prefixes, at temperature 1."""
        self.require_weights()
        return prompt_scores(self.name, tokens, await self.prompt_logprobs(tokens))
