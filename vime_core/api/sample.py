"""A sample: one try at one prompt. Its per-token streams only grow together, so they cannot disagree in length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from vime_core.api.reward import Score, Unscored
from vime_core.api.rollout import TopLogprobs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
        routing: experts that the engine sent each token to, [rows, layers, topk], prompt first; ``len(tokens) - 1``
            rows after model tokens that came with theirs, None where none were asked for. Rows once written stay: a
            continuation adds those that are missing.
        top: what the engine found likeliest at the response tokens up to the last that came with it, where it was asked
            for; NaN at observations.
        teacher_logp: [L] the teacher's log-prob of each sampled token, NaN at observations; empty until it was asked.
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
    routing: npt.NDArray[np.integer] | None = field(default=None, compare=False)
    top: TopLogprobs | None = field(default=None, compare=False)
    teacher_logp: list[float] = field(default_factory=list)
    status: Status = Status.PENDING
    reward: Score | Unscored | None = None
    error: str = ""

    def append_model(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        routing: npt.NDArray[np.integer] | None = None,
        top: TopLogprobs | None = None,
    ) -> None:
        """Tokens that the model sampled.

        Args:
            top: the likeliest tokens at the same places.
            routing: a reply's experts, one row for every token of the sample so far, these included, but the last.

        Raises:
            ValueError: the three (or ``top``) differ in length, a log-prob is not a number <= 0 (up to rounding), or
                there are more or fewer rows of experts.
        """
        if not len(tokens) == len(logprobs) == len(versions):
            raise ValueError(
                f"sample {self.name}: {len(tokens)} tokens, {len(logprobs)} log-probs, {len(versions)} versions"
            )
        for position, value in enumerate(logprobs):
            if not value <= 1e-4:  # also true for NaN
                raise ValueError(f"sample {self.name}: log-prob {value} at response token {position}")
        if top is not None:
            self._add_top(top, len(tokens))
        if routing is not None:
            self._add_routing(routing, len(self.prompt_tokens) + len(self.response_tokens) + len(tokens) - 1)
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

    def set_teacher(self, logprobs: Sequence[float]) -> None:
        """The teacher's log-probs of all response tokens, [L]; those of observations are dropped. Comes last: after
        further tokens the sample has no teacher any more.

        Raises:
            ValueError: another length, or a log-prob of a sampled token that is not finite.
        """
        if len(logprobs) != len(self.response_tokens):
            raise ValueError(f"{self.name}: {len(logprobs)} log-probs for {len(self.response_tokens)} response tokens")
        sampled = [version >= 0 for version in self.versions]
        for position, (value, counts) in enumerate(zip(logprobs, sampled)):
            if counts and not math.isfinite(value):
                raise ValueError(f"{self.name}: the teacher's log-prob at response token {position} is {value}")
        self.teacher_logp = [value if counts else math.nan for value, counts in zip(logprobs, sampled)]

    @property
    def has_teacher(self) -> bool:
        return len(self.teacher_logp) == len(self.response_tokens)

    def _add_top(self, top: TopLogprobs, length: int) -> None:
        """After the rows that are there; what lies between are observations."""
        if len(top) != length:
            raise ValueError(f"sample {self.name}: likeliest tokens of {len(top)} places for {length} tokens")
        import numpy as np

        have, width = 0 if self.top is None else len(self.top), top.ids.shape[1]
        between = len(self.response_tokens) - have
        ids = [np.zeros((between, width), np.int32), top.ids]
        values = [np.full((between, width), np.nan, np.float32), top.logprobs]
        if self.top is not None:
            ids, values = [self.top.ids, *ids], [self.top.logprobs, *values]
        self.top = TopLogprobs(np.concatenate(ids), np.concatenate(values))

    def _add_routing(self, rows: npt.NDArray[np.integer], length: int) -> None:
        if len(rows) != length:
            raise ValueError(f"sample {self.name}: {len(rows)} rows of routed experts for {length + 1} tokens")
        if self.routing is None:
            self.routing = rows
            return
        import numpy as np

        if rows.shape[1:] != self.routing.shape[1:]:
            what = f"{list(self.routing.shape[1:])}, then of {list(rows.shape[1:])}"
            raise ValueError(f"sample {self.name}: routed experts of layers and top-k {what}")
        self.routing = np.concatenate([self.routing, rows[len(self.routing) :]])

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
        for stream in (self.response_tokens, self.loss_mask, self.logprobs, self.versions, self.teacher_logp):
            stream.clear()
        self.routing = self.top = None
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
