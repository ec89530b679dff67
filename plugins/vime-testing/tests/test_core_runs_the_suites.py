"""What the core and the plugins of this repository bring passes the suites that other authors' plugins pass."""

from __future__ import annotations

from typing import ClassVar

import pytest
from vime_testing import (
    AlgorithmSuite,
    DeviceSuite,
    EnvironmentSuite,
    Example,
    PluginSuite,
    RewardSuite,
    RolloutSuite,
    WeightSyncSuite,
)

from vime_core.plugin.plugins import Plugins


class TestCore(PluginSuite):
    plugin = "core"


class TestAgents(PluginSuite):
    plugin = "agents"


class TestAscend(PluginSuite):
    plugin = "ascend"


class TestCuda(PluginSuite):
    plugin = "cuda"


@pytest.mark.slow  # imports Megatron; the fast tier has a device beside it in test_wrong_fakes
class TestCpu(DeviceSuite):
    target = "core/cpu"


class TestAscendDevice(DeviceSuite):
    plugin = "ascend"
    target = "ascend/ascend"


class TestCudaDevice(DeviceSuite):
    plugin = "cuda"
    target = "cuda/cuda"


class TestExact(RewardSuite):
    target = "core/exact"
    examples = (Example(right="46", label="46", wrong=["4", "", "46."]),)


@pytest.mark.slow  # math-verify starts a process of its own
class TestMath(RewardSuite):
    target = "core/math"
    examples = (
        Example(right="so it is \\boxed{\\frac{1}{2}}", label="0.5", wrong=["\\boxed{2}", "", "\\boxed{}"]),
        Example(right="the answer is 1,000", label="#### 1000", wrong=["100", "1,00,1"]),
    )


_ENTRY = {"question": "What is 3 + 4?", "answer": "7", "metadata": {}}


class TestReasoningGym(RewardSuite):
    target = "core/reasoning_gym"
    examples = (
        Example(
            right="<answer>7</answer>",
            wrong=["<answer>8</answer>", ""],
            metadata={"dataset": "basic_arithmetic", "entry": _ENTRY},
        ),
    )


class TestGenerate(RolloutSuite):
    target = "core/generate"


class TestSft(RolloutSuite):
    target = "core/sft"


class TestNumberGuess(EnvironmentSuite):
    plugin = "agents"
    target = "agents/number_guess"
    metadata: ClassVar = {"target": 37}
    actions = ("50", "25", "is it 37?")


class TestGrpo(AlgorithmSuite):
    target = "core/grpo"
    arguments: ClassVar = {"aggregations": ("rollout_mean",), "seeds": (0,)}


class TestSftLoss(AlgorithmSuite):
    target = "core/sft"
    arguments: ClassVar = {"aggregations": ("token_mean",), "seeds": (0,)}


@pytest.mark.slow
class TestSharedMemory(WeightSyncSuite):
    target = "core/shared_memory"


@pytest.mark.slow
class TestGloo(WeightSyncSuite):
    target = "core/gloo"


def test_every_kind_that_the_core_has_is_checked_here() -> None:
    """A name that is added to the core gets a suite, or a line here that says where it is tested."""
    plugins = Plugins.load(autoload=False, environ={})
    suites = [value for value in globals().values() if isinstance(value, type) and hasattr(value, "target")]
    checked = {suite.target for suite in suites}
    kinds = (plugins.devices, plugins.weight_syncs, plugins.rollouts, plugins.rewards, plugins.environments)
    missing = {provider.qualified_name for kind in kinds for provider in kind} - checked
    assert missing == set()
