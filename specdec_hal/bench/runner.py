"""Run suites: check every case, time it warm and cold, and measure the floor in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from specdec_hal.bench import SUITES
from specdec_hal.bench.case import Case, Prepared, WarmCold, WrongResult
from specdec_hal.bench.floor import Floor, measure_floor
from specdec_hal.bench.host import host_costs
from specdec_hal.bench.record import circumstances
from specdec_hal.bench.timing import GraphTimer, HostTimer, Timer
from specdec_hal.errors import ArgumentError
from specdec_hal.plugin.backend import Backend
from specdec_hal.tensors.device import Device, get_device

Row = dict[str, Any]


def cases_of(suite: str, *, quick: bool = False, only: Sequence[str] = ()) -> list[Case]:
    """The cases whose group or label contains a text of `only`; ArgumentError for an unknown suite, or if none does."""
    if suite not in SUITES:
        raise _wrong("suite", f"one of {', '.join(SUITES)}", suite)
    every: Iterator[Case] = import_module(f"specdec_hal.bench.{suite}").cases(quick)
    chosen = [case for case in every if not only or any(text in f"{case.group}\n{case.label}" for text in only)]
    if not chosen:
        raise _wrong("only", f"a part of the group or label of a case of '{suite}'", ", ".join(only))
    return chosen


def run_suites(
    suites: Sequence[str],
    backend: Backend,
    command: Sequence[str],
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    alone: Callable[[], AbstractContextManager[object]] = nullcontext,
    on_row: Callable[[dict[str, Any], int], None] = lambda document, total: None,
) -> dict[str, Any]:
    """The document for JSON; `on_row(document, total)` is called after every row.

    The device is used only inside `alone()`, so processes that share its lock can prepare inputs in parallel.
    """
    chosen = [(suite, case) for suite in suites for case in cases_of(suite, quick=quick, only=only)]
    device = get_device(backend.device_name, "torch")
    document: dict[str, Any] = {**circumstances(command), "backend": backend.name, "quick": quick}
    with alone():
        timer, floor = _instruments(backend, device, document, quick)
    document["rows"] = []
    for suite, case in chosen:
        prepared = Prepared(case, backend, device, seed=0)
        with alone():
            row = _row(prepared, timer, floor)
        document["rows"].append({"suite": suite, **row})
        on_row(document, len(chosen))
    return document


def _instruments(backend: Backend, device: Device, document: dict[str, Any], quick: bool) -> tuple[Timer, Floor | None]:
    """The timer for this backend; one-time measurements go into the document."""
    if backend.device != "cuda":
        return HostTimer(0.1 if quick else 0.5), None
    from specdec_hal.backends.cuda.probe import LIBRARY
    from specdec_hal.tensors.native import load_library

    index = int(device.name.partition(":")[2])
    timer, exports = GraphTimer(index, 15 if quick else 60), load_library(LIBRARY)
    floor = measure_floor(exports, timer, index)
    document["floor"] = floor.document()
    document["host_us"] = host_costs(backend, exports, device)
    return timer, floor


def _row(prepared: Prepared, timer: Timer, floor: Floor | None) -> Row:
    """Times, floors, targets and peers; an error instead if the kernel's result is wrong."""
    case = prepared.case
    row: Row = {"group": case.group, "label": case.label, **case.params, "moved_bytes": case.moved}
    try:
        return {**row, **_times(prepared, timer, floor)}
    except WrongResult as error:
        return {**row, "error": str(error)}


def _times(prepared: Prepared, timer: Timer, floor: Floor | None) -> Row:
    row: Row = {}
    case = prepared.case
    prepared.check()
    for cold in (False, True) if timer.cold_too else (False,):
        name = "cold" if cold else "warm"
        prepared.restore()
        row[f"{name}_us"] = timer.time(prepared.launch, cold=cold, restore=prepared.restore).rounded()
        if floor is not None:
            row[f"{name}_floor_us"] = round(floor.microseconds(case.moved, cold=cold), 2)
    prepared.check()
    row["target_us"] = _pair(case.target)
    if case.peers:
        row["peers_us"] = {name: _pair(times) for name, times in case.peers.items()}
    return row


def _pair(times: WarmCold) -> dict[str, float | None]:
    return dict(zip(("warm", "cold"), times, strict=True))


def _wrong(argument: str, expected: str, got: str) -> ArgumentError:
    return ArgumentError(
        op="bench",
        backend="-",
        argument=argument,
        expected=expected,
        got=repr(got),
        hint="see specdec-hal bench --help",
    )
