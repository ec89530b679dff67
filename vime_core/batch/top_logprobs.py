"""The columns of a step batch that hold what the sampler found likeliest at each response token."""

from __future__ import annotations

#: extra fields of a StepBatch, axis "response": [R, k] int32 token ids and their float32 log-probs, NaN at observations
TOP_IDS = "rollout_top_ids"
TOP_LOGP = "rollout_top_logp"
