"""Writes ``docs/cli.md`` from the definitions: ``python -m vime_cli.documents.options [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vime_core.config import GENERAL, USAGE, Catalogue, explain, groups, usage

_HEAD = f"""\
# The command line of `vime train`

<!-- Written by `python -m vime_cli.documents.options`; edit vime_core/config/ instead. -->

```
{USAGE}
```

`RECIPE` is a TOML file and comes first. A flag `--some-name` is the key `some_name` of a recipe, at the top or in the
table of its section, and the environment variable `VIME_SOME_NAME`. Layers, later wins: defaults, recipe, what plugins
propose, environment, flags. `--show-config` prints the result with the source of every value; each run folder keeps it,
and it can be run again as a recipe.

* There are no abbreviations. An unknown flag or key is an error that names the nearest one.
* A bool is `--flag` or `--no-flag`. A list takes several values, `--prompt-data a.jsonl b.jsonl`, and may be repeated;
  of a repeated single value the last one holds. `--flag=value` works everywhere, so a value may begin with `--`.
* JSON options take one argument: `--algorithm-options '{{"delta": 4.0}}'`; in a recipe they are tables.
* In an environment variable a list is JSON (`["a", "b"]`) or words as in a shell.
* `{{run}}`, `{{prepared.KEY}}`, `{{stages.NAME.hf}}` and `{{stages.NAME.run}}` in a value are filled in when they are
  known; `{{{{run}}}}` stands for a literal `{{run}}`.
* A recipe may have stages. Each `[[stage]]` table has a `name` and lays its keys over the rest of the file.
* `plugin = ["NAME", ...]` in a recipe does what `--plugin NAME` does; `[plugins.NAME]` holds a plugin's options.
* `[megatron]` and bare flags also take any other field of Megatron-core's `TransformerConfig`, `OptimizerConfig` and
  `DistributedDataParallelConfig`; `--vllm-NAME` and `--router-NAME` take vLLM's and vllm-router's. They are checked
  against the installed versions; `vime train --help vllm` (`router`, `megatron`) lists them.
"""


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_table("General", "", GENERAL), *_sections()])


def _sections() -> Iterator[str]:
    for title, about, keys in groups(Catalogue()):
        yield from _table(f"`{title}`", about, [(usage(key), explain(key)) for key in keys])


def _table(title: str, about: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from (f"## {title}", "")
    if about:
        yield from (about.replace("``", "`"), "")
    if rows:
        yield from ("| flag | meaning |", "|---|---|")
        yield from (f"| `{left.replace('|', chr(92) + '|')}` | {_escape(right)} |" for left, right in rows)
        yield ""


def _escape(text: str) -> str:
    """What Markdown would read as table, emphasis or HTML."""
    for sign in "|*_":
        text = text.replace(sign, "\\" + sign)
    return text.replace("<", "&lt;")


def main(arguments: Sequence[str]) -> None:
    target = Path(arguments[0]) if arguments else Path(__file__).parents[3] / "docs" / "cli.md"
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
