from __future__ import annotations

import asyncio
import json
import math
import sys

import pytest

from vime_core.api.errors import ConfigError, DataError, PluginError, RewardError
from vime_core.config.expression import parse
from vime_core.observe.columns import evaluation_text
from vime_core.plugin.plugins import Plugins
from vime_core.rollout.worker import RolloutWorker


@pytest.fixture(scope="module")
def plugins():
    return Plugins.load(autoload=False, environ={})


def answer(tokenizer):
    """An engine that adds: even prompts right, odd ones wrong in every second sample."""

    def script(request, call):
        text = tokenizer.decode(request.tokens)
        left, right = text.rstrip("=").split("+")
        good = f"{int(left) + int(right):02d}"
        return [good if int(left) % 2 == 0 or i % 2 else "00" for i in range(len(request.ids))]

    return script


def run(worker, *steps):
    async def all_of():
        results = [await worker.rollout(step) for step in steps]
        return results, await worker.evaluate(0)

    return asyncio.run(all_of())


def test_steps_with_registered_reward_and_filter(config, tokenizer, client, plugins):
    made = config(dynamic_sampling_filter_path="check_reward_nonzero_std", rollout_batch_size=2)
    worker = RolloutWorker(made, plugins, client(answer(tokenizer)))
    (result,), evaluation = run(worker, 0)
    assert evaluation == {}
    assert worker.prompts_per_epoch == 8
    assert result.batch.reward.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert result.metrics["rollout/raw_reward"] == 0.5
    assert result.metrics["rollout/dynamic_filter/drop_zero_std_1.0"] == 2
    assert {r["outcome"] for r in result.samples} == {"trained", "filtered"}
    assert len(result.samples) == 8


def test_samples_are_left_out_when_not_wanted(config, client, plugins):
    worker = RolloutWorker(config().replace("observe", save_samples=False), plugins, client("01"))
    assert run(worker, 0)[0][0].samples == []


def test_evaluation(config, tokenizer, client, plugins):
    made = config()
    path = made.data.prompt_data[0]
    made = made.replace(
        "eval",
        eval_prompt_data=["all", path, "even", f"{path}@[0:1]"],
        eval_temperature=0.0,
        n_samples_per_eval_prompt=2,
        eval_max_response_len=5,
    )
    engine = client(answer(tokenizer))
    _, figures = run(RolloutWorker(made, plugins, engine))
    assert figures["eval/all"] == 0.75
    assert figures["eval/even"] == figures["eval/even-pass@1"] == 1.0
    assert (figures["eval/all-pass@1"], figures["eval/all-pass@2"]) == (0.75, 1.0)
    assert figures["eval/all-truncated_ratio"] == 0.0
    assert figures["eval/all/response_len/mean"] == 3.0
    assert {(c.params.temperature, c.params.max_tokens) for c in engine.calls} == {(0.0, 5)}
    from vime_core.observe.catalog import unknown

    assert unknown(figures) == []


def test_evaluation_leaves_the_training_stream_alone(config, client, plugins):
    def stream(evaluate):
        made = config()
        made = made.replace("eval", eval_prompt_data=["e", made.data.prompt_data[0]])
        worker = RolloutWorker(made, plugins, client("01"))

        async def steps():
            taken = []
            for step in range(3):
                taken.append((await worker.rollout(step)).batch.rollout.tolist())
                if evaluate:
                    await worker.evaluate(step)
            return taken

        return asyncio.run(steps())

    assert stream(True) == stream(False)


def test_evaluation_without_results_is_an_error_or_counted(config, client, plugins):
    made = config()
    made = made.replace("eval", eval_prompt_data=["e", made.data.prompt_data[0]])
    broken = RolloutWorker(made, plugins, client(lambda r, c: RuntimeError("down")))
    with pytest.raises(RewardError, match=r"eval/e: 8 of 8 prompts have no result.*down"):
        run(broken)
    partly = RolloutWorker(made, plugins, client(lambda r, c: RuntimeError("down") if c == 0 else "01"))
    _, figures = run(partly)
    assert figures["eval/e-without_result"] == 1.0
    assert figures["eval/e"] == 0.0
    assert figures["eval/e-unscored_ratio"] == 1 / 8


JUDGE = """
from vime_core import Unscored

def score(sample):
    return Unscored("no verdict") if int(sample.label) > 3 else float(sample.response.startswith(sample.label))
"""


