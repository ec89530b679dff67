"""One option of a section: a dataclass field with its help. Standard library only."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def opt(default: Any, help: str, **more: Any) -> Any:
    """A field with help. Containers become default factories."""
    metadata = {"help": help, **more}
    if isinstance(default, list | dict | tuple) and not default:
        kind = type(default)
        return field(default_factory=kind, metadata=metadata)
    return field(default=default, metadata=metadata)
