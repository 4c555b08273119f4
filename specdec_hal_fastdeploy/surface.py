"""The names of a FastDeploy op package: served ops, and refusals of all others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from specdec_hal.errors import UnsupportedError
from specdec_hal_fastdeploy import (  # noqa: F401
    draft_model,
    lod_infer,
    logprobs,
    ngram,
    output,
    output_ops,
    packing,
    sampling,
    verify,
)
from specdec_hal_fastdeploy.adaptor import ADAPTORS
from specdec_hal_fastdeploy.unserved import FAMILIES, LEFT


def surface(platform: str) -> tuple[Callable[[str], Callable[..., Any]], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module that stands for the op package of a platform, "gpu" or "xpu".

    An op that is not served raises when it is called; a private name is an AttributeError.
    """

    def attribute(name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"FastDeploy's {platform} ops of specdec_hal have no '{name}'")
        return ADAPTORS[platform].get(name) or _refusal(platform, name)

    return attribute, lambda: sorted(ADAPTORS[platform])


@cache
def _refusal(platform: str, name: str) -> Callable[..., Any]:
    known = name.startswith(FAMILIES)
    unlisted = "an op of speculative decoding that it does not know" if known else "it is no op of speculative decoding"
    reason = LEFT[platform].get(name, unlisted)

    def refused(*args: Any, **named: Any) -> Any:
        raise UnsupportedError(
            f"{name} [FastDeploy]: not served by specdec_hal: {reason}; install FastDeploy with its compiled ops. "
            f"Served on {platform}: {', '.join(sorted(ADAPTORS[platform]))}"
        )

    refused.__name__ = name
    return refused
