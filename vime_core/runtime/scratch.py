"""A short-named folder for the sockets and temporary files of a run's processes, which is gone with the run.

Ray keeps a folder a session and vLLM leaves sockets behind; a machine that trains every day would fill up with them.
Paths of sockets have about a hundred bytes, so the folder cannot lie inside the run's own.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: longest temporary folder under which Ray's sockets still fit
_LONGEST = 30


@contextlib.contextmanager
def scratch(logs: Path) -> Iterator[Path]:
    """The folder. Where the block ends by an error, what Ray's workers wrote is kept in ``logs/ray``."""
    usual = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="vime-", dir=usual if len(usual) <= _LONGEST else "/tmp"))
    try:
        yield folder
    except BaseException:
        keep_logs(folder, logs / "ray")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep_logs(folder: Path, target: Path) -> None:
    """Copy the logs of Ray's session below ``folder``; sockets and empty files are left."""
    for file in folder.glob("session_2*/logs/*"):
        if file.is_file() and file.stat().st_size:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.name)


def variables(folder: Path) -> dict[str, str]:
    """Environment of the run's processes. What compilers keep between runs stays where it is."""
    return {
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", _compiled()),
    }


def _compiled() -> str:
    """Where torch keeps compiled code unless told otherwise; compiling it again takes longer than a short run."""
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{re.sub(r'[^A-Za-z0-9_-]', '_', getpass.getuser())}")
