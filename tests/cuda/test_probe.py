"""Messages without CUDA: library, driver, device, or code for the device. No GPU is needed for this."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_hal.backends.cuda import probe as cuda_probe
from specdec_hal.backends.cuda.probe import Build, probe
from specdec_hal.plugin import registry

BUILD = {"toolkit": "13.0", "binaries": ["8.0", "8.6", "8.9", "9.0", "10.0", "12.0"], "ptx": "9.0"}


def fake_driver(
    version: int = 13010, devices: list[tuple[int, int]] | None = None, init: int = 0, count: int = 0
) -> SimpleNamespace:
    """The entry points of libcuda.so.1, as ctypes would call them; `init` and `count` are CUresults."""
    devices = [(9, 0)] if devices is None else devices

    def give(result: Any, value: int, code: int = 0) -> int:
        result._obj.value = value
        return code

    return SimpleNamespace(
        cuDriverGetVersion=lambda out: give(out, version),
        cuInit=lambda flags: init,
        cuDeviceGetCount=lambda out: give(out, len(devices), count),
        cuDeviceGet=lambda out, index: give(out, 40 + index),
        cuDeviceGetAttribute=lambda out, attribute, device: give(out, devices[device - 40][attribute - 75]),
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library with its description."""
    library = tmp_path / "libspecdec_cuda.so"
    library.with_suffix(".json").write_text(json.dumps(BUILD))
    monkeypatch.setattr(cuda_probe, "library_path", lambda name: library if name == "specdec_cuda" else None)
    return library


def drive(monkeypatch: pytest.MonkeyPatch, **driver: Any) -> None:
    monkeypatch.setattr(cuda_probe.ctypes, "CDLL", lambda name: {"libcuda.so.1": fake_driver(**driver)}[name])


def test_available(installed, monkeypatch):
    drive(monkeypatch, devices=[(9, 0), (7, 5), (9, 0)])
    found = probe()
    assert found.available and found.reason == "2 of 3 devices, compute capability 9.0"


def test_no_library(monkeypatch):
    monkeypatch.setattr(cuda_probe, "library_path", lambda name: None)
    found = probe()
    assert not found.available
    assert "libspecdec_cuda.so is not installed" in found.reason and "make setup" in found.hint


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"toolkit": "13.0"}', '{"toolkit": 13, "binaries": [], "ptx": null}']
)
def test_a_library_without_its_description(installed, text):
    description = installed.with_suffix(".json")
    description.unlink()
    if text is not None:
        description.write_text(text)
    found = probe()
    assert not found.available
    assert f"{description}, which belongs to the library, cannot be read" in found.reason
    assert found.hint == "reinstall specdec-hal"


def test_no_driver(installed, monkeypatch):
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda_probe.ctypes, "CDLL", absent)
    found = probe()
    assert not found.available
    assert found.reason == "there is no NVIDIA driver (libcuda.so.1 cannot be loaded)" and "--gpus" in found.hint


@pytest.mark.parametrize(
    ("driver", "reason", "hint"),
    [
        ({"version": 12080}, "too old: it serves CUDA 12.8, the library was built with 13.0", "CUDA 12.x toolkit"),
        ({"devices": []}, "sees no device", "CUDA_VISIBLE_DEVICES"),
        ({"init": 100}, "sees no device", "CUDA_VISIBLE_DEVICES"),
        ({"init": 999}, "does not work: cuInit failed with CUresult 999", "nvidia-smi"),
        ({"count": 3}, "does not work: cuDeviceGetCount failed with CUresult 3", "nvidia-smi"),
        (
            {"devices": [(7, 5), (6, 1)]},
            "no code for compute capability 6.1, 7.5 (it has: 8.0, 8.6, 8.9, 9.0, 10.0, 12.0, PTX 9.0)",
            "SPECDEC_CUDA_ARCHS",
        ),
    ],
)
def test_reasons(installed, monkeypatch, driver, reason, hint):
    drive(monkeypatch, **driver)
    found = probe()
    assert not found.available
    assert reason in found.reason and hint in found.hint


@pytest.mark.parametrize(
    ("capability", "binaries", "ptx", "runs"),
    [
        ((8, 7), ((8, 0), (8, 6)), None, True),  # a later revision of a compute capability runs its code
        ((8, 0), ((8, 6),), None, False),  # an earlier one does not
        ((9, 0), ((8, 0),), None, False),
        ((11, 0), ((9, 0),), (9, 0), True),  # newer compute capabilities compile PTX
        ((8, 9), ((9, 0),), (9, 0), False),
    ],
)
def test_which_devices_a_build_runs_on(capability, binaries, ptx, runs):
    assert Build((13, 0), binaries, ptx).runs_on(capability) is runs


def test_the_registry_prefers_it_only_where_it_runs(installed, monkeypatch):
    drive(monkeypatch, devices=[])
    info = {entry.name: entry for entry in registry.backends()}
    order = [info[name].priority for name in ("cuda", "cpu", "reference")]
    assert order == sorted(set(order), reverse=True)
    assert not info["cuda"].available and registry.choose() == "cpu"
    for status in registry.explain("cuda"):
        assert not status.available and "sees no device" in status.reason and "nvidia-smi" in status.hint
    drive(monkeypatch)
    assert registry.choose() == "cuda"


def test_probing_loads_neither_framework_nor_library():
    code = (
        "import sys; from specdec_hal.plugin import registry; registry.backends();"
        "print([m for m in ('torch', 'paddle', 'cupy', 'tvm_ffi') if m in sys.modules],"
        "'specdec_cuda' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
