"""A sample: one try at one prompt. Its per-token streams only grow together, so they cannot disagree in length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from vime_core.api.reward import Score, Unscored
from vime_core.api.streams import TokenStream, check_pairs

if TYPE_CHECKING:
    import numpy as np

Message = Mapping[str, Any]
#: what rounding may leave of a probability of one
POSITIVE_LOGPROB = 1e-4


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
        streams: what came beside the tokens, by declaration. Rows once written stay; those after the last that came are
            missing.
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
    streams: dict[TokenStream, np.ndarray] = field(default_factory=dict, compare=False)
    status: Status = Status.PENDING
    reward: Score | Unscored | None = None
    error: str = ""

    def append_model(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        streams: Mapping[TokenStream, Any] | None = None,
    ) -> None:
        """Tokens that the model sampled.

        Args:
            streams: one row for each of these tokens; of a stream per position, one row for every token of the sample
                so far, these included, but the last.

        Raises:
            ValueError: the three differ in length, a log-prob is not a number <= 0 (up to rounding), or a stream has
                more or fewer rows, or is not as declared.
        """
        if not len(tokens) == len(logprobs) == len(versions):
            raise ValueError(
                f"sample {self.name}: {len(tokens)} tokens, {len(logprobs)} log-probs, {len(versions)} versions"
            )
        for position, value in enumerate(logprobs):
            if not value <= POSITIVE_LOGPROB:  # also true for NaN
                raise ValueError(f"sample {self.name}: log-prob {value} at response token {position}")
        grown = self._grown_streams(streams or {}, len(tokens))
        self._grow(tokens, 1, logprobs, versions)
        self.streams.update(grown)

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

    def set_stream(self, stream: TokenStream, rows: Any) -> None:
        """Values of all response tokens, read after they were sampled; those of observations are dropped.

        Raises:
            ValueError: another length, not as declared, or the value of a sampled token is not finite.
        """
        import numpy as np

        rows = stream.checked(rows).astype(stream.dtype)
        if len(rows) != len(self.response_tokens):
            raise ValueError(f"{self.name}: {stream.what}: {len(rows)} for {len(self.response_tokens)} response tokens")
        sampled = np.array(self.versions, dtype=np.int64) >= 0
        for position in np.flatnonzero(sampled):
            if not np.isfinite(rows[position]).all():
                raise ValueError(f"{self.name}: {stream.what}: response token {position} is {rows[position]}")
        rows[~sampled] = stream.blank(1)[0]
        self.streams[stream] = rows

    def has_stream(self, stream: TokenStream) -> bool:
        """Every response token has its row (without a response there is none to be had)."""
        return len(self.streams.get(stream, ())) == len(self.response_tokens)

    def _grown_streams(self, streams: Mapping[TokenStream, Any], count: int) -> dict[TokenStream, np.ndarray]:
        try:
            checked = {stream: stream.checked(rows) for stream, rows in streams.items()}
            check_pairs(checked)
            return {stream: self._grown_stream(stream, rows, count) for stream, rows in checked.items()}
        except ValueError as error:
            raise ValueError(f"sample {self.name}: {error}") from None

    def _grown_stream(self, stream: TokenStream, rows: np.ndarray, count: int) -> np.ndarray:
        """What is there and what is new; per position, ``rows`` holds both."""
        import numpy as np

        start = len(self.response_tokens)
        expected = count if stream.per == "response" else len(self.prompt_tokens) + start + count - 1
        if len(rows) != expected:
            raise ValueError(f"{len(rows)} rows of {stream.what} where {expected} belong to {count} new tokens")
        have = self.streams.get(stream, rows[:0])
        if rows.shape[1:] != have.shape[1:]:
            what = f"{stream.what} of {list(have.shape[1:])}, then of {list(rows.shape[1:])}"
            raise ValueError(f"{what} ({', '.join(stream.dims)})")
        if stream.per == "position":
            return np.concatenate([have, rows[len(have) :]])
        if any(self.loss_mask[len(have) :]):
            raise ValueError(f"{stream.what} of {len(have)} of the {start} tokens before these")
        between = stream.blank(start - len(have), rows.shape[1:])
        return np.concatenate([have, between, rows]).astype(stream.dtype, copy=False)

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
        for column in (self.response_tokens, self.loss_mask, self.logprobs, self.versions, self.streams):
            column.clear()
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
