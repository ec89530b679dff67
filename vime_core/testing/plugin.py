"""The pytest plugin of vime-core. Imports only pytest; everything else arrives inside fixtures.

Pytest loads this module in every environment that has vime-core installed, also for projects that never use it, so it
must cost nothing until a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vime_core.plugins import Plugins


@pytest.fixture
def vime_plugins() -> Callable[..., Plugins]:
    """Loads exactly the named plugins and discovers nothing, so a test does not depend on what happens to be installed.

    ``vime_plugins("ascend", "./my_reward.py")`` is the core with those two.
    """
    from vime_core.plugins import Plugins

    def load(*specs: str, strict: bool = True) -> Plugins:
        return Plugins.load(specs, autoload=False, strict=strict, environ={})

    return load
