"""The engines as generators see them while samples for training are made: they answer only requests whose recorded
log-probs are those of the distribution that the trainer computes, the whole vocabulary at the run's temperature."""

from __future__ import annotations

from vime_core.api import GenerateReply, GenerateRequest, GenerationClient, PluginError, SamplingParams

#: of ``extra``: what changes no probability of a token
_HARMLESS = frozenset({"include_stop_str_in_output", "spaces_between_special_tokens", "detokenize"})


class TrainedSampling(GenerationClient):
    """Refuses what a sampler would do to the distribution.

    Args:
        client: asked for what is not refused.
        temperature: of the run.
    """

    def __init__(self, client: GenerationClient, temperature: float) -> None:
        self._client, self._temperature = client, temperature

    async def generate(self, request: GenerateRequest) -> list[GenerateReply]:
        """Raises PluginError where the request changes the distribution; else as the engines' client."""
        wrong = changed_distribution(request.params, self._temperature)
        if wrong:
            raise PluginError(
                f"the generator asked for {', '.join(wrong)}: the log-probs that it records are then not those of the "
                f"distribution that is trained (all tokens, temperature {self._temperature:g}); leave it out, or mask "
                "these tokens and sample them in an evaluation"
            )
        return await self._client.generate(request)

    async def abort(self) -> None:
        await self._client.abort()

    async def close(self) -> None:
        await self._client.close()


def changed_distribution(params: SamplingParams, temperature: float) -> list[str]:
    """The parameters by which vLLM would sample from another distribution than the model's at ``temperature``."""
    asked = {
        "temperature": (params.temperature, temperature),
        "top_p": (params.top_p, 1.0),
        "top_k": (max(params.top_k, 0), 0),
        "min_p": (params.min_p, 0.0),
        "min_tokens": (params.min_tokens, 0),  # end of text is impossible before
    }
    found = [f"{name} = {value:g}" for name, (value, harmless) in asked.items() if value != harmless]
    return found + [f"{name} = {value}" for name, value in params.extra.items() if name not in _HARMLESS]
