"""``make test-vllm-0.23``: engines and a whole run on the vLLM that the published sets for NPUs have.

    python tests/support/older_vllm.py FOLDER [pytest arguments]

FOLDER keeps an environment of its own that has torch and vLLM of ``constraints/cpu-vllm-0.23.txt`` and sees the rest in
the environment that runs this. vLLM is installed without its dependencies: those are the other set's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints" / "cpu-vllm-0.23.txt"
TESTS = ("tests/inference", "plugins/vime-ascend/tests/test_older_vllm.py", "tests/pipeline/test_whole_run.py")


def main(folder: Path, arguments: list[str]) -> int:
    python = environment(folder)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(python), "-m", "pytest", "-W", "ignore", "-p", "no:cacheprovider", *(arguments or TESTS)]
    return subprocess.run(command, cwd=ROOT, env=environ).returncode


def environment(folder: Path) -> Path:
    """Its interpreter; made once, and again when what it has to have changes."""
    python, made = folder / "bin" / "python", folder / "made-for.txt"
    wanted = CONSTRAINTS.read_text()
    if made.is_file() and made.read_text() == wanted:
        return python
    venv.create(folder, clear=True, with_pip=True, symlinks=True)
    lines = [line for line in wanted.splitlines() if line and not line.startswith("#")]
    install(python, *[line for line in lines if line.startswith("torch==")])
    install(python, "--no-deps", *[line for line in lines if not line.startswith("torch==")])
    (site,) = folder.glob("lib/python*/site-packages")
    below = sysconfig.get_paths()["purelib"]
    (site / "vime-set.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    made.write_text(wanted)
    return python


def install(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
