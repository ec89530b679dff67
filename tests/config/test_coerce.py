"""Text and TOML values by annotation: what fits, and what is refused rather than guessed."""

from __future__ import annotations

import datetime
from typing import Any, Literal

import pytest

from vime_core.config.coerce import arity, from_text, from_value, from_word, from_words

Choice = Literal["a", "b"]


@pytest.mark.parametrize(
    ("annotation", "word", "value"),
    [
        (int, "12", 12),
        (int, "-1", -1),
        (float, "1e-5", 1e-5),
        (float, "3", 3.0),
        (float | None, "0.5", 0.5),
        (bool, "true", True),
        (bool, "0", False),
        (str, "12", "12"),
        (str | None, "", ""),
        (Choice, "b", "b"),
        (Literal[1, 8], "8", 8),
        (dict[str, Any], '{"a": [1, null]}', {"a": [1, None]}),
        (int | str, "12", 12),
        (int | str, "x", "x"),
        (int | list[int], "[1, 2]", [1, 2]),
        (str | list[str], "abc", "abc"),
        (Any, "text", "text"),
        (Any, '{"mode": 3}', {"mode": 3}),
    ],
)
def test_word(annotation: Any, word: str, value: Any) -> None:
    got = from_word(annotation, word)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("annotation", "word"),
    [
        (int, "1.0"),
        (int, "x"),
        (float, "x"),
        (float, "nan"),
        (float, "inf"),
        (bool, "yes"),
        (Choice, "c"),
        (dict[str, Any], "{"),
        (dict[str, Any], "[1]"),
        (int | list[int], "x"),
        (Any, "{not json"),
    ],
)
def test_word_that_does_not_fit(annotation: Any, word: str) -> None:
    with pytest.raises(ValueError, match=r"expected|JSON"):
        from_word(annotation, word)


@pytest.mark.parametrize(
    ("annotation", "value", "kept"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (float, 1e-5, 1e-5),
        (str | None, "x", "x"),
        (list[int], [1, 2], [1, 2]),
        (list[str], [], []),
        (list[dict[str, Any]], [{"a": 1}], [{"a": 1}]),
        (dict[str, Any], {"a": {"b": 1}}, {"a": {"b": 1}}),
        (dict[str, Any], '{"a": null}', {"a": None}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (bool | str | None, True, True),
        (Literal[1, 8], 8, 8),
    ],
)
def test_toml_value(annotation: Any, value: Any, kept: Any) -> None:
    got = from_value(annotation, value)
    assert got == kept
    assert type(got) is type(kept)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "3"),
        (int, 3.0),
        (int, True),
        (float, "1e-5"),
        (float, True),
        (float, float("nan")),
        (bool, 1),
        (bool, "true"),
        (str, 3),
        (list[str], "a"),
        (list[int], [1, "2"]),
        (Choice, "c"),
        (Literal[1, 8], True),
        (dict[str, Any], 3),
        (dict[str, int], {"a": "x"}),
        (Any, datetime.date(2020, 1, 1)),
        (int | None, "3"),
    ],
)
def test_toml_value_of_another_type(annotation: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        from_value(annotation, value)


def test_lists() -> None:
    assert from_words(list[int], ["1", "-2"]) == [1, -2]
    assert from_text(list[str], "a 'b c'") == ["a", "b c"]
    assert from_text(list[str], '["a b", "c"]') == ["a b", "c"]
    assert from_text(list[str], "[]") == []
    assert from_words(list[str], ["[END]"]) == ["[END]"]
    with pytest.raises(ValueError, match="at least one"):
        from_words(list[str], [])
    with pytest.raises(ValueError, match="not JSON"):
        from_text(list[str], "[END]")


def test_one_value_takes_one_word() -> None:
    for words in ([], ["1", "2"]):
        with pytest.raises(ValueError, match=f"takes one value .int., got {len(words)}"):
            from_words(int, words)


def test_arity() -> None:
    assert [arity(a) for a in (bool, bool | None, bool | str, list[int] | None, str | list[str], dict[str, Any])] == [
        "none", "none", "one", "many", "one", "one",
    ]  # fmt: skip
