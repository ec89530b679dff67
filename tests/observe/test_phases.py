from __future__ import annotations

import pytest

from vime_core.observe.catalog import unknown
from vime_core.observe.phases import PhaseClock, StepTimes


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def run(clock, times, *seconds_by_phase):
    for name, seconds in seconds_by_phase:
        with times.phase(name):
            clock.now += seconds


def test_a_step_is_divided_among_its_phases():
    clock = Clock()
    times = PhaseClock(clock)
    times.start_step()
    run(clock, times, ("generate", 6.0), ("train", 2.0))
    clock.now += 0.5
    run(clock, times, ("sync", 1.5), ("eval", 30.0), ("save", 4.0))
    step = times.end_step()
    assert step.wall == 44.0
    assert step.step == 10.0
    assert step.phases == {"generate": 6.0, "train": 2.0, "sync": 1.5, "eval": 30.0, "save": 4.0}
    assert step.overhead_ratio == pytest.approx(0.05)


def test_an_inner_phase_stops_the_clock_of_the_outer():
    clock = Clock()
    times = PhaseClock(clock)
    times.start_step()
    with times.phase("train"):
        clock.now += 1
        with times.phase("log_probs"):
            clock.now += 10
            with times.phase("train"):
                clock.now += 100
        clock.now += 1000
    step = times.end_step()
    assert step.phases == {"train": 1101.0, "log_probs": 10.0}
    assert step.wall == 1111.0
    assert step.overhead_ratio == 0.0


def test_a_phase_that_raises_is_timed_and_left():
    clock = Clock()
    times = PhaseClock(clock)
    times.start_step()

    def generate():
        with times.phase("generate"):
            clock.now += 3
            raise RuntimeError("engine")

    with pytest.raises(RuntimeError, match="engine"):
        generate()
    run(clock, times, ("train", 1.0))
    assert times.end_step().phases == {"generate": 3.0, "train": 1.0}


def test_steps_do_not_see_each_other_nor_what_came_before():
    clock = Clock()
    times = PhaseClock(clock)
    run(clock, times, ("eval", 7.0))
    clock.now += 2
    times.start_step()
    run(clock, times, ("train", 1.0))
    assert times.end_step() == StepTimes(1.0, {"train": 1.0})
    times.start_step()
    run(clock, times, ("train", 5.0))
    assert times.end_step() == StepTimes(5.0, {"train": 5.0})
    assert times.totals == {"eval": 7.0, "train": 6.0, "other": 2.0}
    assert sum(times.totals.values()) == times.wall


def test_what_a_worker_measured_is_split_off_but_never_more_than_there_was():
    clock = Clock()
    times = PhaseClock(clock)
    times.start_step()
    run(clock, times, ("train", 10.0))
    times.split("train", "log_probs", 3.0)
    assert times.end_step().phases == {"train": 7.0, "log_probs": 3.0}
    times.split("train", "log_probs", 99.0)
    assert times.totals == {"log_probs": 10.0}


def test_metrics_are_in_the_catalogue_and_absent_when_not_measured():
    everything = StepTimes(20.0, dict.fromkeys(("generate", "log_probs", "train", "sync", "eval", "save"), 2.0))
    found = everything.metrics()
    assert unknown(found) == []
    assert found["perf/step_time"] == 16.0
    assert found["perf/train_time"] == 4.0
    assert found["perf/train_wait_time"] == 12.0
    assert found["perf/overhead_ratio"] == pytest.approx(0.5)
    assert StepTimes(2.0, {"generate": 1.0}).metrics() == {
        "perf/step_time": 2.0,
        "perf/rollout_time": 1.0,
        "perf/overhead_ratio": 0.5,
    }
    assert "perf/overhead_ratio" not in StepTimes(0.0, {}).metrics()


def test_a_listener_hears_what_goes_on_now():
    heard = []
    times = PhaseClock(on_enter=heard.append)
    with times.phase("train"), times.phase("log_probs"):
        pass
    assert heard == ["train", "log_probs", "train"]


def test_the_real_clock_only_moves_forward():
    times = PhaseClock()
    times.start_step()
    with times.phase("train"):
        sum(range(1000))
    step = times.end_step()
    assert 0 < step.phases["train"] <= step.wall
