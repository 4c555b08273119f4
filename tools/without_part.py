#!/usr/bin/env python3
"""Prove that the core runs without a part: copy the tree, delete the part's folders, and run the other tests.

  python tools/without_part.py xpu -n 2 -m "not slow"      (or conformance, fastdeploy; all of them: core)

Further arguments go to pytest. Native libraries are those of the running environment. The part's folders are those in
budgets.toml; a test of another part that uses this one is left out, and pytest's header says how many.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from lines import ROOT, part_of, tomllib
from tree_path import tree_path

ALL = "core"
"""The core alone."""


def copy_without(parts: set[str], target: Path) -> None:
    """The tree without the files of these parts."""
    paths = {name: list(budget.get("paths", ())) for name, budget in tomllib.loads(BUDGETS.read_text()).items()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, place = ROOT / name, target / name
        if part_of(name, paths) in parts or not (source.exists() or source.is_symlink()):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place, follow_symlinks=False)


BUDGETS = ROOT / "budgets.toml"


def main() -> int:
    """Copy and test."""
    known = [part for part in tomllib.loads(BUDGETS.read_text()) if part != ALL]
    if len(sys.argv) < 2 or sys.argv[1] not in (ALL, *known):
        sys.exit(f"usage: tools/without_part.py {'|'.join((ALL, *known))} [PYTEST_ARGUMENT ...]")
    parts = set(known) if sys.argv[1] == ALL else {sys.argv[1]}
    from specdec_hal.tensors.native import library_path

    library = library_path("specdec_common") or library_path("specdec_models")
    assert library is not None, "expected native libraries in this environment; run make setup"
    with tempfile.TemporaryDirectory(prefix="without-part-") as folder:
        tree = Path(folder) / "tree"
        copy_without(parts, tree)
        (tree / "specdec_hal" / "lib").symlink_to(library.parent)
        environment = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        (own,) = environment.glob("lib/python*/site-packages")
        for installed in Path(sysconfig.get_path("purelib")).iterdir():  # all but this project, which is the copy
            if not installed.name.startswith(("specdec_hal", "_editable_")):
                (own / installed.name).symlink_to(installed)
        command = [str(environment / "bin" / "python"), "-m", "pytest", "-p", "no:cacheprovider", *sys.argv[2:]]
        environ = {**os.environ, "PYTHONPATH": tree_path(tree)}
        return subprocess.run(command, cwd=tree, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
