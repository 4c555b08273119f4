"""Kernels that are compiled ahead, in other processes, for a GPU that this machine need not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hf_models import write_model

pytestmark = pytest.mark.torch

_PROGRAM = """
import json, sys, threading
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
from specdec_hal.models.triton_kernels import compiling, norm
from specdec_hal.models.triton_kernels.launcher import Launcher

driver.set_active(compiling.NoDevice(GPUTarget("cuda", 90, 32)))
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

entered, left, recorded, run = threading.Event(), threading.Event(), [], JITFunction.run

def record_beside():
    with compiling.compiling(2):
        entered.set()
        left.wait()
        launch(256)  # loaded already
        recorded.append(256)

beside = threading.Thread(target=record_beside)
with compiling.compiling(2):
    beside.start()
    entered.wait()
    launch(512)
left.set()
beside.join()
assert recorded == [256] and JITFunction.run is run and knobs.runtime.jit_cache_hook is None
norm.rms_norm.device_caches.clear()
compiling.compile_all = None  # nothing is missing any more
with compiling.compiling(2):
    launch(256)
print(json.dumps({"ahead": ahead, "hits": hits, "launched": launched}))
"""


def test_what_is_compiled_ahead_is_loaded(tmp_path: Path) -> None:
    """Only this thread launches nothing, not even a loaded kernel; what the folder has is not compiled again."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert json.loads(done.stdout) == {"ahead": 1, "hits": [True, True], "launched": [1024, 256, 512]}
    assert len(list((tmp_path / "specdec_hal").iterdir())) == 2


_REHEARSAL = """
import json, sys
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from specdec_hal.models import from_host
from specdec_hal.models.paged import launchers
from specdec_hal.models.transformers import bits, device, load, replace
from specdec_hal.models.triton_kernels import compiling
from specdec_hal.tensors.group import Shared

driver.set_active(compiling.NoDevice(GPUTarget("cuda", 90, 32)))
from_host.FromHost.compiles = property(lambda self: True)
ahead, needed = set(), set()

def note(*, fn, compile, **event):
    needed.add((fn.name, compile["specialization_data"]))
    return True

def agree(signature, sizes):  # nothing was computed
    for rows in sizes:
        signature(rows)
    return real(lambda rows: b"", sizes)

def modules():
    return {(name, type(module)) for name, module in decoder.model.named_modules()}

def compile(kernels, processes):
    ahead.update((kernel.name, kernel.data) for kernel in kernels)
    assert modules() <= before  # tried on a copy
    replace.close = lambda expected, got, module=None: True
    return ""

compiling.compile_all, knobs.runtime.jit_cache_hook = compile, note
class Ranks:  # both are this one, and do not meet in a rehearsal
    rank, size, capturable = 1, 2, True

    def gather(self, tensor):
        assert not replace._rehearsal.on
        return torch.stack([tensor, tensor])

    def share(self, count, dtype, stops=False):
        mine = self.gather(torch.zeros(count, dtype=dtype))[0]
        return Shared(mine, torch.tensor([mine.data_ptr()] * 2))

real, bits.agreeing, close = bits.agreeing, agree, replace.close
group = Ranks() if sys.argv[1] == "ranks" else None
if group is not None:
    load.compare = lambda model, whole, part, reason: None
for folder in sys.argv[2:]:
    replace.close = close
    decoder = load.load_decoder(folder, "cpu", "bfloat16", group)
    before = modules()
    model = device.DeviceTransformers(decoder, make_launcher=launchers(torch.device("cpu")), group=group)
    assert modules() != before and model.batch_invariant
    print(json.dumps([len(ahead), len(needed - ahead)]))
"""


@pytest.mark.parametrize("group, last", [("alone", ["Mixtral", "GPT2"]), ("ranks", ["Qwen3Moe"])])
def test_what_trials_launch_is_compiled_before(group: str, last: list[str], tmp_path: Path) -> None:
    """At once, for the layers of each kind: what the trials then need was recorded in a rehearsal."""
    pytest.importorskip("triton")
    pytest.importorskip("transformers")
    folders = [str(write_model(tmp_path / kind, kind)) for kind in ("Qwen3", "Gemma3", *last)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, "-c", _REHEARSAL, group, *folders]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    counts = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(missing == 0 for _, missing in counts)
    assert 10 < counts[0][0] < counts[-1][0] and len(counts) == len(folders)


_BROKEN = """
import sys
from specdec_hal.models.triton_kernels import compiling

kernel = compiling.Kernel("specdec_hal.models.triton_kernels.norm", "no_such_kernel", "{}", '{"backend": "cuda"}')
target = '{"backend": "cuda", "arch": 90, "warp_size": 32}'
print(compiling.compile_all([kernel], 1))
print(compiling.compile_all([kernel._replace(target=target)], 1))
"""


def test_a_failure_is_reported() -> None:
    """By the process, or by its end; another one takes its place."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", _BROKEN], env=environment, capture_output=True, text=True, check=True)
    ended, missing = done.stdout.splitlines()
    assert ended.startswith("the compiling process ended with status") and "no_such_kernel" in missing
