"""Old import paths of packages that have moved, for one release."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from types import ModuleType
from typing import Any


def moved(old: str, new: str) -> None:
    """Make `old`, the module that calls this, and all below it names of the modules of `new`."""
    warnings.warn(f"{old} is now {new}; the old name goes with version 0.3", DeprecationWarning, stacklevel=3)
    package = importlib.import_module(new)
    sys.meta_path.insert(0, _Moved(old, new))
    sys.modules[old] = package


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by their old names; they are the same objects as by the new ones."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = f"{old}.", f"{new}."

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Of a module below the old name."""
        if not name.startswith(self._old):
            return None
        return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module of the new name; `spec` replaces nothing in it."""
        module = importlib.import_module(self._new + spec.name.removeprefix(self._old))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed under its new name."""
        module.__spec__ = self._spec
