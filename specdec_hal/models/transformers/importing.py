"""Imports `transformers` without what only other uses of it need.

Where scikit-learn and SciPy are installed, its modules import a function of each, for assisted generation and losses of
object detection: 1.6 s of a start. Since Python 3.12 it also looks for every file of every installed package, for 1 s.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from importlib import import_module, metadata
from types import ModuleType
from typing import Any
from unittest.mock import patch

_LATE = {"sklearn.metrics": "roc_curve", "scipy.optimize": "linear_sum_assignment"}


class _Late(ModuleType):
    """Stands for a module that is not imported yet: one of its functions imports it when called."""

    def __init__(self, name: str, function: str) -> None:
        super().__init__(name)
        self._function = function

    def __getattr__(self, name: str) -> Any:
        if name == self._function:
            return partial(_call, self.__name__, name)
        if name.startswith("__"):
            raise AttributeError(name)
        sys.modules.pop(self.__name__, None)
        return getattr(import_module(self.__name__), name)


def _call(module: str, function: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(import_module(module), function)(*args, **kwargs)


def packages_distributions() -> Mapping[str, list[str]]:
    """As that of importlib.metadata, without a look at whether the files are there."""
    found = defaultdict[str, list[str]](list)
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        files = (line.split(",", 1)[0] for line in (distribution.read_text("RECORD") or "").splitlines())
        names = declared or {file.split("/", 1)[0].removesuffix(".py") for file in files}
        for name in names:
            if name.isidentifier():
                found[name].append(distribution.metadata["Name"])
    return found


def import_transformers() -> None:
    """Import it, unless it is imported already."""
    if "transformers" in sys.modules:
        return
    late = {name: _Late(name, function) for name, function in _LATE.items() if name not in sys.modules}
    sys.modules.update(late)
    try:
        with patch.object(metadata, "packages_distributions", packages_distributions):
            import_module("transformers")
        import_module("transformers.generation.utils")
        import_module("transformers.modeling_utils")
    finally:
        for name, module in late.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
