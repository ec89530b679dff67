"""The pytest plugin of vime-core. Imports only pytest; everything else arrives inside fixtures.

Pytest loads this module in every environment that has vime-core installed, also for projects that never use it, so it
must cost nothing until a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vime_core.api import Sample
    from vime_core.data import Tokenizer
    from vime_core.plugin import Plugins
    from vime_testing.client import ScriptedClient


@pytest.fixture
def vime_plugins() -> Callable[..., Plugins]:
    """Loads exactly the named plugins and discovers nothing, so a test does not depend on what happens to be installed.

    ``vime_plugins("mine", "./my_reward.py")`` is the core with those two.
    """
    from vime_core.plugin import Plugins

    def load(*specs: str, strict: bool = True) -> Plugins:
        return Plugins.load(specs, autoload=False, strict=strict, environ={})

    return load


@pytest.fixture
def vime_sample() -> Callable[..., Sample]:
    """Makes samples: see :func:`vime_testing.make_sample`."""
    from vime_testing import make_sample

    return make_sample


@pytest.fixture(scope="session")
def vime_tokenizer() -> Tokenizer:
    """A tokenizer of bytes: see :func:`vime_testing.byte_tokenizer`."""
    from vime_testing import byte_tokenizer

    return byte_tokenizer()


@pytest.fixture
def vime_client(vime_tokenizer: Tokenizer) -> Callable[..., ScriptedClient]:
    """Makes clients without an engine: see :class:`vime_testing.ScriptedClient`."""
    from vime_testing import ScriptedClient

    return lambda *arguments, **more: ScriptedClient(vime_tokenizer, *arguments, **more)
