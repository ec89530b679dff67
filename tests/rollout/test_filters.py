from __future__ import annotations

import numpy as np
import pytest

from vime_core.api.reward import Unscored
from vime_core.rollout.filters import check_reward_nonzero_std


@pytest.mark.parametrize("value", [0.0, 1.0, 0.37, float(np.float32(0.1)), 1e9, 3e9, 1e-9, -1e-9])
def test_constant_rewards_are_dropped_with_their_value(group, value):
    keep, reason = check_reward_nonzero_std(group([value] * 8))
    assert (keep, reason) == (False, f"zero_std_{round(value, 1)}")


def test_float_noise_is_no_difference(group):
    assert not check_reward_nonzero_std(group([0.1, 0.1 + 1e-9, 0.1]))[0]
    summed = [float(np.float32(0.1) * np.float32(n) / np.float32(n)) for n in range(1, 9)]
    assert not check_reward_nonzero_std(group(summed))[0]
    assert not check_reward_nonzero_std(group([sum([0.1] * 8), 0.8]))[0]


def test_different_rewards_are_kept(group):
    assert check_reward_nonzero_std(group([0, 1])) == (True, "")
    assert check_reward_nonzero_std(group([0.5, 0.5001])) == (True, "")
    assert check_reward_nonzero_std(group([1e-9, 2e-9])) == (True, "")
    assert check_reward_nonzero_std(group([0.0, 1e-12])) == (True, "")


def test_degenerate_groups(group):
    assert check_reward_nonzero_std(group([])) == (False, "no_reward")
    assert check_reward_nonzero_std(group([Unscored("x")])) == (False, "no_reward")
    assert check_reward_nonzero_std(group([1.0])) == (False, "zero_std_1.0")
