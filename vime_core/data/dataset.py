"""Prompts, read and tokenised once. What reaches the engine later is exactly the ids that are made here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from vime_core.api import DataError, Message, Sample
from vime_core.config import Config
from vime_core.data.limits import LengthLimits
from vime_core.data.readers import BadRows, Row, read_rows
from vime_core.data.templates import ChatTemplate, Target, dialogue_target, label_target
from vime_core.data.tokenizer import Tokenizer, leading_ids

Argument = TypeVar("Argument")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Prompt:
    """One usable row. ``tokens`` are the ids of the rendered prompt; ``source`` is file:line."""

    prompt: str | Sequence[Message]
    tokens: list[int]
    label: Any
    metadata: dict[str, Any]
    tools: Sequence[dict[str, Any]] | None
    source: str


@dataclass(frozen=True)
class RowSchema:
    """Which keys of a row mean what, and what is done with the prompt.

    Attributes:
        supervised: rows are checked for what they would train on: a label, or a dialogue with assistant turns.
    """

    input_key: str
    label_key: str | None
    metadata_key: str
    tool_key: str
    apply_chat_template: bool
    template_kwargs: dict[str, Any]
    supervised: bool = False

    @classmethod
    def of(cls, config: Config, *, supervised: bool = False) -> RowSchema:
        data = config.data
        return cls(
            data.input_key,
            data.label_key,
            data.metadata_key,
            data.tool_key,
            data.apply_chat_template,
            dict(data.apply_chat_template_kwargs),
            supervised,
        )

    @classmethod
    def of_evaluation(cls, config: Config) -> RowSchema:
        """Of the files of ``--eval-prompt-data``."""
        return replace(
            cls.of(config),
            input_key=config.eval.eval_input_key or config.data.input_key,
            label_key=config.eval.eval_label_key or config.data.label_key,
        )

    def draft(self, row: Row) -> Prompt:
        """A row's values, checked as far as that needs no tokenizer; ``tokens`` are still empty.

        Raises:
            DataError: a key is missing or holds something else. The message lacks the row's source.
        """
        prompt = _required(row, self.input_key, "--input-key")
        label = None if self.label_key is None else _required(row, self.label_key, "--label-key")
        metadata = _of_type(row, self.metadata_key, dict) or {}
        tools = _of_type(row, self.tool_key, list)
        dialogue = isinstance(prompt, list) and prompt and all(isinstance(m, dict) and "role" in m for m in prompt)
        if not dialogue and not isinstance(prompt, str):
            raise DataError(
                f"key {self.input_key!r} must be text or a list of messages with a role, not {_short(prompt)}"
            )
        if dialogue and not self.apply_chat_template:
            raise DataError(f"key {self.input_key!r} holds messages; they need --apply-chat-template")
        return Prompt(prompt, [], label, metadata, tools, row.source)


@dataclass
class PromptDataset:
    """All prompts in file order. ``bad`` counts the rows that were left out."""

    name: str
    prompts: list[Prompt]
    bad: BadRows = field(default_factory=lambda: BadRows("error"))

    @classmethod
    def open(cls, config: Config, tokenizer: Tokenizer, *, supervised: bool = False) -> PromptDataset:
        """The training prompts of the run (``--prompt-data``).

        Raises:
            DataError: with file:line and key, for the first row that cannot be used (unless ``--on-bad-row skip``),
                for a file that cannot be read, or when no row is left.
        """
        schema = RowSchema.of(config, supervised=supervised)
        return PromptBuilder.of(config, schema, tokenizer).read("train", config.data.prompt_data)

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, row: int) -> Prompt:
        return self.prompts[row]

    def fingerprint(self) -> str:
        """Hex digest of every prompt's ids and label, in order: another data set, or another order, is another one."""
        digest = hashlib.blake2b(digest_size=16)
        for prompt in self.prompts:
            digest.update(json.dumps([prompt.tokens, repr(prompt.label)]).encode())
        return digest.hexdigest()


