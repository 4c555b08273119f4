"""Compile kernels in the XPU dialect, unmodified, with a host program for this machine.

  specdec-hal xpu-cc --mode strict scale.xpu host.cpp -o scale && ./scale

Host files may launch with kernel<<<clusters, cores, stream>>>(args) or with xpu_sim::launch (xpu_sim/host.h). Modes:
fast; asan (object bounds, undefined behaviour); strict (races, fences, copies in flight, uninitialised memory, ...).
A program that has findings prints them and ends with 1. Its environment: XPU_SIM=seed=7,dma=deferred sets options,
XPU_SIM_JSON=FILE (or -) writes findings and counters, XPU_SIM_REPORT=1 prints counters. The messages and the exit
status of the compiler ($CXX, else g++) come through unchanged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specdec_hal.cli.output import Output
from specdec_hal.xpu_cc import MODES, Build, build

HELP = "compile XPU kernels for the emulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, mode, and what compilers take."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="kernels (.xpu), C++ files, objects and libraries")
    parser.add_argument("-o", dest="output", metavar="OUT", required=True, help="the program or library to make")
    parser.add_argument("--mode", choices=MODES, default="fast", help="which checks are built in (default: fast)")
    parser.add_argument("--shared", action="store_true", help="make a library")
    parser.add_argument(
        "-D", dest="defines", metavar="NAME[=VALUE]", action="append", default=[], help="define a macro"
    )
    parser.add_argument(
        "-I", dest="includes", metavar="DIR", action="append", default=[], help="look for headers there"
    )
    parser.add_argument(
        "--cxxflag",
        dest="flags",
        metavar="FLAG",
        action="append",
        default=[],
        help="give the compiler, as --cxxflag=-O3",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Build; the compiler's exit status if it fails."""
    what = Build(
        sources=tuple(map(Path, args.files)),
        output=Path(args.output),
        mode=args.mode,
        shared=args.shared,
        defines=tuple(args.defines),
        includes=tuple(args.includes),
        flags=tuple(args.flags),
    )
    status, commands = build(what)
    if output.json:
        output.document({"output": str(what.output), "mode": what.mode, "status": status, "commands": commands})
    return status
