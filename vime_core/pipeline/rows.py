"""The driver's own look at the data, so that a row that cannot be used is reported before a process is started.

Keys and types need no tokenizer. Lengths do: a text has at most about as many tokens as bytes, so only prompts with
more bytes than there is room for are tokenised here, and of those the longest. The rollout worker checks every row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vime_core.api import DataError
from vime_core.config import placeholders
from vime_core.data import BadRows, LengthLimits, PromptBuilder, Row, RowSchema, load_tokenizer, read_rows

if TYPE_CHECKING:
    from vime_core.config import Config

#: prompts that are tokenised here, of those that may be too long
_LONGEST = 100


def check_rows(config: Config, *, supervised: bool) -> None:
    """Read every data file once; one that is not there yet (a placeholder) is left out.

    Raises:
        DataError: a row that cannot be used (unless rows are skipped); no rows; fewer than a step takes.
    """
    paths = config.data.prompt_data
    usable = _usable(config, paths, RowSchema.of(config, supervised=supervised))
    need = max(config.rollout.rollout_batch_size or 1, config.rollout.over_sampling_batch_size or 1)
    if usable is not None and usable < need:
        raise DataError(
            f"{', '.join(paths)}: {usable} usable rows, but a step takes {need} prompts: lower --rollout-batch-size "
            "(or --over-sampling-batch-size), or give more data"
        )
    for path in config.eval.eval_prompt_data[1::2]:
        if _usable(config, [path], RowSchema.of_evaluation(config)) == 0:
            raise DataError(f"{path}: no usable rows to evaluate on")


def _usable(config: Config, paths: Sequence[str], schema: RowSchema) -> int | None:
    if any(placeholders(path) for path in paths):
        return None
    bad = BadRows(config.data.on_bad_row)
    count, long = 0, list[tuple[int, Row]]()
    room = _room(LengthLimits.of(config))
    for row in (row for path in paths for row in read_rows(path, bad)):
        try:
            prompt = schema.draft(row).prompt
        except DataError as error:
            bad.report(DataError(f"{row.source}: {error}"))
            continue
        count += 1
        size = len((prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)).encode())
        if room is not None and size > room:
            long.append((size, row))
    if config.data.on_bad_row == "error" and long:
        _check_lengths(config, schema, long, bad)
    return count


def _room(limits: LengthLimits) -> int | None:
    """Tokens that a prompt may have."""
    bounds = [limits.prompt] if limits.prompt is not None else []
    bounds += [limits.context - 1] if limits.context is not None else []
    return min(bounds, default=None)


def _check_lengths(config: Config, schema: RowSchema, long: list[tuple[int, Row]], bad: BadRows) -> None:
    folder = config.model.hf_checkpoint
    if folder is None or placeholders(folder):
        return
    chosen = sorted(range(len(long)), key=lambda i: -long[i][0])[:_LONGEST]
    builder = PromptBuilder(schema, load_tokenizer(folder), LengthLimits.of(config), bad)
    builder.build(long[i][1] for i in sorted(chosen))
