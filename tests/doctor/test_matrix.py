"""The tested sets in the package are the constraints that people install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vime_cli.doctor import matrix
from vime_cli.doctor.matrix import SETS, Matrix, pins

CONSTRAINTS = Path(__file__).parents[2] / "constraints"


def test_the_packaged_file_is_made_from_the_constraints() -> None:
    packaged = (Path(str(matrix.__file__)).parent / matrix.FILE).read_text("utf-8")
    assert packaged == matrix.render(CONSTRAINTS), "run python -m vime_cli.doctor.matrix"


def test_every_pin_of_the_constraints_is_in_it() -> None:
    for device, name in SETS.items():
        lines = (CONSTRAINTS / name).read_text("utf-8").splitlines()
        wanted = [line for line in lines if line and not line.startswith("#")]
        assert len(wanted) > 100
        assert [f"{name}=={version}" for name, version in Matrix.packaged().of(device).items()] == wanted


def test_a_device_without_a_set_has_none() -> None:
    assert Matrix.packaged().of("abacus") == {}


def test_comments_and_options_are_no_pins() -> None:
    assert pins("# torch==1.0\ntorch==2.13.0+cpu\n--no-deps\n\nJinja2==3.1.6\n") == {
        "torch": "2.13.0+cpu",
        "Jinja2": "3.1.6",
    }


def test_nothing_is_imported_for_it() -> None:
    code = "import sys, vime_cli.doctor.matrix as m; m.Matrix.packaged(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"
