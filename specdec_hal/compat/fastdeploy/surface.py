"""The names of an op package of FastDeploy as this project has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from specdec_hal.compat.fastdeploy.adaptor import ADAPTORS
from specdec_hal.compat.fastdeploy.names import FAMILIES, LEFT
from specdec_hal.errors import UnsupportedError


def names(platform: str) -> list[str]:
    """The ops that are served, sorted."""
    return sorted(ADAPTORS[platform])


def attribute(platform: str, name: str) -> Callable[..., Any]:
    """The op of that name; one that raises when it is called, if it is not served. AttributeError for private names."""
    if name.startswith("_"):
        raise AttributeError(f"FastDeploy's {platform} ops of specdec_hal have no '{name}'")
    return ADAPTORS[platform].get(name) or _refusal(platform, name)


@cache
def _refusal(platform: str, name: str) -> Callable[..., Any]:
    known = name.startswith(FAMILIES)
    unlisted = "an op of speculative decoding that it does not know" if known else "it is no op of speculative decoding"
    reason = LEFT[platform].get(name, unlisted)

    def refused(*args: Any, **named: Any) -> Any:
        raise UnsupportedError(
            f"{name} [FastDeploy]: not served by specdec_hal: {reason}; install FastDeploy with its compiled ops. "
            f"Served on {platform}: {', '.join(names(platform))}"
        )

    refused.__name__ = name
    return refused
