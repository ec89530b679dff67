"""The real vllm-router as a child process, and its workers."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vime_core.api import EngineError
from vime_core.inference.flags import to_flags
from vime_core.runtime import ChildProcess, answers, free_port, http_call, reachable_host, without_proxies

_LOOPBACK = "127.0.0.1"
#: values that differ from the router's own; the user's ``--router-*`` win
_DEFAULTS = {"policy": "round_robin", "health_check_interval_secs": 5, "worker_startup_timeout_secs": 60}


class Router:
    """A running router. ``url`` is where requests go."""

    def __init__(self, url: str, process: ChildProcess | None, key: str) -> None:
        self.url, self._process, self._key = url, process, key

    @classmethod
    def start(cls, engines: Sequence[str], options: Mapping[str, Any], log: Path, key: str, deadline: float) -> Router:
        """Start a router before ``engines`` (URLs), which must be up and take ``key``; so does the router.

        Raises:
            EngineError: it ended or did not come up; with the first error in its log.
        """
        host = reachable_host()
        port = int(options.get("port") or free_port(host))
        own = {
            **_DEFAULTS,
            "prometheus_host": _LOOPBACK,  # it asks for no key
            "prometheus_port": free_port(_LOOPBACK),
            "request_timeout_secs": 24 * 3600,  # deadlines belong to the client, which knows what it waits for
            **options,
            "host": host,
            "port": port,
            "worker_urls": list(engines),
        }
        module, proof = "vime_core.inference.router_process", f"{engines[0]}/v1/models"
        command = [sys.executable, "-m", module, proof, *to_flags(own, negatable=False)]
        process = ChildProcess("router", command, log, without_proxies(os.environ), grace=2.0)
        router = cls(f"http://{host}:{port}", process, key)
        try:
            router._wait(len(engines), deadline)
        except EngineError:
            router.stop()
            raise
        return router

    @classmethod
    def external(cls, url: str, key: str) -> Router:
        """One that vime does not start or stop.

        Raises:
            EngineError: it does not answer.
        """
        if not answers(url + "/health", key, timeout=5.0):
            raise EngineError(f"no router answers at {url}; check --vllm-router-ip and --vllm-router-port")
        return cls(url, None, key)

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
        self._process.wait_until(lambda: answers(self.url + "/readiness", self._key), deadline)

    def _post(self, path: str, engine: str) -> None:
        url = f"{self.url}{path}?{urllib.parse.urlencode({'url': engine})}"
        try:
            http_call(url, self._key, timeout=90, method="POST")
        except urllib.error.HTTPError as error:
            raise EngineError(f"router: {path} {engine}: {error.code} {error.read()[:500]!r}") from error
        except OSError as error:
            raise EngineError(f"router: {path} {engine}: {error}") from error
