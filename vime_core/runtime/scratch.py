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
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil

from vime_core.runtime.leftovers import PREFIX, mark, remove_leftovers

#: longest temporary folder under which Ray's sockets still fit
_LONGEST = 30


@contextlib.contextmanager
def scratch(logs: Path) -> Iterator[Path]:
    """The folder. Where the block ends by an error, what Ray's workers wrote is kept in ``logs/ray``."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= _LONGEST else "/tmp"
    remove_leftovers(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    mark(folder)
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


def variables(folder: Path, collective: str) -> dict[str, str]:
    """Environment of the run's processes, all on this machine. What compilers keep between runs stays where it is.

    Args:
        collective: the device's communication library, which asks as gloo does for the interface to listen on.
    """
    loopback, compiled = _loopback(), _compiled()
    # torch keeps compiled headers (150 MB, half a minute) below the temporary folder, whatever it is told of its cache
    with contextlib.suppress(FileExistsError):
        (folder / _inductor_name()).symlink_to(compiled)
    return {
        "GLOO_SOCKET_IFNAME": loopback,
        f"{collective.upper()}_SOCKET_IFNAME": loopback,
        "VLLM_HOST_IP": "127.0.0.1",
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(compiled),
    }


def _loopback() -> str:
    """The interface's name."""
    found = psutil.net_if_addrs().items()
    return next((name for name, addresses in found if any(a.address == "127.0.0.1" for a in addresses)), "lo")


def _compiled() -> Path:
    """Where this user's compiled code is kept from run to run, for each version of torch and Python."""
    python = ".".join(map(str, sys.version_info[:2]))
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vime"
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    folder = Path(given) if given else usual / f"inductor-{metadata.version('torch')}-python{python}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a home that cannot be written
        folder = Path(tempfile.gettempdir()) / _inductor_name()
        folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _inductor_name() -> str:
    """Of torch's folder below the temporary one."""
    return "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
