"""The generated page, the help text, and that every option has help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from vime_cli.documents.options import main, render

from vime_core.api.errors import ConfigError
from vime_core.config.catalogue import Catalogue
from vime_core.config.help import TOPICS, help_text
from vime_core.config.passthrough import FAMILIES
from vime_core.config.sections import SECTIONS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_page_is_up_to_date(tmp_path: Path) -> None:
    main([str(tmp_path / "cli.md")])
    assert PAGE.read_text(encoding="utf-8") == (tmp_path / "cli.md").read_text(encoding="utf-8") == render()


def test_every_option_is_shown_with_help() -> None:
    text = help_text()
    for key in Catalogue().core.values():
        assert key.metadata["help"], key.name
        assert key.flag.removeprefix("--") in text
        assert f"`{key.flag}" in render() or f"`--[no-]{key.flag.removeprefix('--')}`" in render()
    assert max(len(line) for line in text.splitlines()) <= 120


def test_groups() -> None:
    titles = [line for line in help_text().splitlines() if line.startswith("[")]
    assert titles[:1] == ["[run]:"]
    assert {f"[{name}]:" for name in (*SECTIONS, "vllm", "router")} == set(titles)


def test_plugin_options_are_shown() -> None:
    @dataclass(frozen=True)
    class Options:
        size: int = field(default=4, metadata={"help": "how big"})

    text = help_text({"mine": Options})
    assert "[plugins.mine]:" in text
    assert "--mine-size INT" in text
    assert "how big (default: 4)" in text


def test_topics() -> None:
    assert [family.place for family in TOPICS.values()] == [family.place for family in FAMILIES]
    pytest.importorskip("vllm_router")
    text = help_text(topic="router")
    assert "--router-policy random|round_robin|" in text
    assert "--router-port" in text.partition("Decided by vime:")[2]
    with pytest.raises(ConfigError, match="no help on 'x'; there is help on vllm, router, megatron"):
        help_text(topic="x")
