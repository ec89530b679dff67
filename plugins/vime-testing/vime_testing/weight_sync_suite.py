"""What a weight sync must prove: every bit arrives, every receipt is true, and after a push that fails nobody is served
by weights that were not committed. Trainer and engines are processes of their own (:mod:`vime_testing.sync_bench`);
needs Ray and torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.api import SyncError
from vime_testing.suite import Suite, must, skip

if TYPE_CHECKING:
    import torch

    from vime_core.api import Receipt, WeightSync
    from vime_core.config import Config
    from vime_testing.sync_bench import SyncBench
    from vime_testing.sync_engine import Weights

_BUCKET = 4096


class WeightSyncSuite(Suite):
    """Set ``target``. Both ends are the sync's own; name others to put them to the test.

    Attributes:
        receiver, publisher: string targets, see :class:`vime_core.api.weight_sync.WeightSync`; empty: its own.
        engines: how many.
    """

    kind = "weight_syncs"
    receiver: ClassVar[str] = ""
    publisher: ClassVar[str] = ""
    engines: ClassVar[int] = 2
    _bench: ClassVar[SyncBench | None] = None

    def config(self) -> Config:
        """The run's configuration. Buckets are small, so that one tensor fills several."""
        from vime_core.config import Config

        name = self.target if isinstance(self.target, str) else None
        return Config().replace(
            "sync", weight_sync=name, update_weight_buffer_size=_BUCKET, vllm_weight_transfer_timeout_sec=60.0
        )

    def make(self) -> WeightSync:
        """A new sync, as a run makes it."""
        made: WeightSync = self.resolve()(self.config())
        return made

    def absence(self) -> str:
        """Why it cannot run here; empty where it can."""
        if not isinstance(self.target, str) or self.target not in self.loaded().weight_syncs.names():
            return ""
        able, reason = self.loaded().weight_syncs.get(self.target).available()
        return "" if able else reason

    @classmethod
    def setup_class(cls) -> None:
        try:
            import ray  # noqa: F401
        except ImportError as error:
            skip(f"Ray cannot be imported: {error}")
        self = cls()
        absence = self.absence()
        if absence:
            skip(absence)
        from vime_testing.sync_bench import SyncBench

        own: Any = self.resolve()
        ends = {"receiver": cls.receiver or own.receiver, "publisher": cls.publisher or own.publisher}
        cls._bench = SyncBench(self.config(), tensors(0), engines=cls.engines, **ends)

    @classmethod
    def teardown_class(cls) -> None:
        if cls._bench is not None:
            cls._bench.close()
            cls._bench = None

    # the tests -----------------------------------------------------------------------------------------------
    def test_every_bit_arrives(self) -> None:
        sent = tensors(1)
        with _Connected(self) as sync:
            self._push(sync, sent)
            self._serve(sent, "after a push")

    def test_a_later_push_overwrites(self) -> None:
        with _Connected(self) as sync:
            for seed in (2, 3, 2):
                sent = tensors(seed)
                self._push(sync, sent)
                self._serve(sent, "after a later push")

    def test_the_receipt_is_true(self) -> None:
        sent = tensors(4)
        with _Connected(self) as sync:
            receipt = self._push(sync, sent)
        version, names = max(self._versions()), len(sent)
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in sent.values())
        for what, got, want in (
            ("version", receipt.version, version),
            ("names", receipt.names, names),
            ("nbytes", receipt.nbytes, nbytes),
            ("number of engine proofs", len(receipt.engines), self.engines),
        ):
            must(got == want, f"the receipt's {what} is {got}, it should be {want}")
        must(receipt.digest, "the receipt has no digest; take the manifest's")
        for proof in receipt.engines:
            proven = (proof.version, proof.digest, proof.names)
            must(
                proven == (version, receipt.digest, names),
                f"{proof.engine} proves (version, digest, names) {proven}, the receipt says "
                f"{(version, receipt.digest, names)}; compare them before committing",
            )
            must(
                proof.canary_gap is not None and proof.canary_gap <= 1e-9,
                f"{proof.engine}: canary gap {proof.canary_gap}; let trainer and engine score engines.canary",
            )

    def test_every_engine_serves_the_version(self) -> None:
        with _Connected(self) as sync:
            version = max(self._versions()) + 1
            self._push(sync, tensors(5))
        must(self._versions() == [version] * self.engines, f"engines serve {self._versions()} after version {version}")

    def test_a_missing_and_an_unknown_name_are_refused(self) -> None:
        good = tensors(6)
        with _Connected(self) as sync:
            self._push(sync, good)
            for name, wrong in (
                ("odd", {key: value for key, value in good.items() if key != "odd"}),
                ("stranger", {**good, "stranger": good["odd"]}),
            ):
                self._refused(sync, wrong, name, f"with the name {name!r} {'missing' if name == 'odd' else 'unknown'}")
                self._old_or_nothing(good, f"after {name!r} was refused")
            self._heals(sync)

    def test_a_push_that_breaks_half_way_serves_nobody(self) -> None:
        good = tensors(7)
        with _Connected(self) as sync:
            self._push(sync, good)
            self._bench_or_skip().order(self.engines - 1, break_after=2)
            try:
                self._refused(sync, tensors(8), "as ordered", "although the last engine broke while loading")
            finally:
                self._bench_or_skip().order(self.engines - 1)
            self._nobody_is_served("after a push that broke on the last engine")
            self._heals(sync)

    def test_a_model_that_answers_otherwise_serves_nobody(self) -> None:
        good = tensors(9)
        with _Connected(self) as sync:
            self._push(sync, good)
            self._bench_or_skip().order(0, shift=1.5)
            try:
                self._refused(sync, tensors(10), "", "although an engine's canary is 1.5 off the trainer's")
            finally:
                self._bench_or_skip().order(0)
            self._nobody_is_served("after the canary disagreed")
            self._heals(sync)

    def test_a_closed_sync_pushes_nothing(self) -> None:
        with _Connected(self) as sync:
            sync.close()
            sync.close()
            before = self._versions()
            try:
                sync.push(max(before) + 1)
            except SyncError:
                pass
            else:
                raise AssertionError("push after close returned a receipt; raise SyncError")
            must(self._versions() == before, "push after close changed what engines serve")

    # -----------------------------------------------------------------------------------------------------------
    def _bench_or_skip(self) -> SyncBench:
        if self._bench is None:
            skip("no bench; setup_class was not called")
        return self._bench

    def _versions(self) -> list[int]:
        return self._bench_or_skip().engines.versions()

    def _push(self, sync: WeightSync, weights: Weights) -> Receipt:
        self._bench_or_skip().trainer.load(weights)
        return sync.push(max(self._versions()) + 1)

    def _refused(self, sync: WeightSync, weights: Weights, naming: str, when: str) -> None:
        try:
            self._push(sync, weights)
        except SyncError as error:
            must(naming in str(error), f"the error does not name what is wrong ({naming}): {error}")
        except Exception as error:
            raise AssertionError(f"push raised {type(error).__name__} {when}: {error}; raise SyncError") from error
        else:
            raise AssertionError(f"push returned a receipt {when}; raise SyncError and discard the version")

    def _nobody_is_served(self, when: str) -> None:
        for engine, error in enumerate(self._bench_or_skip().refusals()):
            must(error, f"engine {engine} answers {when}; discard the version wherever it was loaded")

    def _old_or_nothing(self, weights: Weights, when: str) -> None:
        """A transport that holds a whole version has touched no model; another may have, and then nobody is served."""
        if any(self._bench_or_skip().refusals()):
            self._nobody_is_served(when)
        else:
            self._serve(weights, when)

    def _heals(self, sync: WeightSync) -> None:
        sent = tensors(11)
        self._push(sync, sent)
        self._serve(sent, "after a push that follows one that failed")
        must(not any(self._bench_or_skip().refusals()), "an engine answers nothing after a push that passed")

    def _serve(self, weights: Weights, when: str) -> None:
        for engine in range(self.engines):
            held = self._bench_or_skip().weights(engine)
            must(held.keys() == weights.keys(), f"engine {engine} holds {sorted(held)} {when}")
            wrong = [name for name in weights if not _same(held[name], weights[name])]
            must(not wrong, f"engine {engine} {when}: {', '.join(wrong)} differ from what the trainer has")


