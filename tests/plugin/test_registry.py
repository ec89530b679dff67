"""How a name finds a provider, and what a provider says when it cannot be had."""

from __future__ import annotations

import pytest

from vime_core.api.errors import PluginError
from vime_core.plugin.kinds import is_callable, is_reward, subclass_of
from vime_core.plugin.registry import Owner, Registry


def build(*rows: tuple[str, str], requested: tuple[str, ...] = ()) -> Registry[object]:
    """A registry of (plugin, name) pairs; the target tells which one it is."""
    whole: Registry[object] = Registry("reward", requested=requested)
    for plugin in dict.fromkeys(plugin for plugin, _ in rows):
        part = whole.scoped(Owner(plugin))
        for name in [name for owner, name in rows if owner == plugin]:
            part.add(name, (plugin, name))
        whole.merge(part)
    return whole


def test_core_keeps_its_bare_name() -> None:
    registry = build(("core", "math"), ("mine", "math"))
    assert registry.get("math").qualified_name == "core/math"
    assert registry.get("mine/math").qualified_name == "mine/math"


def test_requested_plugin_comes_before_core() -> None:
    registry = build(("core", "math"), ("mine", "math"), ("other", "math"), requested=("mine",))
    assert registry.resolve("math") == ("mine", "math")
    assert registry.resolve("core/math") == ("core", "math")


def test_only_third_party_is_found_by_its_bare_name() -> None:
    assert build(("core", "math"), ("mine", "f1")).get("f1").plugin == "mine"


def test_two_third_parties_are_an_error_that_lists_qualified_names() -> None:
    with pytest.raises(PluginError, match="several plugins provide reward 'f1'; say which one: a/f1, b/f1"):
        build(("a", "f1"), ("b", "f1")).get("f1")


def test_two_requested_plugins_are_an_error_even_where_core_has_the_name() -> None:
    with pytest.raises(PluginError, match="say which one: a/math, b/math"):
        build(("core", "math"), ("a", "math"), ("b", "math"), requested=("a", "b")).get("math")


def test_unknown_name_says_the_nearest() -> None:
    with pytest.raises(PluginError, match="no reward named 'mathh'; did you mean 'math'; there are: math, f1"):
        build(("core", "math"), ("mine", "f1")).get("mathh")


def test_order_of_installation_does_not_matter() -> None:
    rows = [("core", "math"), ("a", "math"), ("b", "f1")]
    assert build(*rows).get("math") == build(*reversed(rows)).get("math")


@pytest.mark.parametrize("name", ["a/b", "a.b", "a:b", "", " x", "-x"])
def test_names_that_would_read_as_paths_or_flags_are_refused(name: str) -> None:
    with pytest.raises(PluginError, match="letters, digits"):
        Registry("reward").scoped(Owner("mine")).add(name, "m:f")


def test_a_name_is_added_once() -> None:
    part = Registry("reward").scoped(Owner("mine"))
    part.add("f", "m:f")
    with pytest.raises(PluginError, match="added twice"):
        part.add("f", "m:g")


def test_a_plugin_cannot_add_after_it_was_taken_in() -> None:
    whole: Registry[object] = Registry("reward")
    part = whole.scoped(Owner("mine"))
    whole.merge(part)
    for registry in (whole, part):
        with pytest.raises(PluginError, match="only inside a vime_register_"):
            registry.add("late", "m:f")


def test_load_names_plugin_version_target_and_what_to_install() -> None:
    part = Registry("device backend").scoped(Owner("npu", "vime-npu", "0.1.0"))
    part.add("npu", "package_not_there.backend:Backend")
    with pytest.raises(PluginError) as caught:
        part.get("npu").load()
    assert str(caught.value).startswith(
        "plugin 'npu' (vime-npu 0.1.0) could not provide device backend 'npu' from "
        "'package_not_there.backend:Backend': no module 'package_not_there'; install"
    )


def test_a_missing_dependency_of_the_target_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "needs_npu.py").write_text("import torch_npu_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    part = Registry("device backend").scoped(Owner("npu"))
    part.add("npu", "needs_npu:Backend")
    with pytest.raises(PluginError, match="ModuleNotFoundError: No module named 'torch_npu_not_there'; install 'torch"):
        part.get("npu").load()


def test_a_target_that_exits_is_an_error_not_an_exit(tmp_path, monkeypatch) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    part = Registry("reward").scoped(Owner("mine"))
    part.add("f", "exits:f")
    with pytest.raises(PluginError, match="SystemExit: 0"):
        part.get("f").load()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(True, (True, "")), (False, (False, "")), ((True, "2 cores"), (True, "2 cores")), ((False, "no"), (False, "no"))],
)
def test_probe_may_answer_in_short(answer: object, expected: tuple[bool, str]) -> None:
    part = Registry("device backend").scoped(Owner("mine"))
    part.add("d", "m:D", available=lambda: answer)
    assert part.get("d").available() == expected


def test_probe_that_raises_counts_as_no_and_says_so() -> None:
    part = Registry("device backend").scoped(Owner("mine"))
    part.add("d", "m:D", available="json:not_there")
    part.add("e", "m:D", available=lambda: 1 / 0)
    assert part.get("d").available()[0] is False
    assert part.get("e").available() == (False, "its probe raised ZeroDivisionError: division by zero")


# shapes ------------------------------------------------------------------------------------------------------


def test_a_class_must_derive_from_the_interface_and_be_complete() -> None:
    check = subclass_of("vime_core.api.environment:Environment")
    from vime_core import Environment

    class Half(Environment):
        async def reset(self, metadata):
            raise AssertionError

    class Whole(Half):
        async def step(self, action):
            raise AssertionError

    assert check(Whole) is None
    assert check(Half) == "Half does not implement step"
    assert check(dict) == "it is class dict, not a subclass of vime_core.api.environment.Environment"
    assert check(len) == "it is function len, not a subclass of vime_core.api.environment.Environment"


def test_a_reward_takes_one_sample_or_declares_score_group() -> None:
    class Grouped:
        def score_group(self, samples):
            return [0.0 for _ in samples]

    def good(sample, scale=1.0):
        return scale

    def bad(sample, label):
        return 0.0

    assert is_reward(good) is None
    assert is_reward(Grouped()) is None
    assert is_reward(bad) == "bad(sample, label) cannot be called with one sample"
    assert "a reward is a function" in str(is_reward(3.0))
    assert is_callable("x") == "it is an object of str, not a function"
