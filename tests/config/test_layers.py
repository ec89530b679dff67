"""Every option through every layer, which layer wins, and what provenance says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from vime_core.api.errors import ConfigError
from vime_core.config.catalogue import RESERVED, Catalogue, Key, as_flag, as_variable
from vime_core.config.coerce import arity, members
from vime_core.config.resolution import RunArguments, resolve
from vime_core.config.sections import SECTIONS, Config

KEYS = list(Catalogue().core.values())
Recipe = Callable[[str], str]


@dataclass(frozen=True)
class AscendOptions:
    hccl_buffer_mb: int = field(default=200, metadata={"help": "buffer"})
    mode: Literal["fast", "safe"] = "fast"
    trace: bool = False
    paths: list[str] = field(default_factory=list)


OPTIONS = {"ascend": AscendOptions}


def sample(key: Key) -> tuple[Any, list[str]]:
    """A value other than the default, and the words that spell it."""
    kind = members(key.annotation)[0]
    if kind is bool:
        return not key.default, []
    if get_origin(kind) is Literal:
        value = get_args(kind)[-1]
        return value, [str(value)]
    if get_origin(kind) is list:
        value = [7, 8] if get_args(kind) == (int,) else ["x", "y z"]
        return value, [str(item) for item in value]
    if get_origin(kind) is dict:
        return {"a": [1, 2.5, "z"]}, ['{"a": [1, 2.5, "z"]}']
    value = {int: 77, float: 0.125, str: "some text"}[kind]
    return value, [str(value)]


def read(config: Config, key: Key) -> Any:
    return getattr(getattr(config, key.place), key.field)


def only(argv: list[str], environ: dict[str, str] | None = None) -> Config:
    return resolve(argv, environ or {}).stages[0].config


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_option_as_flag_variable_and_key(key: Key, recipe: Recipe) -> None:
    value, words = sample(key)
    flag = key.flag if arity(key.annotation) != "none" or value else as_flag("no_" + key.name)
    by_flag = only([flag, *words])
    assert read(by_flag, key) == value
    assert by_flag.provenance[key.name] == f"flag {flag}"

    text = json.dumps(value) if isinstance(value, bool | list | dict) else words[0]
    by_variable = only([], {as_variable(key.name): text})
    assert read(by_variable, key) == value
    assert by_variable.provenance[key.name] == f"environment {as_variable(key.name)}"

    toml = json.dumps(value) if not isinstance(value, dict) else '{ a = [1, 2.5, "z"] }'
    for text in (f"{key.name} = {toml}", f"[{key.place}]\n{key.name.replace('_', '-')} = {toml}"):
        by_recipe = only([recipe(text)])
        assert read(by_recipe, key) == value
        assert by_recipe.provenance[key.name] == "recipe recipe.toml"


def test_defaults_have_a_source_too() -> None:
    config = only([])
    assert config == Config()
    assert set(config.provenance.values()) == {"default"}
    assert set(config.provenance) == {key.name for key in KEYS}


def test_names_are_unique_and_clash_with_no_table() -> None:
    names = [name for key in KEYS for name in (key.name, *key.metadata.get("aliases", ()))]
    assert len(names) == len(set(names))
    assert not set(names) & RESERVED
    assert len(KEYS) == sum(len(fields(kind)) for kind in SECTIONS.values())


def test_later_layers_win(recipe: Recipe) -> None:
    path = recipe("lr = 1\nmin_lr = 1\nseed = 1\n")
    plan = resolve([path, "--lr", "4"], {"VIME_LR": "3", "VIME_MIN_LR": "3"})
    config = plan.stages[0].config
    assert (config.megatron.lr, config.megatron.min_lr, config.run.seed) == (4, 3, 1)
    sources = [config.provenance[name] for name in ("lr", "min_lr", "seed", "clip_grad")]
    assert sources == ["flag --lr", "environment VIME_MIN_LR", "recipe recipe.toml", "default"]
    assert plan.recipe == path


def test_stages(recipe: Recipe) -> None:
    path = recipe(
        'name = "q"\nlr = 1\n[rollout]\nreward = "math"\n'
        '[[stage]]\nname = "sft"\nlr = 2\n[stage.train]\nloss_type = "sft_loss"\n'
        '[[stage]]\nname = "rl"\n[stage.vllm]\nmax_model_len = 9\n'
    )
    plan = resolve([path, "--seed", "5", "--stage.rl.lr", "3"], {})
    sft, rl = (stage.config for stage in plan.stages)
    assert [stage.name for stage in plan.stages] == ["sft", "rl"]
    assert (sft.run.name, sft.megatron.lr, sft.train.loss_type, sft.run.seed) == ("q", 2.0, "sft_loss", 5)
    assert (rl.run.name, rl.megatron.lr, rl.train.loss_type, rl.run.seed) == ("q", 3.0, "policy_loss", 5)
    assert rl.vllm == {"max_model_len": 9}
    assert sft.vllm == {}
    assert sft.provenance["lr"] == "recipe recipe.toml stage sft"
    assert rl.provenance["lr"] == "flag --stage.rl.lr"
    over_all = resolve([path, "--lr", "9"], {})
    assert [stage.config.megatron.lr for stage in over_all.stages] == [9.0, 9.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[stage]]\nlr = 1", "number 1 needs name"),
        ('[[stage]]\nname = "a b"', "number 1 needs name"),
        ('[[stage]]\nname = "a"\n[[stage]]\nname = "a"', "two stages are called 'a'"),
        ('[[stage]]\nname = "a"\nplugin = ["x"]', "whole run"),
        ("stage = 3", r"written \[\[stage\]\]"),
        ("plugin = 'x'", "list of plugin names"),
        ("rollout = 3", r"rollout is a table"),
        ("lr = x\nseed = 1", "not valid TOML.*line 1"),
        ("[plugins]\nx = 3", r"write \[plugins.x\]"),
    ],
)
def test_malformed_recipe(text: str, message: str, recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve([recipe(text)], {})


def test_unknown_stage(recipe: Recipe) -> None:
    path = recipe('[[stage]]\nname = "grpo"\n')
    with pytest.raises(ConfigError, match=r"no stage 'gropo' \(stages: grpo\); did you mean grpo\?"):
        resolve([path, "--stage.gropo.lr", "1"], {})
    with pytest.raises(ConfigError, match=r"--stage\.NAME\.FLAG"):
        resolve([path, "--stage.grpo", "1"], {})


def test_missing_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve([str(tmp_path / "none.toml")], {})


def test_plugin_options(recipe: Recipe) -> None:
    path = recipe('[plugins.ascend]\nhccl-buffer-mb = 1\nmode = "safe"\n')
    argv = [path, "--ascend-hccl-buffer-mb", "3", "--ascend-trace", "--ascend-paths", "a", "b"]
    config = resolve(argv, {"VIME_ASCEND_MODE": "fast"}, OPTIONS).stages[0].config
    assert config.plugins == {"ascend": AscendOptions(3, "fast", True, ["a", "b"])}
    assert config.provenance["ascend_mode"] == "environment VIME_ASCEND_MODE"
    assert config.provenance["ascend_hccl_buffer_mb"] == "flag --ascend-hccl-buffer-mb"
    assert resolve([], {}, OPTIONS).stages[0].config.provenance["ascend_trace"] == "default"


def test_plugin_option_errors(recipe: Recipe) -> None:
    path = recipe('[plugins.ascend]\nhccl_bufer_mb = 1\nmode = "slow"\n[plugins.nope]\nx = 1\n')
    with pytest.raises(ConfigError) as caught:
        resolve([path, "--ascend-hccl-bufer-mb", "3"], {}, OPTIONS)
    text = str(caught.value)
    assert "[plugins.ascend] hccl_bufer_mb: unknown key hccl_bufer_mb; did you mean hccl_buffer_mb?" in text
    assert "[plugins.ascend] mode: expected one of fast, safe" in text
    assert "[plugins.nope] x: no loaded plugin 'nope' has options (loaded with options: ascend)" in text
    assert "unknown flag --ascend-hccl-bufer-mb; did you mean --ascend-hccl-buffer-mb?" in text


def test_plugin_with_a_dash_in_its_name(recipe: Recipe) -> None:
    options = {"my-plugin": AscendOptions}
    for table in ("my-plugin", "my_plugin"):
        config = resolve([recipe(f"[plugins.{table}]\ntrace = true")], {}, options).stages[0].config
        assert config.plugins["my-plugin"].trace
    assert resolve(["--my-plugin-trace"], {}, options).stages[0].config.plugins["my-plugin"].trace


def test_plugin_options_that_cannot_be() -> None:
    @dataclass
    class Loose:
        x: int = 0

    @dataclass(frozen=True)
    class Needs:
        x: int

    @dataclass(frozen=True)
    class Clash:
        num_gpus: int = 0

    for options, message in (
        ({"a": Loose}, "frozen dataclass"),
        ({"a": 3}, "frozen dataclass"),
        ({"vllm": AscendOptions}, "may not be called 'vllm'"),
        ({"a": Needs}, "--a-x is required by plugin a"),
        ({"rollout": Clash}, "may not be called"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve([], {}, options)  # type: ignore[arg-type]


def test_plugin_specs_are_found_first(recipe: Recipe) -> None:
    path = recipe('plugins = ["a", "./b.py"]\nnonsense = 1')
    argv = [path, "--unheard-of", "--plugin", "d", "x.toml"]
    with pytest.raises(ConfigError, match="--plugin takes one value"):
        RunArguments.read(argv, {})
    argv = [path, "--plugin", "d", "--unheard-of", "1", "--plugin=no:e"]
    asked = RunArguments.read(argv, {"VIME_PLUGINS": "c, c2"})
    assert asked.plugin_specs == ("a", "./b.py", "c", "c2", "d", "no:e")
    good = recipe('plugin = ["a"]\n[plugins.ascend]\ntrace = true')
    config = resolve([good, "--plugin", "d"], {"VIME_PLUGINS": "c"}, OPTIONS).stages[0].config
    assert config.plugin_specs == ("a", "c", "d")
    assert config.plugins["ascend"].trace


def strict(argv: list[str], environ: dict[str, str] | None = None) -> bool:
    return RunArguments.read(argv, environ or {}).before_plugins().strict_plugins


def test_strict_plugins_is_found_first(recipe: Recipe) -> None:
    assert not strict(["--unheard-of", "3"])
    assert strict(["--strict-plugins"])
    assert strict([], {"VIME_STRICT_PLUGINS": "1"})
    path = recipe("nonsense = 1\n[observe]\nstrict_plugins = true")
    assert strict([path])
    assert not strict([path, "--no-strict-plugins"])


def test_frozen() -> None:
    config = only(["--vllm-max-model-len", "64"])
    with pytest.raises(FrozenInstanceError):
        config.megatron.lr = 3.0  # type: ignore[misc]
    for change in (lambda: config.vllm.update(a=1), lambda: config.provenance.pop("lr")):  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="frozen"):
            change()
