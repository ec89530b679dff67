"""Generation: from a pending sample to a finished one."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np

    from vime_core.api.sample import Sample
    from vime_core.api.streams import TokenStream


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. ``top_k = -1`` and ``top_p = 1.0`` keep the whole vocabulary; ``temperature = 0`` is greedy.
    ``top_logprobs`` likeliest tokens are asked for at every place, beside the sampled one."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    skip_special_tokens: bool = True
    top_logprobs: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt to be continued ``n`` times. ``tokens`` are the ids as they are; nothing is tokenised again.

    ``session`` names the conversation for routers that keep one on one engine. ``ids`` hold one request id a
    continuation (len == n), unique in the run.
    """

    ids: tuple[str, ...]
    tokens: Sequence[int]
    params: SamplingParams
    session: str = ""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class GenerateReply:
    """One continuation.

    Attributes:
        id: the request id.
        tokens: sampled token ids, [L].
        logprobs: natural-log probability of each sampled token as it was sampled (after temperature), [L].
        versions: weight version under which each token was sampled, [L].
        finish: "stop", "length" or "abort".
        cached_tokens: prompt tokens served from the prefix cache.
        streams: what the engine was asked for beside them, by declaration: [L, ...], or [prompt + L - 1, ...] for one
            that has a row for each position.
    """

    id: str
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str
    cached_tokens: int = 0
    streams: Mapping[TokenStream, np.ndarray] = field(default_factory=dict, compare=False)


class GenerationClient(Protocol):
    """Token in, token out. The direct and the HTTP transport both are this."""

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        """All continuations of the request, in the order of ``request.ids``.

        Raises:
            EngineError: no reply, or one without token ids, log-probs or weight versions.
        """

    async def abort(self) -> None:
        """Abort all running requests; each still returns the tokens it has, with ``finish == "abort"``."""

    async def close(self) -> None: ...


class RolloutGenerator(abc.ABC):
    """Turns a pending sample into a finished one (or several). May hold turns, tools, environments."""

    #: responses come with the data: no engine is asked and no reward is computed
    supervised: ClassVar[bool] = False
    #: its samples carry these beside the core's; each becomes a column of the step batch
    streams: ClassVar[tuple[TokenStream, ...]] = ()

    #: returns more than one sample of a rollout: all of them are trained on, and count as one in their group
    fans_out: ClassVar[bool] = False

    @abc.abstractmethod
    async def generate(
        self, samples: Sequence[Sample], client: GenerationClient, params: SamplingParams
    ) -> list[Sample]:
        """Finish the samples of one group (they share a prompt). Returns the finished samples, all with tokens and
        log-probs, and each of them once; where ``fans_out``, a sample may become several with its ``rollout`` id.
        Tasks that it started and that still run when it returns are cancelled."""
