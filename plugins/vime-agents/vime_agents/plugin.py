"""What vime-agents adds to vime."""

from __future__ import annotations

from vime_core.api import Environment
from vime_core.hookspecs import hookimpl
from vime_core.plugin import Registry


@hookimpl
def vime_register_environments(registry: Registry[type[Environment]]) -> None:
    registry.add(
        "number_guess",
        "vime_agents.number_guess:NumberGuess",
        summary="find a hidden number by guesses that are answered 'higher' or 'lower'",
    )
