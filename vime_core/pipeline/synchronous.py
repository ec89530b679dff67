"""The synchronous loop: sample, train, sync, and again. It reads top to bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.config import parse

if TYPE_CHECKING:
    from vime_core.config import Config
    from vime_core.observe import PhaseClock, Recorder
    from vime_core.pipeline.rollout_handle import Rollout
    from vime_core.pipeline.run_stack import RunStack
    from vime_core.runtime import Interrupts


@dataclass
class Loop:
    """One stage's run. It ends at a safe point when ``stop`` was asked for."""

    config: Config
    stack: RunStack
    recorder: Recorder
    clock: PhaseClock
    plugins: Any
    stop: Interrupts

    def run(self) -> None:
        """From the first step to the last, or until ``stop_when`` holds after an evaluation."""
        evaluation, model = self.config.eval, self.config.model
        step, last = self.stack.schedule.first, self.stack.schedule.last
        self._sync(step)  # before anything is sampled: the engines' own starting weights never matter
        if evaluation.eval_interval and not evaluation.skip_eval_before_train:
            self._evaluate(step)
        saved = None
        while step < last and not self._enough():
            self._step(step)
            step += 1
            if _due(step, evaluation.eval_interval) or (evaluation.eval_interval and step == last):
                self._evaluate(step)
            if _due(step, model.save_interval):
                saved = self._save(step)
        if model.save and saved != step:
            self._save(step)

    def _step(self, step: int) -> None:
        self.stop.check()
        self.clock.start_step()
        self.stack.device_sharing.sampling()
        with self.clock.phase("generate"):
            rollout = self.stack.rollout.rollout(step)
        self.stack.device_sharing.training()
        with self.clock.phase("train"):
            trained = self.stack.trainer.train(step, rollout.batch)
        passes = (f"perf/{model}log_probs_time" for model in ("", "ref_", "teacher_"))
        self.clock.split("train", "log_probs", sum(trained.get(name, 0.0) for name in passes))
        if _due(step + 1, self.config.sync.update_weights_interval):
            self._sync(step + 1)
        self._record(step, rollout, trained)

    def _record(self, step: int, rollout: Rollout, trained: dict[str, float]) -> None:
        if self.config.observe.save_samples:
            self.recorder.folder.write_samples(step, rollout.samples)
        metrics = {
            **rollout.metrics,
            **trained,
            **self.stack.device_sharing.metrics(),
            **self.clock.end_step().metrics(),
        }
        seconds = metrics["perf/step_time"]
        metrics["perf/samples_per_sec"] = self.config.samples_per_step / seconds
        metrics["perf/tokens_per_sec"] = trained["train/tokens"] / seconds
        self.recorder.step(step, metrics)
        self.plugins.step_finished(self.recorder.folder, step, metrics)

    def _sync(self, version: int) -> None:
        with self.clock.phase("sync"):
            receipt = self.stack.push(version)
        if receipt is not None:
            self.recorder.sync(receipt)
            self.plugins.weights_synced(self.recorder.folder, version, receipt.seconds)

    def _evaluate(self, step: int) -> None:
        self.stack.device_sharing.sampling()
        with self.clock.phase("eval"):
            metrics = self.stack.rollout.evaluate(step)
        self.recorder.evaluation(step, metrics)

    def _save(self, step: int) -> int:
        self.stack.device_sharing.saving()
        with self.clock.phase("save"):
            path = self.stack.save(self.config, step)
        self.plugins.checkpoint_saved(self.recorder.folder, path)
        return step

    def _enough(self) -> bool:
        """Whether ``stop_when`` holds; not before its metric has been measured."""
        if self.config.run.stop_when is None:
            return False
        condition = parse(self.config.run.stop_when)
        return condition.metric in self.recorder.tally.last and condition.holds(self.recorder.tally.last)


def _due(step: int, interval: int | None) -> bool:
    return interval is not None and interval > 0 and step % interval == 0
