"""Targets: which strings are paths, and what they load."""

from __future__ import annotations

import json
import sys

import pytest

from vime_core.api.errors import PluginError
from vime_core.plugin.registry import Registry
from vime_core.plugin.targets import absolute_target, load_target, looks_like_path


@pytest.mark.parametrize("text", ["pkg.mod:obj", "pkg.mod.obj", "./x.py:f", "x.py", "dir/x.py:f", "/a/b.py", "mod:f"])
def test_paths(text: str) -> None:
    assert looks_like_path(text)


@pytest.mark.parametrize("text", ["grpo", "core/grpo", "check_reward_nonzero_std", "my.plugin/grpo", "a-b"])
def test_names(text: str) -> None:
    assert not looks_like_path(text)


def test_module_object_and_dotted_spellings() -> None:
    assert load_target("json:dumps") is json.dumps
    assert load_target("json.dumps") is json.dumps
    assert load_target("json.decoder:JSONDecoder.decode") is json.JSONDecoder.decode
    assert load_target("json.decoder") is json.decoder


def test_a_file_is_executed_once_and_known_by_its_stem(tmp_path, monkeypatch) -> None:
    path = tmp_path / "once_only.py"
    path.write_text("def score(sample):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    module = load_target("once_only.py")
    assert module.__name__ == "vime_local_once_only"
    assert load_target(f"{path}:score") is load_target("./once_only.py:score") is module.score
    assert load_target("once_only:score") is module.score


def test_two_files_of_one_name_are_an_error(tmp_path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_stem.py").write_text("x = 1\n")
    load_target(f"{tmp_path}/a/same_stem.py")
    with pytest.raises(PluginError, match=r"two files are named same_stem.py: .*/a/.* and .*/b/.*; rename one"):
        load_target(f"{tmp_path}/b/same_stem.py")


def test_a_file_that_fails_can_be_mended_and_loaded_again(tmp_path) -> None:
    path = tmp_path / "mended.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_target(str(path))
    assert "vime_local_mended" not in sys.modules
    path.write_text("value = 12345\n")
    assert load_target(f"{path}:value") == 12345


def test_absolute_target(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_target("./r.py:score") == f"{tmp_path}/r.py:score"
    assert absolute_target("pkg.mod:score") == "pkg.mod:score"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("./not_there.py:f", r"no file ./not_there.py \(looked at /.*not_there.py\)"),
        ("json:dmps", "'json:dmps': json has no 'dmps'; did you mean 'dumps'"),
        ("json.dmps", "json has no 'dmps'; did you mean 'dumps'"),
        ("no_such_package.mod:f", "no module 'no_such_package'; install its package, put its folder on PYTHONPATH"),
        ("json.no_such_part.mod", "no module 'json.no_such_part'"),
    ],
)
def test_messages(text: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        load_target(text)


def test_registry_takes_a_path_in_place_of_a_name(tmp_path) -> None:
    path = tmp_path / "by_path.py"
    path.write_text("def score(sample):\n    return 1.0\n")
    registry: Registry[object] = Registry("reward", lambda value: None if callable(value) else "not a function")
    assert registry.resolve("json:dumps") is json.dumps
    assert registry.resolve(f"{path}:score") is load_target(f"{path}:score")
    with pytest.raises(PluginError, match=r"reward '.*by_path.py': say which object of the file is meant: .*:NAME"):
        registry.resolve(str(path))
    with pytest.raises(PluginError, match="reward 'json:__doc__': not a function"):
        registry.resolve("json:__doc__")
    with pytest.raises(PluginError, match="reward 'json:dmps': 'json:dmps': json has no 'dmps'"):
        registry.resolve("json:dmps")
