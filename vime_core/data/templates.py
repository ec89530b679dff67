"""Dialogues as tokens and loss mask, found by rendering prefixes of the dialogue.

The dialogue is rendered once and tokenised once. Where an assistant turn starts in that text is known from rendering
what precedes it with the generation prompt; where it ends, from rendering up to and including it. Templates that
rewrite earlier turns (and so break the second rendering) are handled by locating the turn's own content and the
end-of-turn text behind it. Anything else is an error: a mask is never guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime_core.api import DataError, Message
from vime_core.data.tokenizer import Tokenizer, eos_id


@dataclass(frozen=True)
class Target:
    """Supervised tokens. ``prompt`` precedes the first trained token; ``mask`` [response] is 1 where loss applies."""

    prompt: list[int]
    response: list[int]
    mask: list[int]


@dataclass(frozen=True)
class ChatTemplate:
    """The tokenizer's chat template with this run's keyword arguments."""

    tokenizer: Tokenizer
    kwargs: Mapping[str, Any]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, generation_prompt: bool
    ) -> str:
        """Raises:
        DataError: there is no template, or it refuses the messages.
        """
        if not self.tokenizer.chat_template:
            raise DataError(f"{self.tokenizer.name_or_path}: the tokenizer has no chat template (chat_template.jinja)")
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": generation_prompt, **self.kwargs}
        plain = [dict(message) for message in messages]
        plain_tools: list[Any] | None = [dict(tool) for tool in tools] if tools else None
        try:
            text = self.tokenizer.apply_chat_template(plain, tools=plain_tools, **options)
        except Exception as error:  # jinja raises whatever the template's author chose
            raise DataError(f"the chat template refuses these messages: {type(error).__name__}: {error}") from error
        return str(text)


def label_target(prompt_tokens: Sequence[int], label: Any, tokenizer: Tokenizer) -> Target:
    """A label as the response: its tokens and end-of-sequence, all trained."""
    text = label if isinstance(label, str) else str(label)
    tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], eos_id(tokenizer)]
    return Target(list(prompt_tokens), tokens, [1] * len(tokens))


def dialogue_target(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, template: ChatTemplate
) -> Target:
    """Every assistant turn trained, up to and including its end-of-turn token; a turn with ``step_loss_mask`` 0 is not.

    Raises:
        DataError: no assistant turn to train on, or a template under which the turns cannot be found.
    """
    text = template.render(messages, tools, generation_prompt=False)
    trained = [i for i, m in enumerate(messages) if m.get("role") == "assistant" and m.get("step_loss_mask", 1)]
    if not trained:
        raise DataError("the dialogue has no assistant turn to train on")
    spans = [_span(messages, tools, template, text, index) for index in trained]
    encoding = template.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens, mask = list(encoding["input_ids"]), _mask(encoding["offset_mapping"], spans)
    if 1 not in mask:
        raise DataError("the assistant turns of the dialogue have no tokens")
    if mask[-1] and tokens[-1] not in template.tokenizer.all_special_ids:
        tokens, mask = [*tokens, eos_id(template.tokenizer)], [*mask, 1]  # else nothing would teach the model to stop
    first = mask.index(1)
    return Target(tokens[:first], tokens[first:], mask[first:])


def _span(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    template: ChatTemplate,
    text: str,
    index: int,
) -> tuple[int, int]:
    """Characters [start, end) of assistant turn ``index`` in ``text``, with the end-of-turn text, without white space
    behind that."""
    before = template.render(messages[:index], tools, generation_prompt=True) if index else ""
    upto = template.render(messages[: index + 1], tools, generation_prompt=False)
    if text.startswith(before):
        if upto.startswith(before) and text.startswith(upto):
            return len(before), max(len(before), len(upto.rstrip()))
        later = next((i for i in range(index + 1, len(messages)) if messages[i].get("role") == "assistant"), None)
        limit = len(text) if later is None else len(template.render(messages[:later], tools, generation_prompt=True))
        end = _end_of_rewritten_turn(messages[index], upto, text, len(before), limit)
        if end is not None:
            return len(before), end
    raise DataError(
        f"message {index}: the chat template rewrites earlier turns, so the assistant turn cannot be located"
    )


def _end_of_rewritten_turn(message: Message, upto: str, text: str, start: int, limit: int) -> int | None:
    content = message.get("content")
    content = content.strip() if isinstance(content, str) else ""
    if not content or content not in upto:
        return None
    end_of_turn = upto[upto.rindex(content) + len(content) :].rstrip()
    at = text.find(content + end_of_turn, start, limit)
    return None if at < 0 else at + len(content) + len(end_of_turn)


def _mask(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """A token belongs to the span in which it starts."""
    starts = [start for start, _ in offsets]
    mask = [0] * len(starts)
    for begin, end in spans:
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        mask[first:last] = [1] * (last - first)
    return mask
