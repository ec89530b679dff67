"""Who may speak to Ray: whoever may runs code here.

A Ray that vime starts is on one machine, so that all of it listens on loopback, behind a token that was made for it and
that its own user alone can read; what it would serve beside (dashboard, metrics, jobs) is left out. A cluster that
somebody else started has to ask for a token, too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vime_core.api import UsageError
from vime_core.runtime.python_process import run_python

#: Ray's own variables
MODE = "RAY_AUTH_MODE"
_PATH, _TOKEN = "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"
#: "0": Ray is for this machine alone, as it is by default on macOS and Windows, and then asks for no other address
#: than loopback; what ``_node_ip_address`` says it replaces by the address of an interface
_SEVERAL = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
#: without it Ray counts as installed without its dashboard, and its agents serve nothing
_DASHBOARD = "ray.dashboard.optional_deps"
#: seconds for a stranger to be refused
_ASKING = 60.0


@contextlib.contextmanager
def secluded(folder: Path) -> Iterator[None]:
    """What ``ray.init`` starts in this block nobody else reaches; the token is in ``folder``.

    Raises:
        UsageError: the installed Ray cannot ask for a token.
    """
    import ray
    from ray._private import ray_constants as constants

    _require_tokens(ray.__version__)
    token = folder / "ray-token"
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    own: dict[str, str | None] = {MODE: "token", _PATH: str(token), _TOKEN: None, _SEVERAL: "0"}
    before = {name: os.environ.get(name) for name in own}
    several, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    dashboard = sys.modules.pop(_DASHBOARD, None)
    sys.modules[_DASHBOARD] = None  # type: ignore[assignment]  # Python's way to say that it is not there
    try:
        _set(own)
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = several
        del sys.modules[_DASHBOARD]
        if dashboard is not None:
            sys.modules[_DASHBOARD] = dashboard
        _set(before)


def require_secluded() -> None:
    """Raises UsageError where the Ray that was started in :func:`secluded` is not."""
    import ray

    raylet, host = _raylet(), ray.util.get_node_ip_address()
    if raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN or host not in ("127.0.0.1", "::1"):
        raise UsageError(
            f"Ray {ray.__version__} does not keep to loopback and a token (it is at {host}): everybody who reaches "
            "this machine could run code in it; pip install 'ray==2.60.0', which does"
        )


def require_token(address: str) -> None:
    """Raises UsageError where the cluster at ``address`` takes a stranger's calls, unless the user said so to Ray."""
    if os.environ.get(MODE) == "disabled" or refuses_strangers(address):
        return
    raise UsageError(
        f"--ray-address {address}: that Ray cluster takes calls without a token, so everybody in its network can run "
        f"code in it. Make a token (ray get-auth-token --generate), copy ~/.ray/auth_token to every node and start "
        f"its nodes and vime with {MODE}=token; or say that its network is closed: {MODE}=disabled"
    )


def refuses_strangers(address: str) -> bool:
    """Whether the cluster at ``address`` refuses a process that has no token."""
    code = f"from ray._raylet import GcsClient; GcsClient({address!r}).internal_kv_keys(b'', None, timeout=10)"
    answer = run_python(["-c", code], _stranger(os.environ), _ASKING)
    return "token" in answer.problem


def _stranger(environ: Mapping[str, str]) -> dict[str, str]:
    return {**{k: v for k, v in environ.items() if k not in (_PATH, _TOKEN)}, MODE: "disabled", "HOME": os.devnull}


def _require_tokens(version: str) -> None:
    if not hasattr(_raylet(), "AuthenticationTokenLoader"):
        raise UsageError(
            f"Ray {version} asks nobody for a token, and whoever reaches it runs code: pip install 'ray>=2.52'"
        )


def _raylet() -> Any:
    """Ray's compiled part, which is not described for type checkers."""
    from ray import _raylet

    return _raylet


def _set(values: Mapping[str, str | None]) -> None:
    """In the environment, and in what Ray has read of it into this process."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _raylet().Config.initialize("")
    _raylet().AuthenticationTokenLoader.instance().reset_cache()
