"""How much of a folder of public XPU kernels and wrappers compiles unmodified, and what is found in it.

``python benchmarks/xpu_public.py FOLDER``: compiles every kernel (``.xpu``) in the modes fast and strict, and every
wrapper (a C++ file that checks its arguments with ``WRAPPER_...``) in the mode fast. Prints the counts and the first
error of each file that does not compile. Folders named ``include`` are searched for headers, as are those after ``-I``.

``--inputs DIR`` runs wrappers too: Python files NAME_inputs.py as for `specdec-hal xpu test`, which also name the
WRAPPER and its SOURCES, relative to FOLDER, the wrapper's first. Findings are counted by check and place.
``--out FILE`` writes the figures as JSON, without any text of the sources but error messages.
"""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from record import write

from specdec_hal_xpu.cc import Build
from specdec_hal_xpu.test import Plan, WrapperTest, load_arguments, uninitialised

COMPILER = [sys.executable, "-m", "specdec_hal", "xpu", "cc", "-c", "--cxxflag=-fno-diagnostics-show-caret"]
MODES = {"kernels": ("fast", "strict"), "wrappers": ("fast",)}


def sources(folder: Path) -> dict[str, list[Path]]:
    """Kernels and wrappers of a folder."""
    wrappers = [path for path in sorted(folder.rglob("*.c*")) if path.suffix in (".cpp", ".cc", ".cxx")]
    return {
        "kernels": sorted(folder.rglob("*.xpu")),
        "wrappers": [path for path in wrappers if "WRAPPER_" in path.read_text(errors="replace")],
    }


def compiled(folder: Path, includes: Sequence[str]) -> dict[str, Any]:
    """By kind: how many compile of how many, what stops the others, and the compiler's findings."""
    figures: dict[str, Any] = {}
    options = [word for include in includes for word in ("-I", include)]
    for kind, files in sources(folder).items():
        stopped: dict[str, str] = {}
        found = []
        for path in files:
            for mode in MODES[kind]:
                with tempfile.TemporaryDirectory() as out:
                    command = [*COMPILER, "--mode", mode, *options, str(path), "-o", f"{out}/source.o"]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                lines = done.stderr.splitlines()
                if done.returncode != 0:
                    errors = [line for line in lines if "error:" in line] or lines or [f"status {done.returncode}"]
                    stopped[str(path.relative_to(folder))] = f"{mode}: {errors[0]}"
                    break
                found += [one for line in lines if mode == "fast" and (one := uninitialised(line))]
        count = len(files) - len(stopped)
        figures[kind] = {"of": len(files), "compile": count, "stopped": stopped, "findings": counted(found)}
    return figures


def ran(folder: Path, includes: Sequence[str], inputs: Path, plan: Plan) -> dict[str, Any]:
    """By wrapper: runs, failures, runs that differ from the CPU path, findings, and advisory ones."""
    figures: dict[str, Any] = {}
    for path in sorted(inputs.glob("*_inputs.py")):
        names = runpy.run_path(str(path))
        main, *rest = (folder / name for name in names["SOURCES"])
        with tempfile.TemporaryDirectory() as out:
            what = Build(sources=tuple(rest), output=Path(out) / "test", includes=tuple(includes))
            outcome = WrapperTest(what, main, names["WRAPPER"], Path(out)).run(load_arguments(path), plan)
        findings = [*outcome.of_sources, *(one for failure in outcome.failures for one in failure.findings)]
        figures[names["WRAPPER"]] = {
            "runs": outcome.runs,
            "failed": len(outcome.failures),
            "differ": sum(not failure.findings for failure in outcome.failures),
            "findings": counted(findings),
            "advisory": counted(outcome.advisory),
        }
    return figures


def counted(findings: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """At how many places each check found something."""
    places = {(one["check"], one["at"]["file"], one["at"]["line"]) for one in findings}
    return dict(sorted(Counter(check for check, *_ in places).items()))


def text(counts: Mapping[str, int]) -> str:
    """The counts of findings in words."""
    return ", ".join(f"{count} {check}" for check, count in counts.items()) or "none"


def main() -> None:
    """Compile, run, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    for kind, one in figures.items():
        print(f"{kind}: {one['compile']} of {one['of']} compile; findings: {text(one['findings'])}")
        for name, why in one["stopped"].items():
            print(f"  {name}: {why}")
    if args.inputs:
        plan = Plan(cases=args.cases, seeds=args.seeds, modes=("fast", "strict"))
        figures["runs"] = ran(args.folder, includes, args.inputs, plan)
        for name, one in figures["runs"].items():
            print(f"{name}: {one['runs']} runs, {one['failed']} failed, {one['differ']} of them without a finding")
            print(f"  findings: {text(one['findings'])}; advisory: {text(one['advisory'])}")
    if args.out:
        write(figures, args.out)


if __name__ == "__main__":
    main()
