from __future__ import annotations

import json
import random

import pytest

from vime_core.data.ledger import GroupOutcome, Ledger


def test_every_group_has_one_fate_and_they_add_up():
    ledger = Ledger()
    ledger.start(range(6))
    ledger.end(0, GroupOutcome.TRAINED)
    ledger.end(1, GroupOutcome.FILTERED, "zero_std_1.0")
    ledger.end(2, GroupOutcome.UNSCORED, "timeout: reward x gave nothing")
    ledger.end(3, GroupOutcome.FAILED, "EngineError: gone")
    ledger.requeue(4)
    ledger.check()
    assert ledger.metrics() == {
        "rollout/groups/trained": 1,
        "rollout/groups/filtered": 1,
        "rollout/groups/unscored": 1,
        "rollout/groups/failed": 1,
        "rollout/groups/in_flight": 1,
        "rollout/groups/waiting": 1,
    }
    assert ledger.reasons(GroupOutcome.UNSCORED) == {"timeout": 1}


def test_a_group_ends_once():
    ledger = Ledger()
    ledger.start([0, 1])
    ledger.end(0, GroupOutcome.TRAINED)
    for act in (lambda: ledger.end(0, GroupOutcome.FAILED), lambda: ledger.requeue(0), lambda: ledger.start([0])):
        with pytest.raises(RuntimeError, match="group 0"):
            act()
    with pytest.raises(RuntimeError, match="handed out twice"):
        ledger.start([1])
    ledger.check()


def test_a_lost_group_is_noticed():
    state = Ledger().state_dict() | {"issued": 3, "waiting": [1, 2]}
    with pytest.raises(RuntimeError, match="3 groups were handed out, 2 are accounted for"):
        Ledger().load_state_dict(state)


def test_random_life_adds_up_across_resumes():
    chance, ledger, waiting, flying, issued = random.Random(5), Ledger(), [], [], 0
    for step in range(300):
        if waiting and chance.random() < 0.3:
            group = waiting.pop()
        else:
            group, issued = issued, issued + 1
        ledger.start([group])
        flying.append(group)
        if chance.random() < 0.8:
            victim = flying.pop(chance.randrange(len(flying)))
            if chance.random() < 0.3:
                ledger.requeue(victim)
                waiting.append(victim)
            else:
                ledger.end(victim, chance.choice(list(GroupOutcome)))
        if step % 50 == 49:
            state = json.loads(json.dumps(ledger.state_dict()))
            ledger = Ledger()
            ledger.load_state_dict(state)
            waiting, flying = waiting + flying, []
        ledger.check()
        assert sum(ledger.metrics().values()) == issued
