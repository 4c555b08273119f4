"""Imports `transformers` without what only other uses of it need, while a GPU and PyTorch's libraries get ready.

What is left out is in :mod:`.late`. Since Python 3.12 the library also looks for every file of every installed package,
for 1 s. Garbage collections take a sixth of an import, which makes many objects and no garbage.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from unittest.mock import patch

from specdec_hal.errors import ArgumentError
from specdec_hal.models.transformers.late import is_dtensor, late_compiler, late_modules
from specdec_hal.tensors.memory import age_heap, collector_paused

_LIBRARIES = {
    "libtorch_global_deps.so": os.RTLD_GLOBAL,  # as PyTorch loads it
    "libtorch_cpu.so": os.RTLD_LOCAL,
    "libtorch_cuda.so": os.RTLD_LOCAL,
}
_NAME = re.compile(r"^Name: *(.*\S)", re.MULTILINE)
_FIRST = re.compile(r'^"?([^/,\n]+)', re.MULTILINE)


def packages_distributions() -> Mapping[str, list[str]]:
    """As that of importlib.metadata, without a look at whether the files are there."""
    found = defaultdict[str, list[str]](list)
    for distribution in metadata.distributions():
        named = _NAME.search(distribution.read_text("METADATA") or "")
        names: Iterable[str] = (distribution.read_text("top_level.txt") or "").split()
        if not names:
            names = {first.removesuffix(".py") for first in _FIRST.findall(distribution.read_text("RECORD") or "")}
        for name in filter(str.isidentifier, names):
            found[name].append(named[1] if named else distribution.metadata["Name"])
    return found


def begin(device: str) -> None:
    """Import it without PyTorch. Meanwhile threads do what launches on a GPU `device` wait for."""
    with collector_paused(), late_modules():
        if device != "cpu":
            _begin()
        with patch.object(metadata, "packages_distributions", packages_distributions):
            import_module("transformers")
        age_heap()


def import_transformers(device: str = "cpu") -> None:
    """Import it and PyTorch, unless they are there."""
    with collector_paused(), late_modules():
        begin(device)
        if device != "cpu":
            from specdec_hal.models.from_host import gpu, wake

            with suppress(ArgumentError):  # the loader raises it
                wake(gpu(device))
        with late_compiler():
            distributed = import_module("transformers.distributed.utils")
            if hasattr(distributed, "is_dtensor"):
                distributed.is_dtensor = is_dtensor  # type: ignore[attr-defined]
            import_module("transformers.generation.utils")
            import_module("transformers.modeling_utils")
            import_module("specdec_hal.models.transformers.load")
        age_heap()


@cache
def _begin() -> None:
    if "torch" not in sys.modules:
        threading.Thread(target=_load_libraries, daemon=True).start()
    if importlib.util.find_spec("triton") is not None:
        from specdec_hal.models.triton_kernels.compiling import prepare

        prepare()


def _load_libraries() -> None:
    """Load PyTorch's libraries, for 0.5 s in which its import would not let other threads run."""
    spec = importlib.util.find_spec("torch")
    folder = Path(spec.origin).parent / "lib" if spec is not None and spec.origin is not None else Path()
    load = ctypes.CDLL(None).dlopen  # a call without the interpreter's lock, other than ctypes.CDLL
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    for name, mode in _LIBRARIES.items():
        load(bytes(folder / name), os.RTLD_NOW | mode)
