"""From a resolved run to reports: model, rules, device, plan and findings of each stage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_cli.plan.calibration import Calibration, calibrate
from vime_cli.plan.findings import findings
from vime_cli.plan.needs import needs_of
from vime_cli.plan.probe import Probed, probe
from vime_cli.plan.prompts import Prompts
from vime_cli.plan.report import Report
from vime_cli.plan.shape import ModelShape
from vime_cli.plan.stage_plan import PlanInputs, plan_stage
from vime_core.api import ConfigError
from vime_core.config import FILE_RULES, RULES, Facts, read_model

if TYPE_CHECKING:
    from vime_core.config import Config, ResolvedRun, Stage


@dataclass(frozen=True)
class PlanOptions:
    """The command's own options, see ``vime plan --help``."""

    model_config: str | None = None
    memory_gib: float | None = None
    devices_per_node: int | None = None
    prompt: Sequence[int] = ()
    response: Sequence[int] = ()
    calibrate: bool = False


def reports(resolved: ResolvedRun, plugins: Any, options: PlanOptions) -> list[Report]:
    """One a stage.

    Raises:
        ConfigError: broken rules, no model, or nothing says how long samples are. PluginError: no such device.
    """
    return [_report(stage, plugins, options) for stage in resolved.stages]


def _report(stage: Stage, plugins: Any, options: PlanOptions) -> Report:
    config = stage.config
    model, where = _model(stage, options.model_config)
    probed = probe(config, plugins, options.memory_gib, options.devices_per_node)
    facts = Facts(model=model, supports_colocate=probed.supports_colocate, supports_sleep=probed.machine.sleeps)
    broken = [line for rule in RULES if rule not in FILE_RULES for line in _said(rule(config, facts))]
    if broken:
        raise ConfigError(list(dict.fromkeys(broken)))
    shape, needs = ModelShape.of(model, where), needs_of(config, plugins)
    prompts = Prompts.given(options.prompt) if options.prompt else Prompts.read(config, str(Path(where).parent))
    planned = plan_stage(PlanInputs(config, shape, needs, probed.machine, probed.arguments, prompts, options.response))
    return Report.of(stage.name, planned, findings(planned, facts), _speed(config, probed, options))


def _said(broken: Any) -> list[str]:
    return [broken] if isinstance(broken, str) else list(broken or [])


def _model(stage: Stage, given: str | None) -> tuple[dict[str, Any], str]:
    """Contents of the config.json, and where it is from."""
    if given is not None:
        path = Path(given) / "config.json" if Path(given).is_dir() else Path(given)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model-config {given}: {error}; give a Hugging Face config.json") from error
        if isinstance(data, dict):
            return data, str(path)
        raise ConfigError(f"--model-config {given}: not a JSON object; give a Hugging Face config.json")
    folder = stage.config.model.hf_checkpoint
    found = read_model(folder)
    if found is None:
        raise ConfigError(
            f"stage {stage.name}: no config.json at hf_checkpoint {folder or '(not given)'}: a plan needs the model's "
            "sizes; give --model-config FILE, a Hugging Face config.json"
        )
    return dict(found), str(Path(str(folder)) / "config.json")


def _speed(config: Config, probed: Probed, options: PlanOptions) -> Calibration | None:
    if not options.calibrate:
        return None
    if probed.device is None:
        raise ConfigError(f"--calibrate: device {probed.machine.device} is not here ({probed.machine.source})")
    dtype = "bfloat16" if config.megatron.bf16 else "float32"
    return calibrate(dtype, probed.device, config.cluster.trainer_cpu_threads)
