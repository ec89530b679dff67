"""Models beside the policy: the reference and the teacher, which take turns with it in one model, and the critic, which
has its own."""

from __future__ import annotations

from collections.abc import Iterator

from vime_core.config.architecture import differences
from vime_core.config.facts import Facts, read_model
from vime_core.config.placeholder import placeholders
from vime_core.config.rules.option_text import flag, value_of
from vime_core.config.sections import Config

#: they take the policy's place
_ALIKE = ("ref_load", "opd_teacher_load")


def same_architecture(config: Config, facts: Facts) -> Iterator[str]:
    """The folders exist, and of those that take the policy's place only the weights differ from its own."""
    for name in (*_ALIKE, "critic_load"):
        folder = value_of(config, name)
        if folder is None or placeholders(folder):
            continue
        model = read_model(folder)
        if model is None:
            yield f"{flag(config, name)} holds no config.json; give a Hugging Face checkpoint folder"
        elif name in _ALIKE and facts.model is not None and (found := differences(facts.model, model)):
            yield (
                f"{flag(config, name)} is another architecture than {flag(config, 'hf_checkpoint')} "
                f"({'; '.join(found)}); only the weights may differ"
            )


RULES = (same_architecture,)
