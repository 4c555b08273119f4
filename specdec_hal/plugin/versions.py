"""Tested versions of an adapter's engine."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

from specdec_hal.errors import UnsupportedError


def require(engine: str, known: Sequence[str], distributions: Sequence[str]) -> str:
    """The installed version of an engine; UnsupportedError unless it is one of `known`.

    `known` are release series such as "5.23", oldest first; `distributions` the names under which it is published.
    """
    span = known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"
    for name in distributions:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if ".".join(version.split(".")[:2]) in known:
            return version
        raise UnsupportedError(
            f"{engine} {version}: expected a version that this adapter is known to work with ({span}); "
            f"pip install '{name}=={known[-1]}.*'"
        )
    raise UnsupportedError(
        f"{engine} is not installed; versions known to work: {span}; pip install '{distributions[0]}=={known[-1]}.*'"
    )
