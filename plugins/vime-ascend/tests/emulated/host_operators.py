"""Operators of torch on emulated NPUs, run on the host: device memory is host memory there, so it is only aliased.

torch_npu's C++ keeps what concerns memory (allocation, views, copies, casts between devices); every other operator of
aten that it registers is replaced by one that takes the same tensors as CPU tensors. Such a view over a device tensor
keeps strides and offset, so in-place operators work on the device's bytes.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

#: torch_npu's own: they allocate, alias or copy
_NATIVE = """
    empty.memory_format empty_strided _reshape_alias view as_strided _copy_from _copy_from_and_resize resize_ set_
    set_.source_Storage set_.source_Storage_storage_offset set_.source_Tensor is_set_to unfold _local_scalar_dense
    record_stream is_pinned _pin_memory _to_copy contiguous detach alias npu_format_cast_ squeeze unsqueeze slice.Tensor
    select.int transpose.int t permute expand view.dtype split.Tensor split_with_sizes unbind.int diagonal
"""


def install() -> list[torch.library.Library]:
    """Replace the operators. The libraries that are returned must be kept: the replacements go with them."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _registered():
            operator = _operator(name)
            if operator is not None and not _returns_view(operator):
                library.impl(name, _on_host(operator), "PrivateUse1", allow_override=True)
        library.impl("matmul_backward", _matmul_backward, "PrivateUse1", allow_override=True)
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            library.impl("scaled_dot_product_attention", _attention, key, allow_override=True)
    return [library]


def _registered() -> list[str]:
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
    return [name.removeprefix("aten::") for name in names if name.startswith("aten::")]


def _operator(name: str) -> Any:
    if name in _NATIVE.split():
        return None
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _returns_view(operator: Any) -> bool:
    return any(value.alias_info is not None and not value.alias_info.is_write for value in operator._schema.returns)


def _on_host(operator: Any) -> Callable[..., Any]:
    written = [argument.name for argument in operator._schema.arguments if _is_written(argument)]
    draws = any(argument.name == "generator" for argument in operator._schema.arguments)

    def call(*args: Any, **kwargs: Any) -> Any:
        originals: dict[int, torch.Tensor] = {}

        def lower(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("cpu")
            lowered = as_host(value)
            if lowered is not value:
                originals[id(lowered)] = value
            return lowered

        host_args, host_kwargs = tree_map(lower, args), tree_map(lower, kwargs)
        if "pin_memory" in host_kwargs:
            host_kwargs["pin_memory"] = False
        if draws:
            host_kwargs["generator"] = _generator()
        result = operator(*host_args, **host_kwargs)
        for name in written:
            _follow_size(kwargs.get(name), host_kwargs.get(name))
        return tree_map(lambda value: originals.get(id(value), as_device(value)), result)

    return call


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _follow_size(device: Any, host: Any) -> None:
    """An ``out`` tensor that the operator made larger."""
    if isinstance(device, torch.Tensor) and isinstance(host, torch.Tensor) and device.shape != host.shape:
        device.resize_(host.shape)
        as_host(device).copy_(host)


def as_host(value: Any) -> Any:
    """A CPU tensor over the bytes of a device tensor; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.device.type != "npu":
        return value
    size = value.untyped_storage().nbytes() // value.element_size() * value.element_size()
    if not size:
        return torch.empty(value.shape, dtype=value.dtype)
    memory = (ctypes.c_char * size).from_address(value.untyped_storage().data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(value.dtype)
    return torch.as_strided(flat, value.shape, value.stride(), value.storage_offset())


def as_device(value: Any) -> Any:
    """A device tensor with the values of a CPU tensor; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="npu")
    as_host(made).copy_(value)
    return made


def _generator() -> torch.Generator:
    """A CPU generator that follows the device's: its state is a seed and an offset, and each draw moves the offset."""
    device = torch.npu.default_generators[torch.npu.current_device()]  # type: ignore[attr-defined]
    state = device.get_state().view(torch.int64).clone()
    seed, offset = state.tolist()
    state[1] = offset + 4
    device.set_state(state.view(torch.uint8))
    return torch.Generator().manual_seed((seed * 1_000_003 + offset) % 2**63)


def _attention(
    query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, **more: Any
) -> Any:
    """Matrix products and a softmax, each on the host, instead of the fused kernel."""
    return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, **more)[0]


def _matmul_backward(grad: Any, left: Any, right: Any, mask: Any) -> tuple[Any, Any]:
    """By hand, because nothing is recorded below autograd. A vector is a matrix of one row or column."""
    g, a, b = (as_host(value) for value in (grad, left, right))
    row, column = a.dim() == 1, b.dim() == 1
    a2, b2 = (a[None] if row else a), (b[:, None] if column else b)
    g2 = g[..., None] if column else g
    g2 = g2[..., None, :] if row else g2
    first = (g2 @ b2.transpose(-1, -2)).sum_to_size(a2.shape).reshape(a.shape)
    second = (a2.transpose(-1, -2) @ g2).sum_to_size(b2.shape).reshape(b.shape)
    return as_device(first) if mask[0] else None, as_device(second) if mask[1] else None
