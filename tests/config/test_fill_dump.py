"""Placeholders, the resolved run file, and the way to a worker."""

from __future__ import annotations

import copy
import json
import pickle
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vime_core.api.errors import ConfigError
from vime_core.config.dump import from_plain, to_plain, to_toml
from vime_core.config.placeholder import fill, fill_text, placeholders
from vime_core.config.resolution import resolve
from vime_core.config.sections import Config


@dataclass(frozen=True)
class Options:
    size: int = 3
    path: str = "{run}/x"
    names: list[str] = field(default_factory=list)
    maybe: float | None = None


FLAGS = [
    *("--name", 'quote " back \\ tab \t line \n \x7f ünï', "--lr", "1e-5", "--adam-eps", "1e-30", "--colocate"),
    *(
        "--prompt-data",
        "{prepared.train}",
        "b",
        "--rollout-stop-token-ids",
        "1",
        "-2",
        "--plugin",
        "x",
        "--plugin",
        "no:y",
    ),
    *("--algorithm-options", '{"a.b c": {"d": [1, 2.0, true, "e"]}, "n": 1e300}'),
    *("--apply-chat-template-kwargs", '{"none": null, "deep": [{"x": null}]}'),
    *("--vllm-max-model-len", "64", "--vllm-hf-overrides", '{"a": {"b": null}}', "--vllm-no-enable-prefix-caching"),
    *("--vllm-allowed-origins", "*", "--router-policy", "random", "--grad-reduce-in-fp32", "--mp-names", "p", "q"),
]
OPTIONS = {"mp": Options}


def rich() -> Config:
    return resolve(FLAGS, {"VIME_SEED": "9"}, OPTIONS).stages[0].config


def test_run_file_reads_back_equal(tmp_path: Path) -> None:
    config = rich()
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    again = resolve([str(path)], {}, OPTIONS).stages[0].config
    assert again == config
    assert to_toml(again).replace("recipe config.toml", "") != to_toml(config)  # sources differ, values do not
    assert tomllib.loads(to_toml(again)) == tomllib.loads(to_toml(config))


def test_defaults_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(Config()))
    assert resolve([str(path)], {}).stages[0].config == Config()


def test_options_that_nobody_set_do_not_ask_for_their_plugin(tmp_path: Path) -> None:
    idle = resolve([], {}, OPTIONS).stages[0].config
    assert "# size = " in to_toml(idle)
    path = tmp_path / "run.toml"
    path.write_text(to_toml(idle))
    assert resolve([str(path)], {}, {}).stages[0].config.plugins == {}
    assert resolve([str(path)], {}, OPTIONS).stages[0].config == idle


def test_run_file_names_sources() -> None:
    lines = to_toml(rich()).splitlines()
    assert "lr = 1e-05  # flag --lr" in lines
    assert "seed = 9  # environment VIME_SEED" in lines
    assert "min_lr = 0.0  # default" in lines
    assert "# load: not given" in lines
    assert "max_model_len = 64  # flag --vllm-max-model-len" in lines
    assert "grad_reduce_in_fp32 = true  # flag --grad-reduce-in-fp32" in lines
    assert lines[1] == 'plugin = ["x", "no:y"]'


def test_to_a_worker_and_back() -> None:
    config = rich()
    sent = json.loads(json.dumps(to_plain(config)))
    back = from_plain(sent, OPTIONS)
    assert back == config
    assert back.provenance == config.provenance
    without = from_plain(sent)
    assert without.plugins["mp"] == {"size": 3, "path": "{run}/x", "names": ["p", "q"], "maybe": None}
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config


def test_from_plain_is_strict() -> None:
    plain = to_plain(Config())
    for change, message in (
        ({"extra": {}}, "unknown parts"),
        ({"megatron": {"lrr": 1}}, "unknown .'lrr'."),
        ({"megatron": {"lr": "x"}}, "expected float"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_plain({**plain, **change})


def test_fill_everywhere() -> None:
    flags = [
        *("--prompt-data", "{prepared.train}@[0:5]", "b", "--save", "{run}/ckpt", "--apply-chat-template-kwargs"),
        *('{"p": ["{run}"]}', "--vllm-download-dir", "{run}/d", "--router-log-dir", "{run}/l"),
        *("--moe-router-load-balancing-type", "{run}", "--name", "{{run}}", "--rollout-stop", "}", '{"a": 1}'),
    ]
    config = resolve(flags, {}, OPTIONS).stages[0].config
    filled = fill(config, {"run": "R", "prepared.train": "T"})
    assert filled.data.prompt_data == ["T@[0:5]", "b"]
    assert filled.model.save == "R/ckpt"
    assert filled.data.apply_chat_template_kwargs == {"p": ["R"]}
    assert filled.vllm == {"download_dir": "R/d"}
    assert filled.router == {"log_dir": "R/l"}
    assert filled.megatron_extra == {"moe_router_load_balancing_type": "R"}
    assert filled.plugins["mp"].path == "R/x"
    assert filled.run.name == "{run}"
    assert filled.rollout.rollout_stop == ["}", '{"a": 1}']
    assert filled.run.run_dir == config.run.run_dir == "runs/{name}-{time}"
    assert filled.provenance == config.provenance


def test_unknown_placeholders_are_named_together() -> None:
    config = resolve(["--save", "{rum}/x", "--prompt-data", "{prepared.trian}"], {}).stages[0].config
    with pytest.raises(ConfigError) as caught:
        fill(config, {"run": "R", "prepared.train": "T"})
    first, second = caught.value.violations
    assert "--save: unknown placeholder {rum} in '{rum}/x'; did you mean run?" in first
    assert "--prompt-data: unknown placeholder {prepared.trian}" in second


def test_text() -> None:
    assert placeholders("{a}/{{b}}/{c.d-e}/{ f }/{1}") == ["a", "c.d-e"]
    assert fill_text("{a}-{{b}}-{ f }", {"a": "{b}"}) == "{b}-{b}-{ f }"


@pytest.mark.parametrize("value", ["", "a # b", "'''", "\\", "\r\n", "\x00", "[x]", "日本"])
def test_text_survives(value: str, recipe: Callable[[str], str]) -> None:
    config: Any = Config().replace("run", name=value)
    assert resolve([recipe(to_toml(config))], {}).stages[0].config == config
