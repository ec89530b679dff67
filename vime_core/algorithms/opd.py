"""On-policy distillation without a task reward: the teacher's log-probs are the only signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from vime_core.algorithms.grpo import CLIP, CLIPPED, PolicyAlgorithm
from vime_core.api import AlgorithmInfo, Options

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


class Opd(PolicyAlgorithm):
    """Each sampled token is credited with how much more likely the teacher finds it."""

    name = "opd"
    info = AlgorithmInfo(
        title="On-Policy Distillation",
        source="Gu et al. 2023 (MiniLLM), arXiv 2306.08543; Agarwal et al. 2023, arXiv 2306.13649",
        advantage="-teacher_coef (old_logp - teacher_logp) at each token; no reward",
        loss=CLIPPED,
        notes=(
            "The term's mean over the policy is the reverse KL to the teacher; on one token it may have either sign.",
            "With a task reward: keep that algorithm and add --use-opd.",
            "--normalize-advantages would rescale the term away.",
        ),
    )
    needs = frozenset({"old_logp", "teacher_logp"})
    defaults: ClassVar[Options] = {**CLIP, "teacher_coef": 1.0}
    recompute_old_logprobs = True

    def advantages(self, batch: StepBatch, options: Options) -> torch.Tensor:
        return -options["teacher_coef"] * (batch.t("old_logp") - batch.t("teacher_logp"))
