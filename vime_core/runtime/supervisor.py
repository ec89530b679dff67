"""Runs a command that must not outlive its owner: ``python -m vime_core.runtime.supervisor GRACE COMMAND...``.

The owner holds the other end of this process's stdin. When it closes, because the owner said so or because it was
killed, the command's whole process group gets SIGTERM, and SIGKILL after GRACE seconds; the same happens to what the
command leaves behind when it ends by itself. vLLM's servers need this: killed alone, they leave their engine running.

Two processes: the guard, and below it the keeper that does the work. Ray kills the children of a worker that ends, and
may so kill the guard before it has done anything; the keeper notices that too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

#: seconds between looks at the command
_POLL = 0.1


def main(arguments: list[str]) -> int:
    grace, command = float(arguments[0]), arguments[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides, by closing the pipe
    guard = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        os.setsid()
        os._exit(_keep(guard, grace, command))
    _, status = os.waitpid(keeper, 0)
    return os.waitstatus_to_exitcode(status)


def _keep(guard: int, grace: float, command: list[str]) -> int:
    """Run the command while owner and guard live; its exit status as a shell gives it."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_default_signals)
    while _owner_lives(guard) and child.poll() is None:
        time.sleep(_POLL)
    _end(child, grace)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _owner_lives(guard: int) -> bool:
    readable, _, _ = select.select([0], [], [], 0)
    return os.getppid() == guard and (not readable or bool(os.read(0, 1)))


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()


def _die_with_parent() -> None:
    """Should the keeper itself be killed: Linux ends the command then."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    end = time.monotonic() + grace
    _signal(child.pid, signal.SIGTERM)
    while time.monotonic() < end and (child.poll() is None or _group_lives(child.pid)):
        time.sleep(_POLL)
    _signal(child.pid, signal.SIGKILL)
    child.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
