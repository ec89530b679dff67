"""An engine's client that says what a script tells it, token by token, and remembers what it said.

Every sampled token gets a log-prob of its own, so a log-prob found later says which token it was sampled with. Abort,
length and version are those of a real engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime_core.api import GenerateReply, GenerateRequest, GenerationClient

#: the continuation of request number ``call``, continuation ``index``: a text, or an exception to raise
Script = Callable[[GenerateRequest, int, int], "str | Exception"]
_UNIT = 2.0**-16


@dataclass
class ScriptedClient(GenerationClient):
    """A client without an engine.

    Attributes:
        tokenizer: makes ids of the script's texts.
        script: what to say; a text says always the same.
        version: weight version of the tokens.
        stop_after: tokens after which an abort arrives, or None.
        requests: everything that was asked.
        said: log-prob -> token, of everything that was sampled.
    """

    tokenizer: Any
    script: Script | str = "12"
    version: int = 7
    stop_after: int | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    said: dict[float, int] = field(default_factory=dict)

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        call = len(self.requests)
        self.requests.append(request)
        await asyncio.sleep(0)  # others run meanwhile, as with an engine
        return [self._reply(request, call, index) for index in range(len(request.ids))]

    async def abort(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def _reply(self, request: GenerateRequest, call: int, index: int) -> GenerateReply:
        text = self.script if isinstance(self.script, str) else self.script(request, call, index)
        if isinstance(text, Exception):
            raise text
        tokens = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        finish = "stop"
        if self.stop_after is not None and len(tokens) > self.stop_after:
            tokens, finish = tokens[: self.stop_after], "abort"
        elif len(tokens) > request.params.max_tokens:
            tokens, finish = tokens[: request.params.max_tokens], "length"
        versions = [self.version] * len(tokens)
        return GenerateReply(request.ids[index], tokens, self._logprobs(tokens), versions, finish)

    def _logprobs(self, tokens: Sequence[int]) -> list[float]:
        values = []
        for token in tokens:
            value = -(1 + len(self.said)) * _UNIT
            self.said[value] = token
            values.append(value)
        return values
