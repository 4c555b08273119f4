"""Find and load the native libraries in ``specdec_hal/lib``, or of a distribution of their own (specdec-hal-cuda)."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from specdec_hal.errors import BackendUnavailableError
from specdec_hal.tensors.memory import age_heap, collector_paused

BUILD_HINT = "build it: `make setup` in a clone, or `pip install --no-build-isolation -e .` in your own environment"
_PACKAGES = ("specdec_hal.lib", "specdec_hal_cuda")


def library_path(name: str) -> Path | None:
    """Where ``lib<name>.so`` is installed, or None. Imports nothing, so a backend's probe may call it.

    The package's own build comes before that of a distribution such as specdec-hal-cuda. Uses the import system,
    because an editable install separates libraries from sources; this also triggers the rebuild of installs with
    ``editable.rebuild=true``.
    """
    for package in _PACKAGES:
        try:
            spec = importlib.util.find_spec(f"{package}.lib{name}")
        except ModuleNotFoundError:  # the package is absent: nothing was built
            continue
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    return None


@cache
def load_library(name: str) -> Any:
    """Load ``lib<name>.so`` once and return it as a ``tvm_ffi.Module``, whose exported functions are attributes.

    Args:
        name: without prefix and suffix, e.g. ``"specdec_common"``.

    Raises:
        BackendUnavailableError: the library was not built, or cannot be loaded here.
    """
    path = library_path(name)
    if path is None:
        raise BackendUnavailableError(
            f"expected the native library lib{name}.so in the installed package specdec_hal, found none; {BUILD_HINT}"
        )
    with collector_paused():  # it imports PyTorch
        import tvm_ffi

        age_heap()
    try:
        return tvm_ffi.load_module(str(path))
    except (OSError, RuntimeError) as error:
        raise BackendUnavailableError(
            f"expected to load {path}, got: {error}; it was built for another machine or apache-tvm-ffi: reinstall "
            "specdec-hal here"
        ) from error
