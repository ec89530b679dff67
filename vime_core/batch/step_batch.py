"""The typed, ragged batch of one rollout step. Every trainer rank gets the whole of it and picks its share by the plan.

Axes: N samples, T tokens (prompt and response end to end), R response tokens end to end, in sample order. A field
declares its axis once, here; sharding, concatenation and serialisation follow from it, so an extra field of a plugin's
survives the trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import torch

from vime_core.api import TrainerError

Axis = Literal["sample", "token", "response"]

#: field -> (axis, dtype); the order is the order of documentation
SCHEMA: Mapping[str, tuple[Axis, str]] = {
    "tokens": ("token", "int64"),
    "total_lengths": ("sample", "int64"),
    "response_lengths": ("sample", "int64"),
    "mask": ("response", "bool"),
    "rollout_logp": ("response", "float32"),
    "version": ("response", "int32"),
    "reward": ("sample", "float64"),
    "group": ("sample", "int64"),
    "rollout": ("sample", "int64"),
    "truncated": ("sample", "bool"),
}


@dataclass(frozen=True)
class StepBatch:
    """Frozen; build it with :meth:`of`. Arrays are numpy (read-only, shared memory after a trip through Ray's object
    store); the ``torch`` views share that memory.

    Attributes:
        tokens: [T] prompt and response of each sample, end to end.
        total_lengths, response_lengths: [N].
        mask: [R] trainable response tokens.
        rollout_logp: [R] the sampler's natural-log probability; NaN where there is none.
        version: [R] weight version of the sampler, -1 where there is none.
        reward: [N] float64, NaN for supervised samples.
        group, rollout: [N] ids.
        truncated: [N].
        extra: name -> (axis, array).
        old_logp: [R] the trainer's own log-probs before the step, once computed.
    """

    tokens: np.ndarray
    total_lengths: np.ndarray
    response_lengths: np.ndarray
    mask: np.ndarray
    rollout_logp: np.ndarray
    version: np.ndarray
    reward: np.ndarray
    group: np.ndarray
    rollout: np.ndarray
    truncated: np.ndarray
    extra: Mapping[str, tuple[Axis, np.ndarray]] = field(default_factory=dict)
    old_logp: np.ndarray | None = None

    @classmethod
    def of(cls, *, extra: Mapping[str, tuple[Axis, Any]] | None = None, **columns: Any) -> StepBatch:
        """Check types and lengths against :data:`SCHEMA` and freeze.

        Raises:
            ValueError: a field is missing, unknown, or of another length than its axis says; an extra field has the
                name of a standard one or an unknown axis; a response is longer than its sample.
        """
        missing, unknown = sorted(SCHEMA.keys() - columns.keys()), sorted(columns.keys() - SCHEMA.keys())
        if missing or unknown:
            raise ValueError(f"StepBatch: missing fields {missing}, unknown fields {unknown}")
        arrays = {name: np.ascontiguousarray(columns[name], dtype=SCHEMA[name][1]) for name in SCHEMA}
        strange = sorted(
            name for name, (axis, _) in (extra or {}).items() if name in _NAMES or axis not in get_args(Axis)
        )
        if strange:
            raise ValueError(
                f"StepBatch: extra fields {strange} have a reserved name or an axis not in {get_args(Axis)}"
            )
        more = {name: (axis, np.ascontiguousarray(value)) for name, (axis, value) in (extra or {}).items()}
        sizes = {
            "sample": len(arrays["total_lengths"]),
            "token": int(arrays["total_lengths"].sum()),
            "response": int(arrays["response_lengths"].sum()),
        }
        axes = {name: (axis, arrays[name]) for name, (axis, _) in SCHEMA.items()} | more
        wrong = [
            f"{name}: {len(array)} values for {sizes[axis]} ({axis})"
            for name, (axis, array) in axes.items()
            if len(array) != sizes[axis]
        ]
        if wrong:
            raise ValueError("StepBatch: " + "; ".join(wrong))
        if ((arrays["response_lengths"] < 0) | (arrays["response_lengths"] > arrays["total_lengths"])).any():
            raise ValueError("StepBatch: a response_length is negative or larger than its total_length")
        return cls(extra=more, **arrays)

    def __post_init__(self) -> None:
        for name in _NAMES:
            array = getattr(self, name)
            if array is not None:
                object.__setattr__(self, name, _locked(array))
        object.__setattr__(self, "extra", {name: (axis, _locked(array)) for name, (axis, array) in self.extra.items()})

    # sizes and index maps ------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.total_lengths)

    @property
    def response_tokens(self) -> int:
        return len(self.mask)

    @property
    def token_starts(self) -> np.ndarray:
        """[N + 1] offsets of the samples on the token axis."""
        return np.concatenate([[0], np.cumsum(self.total_lengths)])

    @property
    def response_starts(self) -> np.ndarray:
        """[N + 1] offsets of the samples on the response axis."""
        return np.concatenate([[0], np.cumsum(self.response_lengths)])

    def seg(self) -> torch.Tensor:
        """[R] int64: index of the sample of each response token."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.response_lengths))

    # torch views ---------------------------------------------------------------------------------------------
    def t(self, name: str) -> torch.Tensor:
        """The field as a torch tensor that shares its memory (read it, never write it).

        Raises:
            TrainerError: there is no such column.
        """
        array = self.extra[name][1] if name in self.extra else getattr(self, name) if name in _NAMES else None
        if array is None:
            raise no_column("the batch", name)
        return _borrow(array)

    def all_samples(self) -> torch.Tensor:
        return torch.ones(len(self), dtype=torch.bool)

    def trainable_counts(self, mask: torch.Tensor | None = None) -> torch.Tensor:
        """[N] int64: trainable tokens of each sample (of ``mask`` [R] if given)."""
        chosen = self.t("mask") if mask is None else mask
        return torch.zeros(len(self), dtype=torch.int64).index_add_(0, self.seg(), chosen.to(torch.int64))

    # derived batches -----------------------------------------------------------------------------------------
    def with_old_logp(self, old_logp: torch.Tensor) -> StepBatch:
        """A copy that has them. old_logp: [R].

        Raises:
            ValueError: another length.
        """
        if tuple(old_logp.shape) != (self.response_tokens,):
            raise ValueError(f"StepBatch: old_logp has shape {tuple(old_logp.shape)} for {self.response_tokens} tokens")
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["old_logp"] = old_logp.detach().cpu().numpy().astype(np.float32, copy=False)
        return StepBatch(**values)

    def with_columns(self, **columns: torch.Tensor) -> StepBatch:
        """A copy with further token columns, [R] each (``ref_logp``, ``teacher_logp``, ``values``, ...); one of the
        same name is replaced.

        Raises:
            ValueError: another length, or the name of a standard field.
        """
        for name, x in columns.items():
            if tuple(x.shape) != (self.response_tokens,) or name in _NAMES:
                raise ValueError(f"StepBatch: column {name!r} has shape {tuple(x.shape)} for {self.response_tokens}")
        more = dict(self.extra)
        more.update({name: ("response", x.detach().cpu().numpy()) for name, x in columns.items()})
        return replace(self, extra=more)

    def take(self, indices: Sequence[int] | np.ndarray) -> StepBatch:
        """The samples at ``indices``, in that order, every field with them."""
        rows = np.asarray(indices, dtype=np.int64)
        picks = {
            "sample": rows,
            "token": _ranges(self.token_starts, rows),
            "response": _ranges(self.response_starts, rows),
        }
        columns: dict[str, Any] = {name: getattr(self, name)[picks[axis]] for name, (axis, _) in SCHEMA.items()}
        columns["extra"] = {name: (axis, array[picks[axis]]) for name, (axis, array) in self.extra.items()}
        columns["old_logp"] = None if self.old_logp is None else self.old_logp[picks["response"]]
        return StepBatch(**columns)

    @staticmethod
    def concat(batches: Sequence[StepBatch]) -> StepBatch:
        """End to end, in order. All must have the same extra fields.

        Raises:
            ValueError: nothing given, extra fields differ, or only some have ``old_logp``.
        """
        if not batches:
            raise ValueError("StepBatch.concat: no batches")
        names = {tuple(sorted((name, axis) for name, (axis, _) in b.extra.items())) for b in batches}
        if len(names) != 1:
            raise ValueError(f"StepBatch.concat: extra fields differ: {sorted(names)}")
        columns: dict[str, Any] = {name: np.concatenate([getattr(b, name) for b in batches]) for name in SCHEMA}
        columns["extra"] = {
            name: (axis, np.concatenate([b.extra[name][1] for b in batches]))
            for name, (axis, _) in batches[0].extra.items()
        }
        known = [b.old_logp for b in batches if b.old_logp is not None]
        if known and len(known) < len(batches):
            raise ValueError(f"StepBatch.concat: {len(known)} of {len(batches)} batches have old_logp")
        columns["old_logp"] = np.concatenate(known) if known else None
        return StepBatch(**columns)


_NAMES = (*SCHEMA, "old_logp")


def no_column(where: str, name: str) -> TrainerError:
    """For who reads what nobody declared."""
    return TrainerError(f"{where} has no column {name!r}: add it to `needs` of the algorithm")


def _locked(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through; the caller's own array stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view


def _ranges(starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    pieces = [np.arange(starts[r], starts[r + 1]) for r in rows]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def _borrow(array: np.ndarray) -> torch.Tensor:
    """A tensor over read-only memory, without torch's warning: the batch is frozen, so nobody writes."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
