from __future__ import annotations

from typing import Any

import pytest

from vime_core.api.errors import DataError
from vime_core.data.templates import ChatTemplate, dialogue_target, label_target

QWEN_LIKE = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}[think]\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DIALOGUE = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "hi ok"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": "fine"},
]


def trained(tokenizer: Any, messages: Any, template: str | None = None) -> tuple[str, str]:
    """(text before the first trained token, whole text with [[trained]] spans)."""
    kept = tokenizer.chat_template
    tokenizer.chat_template = template or kept
    try:
        target = dialogue_target(messages, None, ChatTemplate(tokenizer, {}))
    finally:
        tokenizer.chat_template = kept
    text, inside = "", False
    for token, mask in zip(target.response, target.mask, strict=True):
        text += "[[" * (mask and not inside) + "]]" * (inside and not mask) + tokenizer.decode([token])
        inside = bool(mask)
    return tokenizer.decode(target.prompt), text + "]]" * inside


def test_golden_two_turns(tokenizer):
    prompt, text = trained(tokenizer, DIALOGUE)
    assert prompt == ("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi ok<|im_end|>\n<|im_start|>assistant\n")
    assert text == ("[[ok<|im_end|>]]\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n[[fine<|im_end|>]]\n")


def test_golden_template_that_rewrites_earlier_turns(tokenizer):
    _, text = trained(tokenizer, DIALOGUE, QWEN_LIKE)
    assert text == (
        "[[ok<|im_end|>]]\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n[[[think]\n\nfine<|im_end|>]]\n"
    )


def test_golden_a_turn_may_be_left_out(tokenizer):
    messages = [*DIALOGUE[:2], DIALOGUE[2] | {"step_loss_mask": 0}, *DIALOGUE[3:]]
    prompt, text = trained(tokenizer, messages)
    assert prompt.endswith("more<|im_end|>\n<|im_start|>assistant\n")
    assert text == "[[fine<|im_end|>]]\n"


def test_golden_tool_results_are_not_trained(tokenizer):
    messages = [DIALOGUE[1], DIALOGUE[2], {"role": "tool", "content": "42"}, {"role": "assistant", "content": "so 42"}]
    _, text = trained(tokenizer, messages)
    assert text == "[[ok<|im_end|>]]\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n[[so 42<|im_end|>]]\n"


def test_dialogue_that_stops_on_a_user_turn(tokenizer):
    _, text = trained(tokenizer, DIALOGUE[:4])
    assert text == "[[ok<|im_end|>]]\n<|im_start|>user\nmore<|im_end|>\n"


def test_end_of_sequence_is_added_where_the_template_has_no_end_of_turn(tokenizer):
    _, text = trained(tokenizer, DIALOGUE[:3], "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert text == "[[ok<eos>]]"


def test_no_assistant_turn(tokenizer):
    with pytest.raises(DataError, match="no assistant turn"):
        trained(tokenizer, DIALOGUE[:2])
    with pytest.raises(DataError, match="no assistant turn"):
        trained(tokenizer, [DIALOGUE[1], DIALOGUE[2] | {"step_loss_mask": 0}])


def test_turn_that_cannot_be_found_is_an_error_not_a_guess(tokenizer):
    shouting = "{% for m in messages %}{{ m.content | upper if not loop.last else m.content }};{% endfor %}"
    with pytest.raises(DataError, match=r"message 2: .*cannot be located"):
        trained(tokenizer, DIALOGUE, shouting)


def test_template_errors(tokenizer):
    with pytest.raises(DataError, match=r"refuses these messages: .*no system please"):
        trained(tokenizer, DIALOGUE, "{{ raise_exception('no system please') }}")
    kept, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(DataError, match="no chat template"):
            ChatTemplate(tokenizer, {}).render(DIALOGUE, None, generation_prompt=True)
    finally:
        tokenizer.chat_template = kept


def test_label_and_end_of_sequence(tokenizer):
    target = label_target([5, 6], 42, tokenizer)
    assert (target.prompt, tokenizer.decode(target.response), target.mask) == ([5, 6], "42<eos>", [1, 1, 1])
