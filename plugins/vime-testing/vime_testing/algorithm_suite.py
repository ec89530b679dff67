"""What an algorithm must hold: the invariances of :mod:`vime_testing.algorithms`, and manners at the edges."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vime_testing.suite import Suite, must, skip

if TYPE_CHECKING:
    from vime_core.api import Algorithm
    from vime_testing.toy_step import Case, Subject


def check_algorithm(algorithm: Any, **arguments: Any) -> None:
    """Raise AssertionError unless the algorithm has every property that the trainer relies on.

    Args:
        algorithm: a registered name, ``pkg.mod:Class``, ``./file.py:Class``, a class or an object.
        arguments: options, aggregations, seeds, finite_differences: of
            :func:`vime_testing.algorithms.check_algorithm`.
    """
    from vime_core.plugin import Plugins
    from vime_testing import algorithms

    if isinstance(algorithm, str):
        algorithm = Plugins.load(environ={}).algorithms.resolve(algorithm)
    made: Any = algorithm() if inspect.isclass(algorithm) else algorithm
    algorithms.check_algorithm(made, **arguments)


class AlgorithmSuite(Suite):
    """Set ``target``, and ``options`` for values other than the defaults.

    Attributes:
        options: values of the algorithm's options.
        arguments: of :func:`check_algorithm`: ``aggregations`` and ``seeds``; by default all of them.
        follows_advantage: without advantages there is no policy gradient. None asks it of those that need a reward.
        detaches: the surrogate detaches a factor on purpose, so its gradient is not that of its value. None: where it
            is not, a detached factor may be the reason.
    """

    kind = "algorithms"
    options: ClassVar[Mapping[str, Any]] = {}
    arguments: ClassVar[Mapping[str, Any]] = {}
    follows_advantage: ClassVar[bool | None] = None
    detaches: ClassVar[bool | None] = None

    def make(self) -> Algorithm:
        """An object of the algorithm."""
        made: Any = self.resolve()
        made = made() if inspect.isclass(made) else made
        algorithm: Algorithm = made
        return algorithm

    # the tests -----------------------------------------------------------------------------------------------
    def test_the_options_are_accepted(self) -> None:
        algorithm = self.make()
        unknown = sorted(set(self.options) - set(algorithm.defaults))
        must(not unknown, f"options {unknown} are not in {type(algorithm).__name__}.defaults; name each one there")
        wrong = list(algorithm.violations({**algorithm.defaults, **self.options}))
        must(not wrong, f"its own violations() refuses the options: {'; '.join(wrong)}; mend the defaults or the rule")

    def test_loss_and_gradient_depend_on_nothing_they_should_not(self) -> None:
        check_algorithm(self.make(), options=self.options, finite_differences=False, **self.arguments)

    def test_the_gradient_is_that_of_the_loss(self) -> None:
        if self.detaches:
            skip("detaches = True")
        import numpy as np

        from vime_testing.algorithms import check_gradient

        subject = self._subject(self.make())
        case = self._case(subject)
        try:
            check_gradient(subject, case, np.random.default_rng(0))
        except AssertionError as error:
            if self.detaches is None and self._detached(subject, case):
                skip(f"the surrogate detaches a factor ({error}); set detaches = True if that is meant")
            raise

    def test_equal_rewards_give_a_finite_loss(self) -> None:
        import numpy as np

        subject = self._subject(self.make())
        case = self._case(subject)
        for reward in (0.0, 1.0):
            self._finite(
                subject, case.replace(reward=np.full(len(case.batch), reward)), f"where all rewards are {reward}"
            )

    def test_a_single_sample_gives_a_finite_loss(self) -> None:
        from vime_testing.toy_step import Case

        subject = self._subject(self.make())
        case = self._case(subject)
        at = next(i for i in range(len(case.batch)) if _trainable(case, i))
        start, end = case.batch.response_starts[at : at + 2]
        self._finite(subject, Case(case.batch.take([at]), case.logits[start:end]), "of a batch of one sample")

    def test_no_advantage_is_no_gradient(self) -> None:
        algorithm = self.make()
        subject = self._subject(algorithm)
        if self.follows_advantage is False or (self.follows_advantage is None and "reward" not in subject.required):
            skip("follows_advantage = False, or the algorithm needs no reward")
        case, real = self._case(subject), algorithm.advantages

        def nothing(batch: Any, options: Any) -> Any:
            credit: Any = real(batch, options)
            if isinstance(credit, tuple):
                return credit._replace(advantage=credit.advantage * 0)  # type: ignore[attr-defined]
            return credit * 0

        algorithm.advantages = nothing  # type: ignore[method-assign]
        largest = float(subject.run(case).grad.abs().max())
        must(
            largest == 0.0,
            f"with all advantages 0 the gradient is up to {largest:.3g}; multiply the surrogate by the advantage, or "
            "set follows_advantage = False if the loss has a term of another kind",
        )

    # the toy step --------------------------------------------------------------------------------------------
    def _subject(self, algorithm: Algorithm) -> Subject:
        from vime_core.algorithms import LossConfig
        from vime_testing.toy_step import Subject

        return Subject(algorithm, algorithm.aggregate, self.options, LossConfig())

    def _case(self, subject: Subject) -> Case:
        from vime_testing.toy_step import random_case

        return random_case(0, subject.required)

    def _finite(self, subject: Subject, case: Case, where: str) -> None:
        import math

        outcome = subject.run(case)
        must(
            math.isfinite(outcome.loss) and outcome.grad.isfinite().all(),
            f"loss {outcome.loss} or its gradient is not finite {where}; guard the division",
        )

    def _detached(self, subject: Subject, case: Case) -> bool:
        """Whether anything is detached on the way to the loss."""
        import torch
        from torch.overrides import TorchFunctionMode

        seen = []

        class Watch(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(function is torch.Tensor.detach or function is torch.detach)
                return function(*args, **(kwargs or {}))

        with Watch():
            subject.loss_of(case, case.logits.clone().requires_grad_())
        return any(seen)


def _trainable(case: Case, at: int) -> bool:
    start, end = case.batch.response_starts[at : at + 2]
    return bool(case.batch.mask[start:end].any())
