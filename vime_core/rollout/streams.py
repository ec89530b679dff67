"""Which streams the samples of a run carry: the core's where a flag asks for them, and those of the rollout itself."""

from __future__ import annotations

from vime_core.api import ROUTING, TEACHER_LOGP, TOP_IDS, TOP_LOGP, RolloutGenerator, TokenStream
from vime_core.config import Config


def streams_of(config: Config, generator: type[RolloutGenerator]) -> tuple[TokenStream, ...]:
    """Each becomes a column of the step batch."""
    wanted = {
        TEACHER_LOGP: bool(config.teacher_engine),
        ROUTING: config.train.use_rollout_routing_replay,
        TOP_IDS: config.algorithm.use_score_centering,
        TOP_LOGP: config.algorithm.use_score_centering,
    }
    asked = [stream for stream, is_wanted in wanted.items() if is_wanted]
    return tuple(dict.fromkeys([*asked, *generator.streams]))
