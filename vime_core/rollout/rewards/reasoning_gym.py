"""The scorers of reasoning-gym (procedural tasks), as they are. A row's metadata holds the task and its entry:
``{"dataset": "basic_arithmetic", "entry": {"question": ..., "answer": ..., "metadata": {...}}}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vime_core.api import RewardError, Sample, Unscored


class ReasoningGymReward:
    """Takes the text of the last ``<answer>`` element, as reasoning-gym's own prompts ask for; without one, the whole
    response is the answer (``bare=False``: there is none)."""

    def __init__(self, bare: bool = True) -> None:
        try:
            import reasoning_gym
            from reasoning_gym.utils import extract_answer
        except ImportError as error:
            raise RewardError("reward reasoning_gym needs the package: pip install reasoning-gym") from error
        self._bare = bare
        self._extract: Callable[[str], str | None] = extract_answer
        self._scorer_of: Callable[[str], Any] = reasoning_gym.get_score_answer_fn
        self._scorers: dict[str, Any] = {}

    def __call__(self, sample: Sample) -> float | Unscored:
        name, entry = sample.metadata.get("dataset"), sample.metadata.get("entry")
        if not isinstance(name, str) or not isinstance(entry, dict):
            return Unscored(
                f"no entry: reward reasoning_gym: metadata of {sample.source} must hold 'dataset' and 'entry'"
            )
        if name not in self._scorers:
            self._scorers[name] = self._scorer_of(name)
        answer = self._extract(sample.response)
        if answer is None and self._bare:
            answer = sample.response.strip()
        return float(self._scorers[name](answer=answer, entry=entry))
