"""A number with its unit, read exactly: integers, decimals, fractions, mixed numbers, powers, percentages.

Nothing is computed that is not small: digits and exponents are bounded, and no text is ever evaluated.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from fractions import Fraction

_GAP = r"(?:\s|\\[,;: ]|~)*"
_SIGN = r"(?:[-+\u2212]\s*)?"
_COMMA = r"(?:,\\!|\\!,|\{,\}|\\,|,)"
_PLAIN = rf"(?:\d{{1,3}}(?:{_COMMA}\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_PART = r"\d+(?:\.\d+)?"
_FRACTION = rf"\\[dtc]?frac\s*(?:\{{\s*{_SIGN}{_PART}\s*\}}|\d)\s*(?:\{{\s*{_PART}\s*\}}|\d)"
_SLASH = rf"{_PART}\s*/\s*{_PART}"
_EXPONENT = r"(?:\{\s*[-+\u2212]?\d{1,4}\s*\}|\d)"
_POWER = rf"\d{{1,9}}\s*\^\s*{_EXPONENT}"
_SCIENTIFIC = rf"(?:[eE][-+]?\d{{1,3}}|\s*(?:\\times|\\cdot|\u00d7|\*)\s*10\s*\^\s*{_EXPONENT})"
#: the number alone, as it is found in running text
QUANTITY = (
    rf"{_SIGN}(?:\\?\$\s*)?(?:\d+{_GAP}(?:{_FRACTION}|(?<=\s)\d+\s*/\s*\d+)|{_FRACTION}|{_SLASH}|"
    rf"{_PLAIN}{_SCIENTIFIC}|{_POWER}|{_PLAIN})"
)
_WHOLE = re.compile(
    rf"(?P<sign>{_SIGN})(?:"
    rf"(?P<whole>\d+){_GAP}(?P<rest>{_FRACTION}|(?<=\s)\d+\s*/\s*\d+)|"
    rf"(?P<fraction>{_FRACTION}|{_SLASH})|"
    rf"(?P<mantissa>{_PLAIN})(?P<scale>{_SCIENTIFIC})|(?P<power>{_POWER})|(?P<plain>{_PLAIN}))"
)
_CURRENCY = re.compile(r"\\\$|[$€£]|\\(?:pounds|euro)")
_MATH_MARKS = re.compile(r"^\$+|\$+$|^\\[(\[]|\\[)\]]$")
_PERCENT = re.compile(r"(?:\\?%|\\?(?:text|mathrm)\{\s*(?:percent|\\?%)\s*\}|percent)", re.IGNORECASE)
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°|\\degree|degrees?\b|\\text\{\s*degrees?\s*\}", re.IGNORECASE)
_WRAPPED = re.compile(r"\\(?:text|textrm|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"[A-Za-z\u00b5\u03bc\u03a9]+(?:[ /.^*\-]*(?:[A-Za-z\u00b5\u03bc\u03a9]+|\^?\{?-?\d\}?))*")
_LONGEST, _BITS = 300, 4096


@dataclass(frozen=True)
class Quantity:
    """``unit`` is "" where none is written, "%" for a percentage (``value`` is then the number before the sign)."""

    value: Fraction
    unit: str = ""

    def equals(self, other: Quantity, *, bare: bool = True) -> bool:
        """Whether the two are the same, exactly.

        Args:
            bare: a unit that only one of them has does not count.
        """
        if self.unit == other.unit:
            return self.value == other.value
        if "%" in (self.unit, other.unit):
            percent, plain = (self, other) if self.unit == "%" else (other, self)
            if plain.unit:
                return False
            # 50 % is 0.5; and it is 50 where the sign was left out, which nobody does below one
            return plain.value * 100 == percent.value or (
                bare and abs(plain.value) > 1 and plain.value == percent.value
            )
        return bare and "" in (self.unit, other.unit) and self.value == other.value


def read_quantity(text: str) -> Quantity | None:
    """The number and unit that the whole of ``text`` is; None if it is anything else."""
    text = plain_dress(text)
    match = None if len(text) > _LONGEST else _WHOLE.match(text)
    if match is None:
        return None
    value, unit = _value(match), _unit(text[match.end() :])
    return None if value is None or unit is None else Quantity(value, unit)


def plain_dress(text: str) -> str:
    """Without what surrounds a number and means nothing: dollar signs of mathematics or money, a sentence's end."""
    text = _MATH_MARKS.sub("", text.strip().strip("*_")).strip()
    text = _CURRENCY.sub("", text, count=1) if _CURRENCY.match(text.lstrip("-+\u2212 ")) else text
    text = re.sub(r"^\{(.*)\}$", r"\1", text) if text.count("{") == 1 else text
    return text.strip().rstrip(".,;").strip()


