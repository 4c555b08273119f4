"""How much of a folder of public XPU kernels and wrappers compiles unchanged, and what their tests find.

``python benchmarks/xpu_public.py FOLDER --out benchmarks/results/xpu-public.json``: every kernel (``.xpu``) in the
modes fast and strict, every wrapper (a C++ file that checks its arguments with ``WRAPPER_...``) in the mode fast.
Folders named ``include`` are looked in for headers, and those after ``-I``. ``--inputs DIR``: what to run, Python files
NAME_inputs.py as for `specdec-hal xpu-test`, which also name the WRAPPER and its SOURCES, relative to FOLDER, the
wrapper's first. Each is run with the fences of its author alone (portable) and with those that vendors' compilers add
(production).

None of the sources goes into the document: names of files, counts, and the first message for what does not compile.
"""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from record import write

from specdec_hal.xpu.cc import PROFILES, Build
from specdec_hal.xpu.device import vector_assembly
from specdec_hal.xpu.test import Outcome, Plan, WrapperTest, load_arguments

COMPILER = [str(Path(sys.executable).with_name("specdec-hal")), "xpu-cc", "-c"]
MODES = {"kernels": ("fast", "strict"), "wrappers": ("fast",)}


def sources(folder: Path) -> dict[str, list[Path]]:
    """Kernels and wrappers of a folder."""
    wrappers = [path for path in sorted(folder.rglob("*.c*")) if path.suffix in (".cpp", ".cc", ".cxx")]
    return {
        "kernels": sorted(folder.rglob("*.xpu")),
        "wrappers": [path for path in wrappers if "WRAPPER_" in path.read_text(errors="replace")],
    }


def why_not(source: Path, modes: Sequence[str], includes: Sequence[str]) -> str:
    """What stops a source from compiling; empty: nothing does, in any of the modes."""
    options = [word for folder in includes for word in ("-I", folder)]
    with tempfile.TemporaryDirectory() as out:
        for mode in modes:
            command = [*COMPILER, "--mode", mode, *options, str(source), "-o", f"{out}/source.o"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                lines = done.stderr.splitlines()
                named = vector_assembly(source.read_text(errors="replace"), source.name)
                errors = [line for line in lines if "error:" in line] or lines or [f"exit status {done.returncode}"]
                return f"{mode}: {(named or errors)[0].replace(str(source), source.name)}"
    return ""


def compiled(folder: Path, includes: Sequence[str]) -> dict[str, Any]:
    """By kind: how many compile of how many, and what stops the others."""
    figures: dict[str, Any] = {}
    for kind, files in sources(folder).items():
        stopped = {}
        for path in files:
            if why := why_not(path, MODES[kind], includes):
                stopped[str(path.relative_to(folder))] = why
        figures[kind] = {"of": len(files), "compile": len(files) - len(stopped), "stopped": stopped}
        print(f"{kind}: {figures[kind]['compile']} of {len(files)} compile", file=sys.stderr)
        for name, why in stopped.items():
            print(f"  {name}: {why}", file=sys.stderr)
    return figures


def ran(folder: Path, includes: Sequence[str], inputs: Path, plan: Plan) -> dict[str, Any]:
    """By wrapper and profile: runs, failures, and the findings by check and severity."""
    figures: dict[str, Any] = {}
    for path in sorted(inputs.glob("*_inputs.py")):
        names = runpy.run_path(str(path))
        main, *rest = (folder / name for name in names["SOURCES"])
        counts = figures[names["WRAPPER"]] = {}
        with tempfile.TemporaryDirectory() as out:
            what = Build(sources=tuple(rest), output=Path(out) / "test", includes=tuple(includes))
            test = WrapperTest(what, main, names["WRAPPER"], Path(out))
            for profile in PROFILES:
                outcome = test.run(load_arguments(path), replace(plan, options=f"profile={profile}"))
                counts[profile] = counted(outcome)
                print(f"{outcome.wrapper}, {profile}: {counts[profile]}", file=sys.stderr)
    return figures


def counted(outcome: Outcome) -> dict[str, Any]:
    """Runs, failures, and at how many places each check found something."""
    sites = {
        (one["check"], one["severity"], one["at"]["file"], one["at"]["line"])
        for failure in outcome.failures
        for one in failure.findings
    }
    findings = Counter(f"{check} ({severity})" for check, severity, *_ in sites)
    return {
        "runs": outcome.runs,
        "failed": len(outcome.failures),
        "differ": sum(not failure.findings for failure in outcome.failures),
        "findings": dict(sorted(findings.items())),
    }


def main() -> None:
    """Compile, run, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("-I", dest="includes", metavar="DIR", action="append", default=[])
    parser.add_argument("--inputs", type=Path, metavar="DIR")
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"expected a folder of sources, got {args.folder}; check the path")
    includes = [*args.includes, *(str(path) for path in sorted(args.folder.rglob("include")) if path.is_dir())]
    figures = compiled(args.folder, includes)
    if args.inputs:
        plan = Plan(cases=args.cases, seeds=args.seeds, modes=("fast", "strict"))
        figures["runs"] = ran(args.folder, includes, args.inputs, plan)
    write(figures, args.out)


if __name__ == "__main__":
    main()
