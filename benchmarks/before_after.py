"""Ops of several builds of the CUDA library on one card: checked against the reference, and timed in turns.

``python benchmarks/before_after.py OUT.json --only PART ...``: `libspecdec_cuda_BUILD.so` for each of `--builds` lies
beside `libspecdec_cuda.so`, which is the build "after", in specdec_hal/lib. `--lacks BUILD:OPERAND` names an optional
operand that an older build does not know; cases that give it cannot be measured. Figures of other implementations are
those of the suites, from other runs; those of PyTorch and of xgrammar's Triton kernel, if installed, are measured here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from record import write

from specdec_hal.backends.cuda.backend import CudaBackend
from specdec_hal.backends.cuda.options import Options
from specdec_hal.bench import SUITES
from specdec_hal.bench.case import Case, Prepared, WrongResult
from specdec_hal.bench.runner import cases_of
from specdec_hal.bench.timing import GraphTimer
from specdec_hal.errors import ArgumentError
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch
from specdec_hal.tensors.device import get_device

TURNS = 3


def build(name: str, lacks: frozenset[str] = frozenset()) -> CudaBackend:
    """The backend with another library, which does not know the operands `lacks`; the one installed for "after"."""

    class Build(CudaBackend):
        native_library = CudaBackend.native_library if name == "after" else f"specdec_cuda_{name}"

        def plan(self, call: Call) -> Launch:
            if given := [operand for operand in sorted(lacks) if call.tensors.get(operand) is not None]:
                raise WrongResult(f"{call.op.name}: the build {name} does not know {', '.join(given)}")
            return super().plan(replace(call, tensors={n: t for n, t in call.tensors.items() if n not in lacks}))

    return Build(Options())


def chosen(parts: list[str]) -> Iterator[Case]:
    """Cases of all suites whose group or label contains one of the parts."""
    for suite in SUITES:
        for part in parts:
            try:
                yield from cases_of(suite, only=[part])
            except ArgumentError:
                continue


Peer = Callable[[int], None]


def by_torch(case: Case) -> Peer | None:
    """The same by a function of PyTorch, where it has one."""
    import torch

    if case.group != "gather_next_token":
        return None
    rows, width = case.params["rows"], case.params["D"]
    x = torch.randint(0, 99, (rows * (1 if case.params["is_speculative"] else 2), width), device="cuda").to(torch.int16)
    at = torch.arange(rows, device="cuda") * (x.shape[0] // rows)
    out = torch.empty((rows, width), dtype=torch.int16, device="cuda")

    def run(_: int) -> None:
        torch.index_select(x, 0, at, out=out)

    return run


def by_xgrammar(case: Case) -> Peer | None:
    """The same by the kernel that xgrammar has for GPUs."""
    import torch

    if case.group != "apply_token_bitmask":
        return None
    try:
        from xgrammar.kernels.apply_token_bitmask_inplace_triton import apply_token_bitmask_inplace_triton as apply
    except ImportError:
        return None
    mask = torch.from_numpy(case.calls(0)[0].inputs["bitmask"]).cuda()
    shape, dtype = (case.params["rows"], case.params["V"]), getattr(torch, case.params["dtype"])
    logits = torch.zeros(shape, dtype=dtype, device="cuda")

    def run(_: int) -> None:
        apply(logits, mask)

    run(0)  # compiles
    return run


PEERS = {"torch": by_torch, "xgrammar": by_xgrammar}


def measure(case: Case, backends: dict[str, CudaBackend], timer: GraphTimer) -> dict[str, Any]:
    """Medians of every turn, warm and cold, by build."""
    device = get_device("cuda:0", "torch")
    case = replace(case, calls=cache(case.calls))
    row: dict[str, Any] = {"label": case.label, "peers_us": {name: list(of) for name, of in case.peers.items()}}
    prepared = {name: Prepared(case, backend, device, seed=0) for name, backend in backends.items()}
    launches: dict[str, tuple[Peer, Callable[[], None] | None]] = {}
    for name, of in prepared.items():
        of.check()
        launches[name] = (of.launch, of.restore)
    for name, peer in PEERS.items():
        theirs = peer(case)
        if theirs is not None:
            launches[name] = (theirs, None)
    for _ in range(TURNS):
        for name, (launch, restore) in launches.items():
            times = row.setdefault(name, {"warm": [], "cold": []})
            for state, cold in (("warm", False), ("cold", True)):
                if restore is not None:
                    restore()
                times[state].append(round(timer.time(launch, cold=cold, restore=restore).median, 2))
    for of in prepared.values():
        of.check()
    return row


def line(row: dict[str, Any], names: list[str]) -> str:
    """A row of the table: medians of the turns."""
    if "error" in row:
        return f"{row['label']}: {row['error']}"
    cells = [f"{row['label'][:62]:62}"]
    for state in ("warm", "cold"):
        for name in (*names, *PEERS):
            cells.append(f"{np.median(row[name][state]):7.2f}" if name in row else " " * 7)
    return " ".join(cells) + f"  {row['peers_us'] or ''}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of cases' groups or labels")
    parser.add_argument("--builds", nargs="+", default=["before", "after"])
    parser.add_argument("--lacks", nargs="+", default=[], help="BUILD:OPERAND that the build does not know")
    given = parser.parse_args()
    lacks = [named.split(":") for named in given.lacks]
    backends = {name: build(name, frozenset(o for b, o in lacks if b == name)) for name in given.builds}
    timer, rows = GraphTimer(0, 30), []
    print(f"us, warm and cold, of {', '.join(given.builds)}, {', '.join(PEERS)}")
    for case in {case.label: case for case in chosen(given.only)}.values():
        try:
            rows.append(measure(case, backends, timer))
        except WrongResult as error:
            rows.append({"label": case.label, "error": str(error)})
        print(line(rows[-1], given.builds), flush=True)
        write({"rows": rows}, given.out)


if __name__ == "__main__":
    main()
