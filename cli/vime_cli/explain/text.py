"""An :class:`Explanation` as lines of text: each number with what it was made from, every denominator by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch

from vime_cli.explain.explanation import Explanation
from vime_core.batch import StepTokens


def lines(e: Explanation) -> Iterator[str]:
    """The whole text, a line at a time."""
    facts, i = e.facts, e.sample
    batch = e.batch
    yield (
        f"step {facts['step']}, sample {i}: group {batch.group[i]}, rollout {batch.rollout[i]}, "
        f"{batch.response_lengths[i]} response tokens{', truncated' if batch.truncated[i] else ''}"
    )
    yield f"algorithm {facts['algorithm']}, options {_options(facts['options'])}"
    if e.optimizer_step < 0:
        yield "this sample was left out of every optimizer step: it has no share"
        return
    yield ""
    yield from _reward(e)
    yield ""
    yield from _weight(e)
    yield ""
    yield from _table(e)
    yield ""
    yield from _sums(e)


def _reward(e: Explanation) -> Iterator[str]:
    batch, i, stats = e.batch, e.sample, e.groups
    family = [k for k in range(len(batch)) if batch.group[k] == batch.group[i]]
    listed = " ".join(f"[{batch.reward[k]:g}]" if k == i else f"{batch.reward[k]:g}" for k in family)
    yield f"rewards of the group ({len(family)} samples, {int(stats.rollouts[i])} rollouts): {listed}"
    yield f"  mean {float(stats.mean[i]):.6g}, std {float(stats.std[i]):.6g} (over n - 1), this one {batch.reward[i]:g}"
    if float(e.given[i]) != batch.reward[i]:
        yield f"  of it, {batch.reward[i] - float(e.given[i]):g} is the penalty for an overlong response"
    if not bool(stats.scored[i]):
        yield "  this sample has no finite reward"


#: a total is compared with when it is more than this part of the shares that it is the sum of
_NEAR_ZERO = 1e-2

#: aggregation -> the denominator of a token's weight, in words and as factors
_DENOMINATORS: Mapping[str, Callable[[StepTokens, int], list[tuple[str, float]]]] = MappingProxyType(
    {
        "sample_mean": lambda c, i: [_samples(c), _tokens(c, c.sample_ids, i, "this sample")],
        "rollout_mean": lambda c, i: [_rollouts(c), _tokens(c, c.rollout, i, "its rollout")],
        "token_mean": lambda c, i: [_tokens(c, torch.zeros_like(c.sample_ids), i, "the optimizer step")],
        "fixed_length": lambda c, i: [_samples(c), ("fixed length", float(c.length or 0))],
        "prompt_mean": lambda c, i: [
            ("prompts of the optimizer step", float(c.distinct(c.group))),
            _tokens(c, c.group, i, "its prompt"),
        ],
        "sample_mean_nonempty": lambda c, i: [
            ("samples with a trainable token", float(len(torch.unique(c.seg[c.chosen])))),
            _tokens(c, c.sample_ids, i, "this sample"),
        ],
        "sample_sum_mean": lambda c, i: [_samples(c)],
    }
)


def _samples(c: StepTokens) -> tuple[str, float]:
    return "samples of the optimizer step", float(c.samples)


def _rollouts(c: StepTokens) -> tuple[str, float]:
    return "rollouts of the optimizer step", float(c.distinct(c.rollout))


def _tokens(c: StepTokens, ids: torch.Tensor, sample: int, whose: str) -> tuple[str, float]:
    mine = (ids == ids[sample])[c.seg] & c.chosen
    return f"trainable tokens of {whose}", float(mine.sum())


def _weight(e: Explanation) -> Iterator[str]:
    name = e.facts["aggregation"]
    factors = _DENOMINATORS[name](e.counted, e.sample)
    said = " x ".join(f"{value:g} {what}" for what, value in factors)
    product = 1.0
    for _, value in factors:
        product *= value
    result = f"{1 / product:.6g}" if product else "no trainable token"
    yield f"aggregation {name}, optimizer step {e.optimizer_step}: weight of a token = 1 / ({said}) = {result}"


def _table(e: Explanation) -> Iterator[str]:
    """A row a token, masked ones too."""
    start = int(e.batch.token_starts[e.sample + 1] - e.batch.response_lengths[e.sample])
    names = [name for name in e.columns if name != "trained"]
    yield "  ".join([f"{'token':>7}", f"{'id':>7}", *(f"{name:>11}" for name in names)])
    for at, trained in enumerate(e.columns["trained"].tolist()):
        cells = [f"{float(e.columns[name][at]):>11.5g}" for name in names] if trained else [f"{'masked':>11}"]
        yield "  ".join([f"{at:>7}", f"{int(e.batch.tokens[start + at]):>7}", *cells])


def _sums(e: Explanation) -> Iterator[str]:
    yield "share = weight x correction x loss, summed over the sample's trainable tokens"
    # shares of both signs nearly cancel where a policy is close to the old one: a part of what is left says nothing
    part = f" ({e.pg_loss / e.total:.2%} of it)" if abs(e.total) > _NEAR_ZERO * e.mass else ", which is next to nothing"
    yield f"  this sample {e.pg_loss:+.6g}; all of optimizer step {e.optimizer_step} {e.total:+.6g}{part}"
    if e.kl_loss:
        coefficient = e.facts["terms"]["kl_loss_coef"]
        yield f"  its KL to the reference, kl_loss_coef {coefficient:g} x weight x KL: {e.kl_loss:+.6g}"
    if e.facts["terms"].get("entropy_coef"):
        yield "  the entropy bonus is not in these numbers: entropies are not kept"
    if e.logged is not None:
        yield f"  the trainer logged pg_loss {e.logged:+.6g} for that step: off by {abs(e.total - e.logged):.2g}"


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items() if value is not None) or "none"
