"""Where a critic may start from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from vime_core.config.facts import Facts
from vime_core.config.rules import reference_models
from vime_core.config.sections import Config

Make = Callable[..., Config]


def test_a_critic_may_be_of_any_architecture_but_must_be_there(config: Make, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 32}))
    facts = Facts(model={"model_type": "qwen3", "hidden_size": 64})
    other = config("--critic-load", str(tmp_path))
    assert list(reference_models.same_architecture(other, facts)) == []
    missing = config("--critic-load", str(tmp_path / "none"))
    assert list(reference_models.same_architecture(missing, facts)) == [
        f"--critic-load {tmp_path}/none (flag --critic-load) holds no config.json; give a Hugging Face checkpoint "
        "folder"
    ]
