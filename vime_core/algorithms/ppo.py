"""PPO with a critic: generalized advantage estimation over trainable tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vime_core.algorithms.common import scored_tokens
from vime_core.algorithms.grpo import CLIP, CLIPPED, REWARD_KL, PolicyAlgorithm
from vime_core.algorithms.returns import Discount, gae, token_rewards
from vime_core.api import Advantages, AlgorithmInfo, Options

if TYPE_CHECKING:
    from vime_core.batch import StepBatch


class Ppo(PolicyAlgorithm):
    """Advantages from a critic's values; the trainer fits the critic to the returns."""

    name = "ppo"
    info = AlgorithmInfo(
        title="Proximal Policy Optimization",
        source="Schulman et al. 2017, arXiv 1707.06347; advantages of Schulman et al. 2015, arXiv 1506.02438",
        advantage="A = delta + gamma lambd A_next, delta = r + gamma V_next - V, "
        "r = R at the last trainable token - kl_coef kl(old_logp, ref_logp)",
        loss=CLIPPED + "; critic: max((V - G)^2, (clip(V, V_old +- value_clip) - G)^2), G = A + V_old",
        notes=(
            "Masked tokens are not steps; V after the last trainable token is 0, also where a response was truncated.",
            "Advantages are whitened only with --normalize-advantages (verl and OpenRLHF always do).",
            "The value loss has no factor 1/2.",
            "kl_coef puts a KL to the reference into the reward of each token (kl_estimator k1 by default).",
        ),
    )
    needs = frozenset({"old_logp", "values", "reward"})
    defaults: ClassVar[Options] = {**CLIP, **REWARD_KL, "gamma": 1.0, "lambd": 1.0, "value_clip": 0.2}
    recompute_old_logprobs = True

    def advantages(self, batch: StepBatch, options: Options) -> Advantages:
        rewards, mask = token_rewards(batch, options), scored_tokens(batch)
        discount = Discount(options["gamma"], options["lambd"])
        parts = gae(rewards, batch.t("values"), mask, batch.seg(), discount)
        return Advantages(*(x.float() for x in parts))
