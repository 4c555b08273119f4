"""Kernels that are compiled ahead, in other processes, for a GPU that this machine need not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

_PROGRAM = """
import json, sys, threading
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from specdec_hal.models.triton_kernels import compiling, norm
from specdec_hal.models.triton_kernels.launcher import Launcher

driver.set_active(compiling._NoDevice(GPUTarget("cuda", 90, 32)))
launcher = Launcher(torch.device("cpu"), torch.bfloat16, True)
before = compiling.compilations()
launched = []

def launch(width):
    x = torch.zeros(4, width, dtype=torch.bfloat16)
    launcher.rms_norm(x, x[0], x, torch.zeros(1, dtype=torch.int32), 1e-6)

def launch_in_earnest(width):
    try:
        launch(width)
    except AttributeError:  # there is no device to launch it on
        launched.append(width)

with compiling.compiling(2):
    for width in (256, 512, 256):
        launch(width)
    thread = threading.Thread(target=launch_in_earnest, args=(1024,))
    thread.start()
    thread.join()
ahead = compiling.compilations() - before
hits = []
knobs.compilation.listener = lambda **event: hits.append(event["cache_hit"])
for width in (256, 512):
    launch_in_earnest(width)
norm.rms_norm.device_caches.clear()
compiling.subprocess.run = None  # nothing is missing any more
with compiling.compiling(2):
    launch(256)
print(json.dumps({"ahead": ahead, "hits": hits, "launched": launched}))
"""


def test_what_is_compiled_ahead_is_loaded(tmp_path: Path) -> None:
    """Only this thread's launches are put off; what the folder has is not compiled again."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert json.loads(done.stdout) == {"ahead": 1, "hits": [True, True], "launched": [1024, 256, 512]}
    assert len(list((tmp_path / "specdec_hal").iterdir())) == 2
