"""Devices that are wrong, each in one way; the right one stands on the CPU, as the built-in device does."""

from __future__ import annotations

import itertools

import torch
from vime_testing import DeviceSuite

from vime_core.api.device import DoctorFinding, MemoryFigures
from vime_core.devices.cpu import CpuBackend

_shims = itertools.count()


class Right(CpuBackend):
    """Without Megatron, which takes seconds to import; the built-in device is checked with it."""

    def adapt_megatron(self):
        return []

    def megatron_overrides(self):
        return {}


class Nameless(Right):
    device_type = None


class NumbersInEnvironment(Right):
    def environment(self, role):
        return {"OMP_NUM_THREADS": 1}


class ReservesNothing(Right):
    def ray_options(self, devices):
        return {}


class SpellsWithDashes(Right):
    def engine_arguments(self):
        return {"enforce-eager": True}


class Complains(Right):
    def doctor(self):
        return [DoctorFinding("driver", ok=False, detail="too old")]


class HasNone(Right):
    def count(self):
        return 0


class Unseeded(Right):
    def manual_seed(self, seed):
        torch.manual_seed(0)


class ForgetsTheState(Right):
    def set_rng_state(self, state):
        pass


class InMegabytes(Right):
    def memory(self):
        figures = super().memory()
        return MemoryFigures(figures.used >> 20, figures.peak >> 20, figures.total >> 20)


class UnknownCollective(Right):
    collective = "gloop"


class ShimsTwice(Right):
    def adapt_megatron(self):
        return [f"shim {next(_shims)}"]


class TestRight(DeviceSuite):
    target = Right


class TestNameless(DeviceSuite):
    target = Nameless


class TestNumbersInEnvironment(DeviceSuite):
    target = NumbersInEnvironment


class TestReservesNothing(DeviceSuite):
    target = ReservesNothing


class TestSpellsWithDashes(DeviceSuite):
    target = SpellsWithDashes


class TestComplains(DeviceSuite):
    target = Complains


class TestHasNone(DeviceSuite):
    target = HasNone


class TestUnseeded(DeviceSuite):
    target = Unseeded


class TestForgetsTheState(DeviceSuite):
    target = ForgetsTheState


class TestInMegabytes(DeviceSuite):
    target = InMegabytes


class TestUnknownCollective(DeviceSuite):
    target = UnknownCollective


class TestShimsTwice(DeviceSuite):
    target = ShimsTwice
