"""Ask the driver whether the CUDA backend can run here, without loading a framework or our library."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_hal.plugin.backend import Probe
from specdec_hal.tensors.native import library_path

LIBRARY = "specdec_cuda"
DRIVER = "libcuda.so.1"

Version = tuple[int, int]

_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{MAJOR,MINOR}
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class Build:
    """What the library was built with: the toolkit, the compute capabilities it has code for, and that of its PTX."""

    toolkit: Version
    binaries: tuple[Version, ...]
    ptx: Version | None

    @classmethod
    def read(cls, library: Path) -> Build:
        """From the file that the build puts beside the library; OSError or ValueError if there is no such thing."""
        built = json.loads(library.with_suffix(".json").read_text())
        ptx = built["ptx"]
        binaries = tuple(_version(text) for text in built["binaries"])
        return cls(_version(built["toolkit"]), binaries, None if ptx is None else _version(ptx))

    def runs_on(self, capability: Version) -> bool:
        """Code runs on devices of the same major compute capability and a later revision; PTX on everything newer."""
        same = any(major == capability[0] and minor <= capability[1] for major, minor in self.binaries)
        return same or (self.ptx is not None and self.ptx <= capability)


def _version(text: str) -> Version:
    major, minor = text.split(".")
    return int(major), int(minor)


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


class DriverError(Exception):
    """A call of the driver failed; `code` is its CUresult."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} failed with CUresult {code}")
        self.code = code


class Driver:
    """The few functions of the CUDA driver that a probe needs. OSError where there is no driver."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(DRIVER)

    def _ask(self, function: str, *args: Any) -> int:
        answer = ctypes.c_int()
        code = getattr(self._library, function)(ctypes.byref(answer), *args)
        if code != 0:
            raise DriverError(function, code)
        return answer.value

    def version(self) -> Version:
        """The newest CUDA version that the driver serves."""
        number = self._ask("cuDriverGetVersion")
        return number // 1000, number % 1000 // 10

    def capabilities(self) -> list[Version]:
        """The compute capability of every device."""
        code = self._library.cuInit(0)
        if code == _NO_DEVICE:
            return []
        if code != 0:
            raise DriverError("cuInit", code)
        return [self._capability(i) for i in range(self._ask("cuDeviceGetCount"))]

    def _capability(self, index: int) -> Version:
        device = self._ask("cuDeviceGet", index)
        major, minor = (self._ask("cuDeviceGetAttribute", attribute, device) for attribute in _COMPUTE_CAPABILITY)
        return major, minor


def probe() -> Probe:
    """Available, or what is missing and a hint."""
    library = library_path(LIBRARY)
    if library is None:
        return Probe(
            False,
            f"the native library lib{LIBRARY}.so is not installed",
            "install the wheel specdec-hal-cuda of the same version, or build it where nvcc is: `make setup` in a "
            "clone, or `pip install --no-build-isolation -C cmake.define.SPECDEC_CUDA=ON -e .` in your own environment",
        )
    try:
        build = Build.read(library)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{library.with_suffix('.json')}, which belongs to the library, cannot be read ({error})"
        return Probe(False, reason, "reinstall specdec-hal")
    try:
        driver = Driver()
    except OSError:
        hint = "install the NVIDIA driver; in a container, start it with the GPU (docker run --gpus all)"
        return Probe(False, f"there is no NVIDIA driver ({DRIVER} cannot be loaded)", hint)
    try:
        return _probe_devices(build, driver)
    except DriverError as error:
        return Probe(False, f"the NVIDIA driver does not work: {error}", "run nvidia-smi")


def _probe_devices(build: Build, driver: Driver) -> Probe:
    serves = driver.version()
    if serves[0] < build.toolkit[0]:
        return Probe(
            False,
            f"the NVIDIA driver is too old: it serves CUDA {_text(serves)}, the library was built with "
            f"{_text(build.toolkit)}",
            f"update the driver, or build with a CUDA {serves[0]}.x toolkit",
        )
    devices = driver.capabilities()
    if not devices:
        hint = "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        return Probe(False, "the NVIDIA driver sees no device", hint)
    usable = [capability for capability in devices if build.runs_on(capability)]
    if not usable:
        has = [_text(version) for version in build.binaries]
        has += [f"PTX {_text(build.ptx)}"] if build.ptx is not None else []
        return Probe(
            False,
            f"the library has no code for compute capability {_list(devices)} (it has: {', '.join(has)})",
            "build it for this device with SPECDEC_CUDA_ARCHS (kernels_cuda/CMakeLists.txt); 8.0 is the oldest",
        )
    return Probe(True, f"{len(usable)} of {len(devices)} devices, compute capability {_list(usable)}")


def _list(versions: Sequence[Version]) -> str:
    return ", ".join(map(_text, sorted(set(versions))))
