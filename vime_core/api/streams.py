"""What travels beside the tokens of a sample: each extra is declared once, here or by the plugin that brings it.

A declaration is the key of its values all the way: ``GenerateReply.streams``, ``Sample.streams``, the run's state, and,
under its name, the column of the step batch. Nothing in between knows a stream by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TokenStream:
    """One array a sample, [tokens, ``*dims``].

    Attributes:
        name: of the column in the step batch.
        dtype: of the column; what arrives may be narrower.
        per: "response": one row for each response token. "position": one for each token of prompt and response but the
            last, which was sampled and never run.
        what: the values, in messages.
        purpose: who needs them, in messages.
        dims: names of the trailing dimensions; their sizes are the same in all samples of a batch.
        fill: stands where there is no value, as at observations; None is NaN.
        shaped_like: name of the stream whose shape this one has, where the two come together.
    """

    name: str
    dtype: str
    per: Literal["response", "position"]
    what: str
    purpose: str
    dims: tuple[str, ...] = ()
    fill: int | None = None
    shaped_like: str = ""

    def checked(self, rows: Any) -> np.ndarray:
        """``rows`` as an array.

        Raises:
            ValueError: another number of dimensions or kind of number than declared.
        """
        import numpy as np

        rows = np.asarray(rows)
        if rows.ndim != 1 + len(self.dims) or not np.can_cast(rows.dtype, self.dtype, "same_kind"):
            declared = f"{self.dtype} [{', '.join(('tokens', *self.dims))}]"
            raise ValueError(f"{self.what} are {rows.dtype} {list(rows.shape)}, not {declared}")
        return rows

    def blank(self, length: int, shape: tuple[int, ...] = ()) -> np.ndarray:
        """[length, *shape] without values."""
        import numpy as np

        return np.full((length, *shape), math.nan if self.fill is None else self.fill, self.dtype)


def check_pairs(streams: Mapping[TokenStream, np.ndarray]) -> None:
    """Raises ValueError where two that belong together differ in shape."""
    shapes = {stream.name: list(rows.shape) for stream, rows in streams.items()}
    for stream in streams:
        if shapes.get(stream.shaped_like, shapes[stream.name]) != shapes[stream.name]:
            raise ValueError(f"{stream.name} {shapes[stream.name]} and {stream.shaped_like} differ in shape")


#: in place of an expert's id, in a whole row: the trainer's own router chooses for this token
FREE_CHOICE = -1
#: the experts that each token was sent to
ROUTING = TokenStream(
    "routing", "int16", "position", "routed experts", "routing replay", ("layers", "topk"), FREE_CHOICE
)
#: the tokens that the sampler found likeliest at each response token, all different, and their log-probs
TOP_IDS = TokenStream("rollout_top_ids", "int32", "response", "likeliest tokens", "score centering", ("k",), 0)
TOP_LOGP = TokenStream(
    "rollout_top_logp", "float32", "response", "likeliest tokens", "score centering", ("k",), shaped_like=TOP_IDS.name
)
#: the teacher's log-prob of each sampled token
TEACHER_LOGP = TokenStream("teacher_logp", "float32", "response", "log-probs of the teacher", "distillation")
