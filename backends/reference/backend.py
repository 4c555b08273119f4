"""The reference backend: binds the NumPy functions to the op contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from specdec_hal.backend import Capability, Launch
from specdec_hal.backends.host import HostBackend
from specdec_hal.backends.reference import ngram, output, sampling, schedule, status, step_index, verify
from specdec_hal.backends.reference.ngram_index import index_bytes
from specdec_hal.ops import OPS
from specdec_hal.ops.validate import Call

_FUNCTIONS: dict[str, Callable[..., None]] = {
    name: getattr(module, name)
    for module in (step_index, sampling, verify, status, schedule, ngram, output)
    for name in OPS
    if hasattr(module, name)
}


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

    def index_bytes(self, row_width: int, min_ngram_size: int, max_ngram_size: int) -> int:
        """As `ngram_index.index_bytes`."""
        return index_bytes(row_width, min_ngram_size, max_ngram_size)
