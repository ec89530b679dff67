"""The plugin lock: a worker loads exactly the driver's plugins or says on which host what differs."""

from __future__ import annotations

import json
import socket

import pytest

from vime_core.api.errors import PluginError
from vime_core.plugin.plugins import Plugins

REWARD = """
@hookimpl
def vime_register_rewards(registry):
    registry.add("math", "json:dumps")
"""


def through_json(plugins: Plugins) -> list[dict[str, object]]:
    return json.loads(json.dumps(plugins.lock()))


def test_records_in_loading_order(world) -> None:
    module = world.install("alpha")
    path = world.write("mine.py", "x = 1\n")
    records = world.load("./mine.py").lock()
    assert records[0] == {
        "name": "core",
        "spec": "vime_core.builtin",
        "dist": "vime-core",
        "version": "0.1.0",
        "requested": False,
    }
    assert records[1] == {"name": "alpha", "spec": module, "dist": "vime-alpha", "version": "1.0", "requested": False}
    assert (records[2]["name"], records[2]["spec"], records[2]["dist"]) == ("mine", str(path), None)
    assert str(records[2]["version"]).startswith("sha256:")


def test_round_trip_keeps_plugins_order_and_choices(world, names, monkeypatch, tmp_path) -> None:
    world.install("alpha", REWARD)
    world.install("beta", REWARD)
    world.write("mine.py", "def score(sample):\n    return 1.0\n")
    driver = world.load("./mine.py", "alpha")
    world.install("later")  # installed meanwhile; a worker must not pick it up
    monkeypatch.setenv("VIME_PLUGINS", "later")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    worker = Plugins.from_lock(through_json(driver))
    assert names(worker) == names(driver) == ["core", "beta", "mine", "alpha"]
    assert worker.rewards.get("math") == driver.rewards.get("math")
    assert worker.rewards.get("math").plugin == "alpha"
    assert worker.lock() == driver.lock()


def expect(records: list[dict[str, object]], message: str) -> None:
    with pytest.raises(PluginError) as caught:
        Plugins.from_lock(records)
    assert f"host {socket.gethostname()}" in str(caught.value)
    assert message in str(caught.value)


def test_another_version_names_host_plugin_and_both_versions(world) -> None:
    world.install("alpha")
    records = through_json(world.load())
    records[1]["version"] = "0.9"
    expect(records, "plugin 'alpha' (vime-alpha) is version 1.0, the run was started with 0.9")


def test_another_core_is_found_too(world) -> None:
    records = through_json(world.load())
    records[0]["version"] = "0.0.1"
    expect(records, "plugin 'core' (vime-core) is version 0.1.0, the run was started with 0.0.1")


def test_a_missing_distribution(world) -> None:
    records = through_json(world.load())
    records.append({"name": "gone", "spec": "gone.plugin", "dist": "vime-gone", "version": "1", "requested": True})
    expect(records, "plugin 'gone' (vime-gone) is not there, the run was started with 1")


def test_a_file_that_changed_or_vanished(world) -> None:
    path = world.write("changing.py", "x = 1\n")
    records = through_json(world.load("./changing.py"))
    path.write_text("x = 2\n")
    expect(records, f"plugin 'changing' ({path}) is version sha256:")
    path.unlink()
    expect(records, f"plugin 'changing' ({path}) is not there")


def test_a_plugin_that_breaks_in_the_worker_is_fatal_even_if_nobody_asked_for_it(world) -> None:
    world.install("alpha", "import os\nif 'BREAK' in os.environ:\n    raise RuntimeError('no device file')\n")
    lock = json.dumps(world.load().lock())
    code = f"from vime_core.plugin.plugins import Plugins; Plugins.from_lock({lock.replace('null', 'None')})"
    code = code.replace("false", "False").replace("true", "True")
    assert world.python("-c", code).returncode == 0
    broken = world.python("-c", code, BREAK="1")
    assert broken.returncode == 1
    assert "plugin 'alpha' (vime-alpha 1.0): import of" in broken.stderr
    assert "RuntimeError: no device file" in broken.stderr


def test_a_worker_imports_nothing_heavy(world) -> None:
    world.install("alpha", REWARD)
    code = (
        "import sys; from vime_core.plugin.plugins import Plugins; "
        f"p = Plugins.from_lock({world.load().lock()!r}); p.process_started('trainer'); "
        "heavy = {'torch', 'numpy', 'pydantic', 'typer', 'rich', 'vllm', 'ray', 'transformers', 'megatron'}; "
        "print(len(p.members), sorted(heavy & set(sys.modules)))"
    )
    assert world.python("-c", code).stdout.strip() == "2 []"