class _Connected:
    """A sync of its own for each test, closed in every case."""

    def __init__(self, suite: WeightSyncSuite) -> None:
        self._suite, self._sync = suite, suite.make()

    def __enter__(self) -> WeightSync:
        bench = self._suite._bench_or_skip()
        self._sync.connect(bench.trainer, bench.engines)
        return self._sync

    def __exit__(self, *_: Any) -> None:
        self._sync.close()


def _same(got: torch.Tensor, want: torch.Tensor) -> bool:
    import torch

    return got.dtype == want.dtype and got.shape == want.shape and torch.equal(got.nan_to_num(), want.nan_to_num())


def tensors(seed: int) -> Weights:
    """Odd shapes and types, a transposed one, empty, a scalar, exactly a bucket, several buckets."""
    import torch

    random = torch.Generator().manual_seed(seed)
    floats = torch.randn(40, 30, generator=random)
    return {
        "odd": torch.randn(3, 5, 7, generator=random),
        "half": torch.randn(33, 3, generator=random).half(),
        "brain": torch.randn(129, generator=random).bfloat16(),
        "turned": floats.T,
        "every_other": torch.randn(10, 10, generator=random)[::2, 1::3],
        "scalar": torch.tensor(float(seed)),
        "empty": torch.empty(0, 4),
        "flags": torch.rand(13, generator=random) < 0.5,
        "whole": torch.randint(-9, 9, (5,), generator=random),
        "bucket": torch.randn(_BUCKET // 4, generator=random),
        "buckets": torch.randn(5 * _BUCKET // 4 + 3, generator=random),
    }
