from __future__ import annotations

import copy
import json

import pytest

from vime_core.api.errors import DataError
from vime_core.config.sections import Config, DataSection, ModelSection, RolloutSection
from vime_core.data.dataset import PromptDataset
from vime_core.data.limits import LengthLimits
from vime_core.data.tokenizer import load_tokenizer


def opened(tokenizer, path, supervised=False, max_context=None, **data):
    config = Config(
        data=DataSection(prompt_data=[path] if isinstance(path, str) else path, **data),
        rollout=RolloutSection(rollout_max_context_len=max_context),
    )
    return PromptDataset.open(config, tokenizer, supervised=supervised)


def test_rows_become_ids_once(tokenizer, jsonl):
    path = jsonl([{"q": "1+1=", "a": "2", "metadata": {"k": [1]}}, {"q": "2+2=", "a": "4"}])
    data = opened(tokenizer, path, input_key="q", label_key="a")
    assert tokenizer.decode(data[0].tokens) == "1+1="
    assert [p.label for p in data.prompts] == ["2", "4"]
    assert (data[0].metadata, data[1].metadata) == ({"k": [1]}, {})
    assert data[1].source == f"{path}:2"


def test_several_files_keep_their_order(tokenizer, jsonl):
    paths = [jsonl([{"input": c} for c in "ab"], "one.jsonl"), jsonl([{"input": c} for c in "cde"], "two.jsonl")]
    data = opened(tokenizer, [paths[0], f"{paths[1]}@[-2:]"])
    assert [p.prompt for p in data.prompts] == ["a", "b", "d", "e"]


def test_chat_template_takes_text_messages_tools_and_arguments(tokenizer, jsonl):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    path = jsonl([{"input": "hi"}, {"input": messages}])
    data = opened(tokenizer, path, apply_chat_template=True)
    assert tokenizer.decode(data[0].tokens) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(data[1].tokens).startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user")
    without = opened(
        tokenizer, path, apply_chat_template=True, apply_chat_template_kwargs={"add_generation_prompt": False}
    )
    assert tokenizer.decode(without[0].tokens) == "<|im_start|>user\nhi<|im_end|>\n"


def test_tools_reach_the_template_and_json_text_is_read(tokenizer, jsonl):
    tool = {"type": "function", "function": {"name": "add"}}
    path = jsonl([{"input": "hi", "tools": [tool]}, {"input": "hi", "tools": json.dumps([tool])}])
    template = tokenizer.chat_template
    tokenizer.chat_template = "{{ tools[0].function.name }}:" + template
    try:
        data = opened(tokenizer, path, apply_chat_template=True)
    finally:
        tokenizer.chat_template = template
    assert [tokenizer.decode(p.tokens)[:4] for p in data.prompts] == ["add:", "add:"]
    assert data[1].tools == [tool]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"other": 1}, r"key 'input' is missing \(keys: other\); --input-key"),
        ({"input": None, "a": 1}, "key 'input' is null"),
        ({"input": "x"}, r"key 'a' is missing .*--label-key"),
        ({"input": 5, "a": 1}, "key 'input' must be text or a list of messages with a role, not int 5"),
        ({"input": [], "a": 1}, "must be text or a list of messages"),
        ({"input": [{"content": "x"}], "a": 1}, "must be text or a list of messages"),
        ({"input": [{"role": "user", "content": "x"}], "a": 1}, "holds messages; they need --apply-chat-template"),
        ({"input": "x", "a": 1, "metadata": [1]}, "key 'metadata' must be a dict, not list"),
        ({"input": "x", "a": 1, "metadata": "{"}, "key 'metadata' is text, but not JSON"),
        ({"input": "x", "a": 1, "tools": {"a": 1}}, "key 'tools' must be a list"),
        ({"input": "", "a": 1}, "the prompt has no tokens"),
        ({"input": "x" * 11, "a": 1}, "the prompt has 11 tokens, --rollout-max-prompt-len is 10"),
    ],
)
def test_bad_row_is_an_error_with_place_or_counted(tokenizer, jsonl, row, message):
    path = jsonl([{"input": "good", "a": "1"}, row])
    options = {"label_key": "a", "rollout_max_prompt_len": 10}
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: .*{message}"):
        opened(tokenizer, path, **options)
    data = opened(tokenizer, path, on_bad_row="skip", **options)
    assert (len(data), data.bad.count) == (1, 1)