def test_an_evaluation_shows_what_has_no_score_and_its_target_counts_it(config, client, plugins, tmp_path):
    """5 prompts: one right, two wrong, two that nobody can judge."""
    (tmp_path / "judge.py").write_text(JUDGE)
    made = config(5, reward=f"{tmp_path}/judge.py:score")
    made = made.replace("eval", eval_prompt_data=["e", made.data.prompt_data[0]])
    _, figures = run(RolloutWorker(made, plugins, client("01")))
    assert figures["eval/e"] == pytest.approx(1 / 3)
    assert figures["eval/e-strict"] == pytest.approx(0.2)
    assert figures["eval/e-unscored_ratio"] == pytest.approx(0.4)
    assert evaluation_text(1, figures).startswith("eval after 1 steps: e 0.333 (40 % unscored)")
    assert not parse("eval/e >= 0.3").holds(figures)
    assert parse("eval/e >= 0.2").holds(figures)


def test_supervised_steps_need_no_engine_and_no_reward(config, tokenizer, plugins):
    worker = RolloutWorker(config(rollout_function="sft", reward=None, n_samples_per_prompt=1), plugins, None)
    (result,), _ = run(worker, 0)
    assert tokenizer.decode(result.batch.tokens[: result.batch.total_lengths[0]]) == "00+01=01<eos>"
    assert all(math.isnan(x) for x in result.batch.reward)
    assert "rollout/raw_reward" not in result.metrics
    assert "rollout/staleness/mean" not in result.metrics
    assert result.batch.version.tolist() == [-1] * result.batch.response_tokens


def test_supervised_run_with_evaluation_asks_the_engines(config, tokenizer, client, plugins):
    made = config(rollout_function="sft", n_samples_per_prompt=1)
    made = made.replace("eval", eval_prompt_data=["e", made.data.prompt_data[0]])
    engine = client(answer(tokenizer))
    _, figures = run(RolloutWorker(made, plugins, engine), 0)
    assert figures["eval/e"] == 0.5
    assert len(engine.calls) == 8


def test_resume_continues_exactly(config, client, plugins):
    straight = RolloutWorker(config(), plugins, client("01"))
    results, _ = run(straight, 0, 1, 2, 3)
    expected = [r.batch.rollout.tolist() for r in results]
    for stop in range(4):
        first = RolloutWorker(config(), plugins, client("01"))
        run(first, *range(stop))
        second = RolloutWorker(config(), plugins, client("01"))
        second.load_state(json.loads(json.dumps(first.state(), allow_nan=False)))
        results, _ = run(second, *range(stop, 4))
        assert [r.batch.rollout.tolist() for r in results] == expected[stop:]
        assert second.ledger.metrics() == straight.ledger.metrics()


def test_reward_from_a_file(config, client, plugins, tmp_path):
    file = tmp_path / "length_reward.py"
    file.write_text("def score(sample):\n    return float(len(sample.response))\n")
    (result,), _ = run(RolloutWorker(config(reward=f"{file}:score"), plugins, client("123")), 0)
    assert set(result.batch.reward.tolist()) == {3.0}
    sys.modules.pop("vime_local_length_reward")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"reward": None}, ConfigError, "no reward: --reward"),
        ({"reward": "exakt"}, PluginError, "exact"),
        ({"dynamic_sampling_filter_path": "nothing"}, PluginError, "no filter named 'nothing'"),
        ({"rollout_batch_size": 9}, DataError, "has 8 prompts, a step takes 9"),
        ({"over_sampling_batch_size": 9}, DataError, "--over-sampling-batch-size"),
        ({"rollout_batch_size": None}, ConfigError, "--rollout-batch-size is not set"),
        ({"group_rm": True}, RewardError, "--group-rm needs an object with score_group"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sampled(config, client, plugins, changes, error, message):
    engine = client("01")
    with pytest.raises(error, match=message):
        RolloutWorker(config(**changes), plugins, engine)
    assert engine.calls == []


def test_evaluation_pairs(config, client, plugins):
    for words in (["name"], ["a", "x.jsonl", "a", "y.jsonl"]):
        with pytest.raises(ConfigError, match="pairs of a name and a path"):
            RolloutWorker(config().replace("eval", eval_prompt_data=words), plugins, client("01"))


def test_closing(config, client, plugins):
    worker = RolloutWorker(config(reward="math"), plugins, client("01"))
    run(worker, 0)
    asyncio.run(worker.close())
