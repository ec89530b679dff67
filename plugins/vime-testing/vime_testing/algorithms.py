"""Properties that every algorithm must have, as functions that raise AssertionError with the numbers.

For the author of an algorithm::

    from vime_testing.algorithms import check_algorithm

    def test_mine():
        check_algorithm(MyAlgorithm())

P1-P3: loss, gradient and metrics do not depend on the cut into micro-batches, on order, on data-parallel size. P4: nor
on siblings of a rollout being apart. P5: nor on context-parallel size. P7: a sample without trainable tokens changes
nothing but the number of samples. P8: what lies under the mask changes nothing. P9: nor does padding. P10: two equal
copies of a step give the loss of one. P11: the ratio is exactly 1 before the first update. P12, the same for
metrics, is part of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vime_core.algorithms import MicroBatchSlice, response_index
from vime_core.api import Algorithm
from vime_core.batch import AGGREGATIONS, SCHEMA, Packing, StepBatch, plan_steps
from vime_testing.toy_step import Case, Subject, ToyStepResult, random_case

EXACT = 1e-12  # float64 sums in another order
ROUNDED = 2e-6  # a float32 column may round the other way


def assert_same(got: ToyStepResult, want: ToyStepResult, tolerance: float, what: str) -> None:
    """Loss, gradient and every metric within ``tolerance``, relative to the largest of each (at least 1e-3)."""
    assert got.metrics.keys() == want.metrics.keys(), f"{what}: metrics {sorted(got.metrics)} / {sorted(want.metrics)}"
    numbers = {"loss": (got.loss, want.loss)}
    numbers |= {f"metric {name}": (got.metrics[name], want.metrics[name]) for name in want.metrics}
    pairs = {
        name: (torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
        for name, (a, b) in numbers.items()
    }
    for name, (a, b) in {**pairs, "gradient": (got.grad, want.grad)}.items():
        error = float((a - b).abs().max()) if a.numel() else 0.0
        scale = max(1e-3, float(b.abs().max()) if b.numel() else 0.0)
        assert error <= tolerance * scale, f"{what}: {name} is off by {error:.3g} (largest value {scale:.3g})"


# the partition does not matter -----------------------------------------------------------------------------------
def check_micro_batches(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P1, and order of micro-batches (P2)."""
    want = subject.run(case)
    order = rng.permutation(len(case.batch)).tolist()
    for size in (1, 4):
        bins = [order[at : at + size] for at in range(0, len(order), size)]
        assert_same(subject.run(case, [bins]), want, EXACT, f"P1 micro-batches of {size}")
        assert_same(subject.run(case, [bins[::-1]]), want, EXACT, "P2 micro-batches reversed")


