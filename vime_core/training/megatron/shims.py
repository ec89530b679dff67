"""What of megatron-core says "cuda" where it means "the device", mended module by module.

Each shim has a name (``module:attribute``), a reason, and a guard: the release of megatron-core they were written
against, and the presence of what they replace. Four kinds:

* proxy: the module's own name ``torch`` becomes :class:`~vime_core.training.megatron.torch_proxy.TorchProxy`.
* literals: constants or attribute names inside one function's code, for ``tensor.type() == "torch.cuda.FloatTensor"``
  and ``tensor.cuda()``, which no module-level name can reach. The function object stays the same, so every importer
  sees it.
* absent: a name that an optional import would have bound, and that the module reads without it.
* function: a module's function is replaced, and so is each name in the listed modules it was imported under.

Nothing outside megatron-core and mbridge is touched: torch's namespace and ``torch.Tensor`` stay as they are, so
Hugging Face models and vLLM work in the same process.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from vime_core.api import TrainerError
from vime_core.training.megatron.torch_proxy import ProxiedDevice, TorchProxy

if TYPE_CHECKING:
    import torch

#: release of megatron-core that the shims were written against
MEGATRON_RELEASE = "0.16."

_CORE = "megatron.core."

#: modules that call torch.cuda, name device="cuda" or pin memory on the way of building, training and checkpointing
_PROXIED = (
    *(_CORE + name for name in ("parallel_state", "utils", "timers", "rerun_state_machine")),
    *(_CORE + "tensor_parallel." + name for name in ("layers", "mappings", "random", "utils", "data")),
    *(_CORE + "distributed." + name for name in ("distributed_data_parallel", "param_and_grad_buffer")),
    *(_CORE + "optimizer." + name for name in ("optimizer", "distrib_optimizer", "clip_grads", "grad_scaler")),
    *(_CORE + "pipeline_parallel." + name for name in ("schedules", "p2p_communication", "utils")),
    *(_CORE + "models.common.embeddings." + name for name in ("rotary_pos_embedding", "yarn_rotary_pos_embedding")),
    _CORE + "models.gpt.gpt_model",
    *(_CORE + "transformer." + name for name in ("module", "mlp", "attention", "transformer_layer", "utils")),
    *(_CORE + "transformer.moe." + name for name in ("experts", "router", "moe_utils", "token_dispatcher")),
    _CORE + "transformer.moe.shared_experts",
    *(_CORE + "dist_checkpointing." + name for name in ("exchange_utils", "tensor_aware_state_dict")),
    *(_CORE + "dist_checkpointing.strategies." + name for name in ("torch", "filesystem_async", "fully_parallel")),
    *(_CORE + "dist_checkpointing.strategies." + name for name in ("state_dict_saver", "async_utils")),
    "mbridge.core.util",
    "mbridge.core.bridge",
)


@dataclass(frozen=True)
class Shim:
    """One change: ``name`` is ``module:attribute``, ``apply`` is idempotent."""

    name: str
    why: str
    apply: Callable[[], None]


class MegatronShims:
    """All shims that one device needs.

    Args:
        device: the device that "cuda" stands for.
    """

    def __init__(self, device: ProxiedDevice) -> None:
        self._device = device

    def apply(self) -> list[str]:
        """Apply each, in order. Idempotent.

        Returns:
            the names of the shims.

        Raises:
            TrainerError: another release of megatron-core, or one that lacks what a shim replaces.
        """
        _check_release()
        shims = self.list()
        with warnings.catch_warnings():
            # The modules are imported here, and each says that Transformer Engine and Apex are not installed.
            warnings.simplefilter("ignore")
            for shim in shims:
                shim.apply()
        return [shim.name for shim in shims]

    def list(self) -> list[Shim]:
        """The shims, for ``vime doctor``."""
        device = self._device
        proxy = TorchProxy(device)
        shims = [_proxy(module, proxy) for module in _PROXIED]
        shims += [_literals(module, function, _type_names(device)) for module, function in _TYPE_CHECKS]
        shims.append(
            _literals(
                _CORE + "models.common.language_module.language_module",
                "LanguageModule.setup_embeddings_and_output_layer",
                {"cuda": "to"},
                names=True,
            )
        )
        shims += [
            *_optional_imports(),
            _function(_CORE + "tensor_parallel.random", "_get_cuda_rng_state", lambda *_, **__: device.get_rng_state()),
            _function(
                _CORE + "tensor_parallel.random",
                "_set_cuda_rng_state",
                lambda new_state, *_, **__: device.set_rng_state(new_state),
            ),
            _function(
                _CORE + "models.common.embeddings.rope_utils",
                "get_pos_emb_on_this_cp_rank",
                zigzag_positions,
                importers=(
                    _CORE + "models.common.embeddings.rotary_pos_embedding",
                    _CORE + "models.common.embeddings.yarn_rotary_pos_embedding",
                ),
            ),
            _function(
                _CORE + "transformer.moe.moe_utils",
                "maybe_move_tensor_to_cpu",
                host_copy,
                importers=(_CORE + "transformer.moe.token_dispatcher",),
            ),
        ]
        return shims


def apply_optional_imports() -> list[str]:
    """The shims that megatron-core needs on every device, its own too, where Transformer Engine is not installed.
    Idempotent. Returns their names."""
    shims = _optional_imports()
    for shim in shims:
        shim.apply()
    return [shim.name for shim in shims]


def _optional_imports() -> list[Shim]:
    return [_absent(_CORE + "transformer.moe.moe_utils", "te_general_gemm")]


#: functions that compare ``tensor.type()`` with a string
_TYPE_CHECKS = (
    (_CORE + "optimizer.clip_grads", "clip_grad_by_total_norm_fp32"),
    (_CORE + "optimizer.optimizer", "Float16OptimizerWithFloat16Params.__init__"),
    (_CORE + "optimizer.distrib_optimizer", "DistributedOptimizer._build_model_and_main_param_groups"),
    (_CORE + "optimizer.distrib_optimizer", "DistributedOptimizer.__init__"),
)


def _type_names(device: ProxiedDevice) -> dict[str, str]:
    import torch

    kinds = {"Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16}
    empty = {kind: torch.empty(0, dtype=dtype, device=device.torch_device()) for kind, dtype in kinds.items()}
    return {f"torch.cuda.{kind}Tensor": tensor.type() for kind, tensor in empty.items()}


def zigzag_positions(pos_emb: torch.Tensor, seq_dim: int, cp_group: Any) -> torch.Tensor:
    """The position embeddings of chunks k and 2 C - 1 - k of 2 C: those a context-parallel rank k of C works on."""
    size, rank = cp_group.size(), cp_group.rank()
    chunks = pos_emb.chunk(2 * size, dim=seq_dim)
    import torch

    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]], dim=seq_dim)


def host_copy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """The tensor in host memory, as the split sizes of an all-to-all have to be; other values as they are. Blocking."""
    import torch

    if not torch.is_tensor(tensor):
        return tensor
    host = tensor.cpu()
    return host.numpy() if as_numpy else host


def _check_release() -> None:
    try:
        found = version("megatron-core")
    except PackageNotFoundError as error:
        raise TrainerError("megatron-core is not installed: pip install 'vime-core[stack]'") from error
    if not found.startswith(MEGATRON_RELEASE):
        raise TrainerError(
            f"megatron-core {found}: the shims of this device are written for {MEGATRON_RELEASE}x; install that release"
        )


# kinds of shims --------------------------------------------------------------------------------------------------
def _proxy(module: str, proxy: TorchProxy) -> Shim:
    def apply() -> None:
        target = importlib.import_module(module)
        current = _present(target, "torch", f"{module}:torch")
        same = isinstance(current, TorchProxy) and type(current.device_backend) is type(proxy.device_backend)
        if not same:
            target.torch = proxy  # type: ignore[attr-defined]

    return Shim(f"{module}:torch", "calls torch.cuda or builds tensors on 'cuda'", apply)


def _literals(module: str, path: str, changes: Mapping[str, str], names: bool = False) -> Shim:
    name = f"{module}:{path}"

    def apply() -> None:
        target: Any = importlib.import_module(module)
        for part in path.split("."):
            target = _present(target, part, name)
        function: FunctionType = getattr(target, "__func__", target)
        if getattr(function, "__vime_literals__", None) == dict(changes):
            return
        code, count = _rewrite(function.__code__, changes, names)
        if not count:
            raise TrainerError(f"shim {name}: none of {', '.join(changes)} is in that function any more")
        function.__code__ = code
        function.__vime_literals__ = dict(changes)  # type: ignore[attr-defined]

    return Shim(name, "names cuda in a literal or in a tensor method", apply)


def _absent(module: str, attribute: str) -> Shim:
    def apply() -> None:
        target = importlib.import_module(module)
        if not hasattr(target, attribute):
            setattr(target, attribute, None)

    return Shim(f"{module}:{attribute}", "read although Transformer Engine is not installed", apply)


def _function(module: str, attribute: str, replacement: Callable[..., Any], importers: Sequence[str] = ()) -> Shim:
    name = f"{module}:{attribute}"

    def apply() -> None:
        for place in (module, *importers):
            target = importlib.import_module(place)
            _present(target, attribute, name)
            setattr(target, attribute, replacement)

    return Shim(name, "works on the cuda device", apply)


def _present(target: Any, attribute: str, shim: str) -> Any:
    if not hasattr(target, attribute):
        raise TrainerError(f"shim {shim}: {target.__name__} has no {attribute!r}; install megatron-core 0.16")
    return getattr(target, attribute)


def _rewrite(code: CodeType, changes: Mapping[str, str], names: bool) -> tuple[CodeType, int]:
    """``code`` with strings exchanged among its constants (or attribute names), nested functions too; how many."""
    if names:
        new = tuple(changes.get(name, name) for name in code.co_names)
        return code.replace(co_names=new), sum(a != b for a, b in zip(new, code.co_names, strict=True))
    constants, total = [], 0
    for constant in code.co_consts:
        changed, count = _exchange(constant, changes)
        constants.append(changed)
        total += count
    return code.replace(co_consts=tuple(constants)), total


def _exchange(constant: Any, changes: Mapping[str, str]) -> tuple[Any, int]:
    if isinstance(constant, CodeType):
        return _rewrite(constant, changes, names=False)
    if isinstance(constant, tuple | frozenset):
        pairs = [_exchange(one, changes) for one in constant]
        return type(constant)(one for one, _ in pairs), sum(count for _, count in pairs)
    if isinstance(constant, str) and constant in changes:
        return changes[constant], 1
    return constant, 0
