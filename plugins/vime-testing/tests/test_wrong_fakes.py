"""Each suite is put to things that are wrong on purpose (``wrong/``): exactly the checks named here fail, with these
words, and nothing fails on the right ones. Pytest runs the suites as an author's pytest would, in a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

WRONG = Path(__file__).parent / "wrong"
#: class -> {check: what its message says}
Expected = dict[str, dict[str, str]]

#: checks of a reward that ask for scores
SCORED = (
    "the_right_answer_scores_best",
    "odd_answers_are_judged_not_raised_on",
    "scores_are_finite_numbers",
    "a_batch_scores_like_its_answers_alone",
    "the_same_answer_gets_the_same_score",
)
REWARDS: Expected = {
    "Right": {},
    "UpsideDown": {"the_right_answer_scores_best": "'4' scores 0, the wrong answer '5' scores 1; the right one must"},
    "RaisesOnOdd": {"odd_answers_are_judged_not_raised_on": "on the answer '': raised ValueError.*return a score, or"},
    "NotFinite": {
        "the_right_answer_scores_best": "not finite: .*return a finite number",
        "scores_are_finite_numbers": "the answer '5' got no score: not finite",
        "a_batch_scores_like_its_answers_alone": "not finite",
        "the_same_answer_gets_the_same_score": "not finite",
    },
    "CountsCalls": {
        "a_batch_scores_like_its_answers_alone": "a call must not depend on others",
    },
    "Dice": {
        "the_same_answer_gets_the_same_score": "set deterministic = False if that is meant",
        "a_batch_scores_like_its_answers_alone": "scored together .* one by one",
    },
    "Writes": {check: "may not change its sample" for check in SCORED},
    "NothingSet": {
        check: "TestNothingSet.target is not set: give a registered name, pkg.mod:obj or the object itself"
        for check in (*SCORED, "the_sample_is_only_read")
    },
    "Changed": {"no_check_was_changed": r"TestChanged.test_scores_are_finite_numbers replaces a check .*xfail\(reason"},
}
ENVIRONMENTS: Expected = {
    "Right": {},
    "Silent": {"reset_says_something": "an observation without text; the model needs to be told"},
    "Endless": {"the_actions_end_the_episode_at_their_last": r"is \[False, False\]; only the last action may end"},
    "Fragile": {
        "every_action_is_answered": "the action '' raised AssertionError: what.*; answer it with an observation"
    },
    "Dice": {
        "the_same_actions_get_the_same_answers": "two episodes from the same metadata differ: observation 1 is",
        "episodes_side_by_side_do_not_mix": "differs from one alone",
        "reset_starts_afresh": "reset must forget",
    },
    "Shared": {"episodes_side_by_side_do_not_mix": "keep the state in the object, not in the class"},
    "Remembers": {"reset_starts_afresh": "'try 1'.*'try 2'.*; reset must forget the last episode"},
    "NotPlain": {"observations_are_plain_data": "info is not plain data: .*not JSON serializable"},
    "ClosesOnce": {"close_is_harmless": "close before reset, then again, raised AssertionError: closed already"},
}
ALGORITHMS: Expected = {
    "Right": {},
    "DependsOnOrder": {
        "loss_and_gradient_depend_on_nothing_they_should_not": "'right', aggregation rollout_mean, seed"
    },
    "DependsOnTheMicroBatch": {
        "loss_and_gradient_depend_on_nothing_they_should_not": "P1 micro-batches of 1: loss is off by",
    },
    "DividesByZero": {
        "equal_rewards_give_a_finite_loss": "advantages is not finite at",
        "a_single_sample_gives_a_finite_loss": "advantages is not finite at",
    },
    "IgnoresAdvantage": {"no_advantage_is_no_gradient": "multiply the surrogate by the advantage, or set follows_adv"},
    "Detaches": {"the_gradient_is_that_of_the_loss": "gradient at logit .*, difference quotient"},
    "DetachesAndSaysNothing": {},
    "DetachesAndSaysSo": {},
    "RefusesItself": {
        "the_options_are_accepted": r"violations\(\) refuses the options: .*scale is 1.0",
        "loss_and_gradient_depend_on_nothing_they_should_not": "scale is 1.0",
        "equal_rewards_give_a_finite_loss": "scale is 1.0",
        "a_single_sample_gives_a_finite_loss": "scale is 1.0",
        "no_advantage_is_no_gradient": "scale is 1.0",
        "the_gradient_is_that_of_the_loss": "scale is 1.0",
    },
    "UnknownOption": {
        "the_options_are_accepted": r"options \['size'\] are not in Right.defaults",
        "loss_and_gradient_depend_on_nothing_they_should_not": "size",
        "equal_rewards_give_a_finite_loss": "size",
        "a_single_sample_gives_a_finite_loss": "size",
        "no_advantage_is_no_gradient": "size",
        "the_gradient_is_that_of_the_loss": "size",
    },
}
ROLLOUTS: Expected = {
    "Right": {},
    "LosesOne": {
        "the_samples_come_back_whole": r"given rollouts \[0, 1, 2\] and returned \[1, 2\]",
        "groups_at_once_do_not_mix": "other rollouts",
    },
    "TokenizesAgain": {"tokens_are_those_that_were_sampled": "never tokenize text again"},
    "ForgetsTheVersion": {"samples_carry_the_weight_version": r"versions are \[0, 0, 0\], .* sampled with \[7, 7, 7\]"},
    "AsksForMore": {"no_response_is_longer_than_allowed": "asked for 100 tokens, max_tokens is 1; pass it on"},
    "AsksGreedily": {"sampling_parameters_are_passed_on": "'temperature': 0.0.* the run wants .*'temperature': 0.3"},
    "RepeatsIds": {"request_ids_are_unique": "request ids repeat"},
    "HidesTheAbort": {"an_aborted_response_is_marked_and_kept": "aborted, the sample is completed; set Status.ABORTED"},
    "GoesOn": {"a_second_try_starts_afresh": r"have \[6, 6, 6\] tokens, at first \[3, 3, 3\]; call sample.reset"},
    "HidesTheError": {"an_engine_error_is_not_hidden": "the engine failed and the samples are .*completed"},
}
DEVICES: Expected = {
    "Right": {},
    "Nameless": {
        "types_and_names": "device_type is not set; it is a class attribute",
        "every_slot_has_a_place": "is a cpu device, device_type is None",
    },
    "NumbersInEnvironment": {"the_environment_is_text": r"\['OMP_NUM_THREADS'\] are not text"},
    "ReservesNothing": {"ray_reserves_what_is_asked_for": "a worker would reserve nothing"},
    "SpellsWithDashes": {"arguments_for_both_stacks_are_named": "return a mapping of argument names"},
    "Complains": {"findings_say_how_to_mend": "driver is not well and has no fix"},
    "HasNone": {"every_slot_has_a_place": r"the probe says yes and count\(\) is 0"},
    "Unseeded": {"the_same_seed_gives_the_same_numbers": "manual_seed has no effect"},
    "ForgetsTheState": {"a_random_state_comes_back": "other numbers follow"},
    "InMegabytes": {"memory_figures_are_sane_and_move": r"allocated and used grew by \d+; memory\(\) must see"},
    "UnknownCollective": {"the_collective_is_known_to_torch": "gloop"},
    "ShimsTwice": {"megatron_is_adapted_once": "it must be idempotent"},
}
PLUGINS: Expected = {
    "Right": {},
    "Heavy": {"loading_it_imports_nothing_heavy": "imported numpy; name the target as a string"},
    "HeavyProbe": {"probes_import_nothing_heavy": "its probes imported numpy; look at device files"},
    "PatchesTwice": {"a_second_process_start_changes_nothing": r"changed json\.dumps; it must be idempotent"},
    "RaisesAtStart": {"a_second_process_start_changes_nothing": "raised in a driver: .*OSError: no device"},
    "Empty": {"it_adds_something": "it has no hook; mark a function vime_register_"},
    "Nowhere": {"every_name_leads_somewhere": "no module 'no_such_package'.*give add.*available="},
    "Explained": {},
    "Silent": {"every_name_has_a_summary": "no summary of wrong_silent/mine; give add"},
    "Broken": {
        check: "hook 'vime_run_started' is async"
        for check in (
            "it_loads",
            "loading_it_imports_nothing_heavy",
            "probes_import_nothing_heavy",
            "a_second_process_start_changes_nothing",
            "it_adds_something",
            "every_name_leads_somewhere",
            "every_name_has_a_summary",
            "it_says_which_core_it_fits",
        )
    },
}
_STALE = r"engine 0 has \(version, digest, names\) .* the trainer sent"
_COMMITTED = "push returned a receipt .*; raise SyncError and discard the version"
SYNCS: Expected = {
    "Stale": {
        check: _STALE
        for check in (
            "a_later_push_overwrites",
            "the_receipt_is_true",
            "every_engine_serves_the_version",
            "a_missing_and_an_unknown_name_are_refused",
            "a_push_that_breaks_half_way_serves_nobody",
            "a_model_that_answers_otherwise_serves_nobody",
        )
    },
    "Pretends": {
        "every_bit_arrives": "engine 0 after a push: odd, .* differ from what the trainer has",
        "a_later_push_overwrites": "differ from what the trainer has",
        "the_receipt_is_true": "the receipt's version is 1, it should be 0",
        "every_engine_serves_the_version": r"engines serve \[0, 0\] after version 1",
        "a_missing_and_an_unknown_name_are_refused": _COMMITTED,
        "a_push_that_breaks_half_way_serves_nobody": _COMMITTED,
        "a_model_that_answers_otherwise_serves_nobody": _COMMITTED,
    },
    "Swallows": {
        "a_missing_and_an_unknown_name_are_refused": _COMMITTED,
        "a_push_that_breaks_half_way_serves_nobody": _COMMITTED,
        "a_model_that_answers_otherwise_serves_nobody": _COMMITTED,
    },
    "LeavesAMix": {
        "a_model_that_answers_otherwise_serves_nobody": "engine 0 answers after the canary disagreed; discard"
    },
    "NoCanary": {"a_model_that_answers_otherwise_serves_nobody": _COMMITTED},
    "WrongReceipt": {"the_receipt_is_true": "the receipt's names is 12, it should be 11"},
    "RaisesOtherwise": {
        "a_missing_and_an_unknown_name_are_refused": "push raised RuntimeError with the name 'odd' missing",
        "a_push_that_breaks_half_way_serves_nobody": "push raised RuntimeError although .*; raise SyncError",
        "a_model_that_answers_otherwise_serves_nobody": "push raised RuntimeError although .*; raise SyncError",
        "a_closed_sync_pushes_nothing": "push before connect",
    },
}
FAST = {
    "rewards": REWARDS,
    "environments": ENVIRONMENTS,
    "algorithms": ALGORITHMS,
    "rollouts": ROLLOUTS,
    "devices": DEVICES,
    "plugins": PLUGINS,
}

Failures = dict[tuple[str, str], dict[str, str]]


def run(folder: Path, *names: str) -> Failures:
    """(file, class) -> {check: message} of everything that did not pass."""
    report = folder / "report.xml"
    files = [str(WRONG / f"{name}.py") for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *files]
    path = os.pathsep.join([str(WRONG), os.environ.get("PYTHONPATH", "")])  # a trainer imports its publisher by name
    environ = {**os.environ, "WRONG_PLUGINS": str(folder), "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
    assert report.exists(), done.stdout + done.stderr
    found: Failures = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.get("classname", "").split(".")
        checks = found.setdefault((parts[-2], parts[-1].removeprefix("Test")), {})
        for bad in [*case.iter("failure"), *case.iter("error")]:
            checks[case.get("name", "").removeprefix("test_")] = bad.get("message", "")
    return found


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return run(tmp_path_factory.mktemp("wrong"), *FAST)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, expected in FAST.items() for name in expected])
def test_exactly_what_is_wrong_fails(failures: Failures, kind: str, name: str) -> None:
    compare(failures[kind, name], FAST[kind][name])


def test_every_wrong_thing_is_expected(failures: Failures) -> None:
    assert {(kind, name) for kind, expected in FAST.items() for name in expected} == set(failures)


def compare(found: dict[str, str], expected: dict[str, str]) -> None:
    assert sorted(found) == sorted(expected), found
    for check, words in expected.items():
        message = " ".join(found[check].split())
        assert re.search(words, message), message


@pytest.fixture(scope="module")
def sync_failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return run(tmp_path_factory.mktemp("wrong"), "syncs")


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCS)
def test_exactly_what_is_wrong_in_a_sync_fails(sync_failures: Failures, name: str) -> None:
    compare(sync_failures["syncs", name], SYNCS[name])