def check_order(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P2: the order of samples in the batch."""
    order = rng.permutation(len(case.batch)).tolist()
    rows, _ = response_index(case.batch, order)
    moved = subject.run(Case(case.batch.take(order), case.logits[rows]))
    back = torch.empty_like(moved.grad)
    back[rows] = moved.grad
    assert_same(replace(moved, grad=back), subject.run(case), ROUNDED, "P2 samples permuted")


def check_data_parallel(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P3, with the real plan in several layouts; ranks without samples run too."""
    want = subject.run(case)
    rollouts = len(np.unique(case.batch.rollout))
    longest = int(case.batch.total_lengths.max())
    for ranks, cap in ((1, None), (2, longest), (4, 3 * longest), (len(case.batch) + 1, None)):
        packing = Packing(dp_size=ranks, max_tokens=cap, micro_batch_size=3)
        (step,) = plan_steps(case.batch, packing, rollouts)
        assert_same(subject.run(case, step.micro_batches), want, EXACT, f"P3 {ranks} ranks, cap {cap}")


def check_siblings_apart(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P4: every sample on a rank of its own."""
    apart = [[[i]] for i in range(len(case.batch))]
    assert_same(subject.run(case, apart), subject.run(case), EXACT, "P4 siblings on different ranks")


def check_context_parallel(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P5: zigzag pieces of each sample on 2 and 4 ranks; some of them hold nothing."""
    want = subject.run(case)
    halves = [[list(range(0, len(case.batch), 2)), list(range(1, len(case.batch), 2))]]
    for ranks in (2, 4):
        assert_same(subject.run(case, halves, context=ranks), want, EXACT, f"P5 {ranks} context ranks")


# what is not trained does not matter -----------------------------------------------------------------------------
#: aggregation -> column whose distinct values are its denominator; None: not the number of samples
_GROWS_WITH: Mapping[str, str | None] = {
    "sample_mean": "sample",
    "sample_sum_mean": "sample",
    "fixed_length": "sample",
    "rollout_mean": "rollout",
    "prompt_mean": "group",
    "token_mean": None,
    "sample_mean_nonempty": None,
}


def check_masked_sample(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P7: one more sample without trainable tokens, alone in its group, is in N and in nothing else."""
    batch, rows = _widen(case, {len(case.batch): 3}, rng)
    got = subject.run(replace(case, batch=batch, logits=rows))
    column = _GROWS_WITH[subject.aggregation]
    selected = subject.prepare(case.batch).selected.numpy()
    ids = np.arange(len(selected)) if column in ("sample", None) else getattr(case.batch, column)
    count = len(set(ids[selected]))
    factor = count / (count + 1) if column else 1.0
    want = subject.run(case)
    weighted = {"loss", "pg_loss", "entropy_loss", "kl_loss"}
    metrics = {name: x * (factor if name in weighted else 1) for name, x in want.metrics.items()}
    grad = torch.cat([want.grad * factor, torch.zeros(3, want.grad.shape[1], dtype=want.grad.dtype)])
    assert_same(got, ToyStepResult(want.loss * factor, grad, metrics), ROUNDED, "P7 a fully masked sample added")


def check_under_mask(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P8: every token column, log-probs and entropy under a zero mask: finite, infinite, NaN."""
    want = subject.run(case)
    hidden = ~case.batch.mask
    for value in (0.0, 7.5, np.inf, -np.inf, np.nan):
        assert_same(subject.run(_under(case, hidden, value)), want, 0.0, f"P8 {value} under the mask")


def _under(case: Case, hidden: np.ndarray, value: float) -> Case:
    def put(x: np.ndarray) -> np.ndarray:
        if not np.issubdtype(x.dtype, np.floating):
            return x
        return np.where(hidden, np.asarray(value, x.dtype), x)

    batch = case.batch
    extra = {name: (axis, put(x) if axis == "response" else x) for name, (axis, x) in batch.extra.items()}
    old = None if batch.old_logp is None else put(batch.old_logp)
    moved = case.replace(rollout_logp=put(batch.rollout_logp), extra=extra, old_logp=old)
    return replace(moved, under=value)


def check_padding(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P9: masked tokens at the end of every response, and longer prompts, change nothing."""
    batch, logits = _widen(case, {i: int(rng.integers(0, 4)) for i in range(len(case.batch))}, rng, prompts=2)
    got = subject.run(replace(case, batch=batch, logits=logits))
    starts = torch.from_numpy(batch.response_starts[:-1])[case.batch.seg()]
    rows = starts + torch.arange(case.batch.response_tokens)
    rows -= torch.from_numpy(case.batch.response_starts[:-1])[case.batch.seg()]
    assert_same(replace(got, grad=got.grad[rows]), subject.run(case), EXACT, "P9 padded")
    padding = torch.ones(len(got.grad), dtype=torch.bool)
    padding[rows] = False
    assert not got.grad[padding].any(), "P9: gradient on padding"


def _widen(
    case: Case, tails: Mapping[int, int], rng: np.random.Generator, prompts: int = 0
) -> tuple[StepBatch, torch.Tensor]:
    """The batch with masked tokens after responses (index N: a new sample of one prompt token) and longer prompts."""
    old, n = case.batch, len(case.batch)
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in ["tokens", *_token_columns(old)]}
    logits = []
    for i in range(n + (n in tails)):
        new, tail = i == n, tails.get(i, 0)
        tokens = slice(0, 1) if new else slice(old.token_starts[i], old.token_starts[i + 1])
        response = slice(0, 0) if new else slice(old.response_starts[i], old.response_starts[i + 1])
        pieces["tokens"].append(np.concatenate([np.ones(prompts, "i8"), old.tokens[tokens], np.ones(tail, "i8")]))
        for name, x in _token_columns(old).items():
            filler = np.full(tail, np.nan) if np.issubdtype(x.dtype, np.floating) else np.zeros(tail)
            pieces[name].append(np.concatenate([x[response], filler.astype(x.dtype)]))
        logits += [case.logits[response], torch.from_numpy(rng.normal(size=(tail, case.logits.shape[1])))]
    columns = {name: np.concatenate(x) for name, x in pieces.items()}
    extended = _extended(old) if n in tails else {name: getattr(old, name) for name in _PER_SAMPLE}
    grown = np.array([tails.get(i, 0) for i in range(len(extended["group"]))])
    extended["response_lengths"] = extended["response_lengths"] + grown
    extended["total_lengths"] = extended["total_lengths"] + grown + prompts
    standard = {name: x for name, x in {**columns, **extended}.items() if name in SCHEMA}
    extra = {name: (axis, columns.get(name, x)) for name, (axis, x) in old.extra.items()}
    batch = StepBatch.of(extra=extra, **standard)
    return batch.with_old_logp(torch.from_numpy(columns["old_logp"])), torch.cat(logits)


_PER_SAMPLE = tuple(name for name, (axis, _) in SCHEMA.items() if axis == "sample")


def _token_columns(batch: StepBatch) -> dict[str, np.ndarray]:
    """Columns on the response axis, old_logp among them."""
    columns = {name: getattr(batch, name) for name, (axis, _) in SCHEMA.items() if axis == "response"}
    columns |= {name: x for name, (axis, x) in batch.extra.items() if axis == "response"}
    return {**columns, "old_logp": batch.old_logp}


def _extended(batch: StepBatch) -> dict[str, np.ndarray]:
    """Per-sample columns with one more sample: one prompt token, ids of its own."""
    last = {"total_lengths": 1, "response_lengths": 0, "reward": 3.0, "truncated": False}
    last |= {name: getattr(batch, name).max() + 1 for name in ("group", "rollout")}
    return {name: np.append(getattr(batch, name), last[name]) for name in _PER_SAMPLE}


# the rest --------------------------------------------------------------------------------------------------------
def check_returns(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P2, P7, P8 for a critic's targets, which no loss of the policy shows."""
    want = subject.prepare(case.batch).returns
    if want is None:
        return
    order = rng.permutation(len(case.batch)).tolist()
    rows, _ = response_index(case.batch, order)
    moved = {"P2 samples permuted": (subject.prepare(case.batch.take(order)).returns, want[rows])}
    wider = subject.prepare(_widen(case, {len(case.batch): 3}, rng)[0]).returns
    moved["P7 a fully masked sample added"] = (wider, torch.cat([want, torch.zeros(3)]))
    for value in (0.0, 7.5, np.nan):
        hidden = _under(case, ~case.batch.mask, value)
        moved[f"P8 {value} under the mask"] = (subject.prepare(hidden.batch).returns, want)
    for what, (got, right) in moved.items():
        assert got is not None, f"{what}: no returns"
        off = float((got - right).abs().max())
        assert off <= ROUNDED, f"{what}: returns are off by {off:.3g}"


def check_copies(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P10: every aggregation is a mean, so a step and its copy (under other ids) have the loss of the step. Only token
    weights are compared where advantages depend on the size of the batch (a variance over n - 1)."""
    shift = 1 + max(case.batch.group.max(), case.batch.rollout.max())
    twin = case.replace(group=case.batch.group + shift, rollout=case.batch.rollout + shift)
    both = Case(StepBatch.concat([case.batch, twin.batch]), torch.cat([case.logits, case.logits]))
    pair, single = subject.prepare(both.batch), subject.prepare(case.batch)
    weight = single.weight(range(len(case.batch))) / 2
    off = float((pair.weight(range(len(both.batch))) - torch.cat([weight, weight])).abs().max())
    assert off <= EXACT, f"P10 two copies: token weights are off by {off}"
    if not torch.equal(pair.advantage, torch.cat([single.advantage, single.advantage])):
        return
    got, want = subject.run(both), subject.run(case)
    half = got.grad[: len(want.grad)] + got.grad[len(want.grad) :]
    assert_same(replace(got, grad=half), want, ROUNDED, "P10 two copies")


def check_first_step(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """P11: old log-probs that come from the same forward pass, or none, give a ratio of exactly 1."""
    now = case.log_probs(case.logits.float().double()).float().double()
    prepared, samples = subject.prepare(case.batch), range(len(case.batch))
    share = MicroBatchSlice.of(prepared, prepared.weight(samples), samples, dtype=torch.float64)
    for view in (replace(share, old_logp=None).view(now), replace(share, old_logp=now).view(now)):
        assert torch.equal(view.logp, view.old_logp), "P11: old log-probs are not the current ones"
        _, metrics = subject.algorithm.surrogate(view, share.advantage, subject.merged)
        for name, value in {"ppo_kl": 0.0, "ois": 1.0}.items():
            if name in metrics:
                off = float((metrics[name] - value)[view.mask].abs().max())
                assert off == 0.0, f"P11: {name} is off {value} by {off}"


def check_purity(subject: Subject, case: Case, rng: np.random.Generator) -> None:
    """No stage writes to its inputs, and the same inputs give the same loss."""
    before = {name: x.copy() for name, x in _token_columns(case.batch).items() if x is not None}
    before["reward"] = case.batch.reward.copy()
    first = subject.run(case)
    for name, x in before.items():
        now = _token_columns(case.batch).get(name, case.batch.reward)
        assert np.array_equal(now, x, equal_nan=x.dtype.kind == "f"), f"a stage wrote to {name}"
    assert_same(subject.run(case), first, 0.0, "run twice")
    prepared = subject.prepare(case.batch)
    samples = range(len(case.batch))
    share = MicroBatchSlice.of(prepared, prepared.weight(samples), samples)
    view = share.view(case.log_probs(case.logits).float())
    inputs = {"advantage": share.advantage, "logp": view.logp, "old_logp": view.old_logp, "mask": view.mask}
    before_call = {name: x._version for name, x in inputs.items()}
    subject.algorithm.surrogate(view, share.advantage, subject.merged)
    written = [name for name, x in inputs.items() if x._version != before_call[name]]
    assert not written, f"surrogate wrote in place to {written}"


def check_gradient(subject: Subject, case: Case, rng: np.random.Generator, points: int = 12) -> None:
    """Autograd against central differences at some logits. Not for algorithms that detach a factor on purpose."""
    grad, step = subject.run(case).grad, 1e-6
    live = np.flatnonzero(case.batch.mask)
    for row in rng.choice(live, min(points, len(live)), replace=False):
        column = int(rng.integers(case.logits.shape[1]))
        values = []
        for sign in (1, -1):
            logits = case.logits.clone()
            logits[row, column] += sign * step
            values.append(float(subject.loss_of(case, logits)[0]))
        slope = (values[0] - values[1]) / (2 * step)
        error = abs(slope - float(grad[row, column]))
        assert error <= 1e-7, (
            f"gradient at logit {row, column}: {float(grad[row, column])}, difference quotient {slope}"
        )


Check = Callable[[Subject, Case, np.random.Generator], None]

CHECKS: Sequence[Check] = (
    check_micro_batches,
    check_order,
    check_data_parallel,
    check_siblings_apart,
    check_context_parallel,
    check_masked_sample,
    check_under_mask,
    check_padding,
    check_returns,
    check_copies,
    check_first_step,
    check_purity,
)


def check_algorithm(
    algorithm: Algorithm,
    *,
    options: Mapping[str, Any] | None = None,
    aggregations: Sequence[str] = tuple(AGGREGATIONS),
    seeds: Sequence[int] = (0, 1),
    finite_differences: bool = True,
) -> None:
    """All of the above, for each aggregation and seed.

    Args:
        finite_differences: False for an algorithm that detaches a factor of its surrogate (CISPO's weight).

    Raises:
        AssertionError: names the property, the quantity and by how much it is off.
    """
    checks = (*CHECKS, check_gradient) if finite_differences else CHECKS
    for aggregation in aggregations:
        subject = Subject(algorithm, aggregation, options or {})
        for seed in seeds:
            case = random_case(seed, subject.required)
            for check in checks:
                try:
                    check(subject, case, np.random.default_rng(seed))
                except AssertionError as error:
                    where = f"algorithm {algorithm.name!r}, aggregation {aggregation}, seed {seed}"
                    raise AssertionError(f"{where}: {error}") from error
