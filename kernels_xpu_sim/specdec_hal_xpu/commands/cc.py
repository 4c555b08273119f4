"""Compile kernels in the XPU dialect, unmodified, with a host program for this machine.

  specdec-hal xpu cc --mode strict scale.xpu host.cpp -o scale && ./scale

-c makes an object of one file; objects are linked like sources, in the mode that they were compiled for:

  specdec-hal xpu cc -c scale.xpu --dependencies scale.d && specdec-hal xpu cc -c host.cpp
  specdec-hal xpu cc scale.o host.o -o scale

Host files and their headers may launch with kernel<<<clusters, cores, stream>>>(args) or with xpu_sim::launch
(xpu_sim/host.h). Modes: fast; asan (object bounds, undefined behaviour); strict (races, fences, copies in flight,
uninitialised memory, ...).

A program with findings prints them and exits with 1 for a defect, 3 if all depend on unknown properties of the device.
Its environment: XPU_SIM=seed=7,dma=deferred sets options, XPU_SIM_SUPPRESSIONS=FILE names findings to pass over,
XPU_SIM_JSON=FILE (or -) writes findings and counters, XPU_SIM_REPORT=1 prints counters, XPU_SIM_TRACE=FILE writes a
timeline for Perfetto. The messages and the exit status of the compiler ($CXX, else g++) come through unchanged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specdec_hal.cli.output import Output
from specdec_hal.errors import CompileError
from specdec_hal_xpu.cc import MODES, Build, build

HELP = "compile XPU kernels for the emulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, mode, and what compilers take."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="kernels (.xpu), C++ files, objects and libraries")
    parser.add_argument(
        "-o", dest="output", metavar="OUT", help="output (required without -c; default with it: NAME.o)"
    )
    parser.add_argument("-c", dest="compile_only", action="store_true", help="compile one file, do not link")
    parser.add_argument(
        "--dependencies", metavar="FILE", help="with -c: write the object's dependencies to this file, as a make rule"
    )
    parser.add_argument("--mode", choices=MODES, default="fast", help="built-in checks (default: fast)")
    parser.add_argument("--shared", action="store_true", help="make a library")
    parser.add_argument(
        "--coverage", action="store_true", help="count the lines that run; afterwards: specdec-hal xpu coverage OUT"
    )
    add_compiler_arguments(parser)


def add_compiler_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of every compiler command: `profiles`, `defines`, `includes`, `flags`."""
    parser.add_argument(
        "--profile",
        dest="profiles",
        metavar="[GLOB=]PROFILE",
        action="append",
        default=[],
        help="production: fences as the vendor's compiler adds them (default); portable: the author's alone",
    )
    parser.add_argument(
        "-D", dest="defines", metavar="NAME[=VALUE]", action="append", default=[], help="define a macro"
    )
    parser.add_argument(
        "-I", dest="includes", metavar="DIR", action="append", default=[], help="search this folder for headers"
    )
    parser.add_argument(
        "--cxxflag",
        dest="flags",
        metavar="FLAG",
        action="append",
        default=[],
        help="pass to the compiler, as in --cxxflag=-O3",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Build; the compiler's exit status if it fails."""
    if args.output is None and not args.compile_only:
        raise CompileError("expected -o OUT, got none; name the program to make, or compile only with -c")
    what = Build(
        sources=tuple(map(Path, args.files)),
        output=Path(args.output or f"{Path(args.files[0]).stem}.o"),
        mode=args.mode,
        shared=args.shared,
        compile_only=args.compile_only,
        profiles=tuple(args.profiles),
        dependencies=Path(args.dependencies) if args.dependencies else None,
        defines=tuple(args.defines),
        includes=tuple(args.includes),
        flags=tuple(args.flags),
        coverage=args.coverage,
    )
    status, commands = build(what)
    if output.json:
        output.document({"output": str(what.output), "mode": what.mode, "status": status, "commands": commands})
    return status
