"""What a device backend must answer, and what torch must do on it. Where its probe says no, only the answers are
checked; the rest is skipped with the probe's reason, never passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vime_core.api import DeviceBackend
from vime_testing.suite import Suite, must, skip

if TYPE_CHECKING:
    import torch

_ROLES = ("driver", "trainer", "engine", "rollout")
_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool")


class DeviceSuite(Suite):
    """Set ``target``. Needs torch; where the device is there, it is used.

    Attributes:
        block: bytes that are allocated to see the memory figures move.
    """

    kind = "device_backends"
    block: ClassVar[int] = 64 << 20

    def make(self) -> DeviceBackend:
        """A new object of the backend."""
        made: DeviceBackend = self.resolve()()
        return made

    def absence(self) -> str:
        """Why the device cannot be used here; empty where it can."""
        if not isinstance(self.target, str):
            return ""
        registry = self.loaded().devices
        if self.target not in registry.names():
            return ""
        able, reason = registry.get(self.target).available()
        return "" if able else reason or "its probe says no and gives no reason"

    # answers -------------------------------------------------------------------------------------------------
    def test_a_probe_that_says_no_says_why(self) -> None:
        absence = self.absence()
        must("gives no reason" not in absence, f"{absence}; return (False, 'what is missing and how to get it')")

    def test_types_and_names(self) -> None:
        device = self._loadable()
        for name in ("device_type", "collective"):
            must(isinstance(getattr(device, name, None), str), f"{name} is not set; it is a class attribute, a str")

    def test_the_environment_is_text(self) -> None:
        device = self._loadable()
        for role in _ROLES:
            values = device.environment(role)
            wrong = [k for k, v in values.items() if not (isinstance(k, str) and isinstance(v, str))]
            must(not wrong, f"environment({role!r}): {wrong} are not text; variables are strings")
            must(values == device.environment(role), f"environment({role!r}) differs between two calls")

    def test_ray_reserves_what_is_asked_for(self) -> None:
        device = self._loadable()
        one, two = device.ray_options(1), device.ray_options(2)
        must(one, "ray_options(1) is empty: a worker would reserve nothing")
        must(one != two, f"ray_options(1) and ray_options(2) are both {one}; reserve as many as asked for")

    def test_arguments_for_both_stacks_are_named(self) -> None:
        device = self._loadable()
        for what in ("megatron_overrides", "engine_arguments"):
            values = getattr(device, what)()
            must(
                isinstance(values, Mapping) and all(isinstance(k, str) and k.isidentifier() for k in values),
                f"{what}() is {values!r}; return a mapping of argument names (with _) to values",
            )

    def test_findings_say_how_to_mend(self) -> None:
        for finding in self._loadable().doctor():
            must(finding.ok or finding.fix, f"doctor(): {finding.name} is not well and has no fix; say what to do")

    # the device itself ---------------------------------------------------------------------------------------
    def test_every_slot_has_a_place(self) -> None:
        device = self._present()
        count = device.count()
        must(count >= 1, f"the probe says yes and count() is {count}; one of the two is wrong")
        places = [device.local_index(rank) for rank in range(count)]
        must(all(0 <= place < count for place in places), f"local_index gives {places} on {count} devices")
        device.set_device(places[0])
        kind = device.torch_device(places[0]).type
        must(kind == device.device_type, f"torch_device() is a {kind} device, device_type is {device.device_type}")

    def test_the_same_seed_gives_the_same_numbers(self) -> None:
        device = self._present()
        draws = []
        for seed in (3, 3, 4):
            device.manual_seed(seed)
            draws.append(self._random())
        must((draws[0] == draws[1]).all(), "manual_seed(3) twice gives different numbers; seed this device's generator")
        must((draws[0] != draws[2]).any(), "seeds 3 and 4 give the same numbers; manual_seed has no effect")

    def test_a_random_state_comes_back(self) -> None:
        device = self._present()
        device.manual_seed(5)
        self._random()
        state = device.get_rng_state()
        first = self._random()
        device.set_rng_state(state)
        must((self._random() == first).all(), "after set_rng_state(get_rng_state()) other numbers follow")

    def test_bytes_survive_the_way_there_and_back(self) -> None:
        import torch

        place = self._present().torch_device(0)
        for name in _DTYPES:
            source = torch.arange(-8, 33).to(getattr(torch, name)).reshape(1, 41).T
            back = source.to(place).cpu()
            must(back.dtype == source.dtype and torch.equal(back, source), f"{name} comes back changed from {place}")

    def test_memory_figures_are_sane_and_move(self) -> None:
        import torch

        device = self._present()
        device.empty_cache()
        before = device.memory()
        must(0 <= before.used <= before.total, f"memory() is {before}: used must lie within total, in bytes")
        held = torch.ones(self.block, dtype=torch.uint8, device=device.torch_device(0))
        device.synchronize()
        during = device.memory()
        grown = during.used - before.used
        must(
            grown >= self.block // 2,
            f"{self.block} bytes were allocated and used grew by {grown}; memory() must see this process's tensors",
        )
        must(during.peak >= during.used // 2, f"memory() is {during}: peak is the most that was used")
        del held
        device.empty_cache()
        freed = during.used - device.memory().used
        must(
            freed >= self.block // 2, f"{self.block} bytes were freed and used fell by {freed}; empty_cache keeps them"
        )

    def test_the_collective_is_known_to_torch(self) -> None:
        import torch.distributed as dist

        device = self._present()
        if dist.is_initialized():
            skip("torch.distributed is in use in this process")
        dist.init_process_group(device.collective, store=dist.HashStore(), rank=0, world_size=1)
        try:
            import torch

            one = torch.ones(4, device=device.torch_device(0))
            dist.all_reduce(one)
            must(float(one.sum()) == 4.0, f"all_reduce over one rank of {device.collective} changed the values")
        finally:
            dist.destroy_process_group()

    def test_megatron_is_adapted_once(self) -> None:
        try:
            import megatron.core  # noqa: F401
        except ImportError as error:
            skip(f"megatron-core cannot be imported: {error}")
        device = self._present()
        first, second = list(device.adapt_megatron()), list(device.adapt_megatron())
        must(first == second, f"adapt_megatron() twice: {first} and {second}; it must be idempotent")
        must(len(set(first)) == len(first), f"adapt_megatron() names a shim twice: {first}")

    # -----------------------------------------------------------------------------------------------------------
    def _loadable(self) -> DeviceBackend:
        """The backend, where its packages are; its answers need no device."""
        absence = self.absence()
        try:
            return self.make()
        except Exception:
            if absence:
                skip(absence)
            raise

    def _present(self) -> DeviceBackend:
        absence = self.absence()
        if absence:
            skip(absence)
        return self.make()

    def _random(self) -> torch.Tensor:
        import torch

        return torch.rand(16, device=self.make().torch_device(0)).cpu()
