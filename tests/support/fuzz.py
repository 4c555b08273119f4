"""Running a fuzzer: a fixed seed, then a fresh one, for some seconds each; a finding prints its input.

An input that ends the process leaves its seed and number in a file of build/fuzz, under the test's name.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Input = TypeVar("Input")

SECONDS = float(os.environ.get("FUZZ_SECONDS", "2"))
"""Of each fuzzer, half of them with each seed."""
LEAST = 20
"""Inputs with each seed, however slow the machine."""
UNDER_WAY = Path(__file__).parents[2] / "build/fuzz"
"""Which input each fuzzer looks at now."""


def fuzz(generate: Callable[[random.Random], Input], check: Callable[[Input], str]) -> Counter[str]:
    """Check generated inputs; how many ended in which way, as `check` says. Whatever else it raises is a finding."""
    ends: Counter[str] = Counter()
    UNDER_WAY.mkdir(parents=True, exist_ok=True)
    last = UNDER_WAY / re.sub(r"\W+", "_", os.environ["PYTEST_CURRENT_TEST"].rpartition("/")[2].partition(" ")[0])
    with last.open("wb", buffering=0) as file:
        for seed in (0, int(os.environ.get("FUZZ_SEED", secrets.randbits(32)))):
            print(f"fuzz: seed {seed}")
            until, number = time.monotonic() + SECONDS / 2, 0
            while number < LEAST or time.monotonic() < until:
                os.pwrite(file.fileno(), f"seed {seed}, input {number:<12}\n".encode(), 0)
                given = generate(random.Random(f"{seed}:{number}"))
                try:
                    ends[check(given)] += 1
                except BaseException as error:
                    traceback.print_exc()
                    found = f"seed {seed}, input {number} raised {error!r}; the input:\n{given!r}"
                    raise AssertionError(found) from error
                number += 1
    last.unlink()
    print("fuzz:", dict(ends))
    return ends
