from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import lazy_loader
import pytest

from vime_core.observe.tensorboard import TensorBoardWriter, require_tensorboard


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_come_back_while_the_run_still_lives(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.scalars(0, {"rollout/raw_reward": 0.25, "rollout/note": "text", "perf/eval_time": None})
    writer.scalars(1, {"rollout/raw_reward": 0.5})
    assert read(tmp_path) == {"rollout/raw_reward": [(0, 0.25), (1, 0.5)]}
    writer.close()
    writer.close()


def test_a_metric_is_plotted_against_its_own_axis_where_that_is_given(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.scalars(3, {"train/step": 12, "train/loss": 0.5, "rollout/raw_reward": 1.0})
    writer.scalars(4, {"train/loss": 0.25})
    writer.close()
    assert read(tmp_path) == {
        "train/step": [(12, 12.0)],
        "train/loss": [(12, 0.5), (4, 0.25)],
        "rollout/raw_reward": [(3, 1.0)],
    }


def test_what_is_not_finite_stays_visible(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.scalars(0, {"train/loss": math.nan})
    writer.close()
    assert math.isnan(read(tmp_path)["train/loss"][0][1])


def test_neither_torch_nor_tensorflow_is_imported(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from vime_core.observe.tensorboard import TensorBoardWriter\n"
        "assert 'tensorboard' not in sys.modules\n"
        "w = TensorBoardWriter(Path(sys.argv[1])); w.scalars(0, {'train/loss': 1.0}); w.close()\n"
        "print(sorted({'torch', 'tensorflow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_missing_package_is_a_configuration_error(tmp_path):
    require_tensorboard()
    # no site-packages but the one package that every door needs, so TensorBoard is really not there
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from vime_core.api import ConfigError\n"
        "from vime_core.observe import require_tensorboard\n"
        "try: require_tensorboard()\n"
        "except ConfigError as error: print(error)\n"
    )
    (tmp_path / "lazy_loader").symlink_to(Path(lazy_loader.__file__).parent)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    assert "the package tensorboard is not installed: run `pip install" in done.stdout


@pytest.mark.parametrize("step", [0, 2**40])
def test_any_step_number_survives(tmp_path, step):
    writer = TensorBoardWriter(tmp_path)
    writer.scalars(step, {"train/loss": 1.0})
    writer.close()
    assert read(tmp_path)["train/loss"] == [(step, 1.0)]
