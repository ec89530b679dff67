"""What the teacher of on-policy distillation is started with: an engine's own options, with what a teacher needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.api import ConfigError
from vime_core.data import LengthLimits
from vime_core.inference.spec import EngineSpec, engine_spec

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.config import Config

#: the one token that vLLM has to sample after each text; it is thrown away
_SAMPLED = 1


@dataclass(frozen=True)
class TeacherSpec(EngineSpec):
    """An engine that reads and never serves.

    Attributes:
        temperature: of the student's sampling; the teacher's logits are divided by it.
    """

    temperature: float = 1.0

    @property
    def name(self) -> str:
        return "teacher"


def teacher_spec(config: Config, device: DeviceBackend) -> TeacherSpec:
    """The engines' spec with another model and room for one token after the longest sample.

    Raises:
        ConfigError: no teacher is named, or a ``--vllm-*`` value contradicts what the run relies on.
    """
    folder = config.model.opd_teacher_model
    if folder is None:
        raise ConfigError("--opd-type engine needs --opd-teacher-model FOLDER")
    base = engine_spec(config.replace("train", use_rollout_routing_replay=False), device, folder, 0)
    context = LengthLimits.of(config).context
    arguments = dict(base.arguments)
    arguments["max_model_len"] = None if context is None else context + _SAMPLED
    # The token after a text of the model's full length is sampled but never read, so that no position is exceeded.
    environment = {**base.environment, "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    return TeacherSpec(0, folder, arguments, environment, temperature=config.rollout.rollout_temperature)
