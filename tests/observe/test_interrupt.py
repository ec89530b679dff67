from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from vime_core.observe.interrupt import Interrupted, Interrupts

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


def test_a_wait_ends_at_once():
    with Interrupts(**QUIET) as stop:
        after = []

        def wait():
            with stop.waiting():
                send()
                after.append("waited on")

        with pytest.raises(Interrupted):
            wait()
        assert after == []


def test_a_wait_does_not_begin_after_the_signal():
    with Interrupts(**QUIET) as stop:
        send()
        entered = []
        with pytest.raises(Interrupted), stop.waiting():
            entered.append(1)
        assert entered == []


def test_outside_a_wait_work_goes_on_after_one_inside():
    with Interrupts(**QUIET) as stop:
        with stop.waiting():
            pass
        send()
        written = "checkpoint"
    assert written == "checkpoint"


def test_a_wait_elsewhere_is_woken_once_or_at_once_when_late():
    with Interrupts(**QUIET) as stop:
        woken = []
        with stop.waking(lambda: woken.append("early")):
            send()
            assert woken == ["early"]
        with stop.waking(lambda: woken.append("late")):
            assert woken == ["early", "late"]


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
import signal, sys, time
from vime_core.observe.interrupt import Interrupted, Interrupts
try:
    with Interrupts(last_resort=lambda: print("killed the rest", flush=True), grace=0) as stop:
        try:
            print("ready", flush=True)
            with stop.waiting():
                time.sleep(600)
        finally:
            print("ending", flush=True)
            if sys.argv[1] == "slow":
                time.sleep(600)
except Interrupted as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def child(request):
    command = [sys.executable, "-c", CHILD, request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("child", ["quick"], indirect=True)
def test_a_process_in_a_long_wait_ends_with_its_cleanup_and_code(child):
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
    assert out == "ending\nstopped by SIGTERM; the last complete checkpoint is valid\n"
    assert "SIGTERM: stopping; once more to exit at once" in err
    assert "Traceback" not in err
    assert child.returncode == 143


@pytest.mark.parametrize("child", ["slow"], indirect=True)
def test_the_second_signal_does_not_wait_for_a_slow_cleanup(child):
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "ending\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert out == "killed the rest\n"
    assert "SIGINT again: exiting at once" in err
    assert child.returncode == 130
