"""The tokenizer of a Hugging Face folder. Nothing is ever fetched: a name that is no local folder is an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.api import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Tokenizer = object

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def load_tokenizer(folder: str | Path | None) -> Tokenizer:
    """Load the tokenizer that sits beside a model.

    Raises:
        DataError: no folder, no tokenizer in it, or one that transformers cannot load.
    """
    if folder is None:
        raise DataError("no tokenizer: --hf-checkpoint names the folder of model and tokenizer, and it is not set")
    path = Path(folder)
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; --hf-checkpoint must be a local Hugging Face folder")
    if not any((path / name).is_file() for name in _FILES):
        raise DataError(f"{path}: no tokenizer in this folder (looked for {', '.join(_FILES)})")
    from transformers import AutoTokenizer

    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # whatever a broken file makes of it, the user needs the folder and the cause
        raise DataError(f"{path}: the tokenizer cannot be loaded: {type(error).__name__}: {error}") from error
    return tokenizer


def eos_id(tokenizer: Tokenizer) -> int:
    """Raises:
    DataError: the tokenizer names no end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise DataError(f"{tokenizer.name_or_path}: the tokenizer has no eos_token, so a label cannot be ended")
    return int(tokenizer.eos_token_id)


def leading_ids(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer's own call puts before a text, as a rule its beginning-of-sequence token. A chat template
    writes it by itself."""
    with_special, without = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    return list(with_special[: with_special.index(without[0])]) if without else []
