"""The clients of servers that belong to a run: engines and router. The only place that makes any.

None of them asks a proxy, whatever the environment says, and each sends the key of the run where there is one.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp


def http_session(key: str, base_url: str = "", **more: Any) -> aiohttp.ClientSession:
    """A session whose requests carry ``key``; ``more`` are aiohttp's own keywords."""
    import aiohttp

    return aiohttp.ClientSession(base_url or None, headers=_authorization(key), trust_env=False, **more)


def http_call(url: str, key: str, timeout: float, method: str = "GET") -> bytes:
    """What the server answers, once redirects are followed.

    Raises:
        urllib.error.HTTPError: a status that is no success. OSError: no answer.
    """
    request = urllib.request.Request(url, method=method, headers=_authorization(key))
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=timeout) as response:
        answer: bytes = response.read()
        return answer


def answers(url: str, key: str = "", timeout: float = 1.0) -> bool:
    """A GET of ``url`` succeeds."""
    try:
        http_call(url, key, timeout)
        return True
    except OSError:
        return False


def without_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that speaks to nobody but the run's servers."""
    return {name: value for name, value in environ.items() if not name.lower().endswith("_proxy")}


def _authorization(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
