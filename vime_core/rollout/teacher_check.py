"""Can this model teach that one? Asked before anything is started: the teacher gets the student's token ids as they
are, so that each id must be the same token to both, and the longest sample must fit into the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.api import ConfigError
from vime_core.config import placeholders
from vime_core.data import LengthLimits, load_tokenizer, model_context

if TYPE_CHECKING:
    from vime_core.config import Config


def check_teacher(config: Config) -> None:
    """Nothing is asked of a run without a teacher's engine, or of folders that are not there yet (placeholders).

    Raises:
        ConfigError: the teacher's folder holds no model, or one of other token ids or of a context that is too short.
        DataError: a folder has no tokenizer that can be loaded.
    """
    student, teacher = config.model.hf_checkpoint, config.model.opd_teacher_model
    if not config.teacher_engine or student is None or placeholders(student) or placeholders(teacher or ""):
        return
    if teacher is None or not (Path(teacher) / "config.json").is_file():
        raise ConfigError(
            f"--opd-type engine needs --opd-teacher-model FOLDER, a Hugging Face checkpoint; given is {teacher}"
        )
    found = difference(load_tokenizer(student).get_vocab(), load_tokenizer(teacher).get_vocab())
    if found:
        raise ConfigError(
            f"--opd-teacher-model {teacher} reads other token ids than --hf-checkpoint {student}: {found}; a teacher "
            "must have the student's vocabulary"
        )
    _check_context(LengthLimits.of(config).context, teacher)


def difference(student: Mapping[str, int], teacher: Mapping[str, int]) -> str:
    """Where the teacher's vocabulary (token -> id) does not hold the student's, at the lowest such id; "" if it does.
    Tokens that only the teacher has never come up."""
    wrong = [(id, token) for token, id in student.items() if teacher.get(token) != id]
    if not wrong:
        return ""
    id, token = min(wrong)
    theirs = teacher.get(token)
    also = f" ({len(wrong)} of {len(student)} tokens differ)"
    if theirs is None:
        other = next((name for name, number in teacher.items() if number == id), None)
        instead = f"has {other!r} there" if other is not None else "has no such token"
        return f"id {id} is {token!r}, the teacher {instead}{also}"
    return f"{token!r} is id {id}, and id {theirs} to the teacher{also}"


def _check_context(longest: int | None, teacher: str) -> None:
    context = model_context(teacher)
    if longest is not None and context is not None and context < longest:
        raise ConfigError(
            f"--opd-teacher-model {teacher} reads {context} tokens, a sample may have {longest}: lower "
            "--rollout-max-context-len"
        )
