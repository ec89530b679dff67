"""How often hooks are called, against the table of what may be: a few times a step, never a sample, tensor or token.

A call of a hook costs about 1.4 microseconds, thirty times a method's. That is nothing a few times a step of many
seconds, and seconds where it is done for each of two million tokens.
"""

from __future__ import annotations

import ast
import datetime
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from vime_cli.quickstart.addition import prepare

from tests.support.runs import two_steps, vime
from vime_core.api.weight_sync import EngineProof, Receipt
from vime_core.config.sections import Config
from vime_core.observe.phases import PhaseClock
from vime_core.observe.progress import make_progress
from vime_core.observe.recorder import Recorder
from vime_core.observe.runfolder import RunFolder
from vime_core.pipeline.device_sharing import DeviceSharing
from vime_core.pipeline.synchronous import Loop
from vime_core.runtime.signals import Interrupts

ROOT = Path(__file__).parents[2]
STEPS = 3
#: hook -> calls in the driver's loop of three steps, for each plugin that has it
TABLE = {
    "vime_run_started": 1,
    "vime_step_finished": STEPS,
    "vime_weights_synced": STEPS + 1,  # one before the first step
    "vime_run_finished": 1,
}
#: most calls of any hook in one step: steps, syncs and checkpoints
A_STEP = 5

EVERY_HOOK = """
@hookimpl
def vime_run_started(run): pass

@hookimpl
def vime_step_finished(step): pass

@hookimpl
def vime_weights_synced(version): pass

@hookimpl
def vime_checkpoint_saved(path): pass

@hookimpl
def vime_run_finished(outcome): pass

@hookimpl
def vime_configure(config): pass

@hookimpl
def vime_process_started(role): pass

@hookimpl
def vime_worker_environment(role): pass

@hookimpl
def vime_choose_weight_sync(topology): pass
"""


class Parts:
    """The heavy parts of a run, doing nothing: how often the loop calls a hook does not depend on them."""

    schedule = SimpleNamespace(first=0, last=STEPS)

    def __init__(self) -> None:
        self.rollout = self.trainer = self
        self.device_sharing = DeviceSharing()

    def train(self, step: int, batch: object) -> dict[str, float]:
        return {"train/tokens": 2e6}

    def push(self, version: int) -> Receipt:
        return Receipt(version, "d", 400, 1, 0.1, (EngineProof("engine 0", version, "d", 400, 0.0),))

    def __call__(self, step: int) -> SimpleNamespace:
        return SimpleNamespace(batch=None, metrics={}, samples=[])


def test_a_run_of_three_steps_calls_each_hook_as_often_as_the_table_says(world) -> None:
    world.install("alpha", EVERY_HOOK)
    world.install("beta", EVERY_HOOK)
    plugins = world.load()
    folder = RunFolder.create("run", "run", datetime.datetime.now())
    parts = Parts()
    parts.rollout = SimpleNamespace(rollout=parts)
    recorder = Recorder(folder, make_progress("off", sys.stdout), None)
    config = Config().replace("rollout", rollout_batch_size=32, n_samples_per_prompt=8)
    before = Counter(plugins.trace.calls)
    plugins.run_started(folder)
    Loop(config, parts, recorder, PhaseClock(), plugins, Interrupts()).run()
    plugins.run_finished(folder, "finished")
    recorder.close()
    calls = plugins.trace.calls - before
    for plugin in ("alpha", "beta"):
        assert {hook: n for (hook, owner), n in calls.items() if owner == plugin} == TABLE
    once = {hook: n for hook, n in TABLE.items() if n == 1}
    assert (sum(TABLE.values()) - sum(once.values()) - 1) / STEPS <= A_STEP


def test_registration_is_called_once_for_each_plugin(world) -> None:
    world.install("alpha", "@hookimpl\ndef vime_register_rewards(registry):\n    registry.add('a', 'json:dumps')\n")
    calls = world.load().trace.calls
    assert set(calls.values()) == {1}
    assert calls["vime_register_rewards", "alpha"] == calls["vime_register_rewards", "core"] == 1


def test_no_hook_is_called_where_samples_tensors_and_tokens_are_handled() -> None:
    """The facade's methods are called by the driver and at the start of processes only."""
    methods = {"step_finished", "weights_synced", "checkpoint_saved", "run_started", "run_finished"}
    methods |= {"worker_environment", "process_started", "choose_weight_sync", "configure"}
    found = set()
    for path in ROOT.glob("vime_core/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                found.add(path.relative_to(ROOT / "vime_core").parts[0])
    assert found <= {"pipeline", "runtime", "inference"}
    assert "pipeline" in found


def test_tracing_prints_hook_plugin_and_milliseconds(world) -> None:
    world.install("alpha", "@hookimpl\ndef vime_register_rewards(registry):\n    registry.add('a', 'json:dumps')\n")
    for done in (
        world.vime("train", "--show-config", "--trace-hooks"),
        world.vime("train", "--show-config", VIME_TRACE_HOOKS="1"),
    ):
        assert done.returncode == 0, done.stderr
        pattern = r"^trace: vime_register_rewards of plugin 'alpha' took \d+\.\d{3} ms$"
        assert len(re.findall(pattern, done.stderr, re.MULTILINE)) == 1, done.stderr
    assert "trace:" not in world.vime("train", "--show-config").stderr


def test_a_call_that_raises_is_traced_too(world, capsys) -> None:
    world.install("bad", "@hookimpl\ndef vime_step_finished(step):\n    raise ValueError('plot')\n")
    from vime_core.plugin import PluginOutput, Plugins, trace_on_stderr

    plugins = Plugins.load(["bad"], autoload=False, environ={}, output=PluginOutput(trace=trace_on_stderr))
    plugins.step_finished(None, 1, {})
    assert "trace: vime_step_finished of plugin 'bad' took" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_run_calls_them_as_often(world, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two steps, a checkpoint each, of 4 and of 16 samples: the counts are the same."""
    world.install("alpha", EVERY_HOOK)
    task = prepare(tmp_path_factory.mktemp("task"), 7)
    counts = []
    for samples in (2, 8):
        options = two_steps(
            task,
            run_dir=f"run{samples}",
            reward="exact",
            n_samples_per_prompt=samples,
            save="{run}/checkpoints",
            save_interval=1,
        )
        done = vime(world.root, "train", *options, "--trace-hooks", PYTHONPATH=str(world.site))
        assert done.code == 0, done.text
        counts.append(Counter(re.findall(r"^trace: (\w+) of plugin 'alpha' took", done.err, re.MULTILINE)))
    assert counts[0] == counts[1]
    assert {hook: counts[0][hook] for hook in TABLE} == {
        "vime_run_started": 1,
        "vime_step_finished": 2,
        "vime_weights_synced": 3,
        "vime_run_finished": 1,
    }
    assert counts[0]["vime_checkpoint_saved"] == 2
    assert counts[0]["vime_configure"] == counts[0]["vime_choose_weight_sync"] == 1
    assert counts[0]["vime_worker_environment"] <= 4  # a kind of process each
