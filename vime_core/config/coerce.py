"""Strict values: text from the command line, typed values from TOML, both by one annotation.

Annotations are those of dataclass fields: bool, int, float, str, Literal, list[...], dict[...], ``Any``, and unions of
them. Nothing is guessed: "1" is no bool in a recipe, 3.0 is no int, text is never a number where TOML has types. What
does not fit raises ``ValueError`` with the reason; the caller adds where it stood.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_WORDS = {"true": True, "1": True, "false": False, "0": False}


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union without None; of anything else, itself."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(m for m in get_args(annotation) if m is not NoneType)
    return (annotation,)


def arity(annotation: Any) -> Literal["none", "one", "many"]:
    """How many words follow the flag: a bool takes none, a list one or more."""
    alternatives = members(annotation)
    if alternatives == (bool,):
        return "none"
    return "many" if len(alternatives) == 1 and _kind(alternatives[0]) is list else "one"


def describe(annotation: Any) -> str:
    """What a reader calls the type: ``int``, ``a|b``, ``list of str``, ``JSON``."""
    return " or ".join(_describe_one(m) for m in members(annotation))


def from_words(annotation: Any, words: Sequence[str]) -> Any:
    """The value that the words after a flag spell."""
    if arity(annotation) != "many":
        if len(words) != 1:
            raise ValueError(f"takes one value ({describe(annotation)}), got {len(words)}")
        return from_word(annotation, words[0])
    if not words:
        raise ValueError(f"needs at least one value ({describe(annotation)})")
    element = _element(members(annotation)[0])
    return [from_word(element, word) for word in words]


def from_text(annotation: Any, text: str) -> Any:
    """The value of an environment variable: a list is JSON (``["a", "b"]``) or words as in a shell."""
    if arity(annotation) != "many":
        return from_word(annotation, text)
    if text.lstrip().startswith("["):
        return from_value(annotation, _json(text))
    return from_words(annotation, shlex.split(text))


def from_word(annotation: Any, word: str) -> Any:
    """The value that one word spells; the first alternative of a union that fits, text last."""
    alternatives = sorted(members(annotation), key=lambda m: _ORDER.index(_kind(m)))
    for alternative in alternatives:
        try:
            return _PARSERS[_kind(alternative)](alternative, word)
        except ValueError as error:
            if len(alternatives) == 1:
                raise
            reason = error
    raise ValueError(f"expected {describe(annotation)}, got {word!r}") from reason


def from_value(annotation: Any, value: Any) -> Any:
    """The value of a TOML (or JSON) item, checked; an int is taken for a float, JSON text for a table."""
    alternatives = members(annotation)
    for alternative in alternatives:
        try:
            return _CHECKS[_kind(alternative)](alternative, value)
        except ValueError as error:
            if len(alternatives) == 1:
                raise
            reason = error
    raise ValueError(_expected(describe(annotation), value)) from reason


# one annotation without unions --------------------------------------------------------------------------------


def _kind(annotation: Any) -> Any:
    origin = get_origin(annotation) or annotation
    if origin in (bool, int, float, str, Literal, Any):
        return origin
    if origin in (list, set, tuple):
        return list
    return dict if origin in (dict, Mapping) or get_origin(origin) is dict else Any


def _element(annotation: Any) -> Any:
    args = [a for a in get_args(annotation) if a is not Ellipsis]
    return args[0] if args else Any


def _describe_one(annotation: Any) -> str:
    kind = _kind(annotation)
    if kind is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if kind is list:
        return f"list of {describe(_element(annotation))}"
    return {dict: "JSON", Any: "text or JSON"}.get(kind) or kind.__name__


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error}): {text!r}") from error


def _parse_bool(annotation: Any, word: str) -> bool:
    if word.lower() not in _WORDS:
        raise ValueError(f"expected true or false, got {word!r}")
    return _WORDS[word.lower()]


def _parse_int(annotation: Any, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"expected an int, got {word!r}") from None


def _parse_float(annotation: Any, word: str) -> float:
    try:
        return _check_float(annotation, float(word))
    except ValueError:
        raise ValueError(f"expected a finite number, got {word!r}") from None


def _parse_literal(annotation: Any, word: str) -> Any:
    for choice in get_args(annotation):
        if str(choice) == word:
            return choice
    raise ValueError(f"expected one of {', '.join(map(str, get_args(annotation)))}, got {word!r}")


def _parse_list(annotation: Any, word: str) -> list[Any]:
    if not word.lstrip().startswith("["):
        raise ValueError(f"expected a JSON list, got {word!r}")
    return _check_list(annotation, _json(word))


def _parse_dict(annotation: Any, word: str) -> dict[str, Any]:
    return _check_dict(annotation, _json(word))


def _parse_any(annotation: Any, word: str) -> Any:
    return _json(word) if word.lstrip()[:1] in ("{", "[") and word.strip() else word


def _expected(what: str, value: Any) -> str:
    shown = {str: "the text", bool: "the bool", int: "the int", float: "the float"}.get(type(value), "")
    return f"expected {what}, got {shown} {value!r}".replace("  ", " ")


def _check_plain(kind: type) -> Callable[[Any, Any], Any]:
    def check(annotation: Any, value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(_expected(kind.__name__, value))
        return value

    return check


def _check_float(annotation: Any, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(_expected("float", value))
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    return float(value)


def _check_literal(annotation: Any, value: Any) -> Any:
    for choice in get_args(annotation):
        if choice == value and type(choice) is type(value):
            return choice
    raise ValueError(_expected(f"one of {', '.join(map(str, get_args(annotation)))}", value))


def _check_list(annotation: Any, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(_expected(_describe_one(annotation), value))
    return [from_value(_element(annotation), item) for item in value]


def _check_dict(annotation: Any, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = _json(value)
    if not isinstance(value, dict):
        raise ValueError(_expected("a table (JSON object)", value))
    inner = get_args(annotation)[1] if len(get_args(annotation)) == 2 else Any
    return {str(key): item if item is None else from_value(inner, item) for key, item in value.items()}


def _check_any(annotation: Any, value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(_expected("text, a number, a bool, a list or a table", value)) from None
    return value


_ORDER = [bool, int, float, Literal, list, dict, Any, str]
_PARSERS: Mapping[Any, Callable[[Any, str], Any]] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    Literal: _parse_literal,
    list: _parse_list,
    dict: _parse_dict,
    Any: _parse_any,
    str: lambda annotation, word: word,
}
_CHECKS: Mapping[Any, Callable[[Any, Any], Any]] = {
    bool: _check_plain(bool),
    int: _check_plain(int),
    float: _check_float,
    Literal: _check_literal,
    list: _check_list,
    dict: _check_dict,
    Any: _check_any,
    str: _check_plain(str),
}