def test_prompt_longer_than_the_context(tokenizer, jsonl):
    path = jsonl([{"input": "abcd"}])
    assert len(opened(tokenizer, path, max_context=5)) == 1
    with pytest.raises(DataError, match=r":1: .*prompt of 4 tokens leaves no room for a response in a context of 4"):
        opened(tokenizer, path, max_context=4)


def test_mixed_kinds_keep_their_order_through_the_length_check(tokenizer, jsonl):
    rows = [{"input": "a" if i % 2 else [{"role": "user", "content": "b"}], "metadata": {"i": i}} for i in range(6)]
    rows.insert(3, {"input": "x" * 500})
    data = opened(tokenizer, jsonl(rows), apply_chat_template=True, rollout_max_prompt_len=100, on_bad_row="skip")
    assert [p.metadata["i"] for p in data.prompts] == list(range(6))


def test_empty_sets(tokenizer, jsonl):
    with pytest.raises(DataError, match=r"no rows in .*rows\.jsonl"):
        opened(tokenizer, jsonl([]))
    with pytest.raises(DataError, match="no rows"):
        opened(tokenizer, jsonl([{"input": "x"}]) + "@[5:2]")
    with pytest.raises(DataError, match=r"no rows in .*1 left out: .*:1: "):
        opened(tokenizer, jsonl(["{"]), on_bad_row="skip")
    with pytest.raises(DataError, match="--prompt-data"):
        opened(tokenizer, [])


def test_supervised_rows_are_checked_for_a_target(tokenizer, jsonl):
    with pytest.raises(DataError, match=r":1: .*--label-key"):
        opened(tokenizer, jsonl([{"input": "x"}]), supervised=True)
    silent = [{"role": "user", "content": "x"}]
    with pytest.raises(DataError, match=r":1: .*no assistant turn"):
        opened(tokenizer, jsonl([{"input": silent}]), supervised=True, apply_chat_template=True)
    with pytest.raises(DataError, match="a prompt of 2 tokens and a response of 4 do not fit into a context of 5"):
        opened(tokenizer, jsonl([{"input": "ab", "a": "abc"}]), supervised=True, max_context=5, label_key="a")


def test_fingerprint_tells_data_sets_apart(tokenizer, jsonl):
    def of(rows):
        return opened(tokenizer, jsonl(rows), label_key="a").fingerprint()

    rows = [{"input": "x", "a": "1"}, {"input": "y", "a": "2"}]
    assert of(rows) == of(rows)
    assert len({of(rows), of(rows[::-1]), of([{"input": "x", "a": "2"}, rows[1]]), of(rows[:1])}) == 4


def test_context_comes_from_the_model_and_the_engine(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    config = Config(model=ModelSection(hf_checkpoint=str(tmp_path)))
    assert LengthLimits.of(config).context == 512
    assert LengthLimits.of(Config(model=config.model, vllm={"max_model_len": 64})).context == 64
    given = config.replace("rollout", rollout_max_context_len=100)
    assert LengthLimits.of(given).context == 100
    assert LengthLimits.of(Config()).context is None
    assert LengthLimits(context=10).budget(7, 8) == 3


def test_tokenizer_folder_errors(tmp_path, tokenizer):
    with pytest.raises(DataError, match="--hf-checkpoint names the folder"):
        load_tokenizer(None)
    with pytest.raises(DataError, match="no such folder"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(DataError, match="no tokenizer in this folder"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot be loaded"):
        load_tokenizer(tmp_path)
    tokenizer.save_pretrained(tmp_path / "good")
    assert load_tokenizer(tmp_path / "good").decode([37, 38]) == tokenizer.decode([37, 38])


def test_a_plain_prompt_begins_as_the_tokenizers_own_call_does(tokenizer, jsonl):
    """Once, also where the text spells it; a chat template writes it by itself."""
    from tokenizers.processors import TemplateProcessing

    with_bos = copy.deepcopy(tokenizer)
    bos = with_bos.bos_token_id
    with_bos.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    path = jsonl([{"q": "12"}, {"q": f"{with_bos.bos_token}12"}])
    assert with_bos("12")["input_ids"][0] == bos
    plain = [p.tokens for p in opened(with_bos, path, input_key="q")]
    assert plain == [with_bos("12")["input_ids"]] * 2
    assert opened(tokenizer, jsonl([{"q": "12"}]), input_key="q")[0].tokens == tokenizer("12")["input_ids"]
