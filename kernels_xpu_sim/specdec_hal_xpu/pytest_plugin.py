"""The pytest fixture ``xpu_kernel``: kernels of ``.xpu`` files on the emulator, with NumPy arrays in and out.

::

    def test_axpy(xpu_kernel):
        x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
        xpu_kernel("axpy.xpu").launch(12, 64)(x, y, 2.0, 100)   # y now has what the kernel wrote
        np.testing.assert_array_equal(y, 1 + 2 * x)

Every pytest in the environment loads this plug-in, so it imports the rest on demand.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from specdec_hal_xpu.calls import CallProgram, Ran


@dataclass(frozen=True)
class XpuKernel:
    """A kernel compiled for a mode of the emulator."""

    program: CallProgram
    name: str

    def launch(self, clusters: int, cores: int, options: str = "", check: bool = True) -> Callable[..., Ran]:
        """The kernel on `clusters` x `cores`, as a function of its arguments that returns findings and counters.

        Pointers take contiguous NumPy arrays of the declared type, or None; kernels must not write through `const`
        ones. `options` is as in XPU_SIM: ``seed=7,dma=random``.

        Raises:
            CompileError: an argument does not match the declaration.
            KernelError: with `check`, for findings or a failed launch.
        """

        def call(*arguments: Any) -> Ran:
            from specdec_hal.errors import KernelError
            from specdec_hal_xpu.calls import Call

            ran = self.program.run([Call(self.name, arguments, clusters, cores)], options=options)
            if check and (ran.statuses != [0] or ran.status != 0):
                said = ran.err.strip() or f"exit status {ran.status}"
                raise KernelError(
                    f"{self.name}: expected a launch without findings, got: {said}", findings=ran.findings
                )
            return ran

        return call


@dataclass(frozen=True)
class XpuPrograms:
    """Programs of kernels, each compiled once per session across pytest-xdist's workers."""

    folder: Path

    def __call__(
        self,
        sources: Sequence[Path],
        kernels: Sequence[str],
        mode: str = "fast",
        *,
        profiles: Sequence[str] = (),
        defines: Sequence[str] = (),
        includes: Sequence[str] = (),
        flags: Sequence[str] = (),
    ) -> CallProgram:
        """The program that calls `kernels` of `sources`, compiled as one file.

        Raises:
            CompileError: they do not compile.
        """
        from specdec_hal.errors import CompileError
        from specdec_hal_xpu.calls import CallProgram
        from specdec_hal_xpu.cc import Build

        key = repr(([str(source) for source in sources], kernels, mode, profiles, defines, includes, flags))
        output = self.folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        with open(f"{output}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            failed = output.with_suffix(".failed")  # once is enough
            if failed.is_file():
                raise CompileError(failed.read_text())
            if not output.is_file():
                unfinished = output.with_suffix(".tmp")
                what = Build(
                    sources=(),
                    output=unfinished,
                    mode=mode,
                    profiles=tuple(profiles),
                    defines=tuple(defines),
                    includes=tuple(includes),
                    flags=tuple(flags),
                )
                try:
                    CallProgram.build(what, sources, kernels)
                except CompileError as error:
                    failed.write_text(str(error))
                    raise
                unfinished.rename(output)
        return CallProgram(output, tuple(sources), tuple(kernels))


@pytest.fixture(scope="session")
def xpu_programs(tmp_path_factory: pytest.TempPathFactory) -> XpuPrograms:
    """Programs of several kernels, for many calls: ``xpu_programs([path], ["axpy"], "strict").run(...)``."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "xpu_programs"
    folder.mkdir(exist_ok=True)
    return XpuPrograms(folder)


@pytest.fixture
def xpu_kernel(request: pytest.FixtureRequest, xpu_programs: XpuPrograms) -> Callable[..., XpuKernel]:
    """``xpu_kernel("axpy.xpu", mode="strict")``: a kernel of a file beside the test.

    `kernel`: its C++ name, ``plugin::axpy<float>``, required for templates, namespaces or several kernels. Other
    arguments go to the compiler: `profiles`, `defines`, `includes`, `flags`.
    """

    def compiled(path: str | Path, kernel: str | None = None, mode: str = "strict", **compiler: Any) -> XpuKernel:
        from specdec_hal.errors import CompileError
        from specdec_hal_xpu.calls import kernels_in

        source = request.path.parent / path
        if not source.is_file():
            raise CompileError(f"expected a kernel file, got {source}, which does not exist; check the path")
        if kernel is None:
            found = kernels_in(source)
            if len(found) != 1:
                raise CompileError(f"{source}: expected one kernel, got {found}; name it: xpu_kernel(path, 'name')")
            kernel = found[0]
        return XpuKernel(xpu_programs([source], [kernel], mode, **compiler), kernel)

    return compiled
