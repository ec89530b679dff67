"""What a text stands for: a number with its unit, a list of texts, or a word; anything else is mathematics."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vime_core.rollout.rewards.quantity import Quantity, plain_dress, read_quantity

_BRACKETS = {"(": ")", "[": "]", "\\{": "\\}"}
_SIDES = re.compile(r"\\(?:left|right|big|Big)\s*(?=[()\[\]]|\\[{}])")
_TOKEN = re.compile(r"\\[{}]|\\[A-Za-z]+|\\.|.", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_ASSIGNED = re.compile(r"\s*\$?\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z]\))?\s*(?:=|\\in)\s*(?P<value>[^=<>]*)$", re.DOTALL)


@dataclass(frozen=True)
class Items:
    """``brackets`` is "()", "[]", "[)" ... where the order counts, and "" for a set and for a list without any."""

    brackets: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Word:
    """In one case, without white space at its ends."""

    text: str


def read_value(text: str) -> Quantity | Items | Word | None:
    """None: mathematics, or nothing that can be read."""
    return read_quantity(text) or read_items(text) or read_word(text)


def assigned(text: str) -> str:
    """``5`` of ``x = 5``; any other text as it is."""
    match = _ASSIGNED.fullmatch(text)
    return match["value"].strip() if match and match["value"].strip() else text


def read_items(text: str) -> Items | None:
    """A tuple, an interval, a set or a list: what commas divide at the top level."""
    text = _SIDES.sub("", plain_dress(text)).strip()
    opening = next((bracket for bracket in _BRACKETS if text.startswith(bracket)), "")
    closing = next((bracket for bracket in _BRACKETS.values() if opening and text.endswith(bracket)), "")
    inner = text[len(opening) : len(text) - len(closing)] if closing else text
    parts = _split(inner)
    if parts is None or len(parts) < 2 or not all(parts):
        return None
    return Items("" if opening in ("", "\\{") else opening + closing, tuple(parts))


def read_word(text: str) -> Word | None:
    """Letters are a word where they are written as text, stand alone, or can be pronounced; else they are a product."""
    plain = plain_dress(text)
    bare = _TEXT.sub(r"\1", plain).strip().rstrip(".").strip()
    if re.fullmatch(r"\(\s*[A-Za-z]\s*\)", bare):  # a choice
        bare = bare.strip("() ")
    if not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[ '\-])*", bare):
        return None
    pronounced = len(bare) == 1 or re.search(r"[aeiouAEIOU]|[^\x00-\x7f]", bare) is not None
    return Word(" ".join(bare.casefold().split())) if _TEXT.search(plain) or pronounced else None


def _split(text: str) -> list[str] | None:
    """At the commas outside of all brackets; None where brackets do not match. A half-open interval's do, by number."""
    parts, depth, part = list[str](), 0, ""
    for token in _TOKEN.findall(text):
        depth += (token in ("(", "[", "{", "\\{")) - (token in (")", "]", "}", "\\}"))
        if depth < 0:
            return None
        if token in (",", ";") and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += token
    return [*parts, part.strip()] if depth == 0 else None
