"""How a mutant is made: the reference with an edit or two, or with something done around its launches."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from specdec_hal.backends import reference
from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.conformance import Report, run
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Backend, Launch
from tests.conformance.mutants.editing import Edit

Arrays = dict[str, Any]
_PACKAGE = reference.__name__
_FOLDER = Path(inspect.getfile(reference)).parent
_numbers = itertools.count()


@dataclass(frozen=True)
class Mutant:
    """A broken backend. `ops`: what it breaks, and what the suite is asked about. `stands_for`: seen in the field."""

    name: str
    ops: tuple[str, ...]
    stands_for: str
    make: Callable[[], Backend]
    edits: tuple[Edit, ...] = ()


def judge(mutant: Mutant) -> Report:
    """What the suite says, up to the first failure, about the ops that the mutant breaks."""
    return run(mutant.make(), ops=mutant.ops, level="quick", stop_at_failure=True, shrink_failures=False, samples=8192)


class _EditedReference(MetaPathFinder, Loader):
    """Imports a second reference package from the first one's sources."""

    def __init__(self, package: str, edits: Sequence[Edit]) -> None:
        self.package, self.edits = package, edits

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        is_package = fullname == self.package
        if not is_package and not fullname.startswith(f"{self.package}."):
            return None
        return ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == self.package:
            return
        name = module.__name__.rpartition(".")[2]
        text = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
        tree = ast.parse(text.replace(_PACKAGE, self.package))
        for edit in self.edits:
            if edit.module == name:
                edit.apply(tree)
        exec(compile(ast.fix_missing_locations(tree), f"<{module.__name__}>", "exec"), module.__dict__)


def edited_reference(edits: Sequence[Edit]) -> Backend:
    """The reference backend built from edited sources, under module names of its own."""
    finder = _EditedReference(f"edited_reference_{next(_numbers)}", edits)
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(f"{finder.package}.backend")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == finder.package]:
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
