"""Parts of the engine room that need no engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.inference.conftest import assert_gone
from vime_core.api.errors import ConfigError, EngineError
from vime_core.api.rollout import GenerateReply, SamplingParams
from vime_core.config.sections import Config
from vime_core.devices.cpu import CpuBackend
from vime_core.inference.columns import ReplyColumns, UncheckedReply
from vime_core.inference.flags import to_flags
from vime_core.inference.http_client import reply_from_json
from vime_core.inference.launch import EngineLaunch
from vime_core.inference.spec import canary_tokens, engine_specs
from vime_core.inference.vllm import upstream_fixes
from vime_core.inference.vllm.sampling import vllm_sampling
from vime_core.inference.vllm.version import older_vllm
from vime_core.runtime.ports import ReservedPort
from vime_core.runtime.process import ChildProcess

# replies ---------------------------------------------------------------------------------------------------------


def test_replies_survive_packing() -> None:
    replies = [
        GenerateReply("a", [5, 6], [-0.5, -1.25], [3, 4], "stop", 7),
        GenerateReply("b", [], [], [], "abort"),
        GenerateReply("c", [9], [-2.0], [4], "length"),
    ]
    columns = ReplyColumns.pack(replies, [("d", "why")])
    assert columns.unpack() == replies
    assert columns.errors == [("d", "why")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "no token ids"),
        ({"logprobs": None}, "no log-probs"),
        ({"spans": None}, "no weight versions"),
        ({"logprobs": [-1.0]}, "2 tokens, 1 log-probs, 2 weight versions"),
        ({"spans": [("1", 0, 1)]}, "2 tokens, 2 log-probs, 1 weight versions"),
        ({"spans": [("1", 0, 1), ("2", 0, 2)]}, "jump from token 1 to 0"),
        ({"spans": [("default", 0, 2)]}, "'default' is not a number"),
        ({"finish": None}, "None"),
        ({"finish": "error"}, "'error'"),
    ],
)
def test_an_incomplete_reply_is_an_error(change: Mapping[str, Any], message: str) -> None:
    whole = {"tokens": [5, 6], "logprobs": [-1.0, -2.0], "spans": [("1", 0, 2)], "finish": "stop", "cached": None}
    assert UncheckedReply("r1", **whole).checked().versions == [1, 1]
    with pytest.raises(EngineError, match=message) as error:
        UncheckedReply("r1", **{**whole, **change}).checked()
    assert "r1" in str(error.value)


def test_an_http_reply_keeps_every_number() -> None:
    reply = reply_from_json("r", answer())
    assert reply == GenerateReply("r", [5, 6], [-1.0, -2.0], [1, 2], "length", 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": None}, "no log-probs"),
        ({"weight_versions": None}, "no weight versions"),
        ({"token_ids": [5, 7]}, "not those of its tokens"),
    ],
)
def test_an_incomplete_http_reply_is_an_error(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        reply_from_json("r", answer(**change))
    with pytest.raises(EngineError, match="0 choices"):
        reply_from_json("r", {})


def answer(**change: Any) -> dict[str, Any]:
    choice = {
        "token_ids": [5, 6],
        "logprobs": {"content": [{"token_id": 5, "logprob": -1.0}, {"token_id": 6, "logprob": -2.0}]},
        "weight_versions": [{"version": "1", "start": 0, "end": 1}, {"version": "2", "start": 1, "end": 2}],
        "finish_reason": "length",
    }
    return {"choices": [{**choice, **change}], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}


# what an engine is started with ------------------------------------------------------------------------------------


def test_specs_layer_device_user_and_need(tmp_path: Path) -> None:
    config = Config(vllm={"kv_cache_memory_bytes": 1 << 20, "max_num_seqs": 8})
    config = config.replace("cluster", rollout_num_gpus=2).replace("megatron", bf16=True)
    first, second = engine_specs(config, CpuBackend(), str(tmp_path))
    assert first.arguments["kv_cache_memory_bytes"] == 1 << 20
    assert first.arguments["max_num_seqs"] == 8
    assert first.arguments["enforce_eager"] is True
    assert first.arguments["dtype"] == "bfloat16"
    assert first.arguments["logprobs_mode"] == "processed_logprobs"
    assert first.environment["OMP_NUM_THREADS"] == "1"
    assert (first.index, second.index) == (0, 1)
    assert second.arguments["seed"] == first.arguments["seed"] + 1


def test_the_only_worker_of_an_engine_is_in_its_process_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    def backend(workers: int, **vllm: Any) -> Any:
        config = Config(vllm=vllm).replace("cluster", rollout_num_gpus=workers, rollout_num_gpus_per_engine=workers)
        return engine_specs(config, CpuBackend(), str(tmp_path))[0].arguments.get("distributed_executor_backend")

    assert backend(1) == "uni"
    assert backend(1, distributed_executor_backend="mp") == "mp"
    assert backend(2) is None


def test_a_value_that_training_relies_on_cannot_be_changed(tmp_path: Path) -> None:
    config = Config(vllm={"logprobs_mode": "raw_logprobs"})
    with pytest.raises(ConfigError, match="--vllm-logprobs-mode raw_logprobs"):
        engine_specs(config, CpuBackend(), str(tmp_path))


def test_workers_of_one_engine_are_bound_to_cores_of_their_own(tmp_path: Path) -> None:
    config = Config().replace("cluster", rollout_num_gpus_per_engine=2)
    (spec,) = engine_specs(config, CpuBackend(), str(tmp_path))
    cores = spec.environment["VLLM_CPU_OMP_THREADS_BIND"].split("|")
    assert len(cores) == 2
    assert len(set(cores)) == min(2, os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("engine", "engines", "transport"),
    [
        ({}, 1, "direct"),
        ({}, 2, "router"),
        ({"vllm_router_ip": "127.0.0.1"}, 1, "router"),
        ({"rollout_external_engine_addrs": ["a:1"]}, 1, "router"),
        ({"engine_transport": "router"}, 1, "router"),
    ],
)
def test_transport_by_what_there_is(engine: Mapping[str, Any], engines: int, transport: str, tmp_path: Path) -> None:
    config = Config().replace("engine", **engine).replace("cluster", rollout_num_gpus=engines)
    assert EngineLaunch(config, CpuBackend(), "", None, tmp_path).transport == transport


def test_direct_with_several_engines_is_refused(tmp_path: Path) -> None:
    config = Config().replace("engine", engine_transport="direct").replace("cluster", rollout_num_gpus=2)
    with pytest.raises(ConfigError, match="exactly one engine"):
        _ = EngineLaunch(config, CpuBackend(), "", None, tmp_path).transport


def test_the_canary_stays_inside_vocabulary_and_context(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 97}')
    assert len(set(canary_tokens(str(tmp_path), None))) == 16
    assert max(canary_tokens(str(tmp_path), None)) < 97
    assert len(canary_tokens(str(tmp_path), 8)) == 7
    with pytest.raises(ConfigError, match="absent"):
        canary_tokens(str(tmp_path / "absent"), None)


def test_sampling_leaves_nothing_to_the_checkpoints_own_ideas() -> None:
    from vllm import SamplingParams as Theirs

    chosen = vllm_sampling(SamplingParams(max_tokens=4, top_k=-1, stop=("x",), extra={"n": 1}), seed=3)
    for suggested in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"):
        assert suggested in chosen
    theirs = Theirs(**chosen)
    assert (theirs.seed, theirs.detokenize, theirs.logprobs) == (3, True, 0)
    assert "seed" not in vllm_sampling(SamplingParams(max_tokens=4), seed=None)


def test_flags() -> None:
    options = {"max_model_len": 8, "eager": True, "cache": False, "none": None, "c": {"a": 1}, "urls": ["x", "y"]}
    expected = ["--max-model-len", "8", "--eager", "--no-cache", "--c", '{"a": 1}', "--urls", "x", "y"]
    assert to_flags(options, negatable=True) == expected
    assert to_flags({"cache": False}, negatable=False) == []


def test_fixes_are_named_and_bound_to_versions() -> None:
    fixes = upstream_fixes.fixes()
    names = {fix.name for fix in fixes}
    assert names == {"seeded_chunked_prefill", "moe_kernel_reset", "routed_experts"}
    assert {fix.name for fix in fixes if fix.applies("0.32.0")} == names
    assert {fix.name for fix in fixes if fix.applies("0.23.0")} == {"seeded_chunked_prefill"}
    assert not any(fix.applies("0.99.0") for fix in fixes)


def test_a_vllm_that_is_too_old_is_an_error_that_names_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIME_OLDER_VLLM", raising=False)
    assert older_vllm("0.32.0") is None
    with pytest.raises(EngineError, match=r"vLLM 0\.23\.0, vime needs 0\.32 or later, and no plugin of this run"):
        older_vllm("0.23.0")
    monkeypatch.setenv("VIME_OLDER_VLLM", "vime_ascend.older_vllm")
    older = older_vllm("0.23.0")
    assert older is not None
    assert older.SERVER_FLAGS[0] == "--middleware"


def test_what_is_not_mended_in_this_vllm_is_an_error_before_anything_starts() -> None:
    upstream_fixes.require(upstream_fixes.ROUTED_EXPERTS, "0.32.1")
    with pytest.raises(EngineError, match=r"mended for 0\.32 <= vLLM < 0\.33 only, this is vLLM 0\.23\.0"):
        upstream_fixes.require(upstream_fixes.ROUTED_EXPERTS, "0.23.0")


def test_the_plugin_is_light() -> None:
    code = "import sys, vime_core.inference.vllm.plugin; print([m for m in ('torch', 'vllm') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"


# processes -------------------------------------------------------------------------------------------------------

FAMILY = """
import subprocess, sys, time, signal
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
print(child.pid, flush=True)
if sys.argv[1] == "stay": time.sleep(99)
if sys.argv[1] == "fail": sys.exit("said before the end")
"""


def family(log: Path, how: str, grace: float = 0.5) -> ChildProcess:
    return ChildProcess("a server", [sys.executable, "-c", FAMILY, how], log, os.environ, grace=grace)


def wait_for_line(log: Path, process: ChildProcess) -> int:
    process.wait_until(lambda: log.read_text().endswith("\n"), 20.0)
    return int(log.read_text().split()[0])


def test_stop_ends_a_command_and_its_stubborn_child(tmp_path: Path) -> None:
    process = family(tmp_path / "log", "stay")
    grandchild = wait_for_line(tmp_path / "log", process)
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    assert grandchild in below
    process.stop()
    process.stop()
    assert_gone([process.pid, *below])


def test_a_command_that_fails_leaves_no_child_and_its_last_words(tmp_path: Path) -> None:
    process = family(tmp_path / "log", "fail")
    with pytest.raises(EngineError, match=r"(?s)a server ended with status 1.*said before the end"):
        process.wait_until(lambda: False, 20.0)
    assert_gone([int((tmp_path / "log").read_text().split()[0])])


def test_a_server_that_does_not_come_up_in_time_is_named(tmp_path: Path) -> None:
    process = family(tmp_path / "log", "stay")
    with pytest.raises(EngineError, match="a server did not come up within 0 s"):
        process.wait_until(lambda: False, 0.2)
    process.stop()


OWNER = """
import os, sys
from pathlib import Path
from vime_core.runtime.process import ChildProcess
command = [sys.executable, "-c", sys.argv[1], "stay"]
process = ChildProcess("a server", command, Path(sys.argv[2]), os.environ, grace=0.5)
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_owner_takes_the_command_along(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, FAMILY, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    guard = int(owner.stdout.readline())
    end = time.monotonic() + 20
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < end
        time.sleep(0.05)
    below = [p.pid for p in psutil.Process(guard).children(recursive=True)]
    assert len(below) == 3  # keeper, command and its child
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(10)
    assert_gone([guard, *below])


def test_a_killed_guard_takes_the_command_along(tmp_path: Path) -> None:
    process = family(tmp_path / "log", "stay")
    wait_for_line(tmp_path / "log", process)
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    assert len(below) == 3
    os.kill(process.pid, signal.SIGKILL)
    assert_gone(below)
    with pytest.raises(EngineError, match="a server ended with status -9"):
        process.require_alive()


def test_a_reserved_port_is_nobody_elses() -> None:
    port = ReservedPort("127.0.0.1")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port.number))
    with socket.socket() as ours:  # as vLLM's server does
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", port.number))
    port.release()
