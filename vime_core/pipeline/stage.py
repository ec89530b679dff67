"""One stage of a run: start the stack, run the loop, export the model, write the summary."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vime_core.api import TargetMissed, VimeError
from vime_core.config import parse, to_toml
from vime_core.observe import PhaseClock, Recorder, Summary, Target, WarningView, dumps, render
from vime_core.pipeline.run_stack import stack
from vime_core.pipeline.synchronous import Loop
from vime_core.runtime import Interrupted

if TYPE_CHECKING:
    from vime_core.config import Config
    from vime_core.observe import Progress, RunFolder
    from vime_core.runtime import Interrupts


@dataclass
class StageRun:
    """Everything of one stage that outlives its processes."""

    name: str
    config: Config
    folder: RunFolder
    plugins: Any
    progress: Progress
    stop: Interrupts

    def run(self) -> Summary:
        """Run to the end; the summary is written whatever happens.

        Raises:
            TargetMissed: the run ended below its target.
        """
        with WarningView(self.folder.warnings) as warnings:
            return self._run(warnings)

    def _run(self, warnings: WarningView) -> Summary:
        self.folder.write_text("config.toml", to_toml(self.config))
        self.folder.write_text("plugins.lock.json", dumps({"plugins": self.plugins.lock()})[0])
        recorder = Recorder(self.folder, self.progress, self._tensorboard())
        clock = PhaseClock(on_enter=self.progress.phase)
        outcome, said = "failed", ""
        try:
            self._or_stopped(recorder, clock)
            outcome = "finished"
        except VimeError as error:
            outcome, said = "stopped" if isinstance(error, Interrupted) else "failed", str(error).splitlines()[0]
            raise
        finally:
            try:
                recorder.close()
            finally:  # the view may have lost its reader
                summary = replace(self._summary(recorder, clock, said or outcome), warnings=warnings.summary())
                self.folder.write_text("report.txt", render(summary))
                self.plugins.run_finished(self.folder, outcome)
        if summary.target is not None and summary.target.reached is not True:
            print(render(summary), end="", flush=True)
            raise TargetMissed(f"target missed: {self.config.run.target}; see {self.folder.report}")
        return summary

    def _or_stopped(self, recorder: Recorder, clock: PhaseClock) -> None:
        """What breaks because of a stop (a terminal signals the workers, too) is reported as the stop that it is."""
        try:
            self._inside(recorder, clock)
        except SystemExit as error:
            # Ray's own handler of SIGTERM, which is in place from its start to the next safe point
            if error.code == signal.SIGTERM:
                raise Interrupted(signal.SIGTERM) from error
            raise
        except Exception:
            self.stop.check()
            raise

    def _inside(self, recorder: Recorder, clock: PhaseClock) -> None:
        with stack(self.config, self.plugins, self.folder, self.stop, clock) as running:
            self.plugins.run_started(self.folder)
            self.progress.stage(self.name, running.schedule.last, running.schedule.first)
            Loop(self.config, running, recorder, clock, self.plugins, self.stop).run()
            if self.config.model.save_hf:
                running.device_sharing.saving()
                with clock.phase("save"):
                    running.trainer.save_hf(self.config.model.save_hf)

    def _tensorboard(self) -> Any | None:
        if not self.config.observe.use_tensorboard:
            return None
        from vime_core.observe import TensorBoardWriter

        return TensorBoardWriter(self.folder.tensorboard)

    def _summary(self, recorder: Recorder, clock: PhaseClock, outcome: str) -> Summary:
        text = self.config.run.target
        target = None
        if text is not None:
            condition = parse(text)
            measured = condition.metric in recorder.tally.last
            target = Target(condition.metric, text, condition.holds(recorder.tally.last) if measured else None)
        return Summary(
            self.name, outcome, self.folder.path, recorder.tally, target=target, wall=clock.wall, phases=clock.totals
        )
