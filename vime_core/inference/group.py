"""The driver's handle on all engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vime_core.api import EngineError, EngineProof, SyncError
from vime_core.inference.launch import EngineLaunch
from vime_core.inference.spec import canary_tokens
from vime_core.runtime import Deadline, Interrupts, end_actor, gather, log_error, ray_works, settle

if TYPE_CHECKING:
    from pathlib import Path

    from vime_core.config import Config
    from vime_core.inference.client import ClientSpec
    from vime_core.inference.router import Router
    from vime_core.inference.sleep_mode import Tag
    from vime_core.inference.update import Applied
    from vime_core.inference.vllm_engine import StartedEngine

#: deadline of a small control call, and of the question after an error whether an engine is still there, seconds
_CALL, _THERE = 60.0, 10.0


class EngineGroup:
    """All engines of a run and the router in front of them. Made by :meth:`start`; ended by :meth:`shutdown`.

    Attributes:
        client_spec: give it to the rollout process; ``client_spec.connect()`` makes the client there.
        canary: token ids of the fixed prompt that proves a sync.
        workers: vLLM worker processes of each engine; each of them is one rank of a collective weight transfer.
        logs: of the engines that vime started.
        pids: process ids of the engines' actors, each on its node.
        seconds: of the last :meth:`apply`, by phase; the slowest engine's.
        stop: gives up every wait but those of discarding and ending.
        before_score: called before the engines are asked for log-probs, so that engines whose weights alone are awake,
            for a sync, can be woken for its canary.
    """

    client_spec: ClientSpec

    def __init__(
        self,
        names: Sequence[str],
        actors: Sequence[Any],
        started: Sequence[StartedEngine],
        config: Config,
        stop: Interrupts | None = None,
    ) -> None:
        self.names, self.actors, self.config = list(names), list(actors), config
        self.stop = stop or Interrupts()
        self.logs: list[Path | None] = [None] * len(actors)
        self.urls = [engine.url for engine in started]
        self.workers = [engine.workers for engine in started]
        self.pids = [engine.pid for engine in started]
        self.router: Router | None = None
        self.canary: list[int] = []
        self.seconds: dict[str, float] = {}
        self.before_score: Callable[[], None] = lambda: None

    @classmethod
    def start(cls, launch: EngineLaunch, stop: Interrupts | None = None) -> EngineGroup:
        """Start the engines side by side, then the router if there is one. Ray must be up.

        Raises:
            EngineError: one did not come up; the message ends with the first error in its log. Nothing keeps running.
        """
        canary = canary_tokens(launch.hf_folder, launch.config.rollout.rollout_max_context_len)
        names, actors = launch.create()
        seconds = launch.config.cluster.start_timeout_secs
        refs = [actor.start.remote(seconds) for actor in actors]
        group = cls(names, actors, [], launch.config, stop)
        try:
            started = gather(names, refs, group.stop.within(seconds + 10.0), "start")
            group = cls(names, actors, started, launch.config, stop)
            group.logs = launch.logs()
            group.router = launch.router(group.urls)
        except BaseException:
            group.shutdown()
            raise
        group.canary, group.client_spec = canary, launch.client_spec(group.urls, group.router)
        return group

    # generation control --------------------------------------------------------------------------------------
    def abort(self) -> None:
        """Abort what runs on every engine; each request returns the tokens it has."""
        self._all("abort")

    def score(self, tokens: Sequence[int]) -> list[list[float]]:
        """Per engine the log-probs of tokens[1:] given their prefixes, at temperature 1."""
        self.before_score()
        return self._all("score", list(tokens))

    def versions(self) -> list[int]:
        """Weight version that each engine serves."""
        return self._all("weight_version")

    def health(self) -> None:
        """Raises EngineError naming what does not answer."""
        if self.router is not None:
            self.router.require_alive()
        self._all("health")

    def lost(self) -> list[str]:
        """What is gone of engines and router, each with its log: asked when something else failed, since who waits for
        an engine knows its address at best."""
        found = settle(self.names, [actor.health.remote() for actor in self.actors], Deadline(_THERE), "health")
        lines = [_with_log(str(error), log) for error, log in zip(found, self.logs) if isinstance(error, Exception)]
        try:
            if self.router is not None:
                self.router.require_alive()
        except EngineError as error:
            lines.append(str(error))
        return lines

    # memory --------------------------------------------------------------------------------------------------
    def sleep(self, level: int) -> None:
        """All engines give their device memory up; what came after the last answer waits until they are awake.

        Args:
            level: 1 keeps the weights in host memory, 2 drops them: then the next sync has to bring others.

        Raises:
            EngineError: naming the engine that has requests in flight, or that did not sleep in time.
        """
        self._all("sleep", level, seconds=self._moving)

    def wake(self, *tags: Tag) -> None:
        """They take it again: "weights" first, which is enough for a sync, then "kv_cache".

        Raises:
            EngineError: naming the engine that could not.
        """
        self._all("wake", tags, seconds=self._moving)

    @property
    def _moving(self) -> float:
        """As many bytes as a sync, so with its deadline."""
        return self.config.sync.vllm_weight_transfer_timeout_sec

    # weights -------------------------------------------------------------------------------------------------
    def apply(self, version: int, terms: Mapping[str, Any]) -> list[EngineProof]:
        """Every engine takes and verifies what the trainer sends; once all have, each loads it, held while it does.

        Args:
            terms: where and with whom to meet.

        Raises:
            SyncError: some engine did not; each serves the version it had, or nothing if it had begun to load.
        """
        offsets = [1 + sum(self.workers[:index]) for index in range(len(self.workers))]
        self._update(version, "receive", [(version, dict(terms), offset) for offset in offsets])
        applied: list[Applied] = self._update(version, "load", [(version,)] * len(self.actors))
        phases = applied[0].seconds
        self.seconds = {phase: max(one.seconds[phase] for one in applied) for phase in phases}
        return [EngineProof(one.engine, one.version, one.digest, one.names) for one in applied]

    def discard(self, version: int) -> bool:
        """``version`` does not count. Whether an engine had loaded any of it: then it refuses requests until an update
        passes.

        Raises:
            EngineError: one did not answer.
        """
        refs = [actor.discard.remote(version) for actor in self.actors]
        return any(gather(self.names, refs, Deadline(_CALL), f"discard of weights version {version}"))

    def _update(self, version: int, step: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """``step`` of an update on every engine; where one fails, the version is taken from all."""
        refs = [getattr(actor, step).remote(*own) for actor, own in zip(self.actors, arguments, strict=True)]
        deadline = self.stop.within(self.config.sync.vllm_weight_transfer_timeout_sec)
        results = settle(self.names, refs, deadline, f"{step} of weights version {version}")
        errors = [str(result) for result in results if isinstance(result, Exception)]
        if not errors:
            return list(results)
        try:
            self.discard(version)
        except EngineError as error:
            errors.append(f"and not every engine could be told: {error}")
        raise SyncError(f"weights version {version} not committed: {'; '.join(errors)}")

    # the end -------------------------------------------------------------------------------------------------
    def shutdown(self, deadline: float = 20.0) -> None:
        """End all processes, router first. Idempotent."""
        if self.router is not None:
            self.router.stop()
            self.router = None
        actors, self.actors = self.actors, []
        if not ray_works():
            return
        settle(self.names, [actor.shutdown.remote() for actor in actors], Deadline(deadline), "shutdown")
        for actor in actors:
            end_actor(actor)

    def _all(self, method: str, *arguments: Any, seconds: float = _CALL) -> list[Any]:
        refs = [getattr(actor, method).remote(*arguments) for actor in self.actors]
        return gather(self.names, refs, self.stop.within(seconds), method)


def _with_log(error: str, log: Path | None) -> str:
    """``error`` and the first error in the log, unless it is there already (a server's owner has looked)."""
    return error if log is None or str(log) in error else error + log_error(log)
