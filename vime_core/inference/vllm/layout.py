"""Does a manifest describe exactly the tensors that the model was built from?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vime_core.weights import Manifest

#: a head that shares the embedding's weights may be sent or left out
TIED_HEAD = "lm_head.weight"


def layout_faults(manifest: Manifest, expected: Mapping[str, tuple[int, ...]], *, tied: bool) -> list[str]:
    """What is wrong, one line a kind of fault; an empty list if nothing.

    Args:
        expected: name -> shape of the model's checkpoint; empty when unknown, then only the manifest itself is checked.
        tied: embedding and head are one parameter.
    """
    return [*_places(manifest), *_twice(manifest), *(_names(manifest, expected, tied) if expected else [])]


def _names(manifest: Manifest, expected: Mapping[str, tuple[int, ...]], tied: bool) -> list[str]:
    sent = {entry.name: entry.shape for entry in manifest.tensors}
    optional = {TIED_HEAD} if tied else set()
    reshaped = [
        f"{name} {list(sent[name])} for {list(expected[name])}"
        for name in sorted(sent.keys() & expected.keys())
        if sent[name] != expected[name]
    ]
    found = {
        "names missing": sorted(expected.keys() - sent.keys() - optional),
        "names that the model does not have": sorted(sent.keys() - expected.keys() - optional),
        "shapes that differ": reshaped,
    }
    return [f"{what}: {_some(names)}" for what, names in found.items() if names]


def _twice(manifest: Manifest) -> list[str]:
    twice = [name for name, count in Counter(entry.name for entry in manifest.tensors).items() if count > 1]
    return [f"names sent twice: {_some(twice)}"] if twice else []


def _places(manifest: Manifest) -> list[str]:
    """Tensors lie one after another inside the buffer."""
    end = 0
    for entry in manifest.tensors:
        if entry.offset < end:
            return [f"{entry.name} overlaps the tensor before it"]
        end = entry.offset + entry.nbytes
    return [f"tensors need {end} bytes, the buffer has {manifest.size}"] if end > manifest.size else []


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
