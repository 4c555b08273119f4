"""Repeat a sample of launches on another backend and compare bit for bit, while serving."""

from __future__ import annotations

import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from math import floor
from pathlib import Path
from typing import Any

import numpy as np

from specdec_hal.ops.bits import difference
from specdec_hal.ops.inputs.files import save_inputs
from specdec_hal.ops.spec import Role
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Backend
from specdec_hal.text import one_line

_log = logging.getLogger("specdec_hal")

_OPAQUE = "index"
"""Its layout is backend-specific. Drafts do not depend on it, so the shadow searches instead."""

_KEPT = 20
"""Most differences whose inputs are saved; the others are only counted."""


class Shadow:
    """Compares every n-th launch of each op of `subject` with `backend`, n being 1 / `fraction`.

    A difference is counted and logged with a file that reproduces it; the results of `subject` are used in any case. A
    compared launch waits for the device, as inputs and outputs are copied to the host.
    """

    def __init__(self, subject: Backend, backend: Backend, fraction: float) -> None:
        self.subject, self.backend, self.fraction = subject, backend, fraction
        self.compared: Counter[str] = Counter()
        self.differing: Counter[str] = Counter()
        self._launches: Counter[str] = Counter()
        self._folder: Path | None = None

    def __call__(self, call: Call, launch: Callable[[], None]) -> None:
        """Launch, and compare every n-th time."""
        op = call.op
        count = self._launches[op.name] = self._launches[op.name] + 1
        required = any(operand.name == _OPAQUE and not operand.optional for operand in op.operands)
        if required or floor(count * self.fraction) == floor((count - 1) * self.fraction):
            launch()
            return
        tensors = {name: value for name, value in call.tensors.items() if value is not None and name != _OPAQUE}
        inputs: dict[str, Any] = {name: self._copy(value) for name, value in tensors.items()}
        launch()
        mine = {name: array.copy() for name, array in inputs.items()}
        self.backend.bind(op.name, **mine, **call.attrs)()
        written = [operand.name for operand in op.operands if operand.role is not Role.IN and operand.name in tensors]
        actual = {name: self._copy(tensors[name]) for name in written}
        self.compared[op.name] += 1
        found = difference(actual, {name: mine[name] for name in written})
        if found is not None:
            self._report(call, inputs, found)

    def summary(self) -> dict[str, Any]:
        """Launches compared and differing, by op."""
        return {"backend": self.backend.name, "compared": dict(self.compared), "differing": dict(self.differing)}

    def _copy(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.array(self.subject.to_host(tensor))

    def _report(self, call: Call, inputs: dict[str, Any], found: str) -> None:
        name, number = call.op.name, self.differing.total()
        self.differing[name] += 1
        where = "its inputs were not saved"
        if number < _KEPT:
            try:
                where = f"to reproduce: {self._save(name, number, {**inputs, **call.attrs})}"
            except OSError as error:
                where = f"its inputs could not be saved: {one_line(error)}"
        _log.error("%s [%s] differs from %s: %s; %s", name, self.subject.name, self.backend.name, found, where)

    def _save(self, op: str, number: int, inputs: dict[str, Any]) -> str:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="specdec-shadow-"))
        path = self._folder / f"{op}-{number}.npz"
        save_inputs(path, inputs)
        call = f"reproduce({self.subject.name!r}, {op!r}, 'equality', {os.fspath(path)!r})"
        return f'python -c "from specdec_hal_conformance import reproduce; print({call})"'
