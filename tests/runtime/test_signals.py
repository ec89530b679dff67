from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from vime_core.runtime.signals import Interrupted, Interrupts

QUIET = {"announce": lambda line: None}


def send(signum=signal.SIGINT):
    """Python runs the handler before the next line."""
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_raised_at_the_next_safe_point(signum, code):
    with Interrupts(**QUIET) as stop:
        stop.check()
        assert not stop.requested
        send(signum)
        assert stop.requested
        with pytest.raises(Interrupted, match=f"stopped by {signum.name}") as caught:
            stop.check()
    assert caught.value.exit_code == code


def test_nothing_is_cut_in_two_between_safe_points():
    with Interrupts(**QUIET) as stop:
        stop.check()
        send()
        written = "checkpoint"
    assert written == "checkpoint"


def test_signals_in_quick_succession_are_one():
    with Interrupts(grace=3600, **QUIET) as stop:
        send(signal.SIGINT)
        send(signal.SIGTERM)
        with pytest.raises(Interrupted) as caught:
            stop.check()
    assert caught.value.signal == signal.SIGINT


def test_the_old_handlers_come_back_also_after_an_error():
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]

    def run():
        with Interrupts(**QUIET):
            assert signal.getsignal(signal.SIGINT) != before[0]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


CHILD = """
import sys, time
from vime_core.runtime.signals import Interrupted, Interrupts
try:
    with Interrupts(last_resort=lambda: print("killed the rest", flush=True), grace=0) as stop:
        try:
            print("ready", flush=True)
            while True:
                stop.check()
                time.sleep(0.05)
        finally:
            print("ending", flush=True)
            if sys.argv[1] == "slow":
                time.sleep(600)
except Interrupted as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""

RAY = """
import sys
import ray
from vime_core.runtime.signals import Interrupted, Interrupts
try:
    with Interrupts() as stop:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        try:
            stop.check()
            print("ready", flush=True)
            task = ray.remote(lambda: __import__("time").sleep(600)).remote()
            while True:
                ray.wait([task], timeout=0.2)
                stop.check()
        finally:
            ray.shutdown()
            print("ended", flush=True)
except Interrupted as error:
    sys.exit(error.exit_code)
"""


@contextlib.contextmanager
def child(code, *arguments):
    """A process that is ready to be signalled; a watchdog ends one that hangs."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def test_a_process_in_a_long_wait_ends_with_its_cleanup_and_code():
    with child(CHILD, "quick") as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert out == "ending\nstopped by SIGTERM; checkpoints written so far are valid\n"
    assert "SIGTERM: stopping; once more to exit at once" in err
    assert "Traceback" not in err
    assert process.returncode == 143


def test_the_second_signal_does_not_wait_for_a_slow_cleanup():
    with child(CHILD, "slow") as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert out == "killed the rest\n"
    assert "SIGINT again: exiting at once" in err
    assert process.returncode == 130


@pytest.mark.slow
def test_ray_does_not_keep_the_signals():
    with child(RAY) as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert out == "ended\n", err
    assert process.returncode == 143


def test_a_safe_point_takes_the_signals_back():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts(**QUIET) as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.check()
        send(signal.SIGTERM)
        assert stop.requested
    assert signal.getsignal(signal.SIGTERM) == before
