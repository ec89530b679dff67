"""The one place that the run loop tells what happened: files, TensorBoard and the view all follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vime_core.observe.columns import evaluation_text
from vime_core.observe.progress import Progress
from vime_core.observe.runfolder import RunFolder
from vime_core.observe.summary import Tally
from vime_core.observe.tensorboard import TensorBoardWriter

if TYPE_CHECKING:
    from vime_core.api import Receipt


class Recorder:
    """Facade over the observers of one stage. The driver's thread calls it.

    Attributes:
        tally: figures for the summary.
        names: every metric name logged so far.
    """

    def __init__(self, run_folder: RunFolder, progress: Progress, tensorboard: TensorBoardWriter | None = None) -> None:
        self.folder = run_folder
        self.progress = progress
        self.tally = Tally()
        self._tensorboard = tensorboard
        self._synced: dict[str, Any] = {}

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step is done. The figures of the last sync since the step before belong to its line."""
        row = {"rollout/step": step, **self._synced, **metrics}
        self._synced = {}
        self._write(step, row)
        self.tally.step(row)
        self.progress.step(step, row)

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """An evaluation after ``step`` finished steps is done (0: before the first)."""
        row = {"eval/step": step, **metrics}
        self._write(step, row)
        self.tally.evaluation(row)
        self.progress.note(evaluation_text(step, row))

    def sync(self, receipt: Receipt) -> None:
        """A sync committed. Its receipt is on disk at once; its figures go into the line of the next step."""
        self.folder.append_receipt(receipt)
        self._synced = sync_metrics(receipt)
        self.tally.sync(receipt)
        self.progress.sync(receipt.line())

    def close(self) -> None:
        """Close view and events. A second call does nothing."""
        self.progress.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def _write(self, step: int, row: Mapping[str, Any]) -> None:
        self.tally.non_finite += self.folder.append_metrics(step, row)
        if self._tensorboard is not None:
            self._tensorboard.scalars(step, row)


def sync_metrics(receipt: Receipt) -> dict[str, Any]:
    """A receipt as metrics. Speed is absent for a sync that took no measurable time."""
    metrics: dict[str, Any] = {
        "sync/version": receipt.version,
        "sync/names": receipt.names,
        "sync/canary_gap": receipt.canary_gap,
        "perf/update_weights_time": receipt.seconds,
        "perf/update_weights_bytes": receipt.nbytes,
    }
    if receipt.seconds > 0:
        metrics["perf/update_weights_gbps"] = 1e-9 * receipt.nbytes / receipt.seconds
    return metrics
