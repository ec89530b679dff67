"""Everything that runs during one stage, started side by side and ended together, whatever happens in between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError, Receipt, SyncError
from vime_core.pipeline.device_sharing import DeviceSharing, device_sharing_of
from vime_core.pipeline.lost import naming_the_lost
from vime_core.pipeline.rollout_handle import RolloutHandle
from vime_core.pipeline.schedule import Schedule, schedule
from vime_core.pipeline.trainer_group import TrainerGroup
from vime_core.plugin import short
from vime_core.runtime import cluster
from vime_core.training import checkpoint

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend, WeightSync
    from vime_core.config import Config
    from vime_core.inference import EngineGroup
    from vime_core.observe import PhaseClock, RunFolder
    from vime_core.runtime import Interrupts

#: seconds that ending the engines and the router may take
ENDING = 10.0


@dataclass
class RunStack:
    """The running parts of a stage. ``engines`` and ``sync`` are None where nothing is generated."""

    trainer: TrainerGroup
    rollout: RolloutHandle
    engines: EngineGroup | None
    sync: WeightSync | None
    schedule: Schedule
    device_sharing: DeviceSharing

    def push(self, version: int) -> Receipt | None:
        """Send the trainer's weights to the engines, if there are any; afterwards it is their turn."""
        if self.sync is None:
            return None
        self.device_sharing.syncing()
        receipt = self.sync.push(version)
        if not isinstance(receipt, Receipt) or receipt.version != version:
            raise SyncError(
                f"weight sync {type(self.sync).__module__}.{type(self.sync).__qualname__}: push({version}) returned "
                f"{short(receipt)}: it must return the Receipt of that version"
            )
        self.device_sharing.sampling()
        return receipt

    def save(self, config: Config, step: int) -> Path:
        """A checkpoint of the whole run after ``step`` finished steps: every rank's part, the data buffer and the
        ledger, committed by one rename, so that a kill at any moment leaves the older checkpoint valid."""
        if config.model.save is None:
            raise ConfigError("save_interval is set but there is nowhere to save to: give --save")
        root = Path(config.model.save)
        try:
            nbytes = self.trainer.save(str(checkpoint.begin(root, step)))
            meta = {"layout": checkpoint.layout_of(config), "data": self.rollout.state(), "bytes": nbytes, "format": 1}
            return checkpoint.commit(root, step, meta, config.model.keep_checkpoints)
        except BaseException:
            checkpoint.abandon(root, step)  # half of one on a full disk would keep it full
            raise


@contextlib.contextmanager
def stack(config: Config, plugins: Any, folder: RunFolder, stop: Interrupts, clock: PhaseClock) -> Iterator[RunStack]:
    """Start Ray, rollout worker, trainer ranks and engines; end all of them.

    Args:
        folder: of the run; gets the logs of engines and router, and what each step's loss is computed from if asked.
        stop: looked at during every wait.
        clock: counts the time to hand devices over, where trainer and engines share them.
    """
    provider = plugins.choose_device(config.cluster.device)
    device = provider.load()().bind(config)
    model = config.model.hf_checkpoint
    if model is None:
        raise ConfigError("no model: give --hf-checkpoint")
    resume = checkpoint.resumed_from(config.model)
    meta = checkpoint.check_layout(resume, checkpoint.layout_of(config)) if resume else None
    config = _with_sync(config, device, plugins).replace("run", run_dir=str(folder.path))  # the place, not a template
    losses = folder.losses if config.observe.save_loss_inputs else None
    with cluster(config, device, folder.logs), contextlib.ExitStack() as ending:
        rollout = RolloutHandle.launch(config, device, plugins, meta["data"] if meta else None, stop)
        ending.callback(rollout.shutdown)
        trainer = TrainerGroup.launch(config, device, provider.qualified_name, plugins, stop)
        ending.callback(trainer.shutdown)
        # Data first: a bad row or a missing file is reported before a model is built.
        plan = schedule(config, rollout.setup()["prompts_per_epoch"], meta)
        started = trainer.begin_setup(model, str(resume) if resume else None, plan.optimizer_steps, losses)
        device_sharing = device_sharing_of(config, device, trainer, lambda: clock.phase("offload"))
        teacher = engines = None
        if config.teacher_engine:  # on its way up; it is no part of the engines, which get weights
            from vime_core.inference import TeacherHandle

            teacher = TeacherHandle.launch(config, device, plugins, folder.logs, stop)
            ending.callback(teacher.shutdown, ENDING)
        placements = device_sharing.before_engines(started)
        if config.needs_engines:
            from vime_core.inference import EngineGroup, EngineLaunch

            engines = EngineGroup.start(EngineLaunch(config, device, model, plugins, folder.logs, placements), stop)
            ending.callback(engines.shutdown, ENDING)
        trainer.finish_setup(started)
        if engines is not None:
            device_sharing.engines_are_up(engines)
            rollout.connect(engines.client_spec, teacher.wait() if teacher is not None else None)
        sync = _sync(config, plugins, trainer, engines, ending) if engines is not None else None
        with naming_the_lost(engines):
            yield RunStack(trainer, rollout, engines, sync, plan, device_sharing)


def _with_sync(config: Config, device: DeviceBackend, plugins: Any) -> Config:
    """The configuration with the weight sync's name settled, so that trainer and driver mean the same one."""
    from vime_core.api import Topology

    external = config.engine.rollout_external_engine_addrs
    topology = Topology(
        device_type=device.device_type,
        trainer_ranks=config.trainer_ranks,
        engines=config.num_engines + len(external),
        nodes=config.cluster.actor_num_nodes,
        colocated=config.cluster.colocate,
        external_engines=bool(external),
    )
    name = config.sync.weight_sync or plugins.choose_weight_sync(topology)
    return config.replace("sync", weight_sync=name)


def _sync(
    config: Config, plugins: Any, trainer: TrainerGroup, engines: EngineGroup, ending: contextlib.ExitStack
) -> WeightSync:
    sync: WeightSync = plugins.weight_syncs.resolve(config.sync.weight_sync)(config)
    ending.callback(sync.close)
    sync.connect(trainer, engines)
    return sync
