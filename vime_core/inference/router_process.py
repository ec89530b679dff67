"""The router's own process: ``python -m vime_core.inference.router_process URL ARGUMENTS...``.

It runs vllm-router so that it asks for a key, which its command line has no flag for. A key counts if the engine at URL
gives 200 with it.
"""

from __future__ import annotations

import sys


def main(url: str, arguments: list[str]) -> None:
    from vllm_router.launch_router import launch_router, parse_router_args
    from vllm_router_rs import Router

    option = "api_key_validation_urls"
    if option not in (Router.__doc__ or "") + (Router.__text_signature__ or ""):
        raise SystemExit("this vllm-router asks nobody for a key: pip install 'vllm-router>=0.1.14'")
    options = parse_router_args(arguments)
    setattr(options, option, [url])
    launch_router(options)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