@dataclass
class PromptBuilder:
    """Rows -> prompts; ``bad`` hears of those that cannot be used."""

    schema: RowSchema
    tokenizer: Tokenizer
    limits: LengthLimits
    bad: BadRows

    @classmethod
    def of(cls, config: Config, schema: RowSchema, tokenizer: Tokenizer) -> PromptBuilder:
        return cls(schema, tokenizer, LengthLimits.of(config), BadRows(config.data.on_bad_row))

    def read(self, name: str, paths: Sequence[str]) -> PromptDataset:
        """The data set of these files, called ``name`` in messages. Raises as :meth:`PromptDataset.open`."""
        if not paths:
            raise DataError(f"data set {name!r}: no file given; name one with --prompt-data")
        bad = self.bad
        prompts = self.build([row for path in paths for row in read_rows(path, bad)])
        bad.log()
        if not prompts:
            left_out = f" ({bad.count} left out: {bad.summary()})" if bad.count else ""
            raise DataError(f"data set {name!r}: no rows in {', '.join(paths)}{left_out}")
        return PromptDataset(name, prompts, bad)

    def build(self, rows: Iterable[Row]) -> list[Prompt]:
        """The usable ones of these rows: checked one by one, tokenised in one call."""
        drafts = [draft for row in rows if (draft := self._guard(row.source, self._draft, row)) is not None]
        texts = [text for _, text in drafts]
        ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        done = []
        leading = leading_ids(self.tokenizer)
        for (prompt, _), tokens in zip(drafts, ids):
            if self._is_plain(prompt) and tokens[: len(leading)] != leading:
                prompt.tokens.extend(leading)
            prompt.tokens.extend(tokens)
            if self._guard(prompt.source, self._check_length, prompt) is not None:
                done.append(prompt)
        return done

    def _guard(self, source: str, step: Callable[[Argument], Made], argument: Argument) -> Made | None:
        try:
            return step(argument)
        except DataError as error:
            self.bad.report(DataError(f"{source}: {error}"))
            return None

    def _draft(self, row: Row) -> tuple[Prompt, str]:
        prompt = self.schema.draft(row)
        return prompt, self._render(prompt)

    def _is_plain(self, row: Prompt) -> bool:
        """Its text is the prompt, without a template."""
        return not self.schema.apply_chat_template and isinstance(row.prompt, str)

    def _render(self, row: Prompt) -> str:
        text = row.prompt
        if self._is_plain(row) and isinstance(text, str):
            return text
        messages: Sequence[Message] = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return self._template.render(self._asked(messages), row.tools, generation_prompt=True)

    def _asked(self, messages: Sequence[Message]) -> Sequence[Message]:
        """What the model is asked: in a supervised dialogue, all before its first assistant turn."""
        if not self.schema.supervised or self.schema.label_key is not None:
            return messages
        first = next((i for i, m in enumerate(messages) if m.get("role") == "assistant"), 0)
        return messages[:first] or messages

    @property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer, self.schema.template_kwargs)

    def _check_length(self, prompt: Prompt) -> Prompt:
        if self.schema.supervised:
            target = supervised_target(prompt, self._template)
            violation = self.limits.violation(len(target.prompt), len(target.response))
        else:
            violation = self.limits.violation(len(prompt.tokens))
        if violation:
            raise DataError(f"key {self.schema.input_key!r}: {violation}")
        return prompt


def supervised_target(row: Prompt | Sample, template: ChatTemplate) -> Target:
    """The target of a :class:`Prompt` or a :class:`~vime_core.api.sample.Sample`: its label where it has one, else
    the assistant turns of its dialogue.

    Raises:
        DataError: neither is there.
    """
    tokens = row.tokens if isinstance(row, Prompt) else row.prompt_tokens
    if row.label is not None:
        return label_target(tokens, row.label, template.tokenizer)
    if isinstance(row.prompt, str):
        raise DataError("a text prompt needs a label to train on; --label-key names its key")
    return dialogue_target(row.prompt, row.tools, template)


def _required(row: Row, key: str, flag: str) -> Any:
    value = row.values.get(key)
    if value is None:
        state = "is null" if key in row.values else f"is missing (keys: {', '.join(map(str, row.values))})"
        raise DataError(f"key {key!r} {state}; {flag} names another")
    return value


def _of_type(row: Row, key: str, kind: type) -> Any:
    """The optional value of a key. Parquet files often keep such values as JSON text."""
    value = row.values.get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise DataError(f"key {key!r} is text, but not JSON: {error.msg}") from error
    if value is not None and not isinstance(value, kind):
        raise DataError(f"key {key!r} must be a {kind.__name__}, not {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}{'...' if len(text) > 60 else ''}"
