"""Running a fuzzer: a fixed seed, then a fresh one, for some seconds each; a finding prints its input."""

from __future__ import annotations

import os
import random
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

Input = TypeVar("Input")

SECONDS = float(os.environ.get("FUZZ_SECONDS", "2"))
"""Of each fuzzer, half of them with each seed."""
LEAST = 20
"""Inputs with each seed, however slow the machine."""


def fuzz(generate: Callable[[random.Random], Input], check: Callable[[Input], str]) -> Counter[str]:
    """Check generated inputs; how many ended in which way, as `check` says. Whatever else it raises is a finding."""
    ends: Counter[str] = Counter()
    for seed in (0, int(os.environ.get("FUZZ_SEED", secrets.randbits(32)))):
        print(f"fuzz: seed {seed}")
        until, number = time.monotonic() + SECONDS / 2, 0
        while number < LEAST or time.monotonic() < until:
            given = generate(random.Random(f"{seed}:{number}"))
            try:
                ends[check(given)] += 1
            except BaseException as error:
                traceback.print_exc()
                raise AssertionError(f"seed {seed}, input {number} raised {error!r}; the input:\n{given!r}") from error
            number += 1
    print("fuzz:", dict(ends))
    return ends
