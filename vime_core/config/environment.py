"""``VIME_<FIELD>`` variables as settings. A variable that is nearly a field's name is taken for a misspelling."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from vime_core.api import ConfigError
from vime_core.config.catalogue import Catalogue, as_variable
from vime_core.config.coerce import from_text
from vime_core.config.flags import Setting
from vime_core.config.passthrough import FAMILIES

#: read by the plugin kernel
PLUGINS = "VIME_PLUGINS"
OTHERS = frozenset({PLUGINS, "VIME_DISABLE_PLUGIN_AUTOLOAD"})


def plugin_specs(environ: Mapping[str, str]) -> list[str]:
    return [spec.strip() for spec in environ.get(PLUGINS, "").split(",") if spec.strip()]


def read_environment(environ: Mapping[str, str], catalogue: Catalogue, problems: list[str]) -> list[Setting]:
    """Settings of the environment, by name; what is wrong goes to ``problems``."""
    settings = []
    for variable in sorted(environ):
        if not variable.startswith("VIME_") or variable in OTHERS or not _is_ours(variable, catalogue):
            continue
        try:
            key = catalogue.find(variable.removeprefix("VIME_").lower(), as_variable)
            settings.append(Setting(key, from_text(key.annotation, environ[variable]), f"environment {variable}"))
        except ValueError as error:
            problems.append(f"environment {variable}: {error}")
        except ConfigError as error:
            problems += [f"environment: {violation}" for violation in error.violations]
    return settings


def _is_ours(variable: str, catalogue: Catalogue) -> bool:
    name = variable.removeprefix("VIME_").lower()
    if any(family.prefix and name.startswith(family.prefix) for family in FAMILIES):
        return True
    known = [key.name for key in catalogue.all()] + [
        alias for k in catalogue.all() for alias in k.metadata.get("aliases", ())
    ]
    return name in known or bool(difflib.get_close_matches(name, known, n=1, cutoff=0.85))
