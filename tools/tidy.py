"""clang-tidy over every C++ source that `make setup` builds, or over those named: tools/tidy.py [FILE...]

The CUDA sources are checked as they are built for the host. Exit status 1 if there are findings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLANG_TIDY = Path(sys.executable).with_name("clang-tidy")


def commands(database: Path) -> dict[str, dict[str, str]]:
    """How each file is compiled; once, though most belong to several targets."""
    entries = json.loads(database.read_text())
    return {entry["file"]: entry for entry in entries if "nvcc" not in entry["command"].split(maxsplit=1)[0]}


def main(files: list[str]) -> int:
    """Run it, as many processes as JOBS says or as there are processors."""
    databases = Path(sys.prefix).glob("build/*/compile_commands.json")
    found = max(map(commands, databases), key=len, default={})  # a wheel's build lacks what is for tests
    if not found:
        sys.exit(f"no compile_commands.json in {sys.prefix}/build: run `make setup`")
    if files:
        wanted = {str(Path(file).resolve()) for file in files}
        found = {file: entry for file, entry in found.items() if file in wanted}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "compile_commands.json").write_text(json.dumps(list(found.values())))

        def check(file: str) -> subprocess.CompletedProcess[str]:
            tidy = (CLANG_TIDY, "--quiet", "-p", folder, file)
            return subprocess.run(tidy, capture_output=True, text=True, check=False)

        with ThreadPoolExecutor(int(os.environ.get("JOBS") or os.cpu_count() or 1)) as pool:
            done = list(pool.map(check, found))
    failed = [run for run in done if run.returncode]
    for run in failed:
        print(run.stdout, run.stderr if not run.stdout else "", sep="", end="")
    print(f"clang-tidy: {len(done)} files, findings in {len(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
