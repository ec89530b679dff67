"""A model's chat template rendered by jinja alone: the tokenizer library that does it for a run imports half a stack.

The environment is the one that templates are written for (sandboxed, blocks trimmed, ``raise_exception``,
``strftime_now``, ``tojson``); what a template needs beyond it is an error, and then nothing is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from vime_core.api import DataError


class ChatTemplate:
    """The template in a Hugging Face folder.

    Raises:
        DataError: there is none.
    """

    def __init__(self, folder: Path, kwargs: Mapping[str, Any]) -> None:
        settings = _settings(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        text = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
        if not isinstance(text, str):
            raise DataError(f"no chat template in {folder}")
        special = {key: _token(value) for key, value in settings.items() if key.endswith("_token")}
        self._template, self._values = _environment().from_string(text), {**special, **kwargs}

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> str:
        """The prompt of a dialogue.

        Raises:
            DataError: the template refuses the messages.
        """
        try:
            return str(
                self._template.render(messages=messages, tools=tools, add_generation_prompt=True, **self._values)
            )
        except Exception as error:  # jinja raises whatever the template's author chose
            raise DataError(f"the chat template refuses these messages: {type(error).__name__}: {error}") from error


def _settings(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: {error}") from error
    return found if isinstance(found, dict) else {}


def _token(value: Any) -> Any:
    """A special token is text, or an object around it."""
    return value.get("content") if isinstance(value, dict) else value


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise DataError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return made
