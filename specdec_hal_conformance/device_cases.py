"""Op calls with expected outputs, as a file for a program without Python.

``python -m specdec_hal_conformance.device_cases --out cases.bin`` writes generated calls of every op of the emulator.
`kernels_xpu_sim/device/replay.cpp` runs them on a device and compares; ``tools/kunlun_check.sh`` does both.

The file, all numbers little-endian, is ``SDCASES1``, then each case. A case is a 1, its op, its name, and lists of
(name, integer) for attributes and symbols; then each operand that is there. An operand is its name, the number of its
elements' float type (0xFF: none), bytes a row, its bytes before the call, and after a 1 those after. A list is a uint32
and its items, as are bytes and names; a 0 ends lists of cases and of operands.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specdec_hal.backends.native_ops import attributes
from specdec_hal.errors import ConfigError
from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.generate import cases, generate
from specdec_hal.ops.spec import FLOATS
from specdec_hal.ops.validate import Call, check_call
from specdec_hal.plugin.backend import Backend
from specdec_hal.text import did_you_mean
from specdec_hal_conformance.case import Case, Inputs, Workspace
from specdec_hal_conformance.subject import Subject
from specdec_hal_conformance.trial import Trial

MAGIC = b"SDCASES1"
NO_FLOAT = 0xFF


def write_cases(backend: Backend, ops: Sequence[str], count: int) -> bytes:
    """The file with `count` calls of each op.

    Expected outputs are the reference's; for an n-gram index, whose layout belongs to the kernels, those of `backend`.
    """
    subject = Subject(backend)
    found = (_case_bytes(Trial(subject, case)) for op in ops for case in _cases(op, count))
    return MAGIC + b"".join(found) + b"\0"


def _cases(op: str, count: int) -> Iterator[Case]:
    for number, options in enumerate(cases(op, count)):
        yield Case(op, f"generated:{number}", partial(_make, op, options))


def _make(op: str, options: Mapping[str, Any], workspace: Workspace) -> Inputs:
    return generate(op, workspace=workspace, **options)


def _case_bytes(trial: Trial) -> bytes:
    inputs = trial.inputs
    order = {"token_order": trial.subject.backend.token_order}
    call = check_call(get_op(trial.op), (), inputs, backend=trial.subject.name, attr_defaults=order)
    expected = {**trial.expected, **(trial.outcome.opaque if "index" in inputs else {})}
    operands = b"".join(
        b"\1" + _operand(call, name, expected) for name, array in call.tensors.items() if array is not None
    )
    named = zip(call.attrs, attributes(call), strict=True)
    return b"".join(
        (
            b"\1",
            _text(trial.op),
            _text(trial.case.name),
            _numbers(named),
            _numbers(call.symbols.items()),
            operands,
            b"\0",
        )
    )


def _operand(call: Call, name: str, expected: Mapping[str, Any]) -> bytes:
    array, dtype = call.tensors[name], call.dtypes[name]
    row = array.itemsize
    for extent in array.shape[1:]:
        row *= extent
    is_float = FLOATS.index(dtype) if dtype in FLOATS else NO_FLOAT
    after = b"\1" + _bytes(expected[name].tobytes()) if name in expected else b"\0"
    return _text(name) + struct.pack("<BQ", is_float, row) + _bytes(array.tobytes()) + after


def _numbers(items: Iterable[tuple[str, int]]) -> bytes:
    packed = [_text(name) + struct.pack("<q", value) for name, value in items]
    return struct.pack("<I", len(packed)) + b"".join(packed)


def _bytes(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def main(words: Sequence[str] | None = None) -> None:
    """Write the file."""
    import specdec_hal as sd

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--op", action="append", default=[], metavar="OP", help="only this one; may be repeated")
    parser.add_argument("--count", type=int, default=6, help="calls of each op (default: 6)")
    args = parser.parse_args(words)
    backend = sd.get_backend("xpu_sim")
    for op in args.op:
        if op not in backend.capabilities:
            raise ConfigError(f"expected an op of the emulator's, got '{op}'{did_you_mean(op, backend.capabilities)}")
    args.out.write_bytes(write_cases(backend, args.op or list(backend.capabilities), args.count))


if __name__ == "__main__":
    main()
