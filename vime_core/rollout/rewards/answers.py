"""Final answers in texts, and when two of them are the same number. Text is only ever compared, never evaluated."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?")
_INTEGER_PARTS = re.compile(r"(?P<sign>[-+]?)(?P<whole>\d{0,300})(?:\.(?P<decimals>\d{0,300}))?")
_FRACTION = re.compile(r"(?P<sign>-?)\\frac\{(?P<top>[^{}]*)\}\{(?P<bottom>[^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\frac(\d)(\d)(?!\d)")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WRAPPERS = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}")
_NOISE = re.compile(r"\\left|\\right|\\!|\\,|\\;|\\ |\\%|%|\\\$|\$|\s|°|\^\\circ|\^\{\\circ\}")
_BOX = re.compile(r"\\f?boxed\s*\{")


def last_boxed(text: str) -> str | None:
    """What the last ``\\boxed{...}`` holds, with balanced braces; None if there is none or it does not end."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for position in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[starts[-1] : position]
    return None


def final_answer(text: str) -> str | None:
    """The boxed answer, else what follows the last ``####``, else the last number; None if there is none of them."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def gold_answer(label: object) -> str:
    """The label's answer: its box or what follows ``####`` where it has one, else the label itself."""
    text = str(label)
    boxed = last_boxed(text)
    return boxed if boxed is not None else text.rsplit("####", 1)[-1].strip()


def normal_form(answer: str) -> str:
    """One spelling for answers that differ only in LaTeX dress."""
    text = _WRAPPERS.sub(r"\1", answer).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\u2212", "-")
    text = _GROUPED.sub("", _NOISE.sub("", text))
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text).rstrip(".")
    return text.split("=")[-1] if text.count("=") == 1 and re.match(r"[A-Za-z]=", text) else text


def number(text: str) -> Fraction | None:
    """The exact value of a plain number or fraction in normal form, else None. Digits are bounded: no huge powers."""
    latex = _FRACTION.fullmatch(text)
    if latex:
        top, bottom, sign = number(latex["top"]), number(latex["bottom"]), -1 if latex["sign"] else 1
        return sign * top / bottom if top is not None and bottom else None
    if text.count("/") == 1:
        top, bottom = (_decimal(side) for side in text.split("/"))
        return top / bottom if top is not None and bottom else None
    return _decimal(text)


def _decimal(text: str) -> Fraction | None:
    match = _INTEGER_PARTS.fullmatch(text)
    if match is None or not (match["whole"] or match["decimals"]):
        return None
    decimals = match["decimals"] or ""
    value = Fraction(int((match["whole"] or "0") + decimals), 10 ** len(decimals))
    return -value if match["sign"] == "-" else value
