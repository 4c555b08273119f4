#!/usr/bin/env python3
"""The rooms of the code, floor by floor: what each holds, how large it is, and which others it imports.

  python tools/rooms.py          prints rooms, lines and arrows; status 1 if an arrow points up
  python tools/rooms.py --map    prints the table of CONTRIBUTING.md

An arrow is an import, also inside a function or for type checkers only. A room imports rooms below it; a part imports
the core, never another part, and the core imports no part.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = "specdec_hal"
ROOMS = {
    "text": "wording of messages: did-you-mean, clipped and one-line texts",
    "errors": "every error raised on purpose",
    "version": "the version of the installed package",
    "tensors": "views of any framework's tensors; devices and transfers, one module per framework; graph capture, "
    "memory, native libraries, groups of ranks",
    "ops": "the contract as code: an `OpSpec` per op; validation, documentation, C++ headers and test inputs derive "
    "from it",
    "plugin": "interfaces of plug-ins (backend, proposer, model): protocols, hooks, registry",
    "config": "YAML to checked settings",
    "backends": "`reference` (NumPy, the oracle), `cpu` and `cuda`, each a plug-in; a symlink to `backends/`",
    "models": "target models and tokenizers ([docs](docs/extend/model.md))",
    "request": "requests, sampling parameters and their outputs",
    "structured": "grammars: libraries behind one interface, compiling, a request's state "
    "([docs](docs/use/structured.md))",
    "proposers": "sources of drafts ([docs](docs/extend/proposer.md))",
    "output": "from tokens to text: stop strings, deltas, and parsers of thoughts and tool calls",
    "runner": "`ModelRunner`: slots, scheduler, one decode step, adaptive draft lengths, journal, metrics",
    "parallel": "models over several ranks ([docs](docs/use/parallel.md))",
    "loop": "drafts, `verify` and `sample` for the decode loops of others ([docs](docs/use/own_decode_loop.md))",
    "engine": "`LLM` and `AsyncEngine`",
    "serve": "the HTTP server ([docs](docs/use/serving.md))",
    "batch": "files of prompts ([docs](docs/use/batch.md))",
    "compat": "adapters for vLLM and `transformers` ([docs](docs/use/engines.md))",
    "bench": "benchmark suites",
    "cli": "the command `specdec-hal`, one module per subcommand",
    "__main__": "the same as `python -m specdec_hal`",
}
"""The rooms of the core, the ground floor first."""
PARTS = {
    "specdec_hal_xpu": ("kernels_xpu_sim/specdec_hal_xpu", "the emulator's tools, and the backend `xpu_sim`"),
    "specdec_hal_conformance": (
        "specdec_hal_conformance",
        "the suite that proves backends ([README](specdec_hal_conformance/README.md))",
    ),
    "specdec_hal_fastdeploy": (
        "specdec_hal_fastdeploy",
        "FastDeploy's ops on a backend ([docs](docs/use/fastdeploy.md))",
    ),
}
"""The other parts: package, folder, content."""
OTHERS = {
    "kernels_common/": "the rules of slots and rows as C++17 headers for host and device "
    "([README](kernels_common/README.md))",
    "kernels_cpu/": "ops on CPUs, and the pool of threads that models share ([README](kernels_cpu/README.md))",
    "kernels_cuda/": "ops in CUDA C++ ([README](kernels_cuda/README.md))",
    "kernels_xpu_sim/": "ops in the XPU dialect and the emulator that runs them ([README](kernels_xpu_sim/README.md))",
    "configs/`, `examples/`, `models/": "configurations, prompts and plug-ins to copy, the embedded models",
    "tests/": "mirrors `specdec_hal/`; `tests/xpu`, `tests/conformance` and `tests/fastdeploy` are those of the parts",
}
MOVED = {
    f"{CORE}.{name}"
    for name in ("conformance", "xpu", "compat.fastdeploy", "backends.xpu_sim", "runner.request", "runner.parsers")
}
"""Old names of parts and modules, for one release."""
FLOORS = {room: floor for floor, room in enumerate(ROOMS)}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of core and parts by its dotted name; `specdec_hal/backends` is a symlink to `backends`."""
    folders = {CORE: CORE, f"{CORE}.backends": "backends", **{name: folder for name, (folder, _) in PARTS.items()}}
    found = {}
    for package, folder in folders.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
            if parts[1:2] != ["backends"]:  # the symlink, where it is followed
                found[".".join(parts).removesuffix(".__init__")] = path
    return {name: path for name, path in found.items() if name not in MOVED}


def imported(source: str, known: dict[str, Path]) -> set[str]:
    """A module's imports from core and parts: at its top, in functions, and for type checkers."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the package imports absolutely"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else str(node.module) for name in full}
    return names & known.keys()


def room(module: str) -> str:
    """The room of a core module, or the part of another; "" for the core's own `__init__`."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == CORE else package


def arrows(known: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Every import between modules, except those of names by the package itself, which resolves them on first use."""
    for name, path in known.items():
        if name != CORE:
            yield from ((name, other) for other in imported(path.read_text(), known) - {name, CORE})


def points_up(name: str, other: str) -> bool:
    """Whether such an import goes against the floors."""
    here, there = room(name), room(other)
    if here in PARTS:
        return there in PARTS and there != here
    return there in PARTS or FLOORS[here] < FLOORS[there]


def table() -> str:
    """The map in CONTRIBUTING.md."""
    rows = [(f"`{CORE}/{name}{'/' if (ROOT / CORE / name).is_dir() else '.py'}`", text) for name, text in ROOMS.items()]
    rows += [(f"`{folder}/`", text) for folder, text in PARTS.values()]
    rows += [(f"`{folder}`", text) for folder, text in OTHERS.items()]
    return "\n".join(["| folder | content |", "|---|---|", *(f"| {folder} | {text} |" for folder, text in rows)])


def main() -> int:
    """Print."""
    if sys.argv[1:] == ["--map"]:
        print(table())
        return 0
    known = modules()
    between = list(arrows(known))
    lines = Counter[str]()
    for name, path in known.items():
        lines[room(name)] += len(path.read_text().splitlines())
    for name in (*ROOMS, *PARTS):
        below = Counter(room(other) for here, other in between if room(here) == name and room(other) != name)
        floor = f"{FLOORS[name]:>5}" if name in FLOORS else " part"
        imports = ", ".join(f"{other} {count}" for other, count in below.most_common())
        print(f"{floor}  {name:<24} {lines[name]:>6} lines  imports {imports or 'nothing'}")
    up = [f"{name} imports {other}" for name, other in between if points_up(name, other)]
    print(*(f"points up: {one}" for one in up) if up else ["no arrow points up"], sep="\n")
    return bool(up)


if __name__ == "__main__":
    sys.exit(main())