def same_float(label: float, value: Fraction) -> bool:
    """Whether a column of float64 or float32 would hold ``label`` for ``value``. Only a label that needs nearly all of
    a type's digits can stand for a number that it cannot hold (0.1 as float32, one third)."""
    if Fraction(repr(label)) == value:
        return True
    digits = len(repr(label).partition("e")[0].replace(".", "").replace("-", "").strip("0"))
    if digits >= 15 and float(value) == label:
        return True
    return (digits > 9 and _float32(label) == label and Fraction(_shortest32(label)) == value) or (
        digits >= 12 and _float32(label) == label and _float32(float(value)) == label
    )


def _float32(value: float) -> float | None:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return None


def _shortest32(value: float) -> str:
    """The shortest decimal that a float32 holds as ``value``."""
    return next(text for text in (f"{value:.{digits}g}" for digits in range(1, 18)) if _float32(float(text)) == value)


def _value(match: re.Match[str]) -> Fraction | None:
    sign = -1 if match["sign"].strip() in ("-", "\u2212") else 1
    if match["whole"]:
        rest = _ratio(match["rest"])
        return None if rest is None or rest < 0 else sign * (int(match["whole"]) + rest)
    if match["fraction"]:
        found = _ratio(match["fraction"])
    elif match["power"]:
        base, exponent = match["power"].split("^")
        found = _power(Fraction(int(base)), _integer(exponent))
    elif match["mantissa"]:
        scale = _power(Fraction(10), _integer(re.split(r"[eE^]", match["scale"])[-1]))
        found = None if scale is None else _decimal(match["mantissa"]) * scale
    else:
        found = _decimal(match["plain"])
    return None if found is None else sign * found


def _ratio(text: str) -> Fraction | None:
    """Of ``\\frac{a}{b}``, ``\\frac12``, ``a/b``."""
    if "/" in text:
        top, bottom = text.split("/")
    else:
        top, bottom = re.findall(r"\{[^{}]*\}|\d", text[text.index("c") + 1 :])
    values = [Fraction(part.strip("{} ").replace("\u2212", "-").replace(" ", "")) for part in (top, bottom)]
    return None if values[1] == 0 else values[0] / values[1]


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"[^\d.]", "", text))


def _integer(text: str) -> int:
    return int(text.strip("{} ").replace("\u2212", "-").replace(" ", ""))


def _power(base: Fraction, exponent: int) -> Fraction | None:
    if abs(exponent) * max(1, base.numerator.bit_length()) > _BITS or (base == 0 and exponent <= 0):
        return None
    return base**exponent


def _unit(rest: str) -> str | None:
    """Of what follows a number; None where that is no unit but more of an expression."""
    bare = re.sub(r"(?<!\\)\\[,;: !]|~", " ", rest)
    if not bare.strip():
        return ""
    if _PERCENT.fullmatch(bare.strip()):
        return "%"
    degrees = _DEGREES.match(bare.strip())
    if degrees:
        return _unit(" " + bare.strip()[degrees.end() :])
    wrapped = _WRAPPED.search(bare) is not None
    text = _WRAPPED.sub(r"\1", bare)
    words = text.strip()
    # letters that stand alone are variables, and such a product is not a number with a unit
    if _UNIT.fullmatch(words) is None or not (wrapped or (text[0].isspace() and len(words) > 1)):
        return None
    return _unit_form(words)


def _unit_form(words: str) -> str:
    text = re.sub(r"[{}\s]", "", words)
    return text if len(text) <= 3 else text.casefold().removesuffix("s")
