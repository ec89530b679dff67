"""A sample: one try at one prompt. Its per-token streams only grow together, so they cannot disagree in length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from vime_core.interfaces.reward import Score, Unscored

Message = Mapping[str, Any]


class Status(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """Identity, input, output and reward of one try.

    Attributes:
        prompt_id: position of the prompt in the data stream of the run (counts over epochs).
        group: id of the prompt's group, unique in the run.
        rollout: id of the try, unique in the run; samples that fan out of one try share it.
        index: position in the group.
        prompt: text or chat messages as read; ``prompt_tokens`` is what the engine gets.
        response_tokens, loss_mask, logprobs, versions: [L] each; observation tokens carry mask 0, log-prob NaN and
            version -1.
    """

    prompt_id: int
    group: int
    rollout: int
    index: int
    prompt: str | Sequence[Message]
    prompt_tokens: list[int]
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    source: str = ""
    response: str = ""
    response_tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    status: Status = Status.PENDING
    reward: Score | Unscored | None = None
    error: str = ""

    def append_model(self, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Tokens that the model sampled.

        Raises:
            ValueError: the three differ in length, or a log-prob is not a number <= 0 (up to rounding).
        """
        if not len(tokens) == len(logprobs) == len(versions):
            raise ValueError(
                f"sample {self.name}: {len(tokens)} tokens, {len(logprobs)} log-probs, {len(versions)} versions"
            )
        for position, value in enumerate(logprobs):
            if not value <= 1e-4:  # also true for NaN
                raise ValueError(f"sample {self.name}: log-prob {value} at response token {position}")
        self._grow(tokens, 1, logprobs, versions)

    def append_observation(self, tokens: Sequence[int]) -> None:
        """Tokens that came from outside (a tool, an environment): never trained on."""
        self._grow(tokens, 0, [math.nan] * len(tokens), [-1] * len(tokens))

    def append_target(self, tokens: Sequence[int], mask: Sequence[int]) -> None:
        """Given tokens of supervised data; ``mask`` is 1 where the loss applies. They have no sampler log-prob."""
        if len(tokens) != len(mask):
            raise ValueError(f"sample {self.name}: {len(tokens)} tokens, {len(mask)} mask values")
        self.response_tokens.extend(tokens)
        self.loss_mask.extend(mask)
        self.logprobs.extend([math.nan] * len(tokens))
        self.versions.extend([-1] * len(tokens))

    def _grow(self, tokens: Sequence[int], mask: int, logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.response_tokens.extend(tokens)
        self.loss_mask.extend([mask] * len(tokens))
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)

    @property
    def tokens(self) -> list[int]:
        """Prompt and response, as trained."""
        return self.prompt_tokens + self.response_tokens

    @property
    def trainable_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def name(self) -> str:
        """For messages: group, index in it, rollout."""
        return f"group {self.group} sample {self.index} (rollout {self.rollout})"

    def reset(self) -> None:
        """Forget the output, so that a retry starts afresh."""
        self.response = ""
        for stream in (self.response_tokens, self.loss_mask, self.logprobs, self.versions):
            stream.clear()
        self.status, self.reward, self.error = Status.PENDING, None, ""


@dataclass
class Group:
    """The samples of one prompt. ``id`` is carried by each of them; nothing is ever inferred from a count."""

    id: int
    samples: list[Sample]

    def __post_init__(self) -> None:
        strangers = [s.name for s in self.samples if s.group != self.id]
        if strangers:
            raise ValueError(f"group {self.id} was given samples of other groups: {', '.join(strangers)}")

    @property
    def finished(self) -> bool:
        return all(s.status in (Status.COMPLETED, Status.TRUNCATED) for s in self.samples)
