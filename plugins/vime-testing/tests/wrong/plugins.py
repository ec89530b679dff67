"""Plugins that are wrong, each in one way, as files beside this one would be."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from vime_testing import PluginSuite

HEAD = "from vime_core import hookimpl\n"
ADD = """
@hookimpl
def vime_register_rewards(registry):
    registry.add("mine", {target}, summary={summary!r}{more})

def score(sample):
    return 1.0
"""
RIGHT = ADD.format(target="score", summary="one", more="")
_FOLDER = Path(tempfile.mkdtemp(prefix="vime-wrong-", dir=os.environ.get("WRONG_PLUGINS")))


def plugin(name: str, code: str) -> str:
    path = _FOLDER / f"{name}.py"
    path.write_text(HEAD + code)
    return str(path)


class TestRight(PluginSuite):
    plugin = plugin("wrong_right", RIGHT)


class TestHeavy(PluginSuite):
    plugin = plugin("wrong_heavy", "import numpy\n" + RIGHT)


class TestHeavyProbe(PluginSuite):
    probe = "def probe():\n    import numpy\n    return True\n"
    plugin = plugin("wrong_probe", probe + ADD.format(target="score", summary="one", more=", available=probe"))


class TestPatchesTwice(PluginSuite):
    code = """
@hookimpl
def vime_process_started():
    import json
    former = json.dumps
    json.dumps = lambda *a, **k: former(*a, **k)
"""
    plugin = plugin("wrong_patch", RIGHT + code)


class TestRaisesAtStart(PluginSuite):
    plugin = plugin(
        "wrong_start", RIGHT + "@hookimpl\ndef vime_process_started(role):\n    raise OSError('no device')\n"
    )


class TestEmpty(PluginSuite):
    plugin = plugin("wrong_empty", "")


class TestNowhere(PluginSuite):
    plugin = plugin("wrong_nowhere", ADD.format(target="'no_such_package.mod:f'", summary="one", more=""))


class TestExplained(PluginSuite):
    more = ", available=lambda: (False, 'install no_such_package')"
    plugin = plugin("wrong_explained", ADD.format(target="'no_such_package.mod:f'", summary="one", more=more))


class TestSilent(PluginSuite):
    plugin = plugin("wrong_silent", ADD.format(target="score", summary="", more=""))


class TestBroken(PluginSuite):
    plugin = plugin("wrong_broken", "@hookimpl\nasync def vime_run_started(run):\n    pass\n")
