"""vLLM's, the router's and Megatron's options, checked against what is installed here, without importing it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import lazy_loader
import pytest

from vime_core.api.errors import ConfigError
from vime_core.config.passthrough import MEGATRON, ROUTER, VLLM, read_family
from vime_core.config.resolution import resolve
from vime_core.config.sections import Config
from vime_core.config.source import NotWritable, Source


def read(*argv: str) -> Config:
    return resolve(argv, {}).stages[0].config


def refused(*argv: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(argv, {})
    return caught.value.violations


def test_vllm_options() -> None:
    pytest.importorskip("vllm_router")
    config = read(
        *("--vllm-gpu-memory-utilization", "0.7", "--vllm-max-num-seqs", "8", "--vllm-enforce-eager"),
        *("--vllm-no-enable-prefix-caching", "--no-vllm-async-scheduling", "--vllm-dtype", "bfloat16"),
        *("--vllm-cudagraph-capture-sizes", "1", "2", "--vllm-compilation-config", '{"mode": 3}'),
        *("--vllm-hf-overrides", '{"a": null}', "--vllm-chat-template", "x", "--vllm-quantization", "fp8"),
    )
    assert config.vllm == {
        "gpu_memory_utilization": 0.7,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "dtype": "bfloat16",
        "cudagraph_capture_sizes": [1, 2],
        "compilation_config": {"mode": 3},
        "hf_overrides": {"a": None},
        "chat_template": "x",
        "quantization": "fp8",
    }
    assert config.provenance["vllm_dtype"] == "flag --vllm-dtype"


def test_own_flags_with_the_prefix_stay_own() -> None:
    config = read("--vllm-server-concurrency", "4", "--vllm-router-ip", "h", "--vllm-router-port", "1")
    assert config.engine.vllm_server_concurrency == 4
    assert config.vllm == {}


def test_router_and_megatron(recipe: Callable[[str], str]) -> None:
    path = recipe(
        "[router]\nretry_max_retries = 2\n[megatron]\nlr = 1\nmoe_router_load_balancing_type = 'none'\n"
        "[vllm]\nmax_model_len = 64\nserver_concurrency = 3\n"
    )
    config = read(path, "--router-policy", "round_robin", "--grad-reduce-in-fp32", "--recompute-method", "block")
    assert config.router == {"retry_max_retries": 2, "policy": "round_robin"}
    extra = {"moe_router_load_balancing_type": "none", "grad_reduce_in_fp32": True, "recompute_method": "block"}
    assert config.megatron_extra == extra
    assert config.megatron.lr == 1.0
    assert config.vllm == {"max_model_len": 64}
    assert config.engine.vllm_server_concurrency == 3
    assert config.provenance["router_policy"] == "flag --router-policy"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--vllm-max-modl-len", "1"], "unknown flag --vllm-max-modl-len; did you mean --vllm-max-model-len?"),
        (["--vllm-max-num-seqs", "many"], "flag --vllm-max-num-seqs: expected an int, got 'many'"),
        (["--vllm-dtype", "float64"], "flag --vllm-dtype: expected one of auto, "),
        (["--vllm-seed", "1"], "--vllm-seed is vime's to decide: use --rollout-seed"),
        (["--vllm-model", "x"], "use --hf-checkpoint"),
        (["--vllm-tensor-parallel-size", "2"], "use --rollout-num-gpus-per-engine"),
        (["--vllm-port", "2"], "leave it out, vime chooses it"),
        (["--router-polcy", "x"], "unknown flag --router-polcy; did you mean --router-policy?"),
        (["--router-policy", "cache_awere"], "expected one of random, "),
        (["--router-port", "2"], "use --vllm-router-port"),
        (["--grad-reduce-in-fp23"], "unknown flag --grad-reduce-in-fp23; did you mean --grad-reduce-in-fp32?"),
        (["--num-layers", "3"], "it is read from the checkpoint's config.json"),
        (["--params-dtype", "bf16"], "holds a function or a dtype"),
        (["--timers", "x"], "holds a function or a dtype"),
    ],
)
def test_wrong_option(argv: list[str], message: str) -> None:
    (violation,) = refused(*argv)
    assert message in violation


def test_wrong_key_in_a_table(recipe: Callable[[str], str]) -> None:
    path = recipe('[vllm]\nmax_modl_len = 1\nseed = 1\nmax_num_seqs = "8"\n[router]\npolcy = "x"\n')
    assert refused(path) == [
        "recipe recipe.toml: [vllm] max_modl_len: unknown key max_modl_len; did you mean max_model_len?",
        "recipe recipe.toml: [vllm] seed: seed is vime's to decide: use --rollout-seed",
        "recipe recipe.toml: [vllm] max_num_seqs: expected int, got the text '8'",
        "recipe recipe.toml: [router] polcy: unknown key polcy; did you mean policy?",
    ]


@pytest.mark.slow
def test_definitions_are_those_of_the_installed_classes() -> None:
    """Against the real dataclasses: every field of the class is known, and no other."""
    router_args = pytest.importorskip("vllm_router.router_args").RouterArgs
    assert set(read_family(ROUTER) or {}) == set(router_args.__dataclass_fields__)
    pytest.importorskip("megatron.core")
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    fields: set[str] = set()
    for kind in (TransformerConfig, OptimizerConfig, DistributedDataParallelConfig):
        fields |= set(kind.__dataclass_fields__)
    assert set(read_family(MEGATRON) or {}) == {name for name in fields if not name.startswith("_")}


@pytest.mark.slow
def test_vllm_definitions_are_those_of_the_installed_class() -> None:
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    fields = {name for name in arg_utils.AsyncEngineArgs.__dataclass_fields__ if not name.startswith("_")}
    assert fields <= set(read_family(VLLM) or {})


def test_owned_options_exist_upstream() -> None:
    """A name that upstream dropped or never had would refuse nothing. Some are of older or newer vLLM versions."""
    for family in (VLLM, ROUTER, MEGATRON):
        options = read_family(family)
        if options is not None:
            assert len(set(family.owned) - set(options)) <= 1


CHECK = """
import sys
from vime_core.config.resolution import resolve
resolve(["--vllm-max-model-len", "3", "--router-policy", "random", "--grad-reduce-in-fp32"], {})
heavy = ("vllm", "vllm_router", "megatron", "megatron.core", "torch", "numpy", "pydantic")
print([name for name in heavy if name in sys.modules])
"""
BARE = """
from vime_core.config.resolution import resolve
from vime_core.api.errors import ConfigError
try:
    resolve(["--vllm-max-model-len", "3", "--vllm-no-such", "--router-policy", "x", "--lrr", "1", "--lr", "1"], {})
