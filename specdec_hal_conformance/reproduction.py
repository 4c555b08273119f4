"""A failing case as a few lines of Python."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from specdec_hal.errors import ConfigError
from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.files import load_inputs
from specdec_hal.plugin import registry
from specdec_hal_conformance.case import Case, Inputs
from specdec_hal_conformance.checks import CHECKS
from specdec_hal_conformance.guarded import device_for
from specdec_hal_conformance.report import versions
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.trial import Trial

_LARGEST = 2000
"""Most elements of an array literal; larger ones become compressed bytes."""


def source(backend: str, case: Case, check: str, inputs: Inputs, seed: int, options: Mapping[str, Any]) -> str:
    """Python code that repeats one check on these inputs and prints the fault."""
    stated = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        f"# {case.id}::{check}{f' ({case.note})' if case.note else ''}",
        f"# backend {backend}, seed {seed}; {stated}",
        "import numpy as np",
        "from specdec_hal_conformance import reproduce",
        "",
        "inputs = {",
        *(f"    {name!r}: {_literal(value)}," for name, value in inputs.items()),
        "}",
        f"print(reproduce({backend!r}, {case.op!r}, {check!r}, inputs, kind={case.kind!r}, options={dict(options)!r}))",
    ]
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, Enum):
        return repr(value.name)
    if not isinstance(value, np.ndarray):
        return repr(value)
    dtype = f"np.{value.dtype}" if value.dtype != np.bool_ else "np.bool_"
    flat = value.reshape(-1)
    if value.size > 4 and (flat == flat[0]).all():
        return f"np.full({value.shape}, {_number(flat[0])}, {dtype})"
    if value.size > _LARGEST:
        packed = base64.b85encode(zlib.compress(value.tobytes(), 9)).decode()
        imports = "__import__('zlib').decompress(__import__('base64').b85decode"
        return f"np.frombuffer({imports}({packed!r})), {dtype}).reshape({value.shape}).copy()"
    if value.size == 0:
        return f"np.zeros({value.shape}, {dtype})"
    return f"np.array({_nested(value)}, {dtype})"


def _nested(value: np.ndarray[Any, Any]) -> str:
    if value.ndim == 0:
        return _number(value[()])
    return "[" + ", ".join(_nested(part) for part in value) + "]"


def _number(value: Any) -> str:
    if isinstance(value, np.floating):
        return repr(float(value)) if np.isfinite(value) else f"float('{float(value)}')"
    return repr(value.item())


def reproduce(
    backend: str,
    op: str,
    check: str,
    inputs: Inputs | str,
    *,
    kind: str = "edge",
    options: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> str:
    """Run one check on given inputs, or those in a file of :func:`~specdec_hal.ops.inputs.files.save_inputs`.

    Returns the fault, or "passes". ConfigError for an unknown check.
    """
    if check not in CHECKS:
        raise ConfigError(f"reproduce: no check '{check}'; checks: {', '.join(CHECKS)}")
    built = registry.get_backend(backend, options=options)
    subject = Subject(built, device_for(built, device))
    given = load_inputs(inputs) if isinstance(inputs, str) else inputs
    case = Case(op, f"{kind}:reproduction", lambda workspace: given)
    found = CHECKS[check](Trial(subject, case, _typed(op, given)))
    return found or "passes"


def _typed(op: str, inputs: Inputs) -> Inputs:
    """Enumerated attributes by name become members, as the OpSpec has them."""
    typed = dict(inputs)
    for attr in get_op(op).attrs:
        if isinstance(typed.get(attr.name), str):
            typed[attr.name] = attr.kind[typed[attr.name].upper()]  # type: ignore[index]
    return typed
