"""Models that take turns: a policy, and others of its architecture."""

from __future__ import annotations

import pytest

from tests.support.models import build_model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """``policy`` and ``other`` differ in their weights, ``shallow`` is another architecture."""
    root = tmp_path_factory.mktemp("turns")
    made = {name: build_model(root / name, "qwen3", seed=seed) for name, seed in (("policy", 0), ("other", 1))}
    made["shallow"] = build_model(root / "shallow", "qwen3", num_hidden_layers=1)
    return {name: str(path) for name, path in made.items()}
