"""The name that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean X?"`` with the nearest known name, or an empty string when none is near."""
    known = list(known)
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not found:
        found = [k for k in known if len(name) > 3 and (k.endswith("_" + name) or k.startswith(name + "_"))][:1]
    return f"; did you mean {found[0]}?" if found else ""
