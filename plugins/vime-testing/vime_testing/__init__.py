"""The conformance kit: suites to subclass in the tests of a plugin, and what they are made of.

    from vime_testing import Example, RewardSuite

    class TestScore(RewardSuite):
        target = "./my_reward.py:score"
        examples = (Example(right="4", label="4", wrong=["5", ""]),)

A suite is a plain class of test methods, so pytest collects its subclasses and ``vime plugins check`` runs the same
methods without pytest. Names arrive when they are first used; importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_testing.algorithm_suite import AlgorithmSuite as AlgorithmSuite
    from vime_testing.algorithm_suite import check_algorithm as check_algorithm
    from vime_testing.client import ScriptedClient as ScriptedClient
    from vime_testing.device_suite import DeviceSuite as DeviceSuite
    from vime_testing.environment_suite import EnvironmentSuite as EnvironmentSuite
    from vime_testing.plugin_suite import PluginSuite as PluginSuite
    from vime_testing.reward_suite import Example as Example
    from vime_testing.reward_suite import RewardSuite as RewardSuite
    from vime_testing.rollout_suite import RolloutSuite as RolloutSuite
    from vime_testing.samples import make_sample as make_sample
    from vime_testing.samples import small_batch as small_batch
    from vime_testing.tokenizer import byte_tokenizer as byte_tokenizer
    from vime_testing.weight_sync_suite import WeightSyncSuite as WeightSyncSuite

#: public name -> module that holds it
_PUBLIC = {
    "PluginSuite": "plugin_suite",
    "DeviceSuite": "device_suite",
    "WeightSyncSuite": "weight_sync_suite",
    "AlgorithmSuite": "algorithm_suite",
    "RolloutSuite": "rollout_suite",
    "RewardSuite": "reward_suite",
    "EnvironmentSuite": "environment_suite",
    "Example": "reward_suite",
    "check_algorithm": "algorithm_suite",
    "make_sample": "samples",
    "small_batch": "samples",
    "byte_tokenizer": "tokenizer",
    "ScriptedClient": "client",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(f"vime_testing.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'vime_testing' has no attribute {name!r}")
