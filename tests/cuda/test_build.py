"""The CUDA library that was built here serves every device that it promises to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specdec_hal.backends.cuda.probe import LIBRARY, Build
from specdec_hal.native import library_path

ROOT = Path(__file__).parents[2]
LIBRARY_HERE = library_path(LIBRARY)
EVERY = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))

pytestmark = pytest.mark.skipif(LIBRARY_HERE is None, reason="libspecdec_cuda.so is not built here (there was no nvcc)")


def test_it_has_code_for_every_architecture():
    assert LIBRARY_HERE is not None
    build = Build.read(LIBRARY_HERE)
    if build.ptx is None:
        pytest.skip(f"it was built for {build.binaries} alone (SPECDEC_CUDA_ARCHS)")
    assert build.binaries == EVERY and build.ptx == (9, 0)
    assert all(build.runs_on(capability) for capability in (*EVERY, (8, 7), (10, 3), (11, 0), (12, 1), (13, 0)))
    assert not build.runs_on((7, 5))


def test_it_needs_no_cuda_installation():
    """The runtime is inside; the driver is asked for when the first op runs."""
    assert LIBRARY_HERE is not None
    needed = set(re.findall(rb"lib(cuda|cudart|nvrtc)[.\w]*\.so[.\d]*", LIBRARY_HERE.read_bytes()))
    # The runtime opens the driver by name; nothing else may be mentioned.
    assert needed <= {b"cuda"}
