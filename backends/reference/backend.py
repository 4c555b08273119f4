"""The reference backend: binds the NumPy functions to the op contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from specdec_hal import backends
from specdec_hal.backends.host import HostBackend
from specdec_hal.backends.reference.ngram_index import index_bytes
from specdec_hal.ops import OPS
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Capability, Launch

_APART = ("backend", "plugin")
_MODULES = [
    import_module(f"{__package__}.{module.name}")
    for module in iter_modules([str(Path(backends.__file__).parent / "reference")])
    if module.name not in _APART
]
_FUNCTIONS: dict[str, Callable[..., None]] = {
    name: getattr(module, name) for name in OPS for module in _MODULES if hasattr(module, name)
}
"""By op name, from any module of this package."""


class ReferenceBackend(HostBackend):
    """NumPy on the CPU, every op, every mode, no limits."""

    name = "reference"
    capabilities: Mapping[str, Capability] = {op: Capability() for op in _FUNCTIONS}

    def plan(self, call: Call) -> Launch:
        """Views of the tensors, bound to the op's function."""
        run = partial(_FUNCTIONS[call.op.name], **self.arrays(call), **call.attrs)

        def launch(stream: int) -> None:
            run()

        return launch

    def index_bytes(self, rows: int, row_width: int, min_ngram_size: int, max_ngram_size: int) -> int:
        """As `ngram_index.index_bytes`."""
        return index_bytes(row_width, min_ngram_size, max_ngram_size)
