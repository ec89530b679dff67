"""What the algorithm and the terms around it need, and the options of models that only some need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vime_core.config.catalogue import as_flag
from vime_core.config.facts import Facts
from vime_core.config.rules.option_text import flag, given, value_of
from vime_core.config.sections import Config

#: column -> what to give so that there is one
HOW: Mapping[str, str] = {
    "teacher_logp": "give --opd-type engine and --opd-teacher-model FOLDER, or --opd-type megatron and "
    "--opd-teacher-load FOLDER",
}
#: column -> options of the model that computes it, and who asks for it
MODELS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "ref_logp": (("ref_load", "ref_update_interval"), "a reference (--use-kl-loss or --kl-coef ask for one)"),
    "values": (("critic_load", "critic_lr", "num_critic_only_steps"), "a critic"),
    "teacher_logp": (("opd_type", "opd_teacher_load", "opd_teacher_model"), "a teacher (--use-opd asks for one)"),
}


def needs_are_met(config: Config, facts: Facts) -> Iterator[str]:
    """Every column has somebody who computes it."""
    if facts.needs is None or facts.supplies is None:
        return
    lacking = sorted(facts.needs - facts.supplies)
    hints = [f"{column} ({HOW.get(column, 'nothing in this run computes it')})" for column in lacking]
    if hints:
        yield f"{flag(config, 'advantage_estimator')}, as it is used here, needs {'; '.join(hints)}"


def models_are_needed(config: Config, facts: Facts) -> Iterator[str]:
    """No option of a model that is not there."""
    if facts.needs is None or config.train.loss_type == "sft_loss":
        return
    for column, (options, what) in MODELS.items():
        idle = [name for name in options if given(config, name)]
        if idle and column not in facts.needs:
            yield f"{flag(config, *idle)}: nothing in this run needs {what}; leave it out"


def teacher_is_named(config: Config, facts: Facts) -> Iterator[str]:
    """The way to compute the teacher's log-probs has its folder, and no other way has one."""
    if config.train.loss_type == "sft_loss":
        return
    folders = {"megatron": "opd_teacher_load", "engine": "opd_teacher_model"}
    for kind, name in folders.items():
        chosen, folder = config.algorithm.opd_type == kind, value_of(config, name)
        if chosen and folder is None:
            yield f"{flag(config, 'opd_type')} has no teacher: give {as_flag(name)} FOLDER"
        elif not chosen and config.algorithm.opd_type is not None and folder is not None:
            yield f"{flag(config, name)} belongs to --opd-type {kind}; {flag(config, 'opd_type')} does not read it"


RULES = (needs_are_met, models_are_needed, teacher_is_named)
