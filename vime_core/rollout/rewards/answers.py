"""What an answer is: in a response, and in a label. Text is only found here; what it means is for ``values.py``.

A response answers in the first of these ways that it takes, outside of its thoughts:

1. the last ``\\boxed{...}`` or ``\\fbox{...}``. One that never closes was cut off, and is no answer;
2. the last line ``#### VALUE``. A heading, whose text is no value, is not one;
3. the last line ``Answer: ...``;
4. the last number.
"""

from __future__ import annotations

import re

from vime_core.rollout.rewards.quantity import QUANTITY, read_quantity

_THINK = re.compile(r"<(/?)think(?:ing)?>")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?:\{|(?P<bare>\w)(?!\w))")
_BRACES = re.compile(r"\\[{}]|[{}]")
_ANSWER_LINE = re.compile(r"(?i)(?:the\s+)?(?:final\s+)?answer[\s*_]*:[\s*_]*(\S.*)")
_DIGIT = re.compile(r"\d")
#: characters of a line that may hold an answer, and before the last digit of a text that are looked at: both bound what
#: a hostile text can cost
_LINE, _WINDOW = 300, 600
#: what may stand beside a number of running text: ``x2`` and ``2nd`` hold none, ``(1, 2)`` is one answer and not two
_TUPLE = r"[(\[]\s*[-+\u2212]?\d[\d.]*(?:\s*,\s*[-+\u2212]?\d[\d.]*)+\s*[)\]]"
_LAST = re.compile(rf"{_TUPLE}|(?<![A-Za-z_\d.]){QUANTITY}(?:\s*\\?%)?(?![A-Za-z_\d])")


def final_answer(text: str, unclosed_box: bool = False) -> str | None:
    """The answer of a response, as it is written there; None if there is none.

    Args:
        unclosed_box: a box that is still open at the end of the text holds the rest of it.
    """
    said = without_thoughts(text)
    if _BOX.search(said):
        return last_boxed(said, unclosed_box)
    lines = [line.strip() for line in reversed(said.splitlines()) if len(line) <= _LINE]
    marked = (line[4:].strip() for line in lines if line.startswith("####"))
    value = next((text for text in marked if read_quantity(text) is not None), None)
    if value is not None:
        return value
    answers = (_ANSWER_LINE.match(line.lstrip("*_#> ")) for line in lines)
    found = next((match[1].rstrip("*_ ") for match in answers if match), None)
    if found is None:
        return _last_number(said)
    return found if read_quantity(found) is not None else _last_number(found) or found.rstrip(".")


def gold_answer(label: object) -> str:
    """The answer of a label: its last box, what follows its last ``####``, else the label itself; empty if there is
    none."""
    if isinstance(label, float):
        return repr(label)
    text = str(label)
    if _BOX.search(text):
        return (last_boxed(text) or "").strip()
    return text.rsplit("####", 1)[-1].strip()


def without_thoughts(text: str) -> str:
    """The text outside of ``<think>...</think>``. Where the prompt opened the thoughts, they begin with the text; where
    nothing closes them, they end with it."""
    outside, start, thinking = list[str](), 0, False
    for tag in _THINK.finditer(text):
        closes = bool(tag[1])
        if closes and not thinking:
            outside.clear()
        elif not closes and not thinking:
            outside.append(text[start : tag.start()])
        start, thinking = tag.end(), not closes
    return " ".join([*outside, "" if thinking else text[start:]])


def last_boxed(text: str, unclosed: bool = False) -> str | None:
    """What the last box holds, with balanced braces; None if there is none or it does not end."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    if boxes[-1]["bare"]:
        return str(boxes[-1]["bare"])
    start, depth = boxes[-1].end(), 1
    for brace in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped one is a character
        if depth == 0:
            return text[start : brace.start()]
    return text[start:] if unclosed else None


def _last_number(text: str) -> str | None:
    last = _DIGIT.search(text[::-1])
    if last is None:
        return None
    end = len(text) - last.start()
    found = _LAST.findall(text[max(0, end - _WINDOW) : end + _WINDOW])
    return str(found[-1]).strip() if found else None
