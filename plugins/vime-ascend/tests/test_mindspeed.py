"""The MindSpeed adapter, against a package that behaves at import as MindSpeed does: it reads ``sys.argv``, scans every
loaded module, patches megatron and can be asked to patch again. MindSpeed itself is not on PyPI."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ADAPTOR = """
    import argparse, functools, sys
    from mindspeed.args_utils import get_mindspeed_args

    def _scan():
        for module in list(sys.modules.values()):
            hasattr(module, "some_name_to_patch")

    def _wrap(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper

    parser = argparse.ArgumentParser(); parser.parse_args()          # SystemExit on Ray's own arguments
    asked = []
    _scan()

    def repatch(values):
        get_mindspeed_args().__dict__.update(values)
        asked.append(dict(values))
        _scan()
        if {patches}:
            from megatron.core.transformer.transformer_config import TransformerConfig
            TransformerConfig.__init__ = _wrap(TransformerConfig.__init__)
            TransformerConfig.__post_init__ = _wrap(TransformerConfig.__post_init__)
"""
ARGUMENTS = """
    from types import SimpleNamespace
    _args = SimpleNamespace(use_flash_attn=False, use_fused_swiglu=False, sparse_mode=0)
    def get_mindspeed_args():
        return _args
"""
TRAP = "def __getattr__(name):\n    raise RuntimeError('operator torchvision::nms does not exist')\n"


@pytest.fixture
def package(tmp_path: Path):
    def write(patches: bool = True) -> Path:
        folder = tmp_path / "mindspeed"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "megatron_adaptor.py").write_text(textwrap.dedent(ADAPTOR).replace("{patches}", str(patches)))
        (folder / "args_utils.py").write_text(textwrap.dedent(ARGUMENTS))
        (tmp_path / "trap.py").write_text(TRAP)
        return tmp_path

    return write


def run(folder: Path, code: str) -> list[str]:
    """Lines that ``code`` printed, in a process of its own whose arguments belong to somebody else."""
    begin = f"import sys; sys.path.insert(0, {str(folder)!r}); from vime_ascend.mindspeed import *; import trap\n"
    command = [sys.executable, "-c", begin + textwrap.dedent(code), "--node-ip-address=10.0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_it_is_loaded_before_megatron_and_patches_what_it_was_asked_for(package) -> None:
    lines = run(
        package(),
        """
        m = MindSpeed()
        m.install(); m.install()
        print(sorted(n for n in sys.modules if n.startswith('megatron')))
        print(m.repatch({'use_fused_swiglu': True}))
        print(sys.modules['mindspeed.megatron_adaptor'].asked)
        print(sys.argv[1:])
        try: trap.x
        except RuntimeError as e: print(e)
        from megatron.core.transformer.transformer_config import TransformerConfig
        import pickle
        c = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, use_cpu_initialization=True)
        print(hasattr(c, 'rollout_batch_size'))
        """,
    )
    names = [
        f"mindspeed:megatron.core.transformer.transformer_config:TransformerConfig.{name}"
        for name in ("__init__", "__post_init__")
    ]
    assert lines == [
        "[]",
        str(names),
        "[{'use_flash_attn': True, 'use_fused_swiglu': True}]",
        "['--node-ip-address=10.0.0.1']",
        "operator torchvision::nms does not exist",
        "False",
    ]


def test_what_goes_wrong_is_said(package) -> None:
    lines = run(
        package(patches=False),
        """
        from vime_core import VimeError
        def attempt(call):
            try: call()
            except VimeError as error: print(error)
        attempt(lambda: MindSpeed().repatch({'rollout_batch_size': 8, 'use_fused_swiglu': True}))
        attempt(lambda: MindSpeed().repatch({}))
        del sys.modules['mindspeed.megatron_adaptor']
        attempt(lambda: MindSpeed().install())
        """,
    )
    assert [line[:60] for line in lines] == [
        "--ascend-mindspeed rollout_batch_size: not MindSpeed's; Megatron"[:60],
        "MindSpeed did not patch megatron.core.transformer.transformer_config:"[:60],
        "MindSpeed has to be imported before megatron, and megatron is loaded "[:60],
    ]


def test_a_missing_mindspeed_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "trap.py").touch()
    (line,) = run(
        tmp_path,
        """
        from vime_core import VimeError
        try: MindSpeed().install()
        except VimeError as error: print(error)
        """,
    )
    assert line.startswith("--ascend-trainer mindspeed: No module named 'mindspeed'; MindSpeed is not on PyPI: install")
