"""The real vllm-router as a child process, and its workers."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vime_core.api import EngineError
from vime_core.inference.flags import to_flags
from vime_core.runtime import ChildProcess, answers, free_port

#: values that differ from the router's own; the user's ``--router-*`` win
_DEFAULTS = {"policy": "round_robin", "health_check_interval_secs": 5, "worker_startup_timeout_secs": 60}


class Router:
    """A running router. ``url`` is where requests go."""

    def __init__(self, url: str, process: ChildProcess | None) -> None:
        self.url, self._process = url, process

    @classmethod
    def start(cls, engines: Sequence[str], options: Mapping[str, Any], log: Path, host: str, deadline: float) -> Router:
        """Start a router before ``engines`` (URLs), which must be up.

        Raises:
            EngineError: it ended or did not come up; with the first error in its log.
        """
        port = int(options.get("port") or free_port(host))
        own = {
            **_DEFAULTS,
            "prometheus_host": host,
            "prometheus_port": free_port(host),
            "request_timeout_secs": 24 * 3600,  # deadlines belong to the client, which knows what it waits for
            **options,
            "host": host,
            "port": port,
            "worker_urls": list(engines),
        }
        command = [sys.executable, "-m", "vllm_router.launch_router", *to_flags(own, negatable=False)]
        url = f"http://{host}:{port}"
        router = cls(url, ChildProcess("router", command, log, os.environ, grace=2.0))
        try:
            router._wait(len(engines), deadline)
        except EngineError:
            router.stop()
            raise
        return router

    @classmethod
    def external(cls, url: str) -> Router:
        """One that vime does not start or stop.

        Raises:
            EngineError: it does not answer.
        """
        if not answers(url + "/health", timeout=5.0):
            raise EngineError(f"no router answers at {url}; check --vllm-router-ip and --vllm-router-port")
        return cls(url, None)

    def add(self, engine: str) -> None:
        self._post("/add_worker", engine)

    def remove(self, engine: str) -> None:
        self._post("/remove_worker", engine)

    def require_alive(self) -> None:
        if self._process is not None:
            self._process.require_alive()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _wait(self, engines: int, deadline: float) -> None:
        assert self._process is not None
        self._process.wait_until(lambda: answers(self.url + "/readiness"), deadline)

    def _post(self, path: str, engine: str) -> None:
        url = f"{self.url}{path}?{urllib.parse.urlencode({'url': engine})}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=90):
                return
        except urllib.error.HTTPError as error:
            raise EngineError(f"router: {path} {engine}: {error.code} {error.read()[:500]!r}") from error
        except OSError as error:
            raise EngineError(f"router: {path} {engine}: {error}") from error