except ConfigError as error:
    print("\\n".join(error.violations))
"""


def test_nothing_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_packages(tmp_path: Path) -> None:
    """``-S`` leaves out site-packages, and with it vllm, the router and Megatron: one clear line for each."""
    (tmp_path / "lazy_loader").symlink_to(Path(lazy_loader.__file__).parent)  # what vime-core itself depends on
    path = f"{Path(__file__).parents[2]}:{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", BARE], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    lines = done.stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["--vllm-*", "--router-*", "unknown"]
    assert all("is not installed" in line for line in lines)
    assert lines[2].endswith("did you mean --lr?")


SOURCE = """
from __future__ import annotations
import torch
from typing import TYPE_CHECKING, Callable, Literal, Optional, Union
from pkg.kinds import Colour as Paint, Base
if TYPE_CHECKING:
    from nowhere import Thing
Alias = Literal["a", Paint]

class Args(Base):
    a: int = 0
    b: Optional[float] = None
    c: "str | list[int] | None" = None
    d: Alias = "a"
    e: Union[int, Thing, None] = None
    f: Optional[Callable] = None
    g: torch.dtype = None
    h: str | torch.dtype = ""
    i: list[Paint] | None = None
    j: dict[str, int] | None = None
    k: tuple[int, ...] = ()
    l: set[str] = set()
    _hidden: int = 0
    plain = 3

def add(parser, prefix):
    parser.add_argument(f"--{prefix}shade-of", choices=["dark", "light"])
"""


def test_source_reader(tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    root.mkdir()
    (root / "args.py").write_text(SOURCE)
    (root / "kinds.py").write_text("from .more import Colour\nclass Base:\n    base: bool = True\n")
    (root / "more.py").write_text("from typing import Literal\nColour = Literal['red', 'blue']\n")
    source = Source(root, root / "args.py")
    expected: dict[str, Any] = {
        "base": bool,
        "a": int,
        "b": float | None,
        "c": str | list[int] | None,
        "d": Literal["a", "red", "blue"],
        "f": NotWritable,
        "g": NotWritable,
        "h": str,
        "i": list[Literal["red", "blue"]] | None,
        "j": dict[str, Any] | None,
        "k": list[Any],
        "l": list[str],
    }
    options = source.options("Args")
    thing = options.pop("e")
    assert thing == int | Any
    assert options == expected
    assert source.choices() == {"shade_of": Literal["dark", "light"]}
    with pytest.raises(LookupError, match="no class Nothing"):
        source.options("Nothing")
