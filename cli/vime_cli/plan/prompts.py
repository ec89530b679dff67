"""Tokens of prompts, from the data set itself where it and the model's tokenizer are here; never from a guess."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vime_cli.plan.chat import ChatTemplate
from vime_core.api import DataError
from vime_core.data import BadRows, Row, read_rows, split_slice

if TYPE_CHECKING:
    from vime_core.config import Config

#: rows that are read, and bytes of a file that is opened for them
_ROWS = 300
_FILE = 256 << 20


@dataclass(frozen=True)
class Prompts:
    """Quantiles of prompt lengths, ascending and evenly apart; empty: every prompt is at its longest. ``source`` says
    where they are from, or why there are none; ``told``: the user said so."""

    lengths: Sequence[int] = ()
    source: str = "at their longest"
    told: bool = False

    @classmethod
    def given(cls, lengths: Sequence[int]) -> Prompts:
        return cls(lengths, "--prompt-tokens", told=True)

    @classmethod
    def read(cls, config: Config, folder: str | None) -> Prompts:
        """Of the first rows of ``--prompt-data``. folder: where the model's tokenizer is."""
        paths, tokenizer = config.data.prompt_data, Path(folder or "") / "tokenizer.json"
        if not paths:
            return AT_LONGEST
        why = _obstacle(paths) or ("" if tokenizer.is_file() else f"no {tokenizer}") or _missing()
        if not why:
            try:
                found = sorted(_lengths(config, paths, tokenizer))
            except DataError as error:
                found, why = [], str(error)
            if found:
                return cls(found, f"{len(found)} rows of {paths[0]}" + (" and more files" if len(paths) > 1 else ""))
        return cls(source=f"at their longest (the data set was not read: {why or 'no row has a prompt'})")


#: where nobody says
AT_LONGEST = Prompts()


def _obstacle(paths: Sequence[str]) -> str:
    """Why lengths are not counted; empty where nothing is in the way."""
    for path in (Path(split_slice(one)[0]) for one in paths):
        if not path.is_file():
            return f"{path} is not here"
        if path.stat().st_size > _FILE:
            return f"{path} is larger than {_FILE >> 20} MiB"
    return ""


def _missing() -> str:
    """What a vime without its stack, which plans on a laptop, may lack."""
    lacking = [name for name in ("tokenizers", "jinja2") if importlib.util.find_spec(name) is None]
    return f"{lacking[0]} is not installed" if lacking else ""


def _lengths(config: Config, paths: Sequence[str], tokenizer: Path) -> Iterator[int]:
    """Of rows that a run would take: prompts that are not longer than they may be."""
    from tokenizers import Tokenizer

    bad, limit = BadRows("skip"), config.data.rollout_max_prompt_len
    rows = itertools.islice((row for path in paths for row in read_rows(path, bad)), _ROWS)
    texts = list(_texts(config, rows, tokenizer.parent))
    for encoding in Tokenizer.from_file(str(tokenizer)).encode_batch(texts, add_special_tokens=False):
        if 0 < len(encoding) <= (limit or len(encoding)):
            yield len(encoding)


def _texts(config: Config, rows: Iterable[Row], folder: Path) -> Iterator[str]:
    """As ``data/dataset.py`` makes them; a row that it would refuse is left out."""
    data = config.data
    template = ChatTemplate(folder, data.apply_chat_template_kwargs) if data.apply_chat_template else None
    for row in rows:
        prompt = row.values.get(data.input_key)
        if template is not None and isinstance(prompt, str | list):
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            yield template.render(messages, row.values.get(data.tool_key))
        elif isinstance(prompt, str):
            yield prompt
