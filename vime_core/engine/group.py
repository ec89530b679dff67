"""The driver's handle on all engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.config.sections import Config
    from vime_core.engine.client import ClientSpec
    from vime_core.engine.manifest import Manifest
    from vime_core.interfaces.device import DeviceBackend
    from vime_core.interfaces.weight_sync import EngineProof


class EngineGroup:
    """All engines of a run and the router in front of them. Made by :meth:`start`; ended by :meth:`shutdown`.

    Attributes:
        client_spec: give it to the rollout process; ``client_spec.connect()`` makes the client there.
        canary: token ids of the fixed prompt that proves a sync.
        workers: vLLM worker processes a rank of which takes part in a collective weight transfer, per engine.
    """

    client_spec: ClientSpec
    canary: list[int]
    workers: list[int]

    @classmethod
    def start(cls, config: Config, device: DeviceBackend, hf_folder: str, plugins: Any, log_dir: Path) -> EngineGroup:
        """Start the engines side by side, then the router if there is one. Ray must be up.

        Args:
            plugins: the run's loaded plugins (``lock()`` and ``worker_environment(role, config)`` are used).
            log_dir: folder for one log an engine and one of the router.

        Raises:
            EngineError: one did not come up; the message ends with the last lines of its log. Nothing keeps running.
        """
        raise NotImplementedError

    def pause_all(self) -> None:
        """No engine takes a step until :meth:`resume_all`; running requests are kept."""

    def resume_all(self) -> None: ...

    def apply(self, manifest: Manifest) -> list[EngineProof]:
        """Every engine checks and loads the manifest's weights. One that refuses serves what it had.

        Raises:
            SyncError: some engine did not load; all of them are back at the version they had.
        """
        raise NotImplementedError

    def rollback(self, version: int) -> None:
        """Engines that loaded ``version`` go back to what they had before."""

    def score(self, tokens: Sequence[int]) -> list[list[float]]:
        """Per engine the log-probs of tokens[1:] given their prefixes, at temperature 1."""
        raise NotImplementedError

    def abort(self) -> None:
        """Abort what runs on every engine; each request returns the tokens it has."""

    def versions(self) -> list[int]:
        """Weight version that each engine serves."""
        raise NotImplementedError

    def health(self) -> None:
        """Raises EngineError naming the first engine that does not answer."""

    def shutdown(self, deadline: float = 20.0) -> None:
        """End all processes, router first. Idempotent."""
