"""Where FastDeploy is installed, and its version, also that of the messages it reads. Nothing is imported."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from specdec_hal.errors import ConfigError

META_VARIABLE = "SPECDEC_HAL_FASTDEPLOY_META"
"""Form of the second word of a message with scores: "packed", "flag", or "auto" (default)."""


VERSION_VARIABLE = "SPECDEC_HAL_FASTDEPLOY_VERSION"
"""Which FastDeploy calls: "release/2.6", "development", or "auto" (default), the version that is installed."""


def folders() -> list[str] | None:
    """The folders of FastDeploy's package; None if there is none."""
    if "fastdeploy" in sys.modules:
        return list(getattr(sys.modules["fastdeploy"], "__path__", ()))
    spec = importlib.util.find_spec("fastdeploy")
    return None if spec is None else list(spec.submodule_search_locations or ())


@cache
def packs_columns() -> bool:
    """Whether the number of columns is packed into a message beside its kind, as since PR #7883 (May 2026).

    "auto" looks whether the installed token processor splits that word; without one it is packed. ConfigError for
    another value of the variable.
    """
    setting = os.environ.get(META_VARIABLE) or "auto"
    if setting not in ("auto", "packed", "flag"):
        raise ConfigError(f"{META_VARIABLE}: expected auto, packed or flag, got {setting!r}")
    readers = [path for root in folders() or () for path in Path(root).glob("*/token_processor.py")]
    if setting == "auto" and readers:
        return any(re.search(r">>\s*8\b", path.read_text(encoding="utf-8")) for path in readers)
    return setting != "flag"


@cache
def is_release_2_6() -> bool:
    """Whether FastDeploy is of the branch release/2.6, for what no argument tells apart.

    "auto" asks the installed distribution: 2.6, 2.6.1 and so on, but no development version; without one it is the
    development branch. ConfigError for another value of the variable.
    """
    setting = os.environ.get(VERSION_VARIABLE) or "auto"
    if setting not in ("auto", "release/2.6", "development"):
        raise ConfigError(f"{VERSION_VARIABLE}: expected auto, release/2.6 or development, got {setting!r}")
    if setting != "auto":
        return setting == "release/2.6"
    names = metadata.packages_distributions().get("fastdeploy", [])
    return any(re.fullmatch(r"2\.6(\.\d+)*(\.post\d+|\+.*)*", metadata.version(name)) for name in names)
