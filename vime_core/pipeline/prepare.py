"""``prepare``: a function that makes what a recipe needs (a model, data) before anything starts.

It runs in a process of its own, because it may import anything, and the driver stays light.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from vime_core.api import UsageError

#: seconds that a preparation may take
DEADLINE = 1800.0


def prepare(target: str, folder: Path, seed: int) -> dict[str, str]:
    """Call ``target(folder, seed)``; what it returns fills ``{prepared.KEY}``.

    Raises:
        UsageError: it failed; the message holds the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / "prepared.json"
    command = [sys.executable, "-m", "vime_core.pipeline.prepare", target, str(folder), str(seed), str(answer)]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"prepare {target!r} did not end within {DEADLINE:.0f} s") from None
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise UsageError(f"prepare {target!r} failed with exit code {done.returncode}:\n{tail}")
    return json.loads(answer.read_text())


def _main() -> int:
    from vime_core.api import VimeError
    from vime_core.plugin import load_target

    target, folder, seed, answer = sys.argv[1:]
    try:
        made = load_target(target)(Path(folder), int(seed))
    except VimeError as error:
        print(error)
        return error.exit_code
    Path(answer).write_text(json.dumps({key: str(value) for key, value in made.items()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
