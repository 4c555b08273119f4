"""How a mutant is made: the reference with an edit or two, or with something done around its launches."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from specdec_hal.backends import reference
from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Backend, Launch
from specdec_hal_conformance import Report, run
from tests.conformance.mutants.editing import Edit

Arrays = dict[str, Any]
_PACKAGE = "edited_reference"
_FOLDER = Path(inspect.getfile(reference)).parent


@dataclass(frozen=True)
class Mutant:
    """A broken backend. `ops`: what it breaks, and what the suite is asked about. `stands_for`: seen in the field."""

    name: str
    ops: tuple[str, ...]
    stands_for: str
    make: Callable[[], Backend]
    edits: tuple[Edit, ...] = ()


def report_of(mutant: Mutant) -> Report:
    """The suite's results, up to the first failure, for the ops that the mutant breaks."""
    return run(mutant.make(), ops=mutant.ops, level="quick", stop_at_failure=True, shrink_failures=False, samples=8192)


@functools.cache
def _text(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8").replace(reference.__name__, _PACKAGE)


@functools.cache
def _unedited(name: str) -> CodeType:
    return compile(_text(name), f"<{_PACKAGE}.{name}>", "exec")


class _EditedReference(MetaPathFinder, Loader):
    """Imports a second reference package from the first one's sources."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = edits

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        is_package = fullname == _PACKAGE
        if not is_package and not fullname.startswith(f"{_PACKAGE}."):
            return None
        return ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _PACKAGE:
            return
        name = module.__name__.rpartition(".")[2]
        edits = [edit for edit in self.edits if edit.module == name]
        code = _unedited(name)
        if edits:
            tree = ast.parse(_text(name))
            for edit in edits:
                edit.apply(tree)
            code = compile(ast.fix_missing_locations(tree), f"<{module.__name__}>", "exec")
        exec(code, module.__dict__)


def edited_reference(edits: Sequence[Edit]) -> Backend:
    """The reference backend built from edited sources, whose modules are forgotten again."""
    finder = _EditedReference(edits)
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(f"{_PACKAGE}.backend")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]
    backend: Backend = module.ReferenceBackend()
    return backend


def edited(name: str, ops: str, stands_for: str, *edits: Edit) -> Mutant:
    """A mutant with other code. `ops`: names with blanks between."""
    return Mutant(name, tuple(ops.split()), stands_for, lambda: edited_reference(edits), edits)


def around(name: str, op: str, stands_for: str, run: Callable[[Arrays, Callable[[], None]], None]) -> Mutant:
    """A mutant that calls `run(arrays, launch)` where the reference would launch `op`; arrays, attributes by name."""

    class Wrapped(ReferenceBackend):
        def plan(self, call: Call) -> Launch:
            launch = super().plan(call)
            if call.op.name != op:
                return launch
            arrays = {**self.arrays(call), **call.attrs}
            return lambda stream: run(arrays, lambda: launch(stream))

    return Mutant(name, (op,), stands_for, Wrapped)


def undefined(op: str, output: str, fill: Any, stands_for: str) -> Mutant:
    """A mutant that leaves `output` as it was wherever the reference writes `fill` to it."""

    def leave(arrays: Arrays, launch: Callable[[], None]) -> None:
        if arrays[output] is None:  # an optional one
            return launch()
        before = arrays[output].copy()
        launch()
        np.copyto(arrays[output], before, where=arrays[output] == fill)

    return around(f"{op}-leaves-{output}", op, stands_for, leave)


def in_32_bits(op: str, operand: str) -> Mutant:
    """A mutant that reads the lower halves of an input's 64-bit values."""

    def read(arrays: Arrays, launch: Callable[[], None]) -> None:
        array = arrays[operand]
        if array is None:  # an optional one
            return launch()
        before = array.copy()
        np.copyto(array, before.astype(np.int32))
        launch()
        np.copyto(array, before)

    return around(f"{op}-reads-{operand}-in-32-bits", op, f"{operand} is copied to an int32 before it is used", read)
