"""The teacher of on-policy distillation: a second vLLM engine that says how likely it finds what the student sampled.

It holds another model than the run's engines, is never given weights and never generates for the run. Token ids go in
as they are; what comes back are the log-probs of the response's tokens at the student's temperature. vLLM computes
log-probs of a prompt without any temperature, so that the model's own logits are divided by it, once, when the engine
has started.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.api import EngineError
from vime_core.inference.direct import DirectEngine
from vime_core.inference.spec import canary_tokens
from vime_core.inference.teacher_spec import TeacherSpec
from vime_core.inference.vllm.outputs import Failure, ReceiveQueue
from vime_core.inference.vllm_engine import READING, StartedEngine

if TYPE_CHECKING:
    import numpy.typing as npt
    from vllm import RequestOutput


class TeacherEngine(DirectEngine):
    """Body of the actor."""

    def __init__(self, spec: TeacherSpec, log: Path) -> None:
        super().__init__(spec, log)
        self.temperature = spec.temperature

    async def start(self, timeout: float) -> StartedEngine:
        """As an engine, and then at the student's temperature.

        Raises:
            EngineError: vLLM could not be started, or the model takes no temperature.
        """
        started = await super().start(timeout)
        if self.temperature != 1.0:
            await self._take_temperature()
        return started

    async def read(
        self, ids: Sequence[str], texts: Sequence[npt.NDArray[np.int32]], starts: Sequence[int]
    ) -> list[npt.NDArray[np.float32]]:
        """For each text [T] the log-probs [T - start] of text[start:], each given all tokens before it.

        Args:
            ids: of the requests, for :meth:`abort`.

        Raises:
            EngineError: one of them could not be read; the others are given up.
        """
        from vllm import SamplingParams

        from vime_core.inference.vllm.engine_thread import Job

        asked = {id: (text.tolist(), start) for id, text, start in zip(ids, texts, starts, strict=True)}

        def convert(id: str, output: RequestOutput) -> tuple[str, npt.NDArray[np.float32]]:
            return id, response_scores(id, *asked[id], output.prompt_logprobs)

        mailbox = ReceiveQueue(convert)
        params = SamplingParams(**READING, flat_logprobs=True, ignore_eos=True)
        self._engine_loop().submit([Job(id, tokens, params, mailbox) for id, (tokens, _) in asked.items()])
        scores = await self._collected(mailbox, list(asked))
        return [scores[id] for id in ids]

    async def _collected(self, mailbox: ReceiveQueue, ids: Sequence[str]) -> Mapping[str, npt.NDArray[np.float32]]:
        scores: dict[str, npt.NDArray[np.float32]] = {}
        while len(scores) < len(ids):
            for result in await mailbox.take():
                if isinstance(result, Failure):
                    await self.abort([id for id in ids if id not in scores])
                    raise EngineError(result.message)
                scores[result[0]] = result[1]
        return scores

    async def _take_temperature(self) -> None:
        """A model whose log-probs stay as they were would give wrong numbers for the rest of the run."""
        text = canary_tokens(self.spec.model, self.spec.arguments["max_model_len"])
        before = await self.score(text)
        try:
            await self.worker_call("vime_divide_logits", str(self.temperature))
            changed = await self.score(text) != before
        except RuntimeError as error:
            raise EngineError(self._refusal(str(error))) from error
        if not changed:
            raise EngineError(self._refusal("dividing its logits changed nothing"))

    def _refusal(self, why: str) -> str:
        return (
            f"{self.spec.model} cannot be a teacher at --rollout-temperature {self.temperature:g} in vLLM: {why}; use "
            "--opd-type megatron, or temperature 1"
        )


def response_scores(id: str, tokens: Sequence[int], start: int, given: Any) -> npt.NDArray[np.float32]:
    """Log-probs [T - start] of tokens[start:] out of vLLM's flat prompt log-probs, which have one entry for each of
    tokens[1:] (nothing comes before the first).

    Raises:
        EngineError: a position is missing, is another token's, or is not a finite number.
    """
    if not 1 <= start <= len(tokens):
        raise EngineError(f"request {id}: no token before position {start} of {len(tokens)}")
    read = [] if given is None else list(given.token_ids)
    if read != list(tokens[1:]):
        raise EngineError(f"request {id}: asked for log-probs of {len(tokens) - 1} tokens, got those of {len(read)}")
    scores = given.logprobs[start - 1 :]
    wrong = next((place for place, score in enumerate(scores) if not math.isfinite(score)), None)
    if wrong is not None:
        raise EngineError(f"request {id}: log-prob {scores[wrong]} at response token {wrong}")
    return np.array(scores, np.float32)


def teacher_actor() -> type:
    """The Ray actor class: first the run's plugins, before anything heavy is imported, then the body."""

    class TeacherActor(TeacherEngine):
        def __init__(self, lock: Sequence[Mapping[str, Any]], spec: TeacherSpec, log: Path) -> None:
            from vime_core.inference.actors import enter
            from vime_core.runtime import redirect_output

            redirect_output(log)
            enter(lock, log)
            super().__init__(spec, log)

    return TeacherActor
