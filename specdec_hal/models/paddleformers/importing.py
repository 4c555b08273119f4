"""Imports `paddleformers` where `paddlefleet` is absent, and without effects on the rest of the process."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from specdec_hal.errors import BackendUnavailableError
from specdec_hal.models.paddleformers import INSTALL
from specdec_hal.text import describe

FLEET = ("paddlefleet", "paddlefleet_ops")
"""Models and kernels for training, on no package index. The library's files of Qwen, GLM and DeepSeek import names of
them."""
lock = threading.RLock()
"""Held while the library is imported or loads a model, when it changes what all threads share."""


class _Enum:
    """Has every member."""

    def __getattr__(self, name: str) -> None:
        return None


class _Names(ModuleType):
    """A module in which every name is an empty class, or an enumeration."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Enum() if self.__name__.endswith(".enums") else type(name, (), {}))
        return self.__dict__[name]


class _Fleet(MetaPathFinder, Loader):
    """Finds modules of :data:`FLEET`, which have only names."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in FLEET:
            return None
        spec = ModuleSpec(fullname, self, origin=__file__, is_package=True)
        spec.has_location = True  # else the library takes it for absent
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def _with_fleet() -> Iterator[None]:
    """Context in which `paddlefleet` can be imported. Afterwards nobody else finds the stand-in."""
    if find_spec(FLEET[0]) is not None:
        yield
        return
    finder = _Fleet()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in FLEET]:
            del sys.modules[name]


def _severe(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def import_library() -> None:
    """Import it, after Paddle. BackendUnavailableError, with what is missing, if that fails.

    It would hide PyTorch from `transformers` for the whole process, were PyTorch not imported yet. But apache-tvm-ffi,
    which Paddle imports, imports it where it is installed.
    """
    logging.getLogger("PaddleFormers").addFilter(_severe)
    try:
        with lock, _with_fleet():
            import_module("paddleformers.transformers.model_utils")
    except ImportError as error:
        raise BackendUnavailableError(
            f"expected paddleformers and what it imports, got {describe(error)}; {INSTALL}"
        ) from error


def import_model(model_type: str) -> Any:
    """The library's package of a model type: configuration and classes. ModuleNotFoundError if it has none."""
    with lock, _with_fleet():
        package = import_module(f"paddleformers.transformers.{model_type}")
        import_module(f"{package.__name__}.modeling")
    return package
