"""Files and models that have to be there. A value that still holds a {placeholder} is looked at once it is filled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vime_core.config.facts import Facts
from vime_core.config.nearest import did_you_mean
from vime_core.config.placeholder import placeholders
from vime_core.config.rules.option_text import flag, value_of
from vime_core.config.sections import Config

#: options that take ``file.py:function``
_CODE = (
    "prepare",
    "rollout_function",
    "reward",
    "eval_reward",
    "dynamic_sampling_filter_path",
    "advantage_estimator",
    "correction",
)


def checkpoint_folder(config: Config, facts: Facts) -> str | None:
    path = config.model.hf_checkpoint
    if path is None or placeholders(path) or facts.model is not None:
        return None
    if not Path(path).is_dir():
        return f"{flag(config, 'hf_checkpoint')} is not a folder here; give a downloaded Hugging Face checkpoint"
    if not (Path(path) / "config.json").is_file():
        return f"{flag(config, 'hf_checkpoint')} holds no config.json; give a Hugging Face checkpoint folder"
    return None


def data_files(config: Config, facts: Facts) -> Iterator[str]:
    for name, paths in (
        ("prompt_data", config.data.prompt_data),
        ("eval_prompt_data", config.eval.eval_prompt_data[1::2]),
    ):
        for path in paths:
            file = re.sub(r"@\[[^\]]*\]$", "", path)
            if not placeholders(file) and not Path(file).is_file():
                source = config.provenance.get(name, "default")
                yield f"--{name.replace('_', '-')} {path} ({source}): there is no such file{_near(Path(file))}"


def _near(file: Path) -> str:
    return did_you_mean(file.name, sorted(p.name for p in file.parent.iterdir())) if file.parent.is_dir() else ""


def resume_folder(config: Config, facts: Facts) -> Iterator[str]:
    """A first start may name the folder that it is going to save to."""
    load, save = config.model.load, config.model.save
    if load is not None and not placeholders(load) and load != save and not Path(load).is_dir():
        yield f"{flag(config, 'load')} is not a folder; leave it out to start from --hf-checkpoint"
    if load is None and config.model.ckpt_step is not None:
        yield f"{flag(config, 'ckpt_step')} needs --load FOLDER"


def code_files(config: Config, facts: Facts) -> Iterator[str]:
    for name in _CODE:
        text = value_of(config, name)
        file = str(text).rpartition(":")[0]
        if text is not None and file.endswith(".py") and not placeholders(file) and not Path(file).is_file():
            yield f"{flag(config, name)}: there is no file {file}{_near(Path(file))}"
        elif text is not None and str(text).endswith(".py"):
            yield f"{flag(config, name)} names a file; name the function in it too: {text}:FUNCTION"


def model_type(config: Config, facts: Facts) -> str | None:
    if facts.model is None or facts.model_types is None:
        return None
    kind = str(facts.model.get("model_type"))
    if kind in facts.model_types:
        return None
    known = ", ".join(sorted(facts.model_types))
    reason = facts.refused_types.get(kind)
    if reason is not None:
        return f"{flag(config, 'hf_checkpoint')} is of model type {kind!r}: {reason} (the trainer loads: {known})"
    return (
        f"{flag(config, 'hf_checkpoint')} is of model type {kind!r}, which the trainer cannot load"
        f"{did_you_mean(kind, facts.model_types)} (it loads: {known})"
    )


RULES = (checkpoint_folder, data_files, resume_folder, code_files, model_type)
