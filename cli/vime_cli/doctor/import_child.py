"""``python -m vime_cli.doctor.import_child MODULE``: import it; an error is one line, with what caused it."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator

from vime_core.plugin.messages import BLAMABLE, one_line


def chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield one_line(error)
        error = error.__cause__


def main(module: str) -> int:
    warnings.simplefilter("ignore")
    try:
        importlib.import_module(module)
    except BLAMABLE as error:
        print(" <- ".join(chain(error)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
