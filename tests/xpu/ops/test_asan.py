"""Every op under AddressSanitizer and UndefinedBehaviorSanitizer, where the library with them was built."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from specdec_hal.errors import ConfigError
from specdec_hal.ops import OPS
from specdec_hal.ops.inputs.generate import cases, generate, hostile
from specdec_hal.tensors.native import library_path
from specdec_hal_xpu.backend import XpuSimBackend
from specdec_hal_xpu.options import Options
from tests.support.running import assert_same, run, searched

ROOT = Path(__file__).parents[3]
SHAPES = [("auto", "auto"), (2, 3), (1, 64), (12, 16)]
needs_library = pytest.mark.skipif(
    library_path("specdec_xpu_sim_asan") is None, reason="the library with the sanitizers was not built"
)


def sampled_ops() -> None:
    """Generated and hostile inputs on some launches; what the sanitizers find raises."""
    for op in OPS:
        for make in (generate, hostile):
            inputs_of = cases(op, 20)
            for seed in range(10):
                clusters, cores = SHAPES[seed % len(SHAPES)]
                backend = XpuSimBackend(
                    Options("asan", clusters, cores, seed, "random" if seed % 5 == 4 else "deferred")
                )
                for options in islice(inputs_of, 2):
                    inputs = make(op, workspace=backend.workspace, **options)
                    assert_same(run(op, inputs, backend), searched(op, inputs), (options, backend.options))
    print("clean")


@needs_library
def test_sampled_ops():
    libraries = ("libasan.so", "libstdc++.so")
    paths = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in libraries]
    # Python leaks by design; stacks of cores are the emulator's own.
    asan = "detect_leaks=0:detect_stack_use_after_return=0"
    environment = {**os.environ, "LD_PRELOAD": " ".join(paths), "ASAN_OPTIONS": asan, "OMP_NUM_THREADS": "1"}
    code = "from tests.xpu.ops.test_asan import sampled_ops; sampled_ops()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout == "clean\n", done.stdout + done.stderr


@needs_library
def test_a_process_without_the_sanitizers_is_told():
    with pytest.raises(ConfigError, match="expected a process with AddressSanitizer for 'asan'"):
        XpuSimBackend(Options(mode="asan"))
