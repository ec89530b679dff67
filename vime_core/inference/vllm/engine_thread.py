"""One thread that owns a vLLM engine in this process: everything that touches the engine runs on it, between steps.

So a step never meets half-updated weights, a pause is simply not stepping, and no lock is needed. Against vLLM's own
asynchronous front end (a second process and two queues) this serves more small requests on few cores and starts in half
the time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vime_core.api import EngineError

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

T = TypeVar("T")


class Mailbox(Protocol):
    """Where results go. ``post`` is called on the loop's thread; ``flush`` once a step, after all of its results."""

    def post(self, id: str, output: RequestOutput | EngineError) -> None: ...

    def flush(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """One request. Its mailbox gets vLLM's final output (partial after an abort) or the error that ended it, once."""

    id: str
    tokens: list[int]
    params: SamplingParams
    mailbox: Mailbox


class _SendQueue:
    """Where vLLM puts a request's outputs: the finished ones and the partial one of an abort alike."""

    def __init__(self, finish: Callable[[Any], None]) -> None:
        self.finish = finish

    def put(self, output: Any) -> None:
        if isinstance(output, Exception) or output.finished:
            self.finish(output)


class EngineLoop:
    """The thread and its inbox."""

    def __init__(self, make: Callable[[], LLMEngine]) -> None:
        self.paused = False
        self._make = make
        self._engine: LLMEngine | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._active: dict[str, Job] = {}  # by vLLM's own request id
        self._touched: set[Mailbox] = set()
        self._error: EngineError | None = None
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Requests that have no final output yet; exact on the engine's thread."""
        return len(self._active)

    def ready(self, timeout: float) -> None:
        """Wait for the engine to be built; raises what building it raised."""
        self._ready.result(timeout)

    def call(self, work: Callable[[LLMEngine], T]) -> Future[T]:
        """Run ``work`` on the engine's thread, between two steps."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(work(self._alive()))
            except BaseException as error:
                answer.set_exception(error)

        self._inbox.put(run)
        return answer

    def submit(self, jobs: Sequence[Job]) -> None:
        """Start requests; they wait while the loop is paused."""

        def run() -> None:
            for job in jobs:
                try:
                    self._add(job)
                except Exception as error:
                    self._post(job, EngineError(f"request {job.id}: {error}"))

        self._inbox.put(run)

    def abort(self, ids: Sequence[str] | None = None) -> Future[int]:
        """End running requests, all or those of ``ids``; each gives the tokens it has. The number of them."""

        def work(engine: LLMEngine) -> int:
            wanted = None if ids is None else set(ids)
            found = [own for own, job in self._active.items() if wanted is None or job.id in wanted]
            engine.abort_request(found, internal=True)
            return len(found)

        return self.call(work)

    def stop(self, timeout: float) -> bool:
        """Give the engine's memory and workers back; every later call is an error. Whether that was done in time."""
        stopped: Future[None] = Future()

        def run() -> None:
            self._end(EngineError("the engine has been shut down"))
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.engine_core.shutdown()
            stopped.set_result(None)

        self._inbox.put(run)
        done, _ = wait([stopped], timeout)
        return bool(done)

    # on the thread -------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._engine = self._make()
        except BaseException as error:
            self._end(EngineError(f"the engine did not start: {type(error).__name__}: {error}"))
            self._ready.set_exception(error)
        else:
            self._ready.set_result(None)
        while True:
            self._drain(block=not self._busy())
            if self._busy():
                self._step()
            self._deliver()

    def _busy(self) -> bool:
        return bool(self._active) and not self.paused

    def _drain(self, block: bool) -> None:
        try:
            self._inbox.get(block)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            return

    def _step(self) -> None:
        try:
            self._alive().step()
        except BaseException as error:
            self._end(EngineError(f"the engine died: {type(error).__name__}: {error}"))

    def _end(self, error: EngineError) -> None:
        """From here on nothing but ``error``, for what runs and for what comes."""
        self._error = self._error or error
        lost, self._active = list(self._active.values()), {}
        for job in lost:
            self._post(job, EngineError(f"request {job.id}: {self._error}"))

    def _post(self, job: Job, output: RequestOutput | EngineError) -> None:
        job.mailbox.post(job.id, output)
        self._touched.add(job.mailbox)

    def _deliver(self) -> None:
        for mailbox in self._touched:
            mailbox.flush()
        self._touched.clear()

    def _alive(self) -> LLMEngine:
        if self._error is not None:
            raise EngineError(str(self._error))
        assert self._engine is not None
        return self._engine

    def _add(self, job: Job) -> None:
        engine = self._alive()
        own = engine.add_request(job.id, {"prompt_token_ids": job.tokens}, job.params)

        def finish(output: Any) -> None:
            self._active.pop(own, None)
            self._post(job, EngineError(f"request {job.id}: {output}") if isinstance(output, Exception) else output)

        self._active[own] = job
        engine.output_processor.request_states[own].queue = _SendQueue(finish)  # type: ignore[assignment]
