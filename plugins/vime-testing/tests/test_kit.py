"""The kit itself: what it costs to import, what its fixtures are, how its parts behave."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import unittest

import pytest
import vime_testing as testing
from vime_testing import RewardSuite, check_algorithm, make_sample
from vime_testing.runner import CheckResult, run_suite
from vime_testing.suite import Suite, checks_of, must, skip

from vime_core.api.rollout import GenerateRequest, SamplingParams
from vime_core.api.sample import Status

HEAVY = ("torch", "numpy", "pytest", "ray", "vllm", "transformers", "megatron", "pluggy")


def imported_by(code: str) -> list[str]:
    probe = f"import sys\n{code}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    return eval(done.stdout)


def test_importing_the_kit_costs_nothing() -> None:
    assert imported_by("import vime_testing") == []
    names = [name for name in testing.__all__ if name != "ScriptedClient"]
    assert imported_by(f"from vime_testing import {', '.join(names)}") == []


def test_every_public_name_is_there_and_no_other() -> None:
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'PluginSute'"):
        testing.PluginSute  # noqa: B018


def test_an_algorithm_is_checked_by_name_path_class_or_object() -> None:
    from vime_core.algorithms.sft import Sft

    few = {"aggregations": ["token_mean"], "seeds": [0]}
    for one in ("sft", "core/sft", "vime_core.algorithms.sft:Sft", Sft, Sft()):
        check_algorithm(one, **few)

    class Wrong(Sft):
        def surrogate(self, view, advantage, options):
            return -view.logp * view.logp.mean().detach(), {}

    with pytest.raises(AssertionError, match="algorithm 'sft', aggregation token_mean, seed 0: P1"):
        check_algorithm(Wrong, **few)


# suites and their runner -------------------------------------------------------------------------------------


class Three(Suite):
    target = "x"

    def test_well(self) -> None:
        must(True, "never said")

    def test_not_well(self) -> None:
        must(False, "it is broken;\n mend it")

    def test_elsewhere(self) -> None:
        skip("no device here")

    def test_by_surprise(self) -> None:
        {}["key"]


def test_the_runner_gives_a_line_a_check() -> None:
    assert [finding.line() for finding in run_suite(Three, "thing x")] == [
        "ok    thing x: well",
        "FAIL  thing x: not well: it is broken; mend it",
        "skip  thing x: elsewhere: no device here",
        "FAIL  thing x: by surprise: KeyError: 'key'",
    ]


def test_a_suite_that_cannot_be_set_up_is_one_finding_and_is_torn_down() -> None:
    torn = []

    class Begins(Three):
        @classmethod
        def setup_class(cls) -> None:
            raise unittest.SkipTest("no Ray")

        @classmethod
        def teardown_class(cls) -> None:
            torn.append(cls)

    assert list(run_suite(Begins, "x")) == [CheckResult("x", "can be set up for the checks", "skip", "no Ray")]
    assert torn == [Begins]


def test_checks_come_in_the_order_of_their_definition() -> None:
    assert checks_of(Three)[:3] == ["test_no_check_was_changed", "test_well", "test_not_well"]


def test_an_override_needs_an_excuse() -> None:
    class Excused(RewardSuite):
        @pytest.mark.xfail(reason="the reward is a dice")
        def test_scores_are_finite_numbers(self) -> None:
            super().test_scores_are_finite_numbers()

    class Silent(RewardSuite):
        @pytest.mark.xfail
        def test_scores_are_finite_numbers(self) -> None:
            super().test_scores_are_finite_numbers()

    class Below(Silent):
        pass

    Excused().test_no_check_was_changed()
    for wrong in (Silent, Below):
        with pytest.raises(
            AssertionError, match=r"Silent\.test_scores_are_finite_numbers replaces a check of the suite"
        ):
            wrong().test_no_check_was_changed()


# fixtures and their makers -----------------------------------------------------------------------------------


def test_a_sample_is_pending_or_finished(vime_sample) -> None:
    assert vime_sample().status is Status.PENDING
    done = vime_sample("2+2=", label="4", response="4é", rollout=3002)
    assert (done.response_tokens, done.loss_mask, done.versions) == ([52, 195, 169], [1, 1, 1], [1, 1, 1])
    assert (done.group, done.rollout, done.name) == (3, 3002, "group 3 sample 2 (rollout 3002)")
    chat = make_sample([{"role": "user", "content": "hi"}])
    assert bytes(chat.prompt_tokens) == b"hi"


@pytest.mark.parametrize("text", ["", "plain", " two  spaces\n", "Ω\u2028\U0001f600", "<eos> is a token"])
def test_the_tokenizer_loses_nothing(vime_tokenizer, text: str) -> None:
    ids = vime_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert vime_tokenizer.decode(ids) == text
    if "<eos>" not in text:
        assert len(ids) == len(text.encode())


def test_the_tokenizer_has_a_chat_template(vime_tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    shown = vime_tokenizer.apply_chat_template(messages, tokenize=False)
    assert shown == "user: hi\nassistant: ho<eos>"


def test_the_client_says_what_it_is_told_and_remembers(vime_client, vime_tokenizer) -> None:
    client = vime_client(lambda request, call, index: f"{call}{index}", version=3)
    request = GenerateRequest(("a", "b"), [1, 2], SamplingParams(max_tokens=8))
    replies = asyncio.run(client.generate(request))
    assert [vime_tokenizer.decode(reply.tokens) for reply in replies] == ["00<eos>", "01<eos>"]
    assert [reply.versions for reply in replies] == [[3, 3, 3]] * 2
    logprobs = [value for reply in replies for value in reply.logprobs]
    assert len(set(logprobs)) == 6
    assert [client.said[value] for value in logprobs] == [token for reply in replies for token in reply.tokens]
    short = asyncio.run(client.generate(GenerateRequest(("c",), [1], SamplingParams(max_tokens=1))))
    assert (short[0].finish, len(short[0].tokens)) == ("length", 1)
    client.stop_after = 2
    cut = asyncio.run(client.generate(GenerateRequest(("d",), [1], SamplingParams(max_tokens=8))))
    assert (cut[0].finish, len(cut[0].tokens)) == ("abort", 2)
