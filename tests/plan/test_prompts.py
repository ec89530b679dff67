from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vime_cli.main import main
from vime_cli.plan.lengths import Lengths
from vime_cli.plan.prompts import AT_LONGEST, Prompts

from tests.plan.shapes import SHAPES
from tests.support.bare import Bare
from vime_core.config.sections import Config


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a config.json and a tokenizer of one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["qwen3"]))
    return tmp_path


def _data(folder: Path, counts: list[int]) -> str:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps({"input": "word " * count}) + "\n" for count in counts))
    return str(file)


def _config(data: str, **values: Any) -> Config:
    config = Config().replace("data", prompt_data=[data], **{"rollout_max_prompt_len": 50, **values})
    return config.replace("rollout", rollout_batch_size=50, n_samples_per_prompt=2, rollout_max_response_len=20)


def test_prompts_are_counted_in_the_data_set(model: Path) -> None:
    data = _data(model, [30, 10, 20, 60, 0])
    found = Prompts.read(_config(data), str(model))
    assert found.lengths == [10, 20, 30]  # 60 are more than a prompt may have, and a prompt without tokens is none
    assert found.source == f"3 rows of {data}"
    lengths = Lengths.of(_config(data), found)
    assert {10, 30} < {round(prompt, -1) for prompt, _ in lengths.samples} <= {10, 20, 30}
    assert {response for _, response in lengths.samples} == {20}
    assert lengths.longest == 50
    assert lengths.source == f"prompts: 3 rows of {data}; responses: at their longest"


def test_the_first_rows_are_enough(model: Path) -> None:
    found = Prompts.read(_config(_data(model, [5] * 300 + [40] * 1000)), str(model))
    assert found.lengths == [5] * 300


def test_a_slice_of_rows_is_the_slice_that_a_run_takes(model: Path) -> None:
    found = Prompts.read(_config(_data(model, [5, 6, 7, 8]) + "@[-2:]"), str(model))
    assert found.lengths == [7, 8]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prompt_data": ["/nowhere/train.jsonl"]}, "/nowhere/train.jsonl is not here"),
        ({"apply_chat_template": True}, "no chat template in {model}"),
        ({"input_key": "question"}, "no row has a prompt"),
    ],
)
def test_what_is_not_read_is_said(change: dict[str, Any], why: str, model: Path) -> None:
    found = Prompts.read(_config(_data(model, [5])).replace("data", **change), str(model))
    assert not found.lengths
    assert found.source == f"at their longest (the data set was not read: {why.format(model=model)})"


def test_a_chat_template_is_rendered(model: Path) -> None:
    template = "{{ bos_token }} {% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    (model / "chat_template.jinja").write_text(template + "{% if add_generation_prompt %}{{ ask }}{% endif %}")
    (model / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    config = _config(_data(model, [5]), apply_chat_template=True, apply_chat_template_kwargs={"ask": "assistant now"})
    assert Prompts.read(config, str(model)).lengths == [1 + 1 + 5 + 2]
    (model / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
    assert "no such role" in Prompts.read(config, str(model)).source


def test_without_a_tokenizer_nothing_is_counted(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert f"no {model / 'tokenizer.json'}" in Prompts.read(_config(_data(model, [5])), str(model)).source
    assert Prompts.read(Config(), str(model)) == AT_LONGEST


def test_a_response_ends_where_the_context_does(model: Path) -> None:
    config = _config(_data(model, [10, 40])).replace("rollout", rollout_max_context_len=45)
    lengths = Lengths.of(config, Prompts.read(config, str(model)))
    assert max(lengths.totals) == 45
    assert lengths.longest == 45


@pytest.mark.parametrize(("more", "said"), [((), "prompts: 2 rows of"), (("--prompt-tokens", "7"), "--prompt-tokens")])
def test_the_command_says_where_lengths_are_from(more: tuple[str, ...], said: str, model: Path) -> None:
    code = (
        "import sys; from vime_cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'vllm', 'ray', 'transformers', 'megatron'}; "
        "print(sorted(heavy & set(sys.modules))); sys.exit(code)"
    )
    flags = ["--rollout-batch-size", "8", "--num-rollout", "1", "--rollout-max-response-len", "64", "--reward", "exact"]
    data = ["--hf-checkpoint", str(model), "--prompt-data", _data(model, [5, 6]), "--device", "cpu"]
    command = [sys.executable, "-c", code, "plan", *flags, *data, "--memory-gib", "64", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_prompts_that_are_too_long_for_the_context_are_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rollout-batch-size", "8", "--num-rollout", "1", "--rollout-max-response-len", "64", "--reward", "exact"]
    data = ["--hf-checkpoint", str(model), "--rollout-max-context-len", "100", "--device", "cpu"]
    assert main(["plan", *flags, *data, "--prompt-tokens", "90"]) == 2
    assert "lower --prompt-tokens" in capsys.readouterr().err


def test_a_vime_without_its_stack_plans_and_says_what_it_did_not_count(bare: Bare, model: Path) -> None:
    flags = ["--rollout-batch-size", 8, "--num-rollout", 1, "--rollout-max-response-len", 64, "--reward", "exact"]
    data = ["--hf-checkpoint", model, "--prompt-data", _data(model, [5, 6]), "--device", "cpu", "--memory-gib", 64]
    done = bare.vime("plan", *flags, *data, cwd=model, environ={})
    assert done.returncode == 0, done.stderr
    assert "the data set was not read: tokenizers is not installed" in done.stdout
