"""What a Megatron module sees under the name ``torch``: torch itself, with ``torch.cuda`` meaning the device at hand.

The proxy is set as the attribute ``torch`` of single modules and never in ``sys.modules``, so nothing outside those
modules notices. It forwards every name except ``cuda`` and the tensor factories, whose ``device="cuda"`` and
``pin_memory=True`` are translated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "randint", "eye")


class ProxiedDevice(Protocol):
    """What the proxy asks of a device; ``module`` is its torch module, e.g. ``torch.cpu``."""

    @property
    def module(self) -> Any: ...

    def torch_device(self, index: int = 0) -> torch.device: ...

    def synchronize(self) -> None: ...

    def empty_cache(self) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def get_rng_state(self) -> torch.Tensor: ...

    def set_rng_state(self, state: torch.Tensor) -> None: ...


class TorchProxy(ModuleType):
    """``torch`` for one device.

    Args:
        device: the device that "cuda" stands for.
    """

    def __init__(self, device: ProxiedDevice) -> None:
        import torch

        super().__init__("torch")
        self.device_backend = device
        self._real = torch
        self.cuda = DeviceNamespace(device)
        for name in _FACTORIES:
            setattr(self, name, _translating(getattr(torch, name), device))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class DeviceNamespace:
    """``torch.cuda`` for one device: what Megatron calls, then the device's torch module, then ``torch.cuda`` itself
    (exceptions, annotations)."""

    def __init__(self, device: ProxiedDevice) -> None:
        self._device = device
        self.random = self
        for name in ("manual_seed", "get_rng_state", "set_rng_state"):
            setattr(self, name, _first_argument(getattr(device, name)))

    def current_device(self) -> Any:
        module = self._device.module
        index = module.current_device()
        return self._device.torch_device(index if isinstance(index, int) else 0)

    def synchronize(self, *_: Any) -> None:
        self._device.synchronize()

    def empty_cache(self) -> None:
        self._device.empty_cache()

    def __getattr__(self, name: str) -> Any:
        module = self._device.module
        if name in _STREAMS and not hasattr(module, "default_stream"):
            return _STREAMS[name]
        if hasattr(module, name):
            return getattr(module, name)
        import torch

        return getattr(torch.cuda, name)


class NullStream:
    """A stream of a device that works in order anyway."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        """Something to wait for; there is nothing to wait for."""
        return self if event is None else event

    def synchronize(self) -> None: ...


def _null_stream(*_: Any, **__: Any) -> NullStream:
    return NullStream()


def _null_context(*_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


_STREAMS: dict[str, Any] = {
    "Stream": NullStream,
    "stream": _null_context,
    "current_stream": _null_stream,
    "default_stream": _null_stream,
}


def _translating(factory: Callable[..., Any], device: ProxiedDevice) -> Callable[..., Any]:
    pins = hasattr(device.module, "caching_host_allocator") or hasattr(device.module, "memory_allocated")

    def build(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = device.torch_device()
        if not pins:
            kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return build


def _first_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron passes a device beside a seed or state; the backend works on the current one."""

    def call(*args: Any, device: Any = None, **_: Any) -> Any:
        return function(*args[:1])

    return call
