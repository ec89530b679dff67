"""``vime algorithms``, and the page that is made from the same cards."""

from __future__ import annotations

from pathlib import Path

import pytest
from vime_cli.documents.algorithms import described, render
from vime_cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
OWN = '''
from vime_core.algorithms.grpo import Grpo

class Mine(Grpo):
    """Half of GRPO's advantage."""
    name = "mine"
    info = None
    def advantages(self, batch, options):
        return super().advantages(batch, options) / 2
'''


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run make docs"


def test_every_algorithm_of_the_core_has_a_card_and_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    for card in described():
        titles = dict(card.rows)
        assert card.name in listed
        assert titles["source"]
        assert titles["advantage"]
        assert titles["loss of a token"]


def test_info_prints_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "info", "grpo"]) == 0
    printed = capsys.readouterr().out
    assert "arXiv 2402.03300" in printed
    assert "eps_clip = 0.2" in printed


def test_info_of_a_path_without_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "half_of_grpo.py"
    file.write_text(OWN)
    assert main(["algorithms", "info", f"{file}:Mine"]) == 0
    assert "Half of GRPO's advantage." in capsys.readouterr().out


def test_an_unknown_name_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "info", "grop"]) == 2
    assert "'grpo'" in capsys.readouterr().err
