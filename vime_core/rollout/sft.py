"""Supervised fine-tuning as a rollout: the label (or the assistant turns of a dialogue) is the response. No engine."""

from __future__ import annotations

from collections.abc import Sequence

from vime_core.api import GenerationClient, RolloutGenerator, Sample, SamplingParams, Status
from vime_core.data import ChatTemplate, supervised_target
from vime_core.rollout.generate import RolloutContext


class SftRollout(RolloutGenerator):
    """Registered as "sft"."""

    supervised = True

    def __init__(self, context: RolloutContext) -> None:
        self._template = ChatTemplate(context.tokenizer, dict(context.config.data.apply_chat_template_kwargs))

    async def generate(
        self, samples: Sequence[Sample], client: GenerationClient, params: SamplingParams
    ) -> list[Sample]:
        """Raises:
        DataError: a sample has nothing to train on.
        """
        for sample in samples:
            target = supervised_target(sample, self._template)
            sample.reset()
            sample.prompt_tokens = target.prompt
            sample.append_target(target.response, target.mask)
            sample.status = Status.COMPLETED
        return list(samples)
