"""Compare two folders of benchmarks/gpu_bench.sh from one machine: compare_bench.py BEFORE AFTER [SHARE].

Prints every case whose warm time changed by more than SHARE (0.02), and the geometric mean of all ratios. Exits with 1
if that mean is beyond SHARE, or cases are missing.
"""

from __future__ import annotations

import json
import sys
from math import exp, log
from pathlib import Path


def times(folder: Path) -> dict[str, float]:
    """Warm microseconds by suite and case."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        for row in json.loads(file.read_text())["rows"]:
            found[f"{file.stem} {row['group']} {row['label']}"] = row["warm_us"]["median"]
    return found


def main(before: str, after: str, share: str = "0.02") -> int:
    """Compare, print, judge."""
    old, new, limit = times(Path(before)), times(Path(after)), float(share)
    missing = sorted(old.keys() ^ new.keys())
    for case in missing:
        print(f"only in one: {case}")
    ratios = {case: new[case] / old[case] for case in old.keys() & new.keys()}
    for case, ratio in sorted(ratios.items(), key=lambda item: item[1]):
        if abs(ratio - 1) > limit:
            print(f"{ratio:6.3f}  {old[case]:9.2f} -> {new[case]:9.2f} us  {case}")
    mean = exp(sum(map(log, ratios.values())) / len(ratios))
    print(f"{len(ratios)} cases, geometric mean of after / before: {mean:.4f}")
    return int(bool(missing) or abs(mean - 1) > limit)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
