"""Loading the native library, and what it says to arguments that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_hal.errors import BackendUnavailableError
from specdec_hal.tensors import native as loader


def test_the_library_is_loaded_once():
    assert loader.load_library("specdec_common") is loader.load_library("specdec_common")
    assert loader.library_path("specdec_common").name == "libspecdec_common.so"


def test_a_distribution_of_its_own(monkeypatch, tmp_path):
    """As specdec-hal-cuda. A library of the package's own build comes first."""
    (tmp_path / "specdec_hal_cuda").mkdir()
    for name in ("specdec_planted", "specdec_common"):
        (tmp_path / "specdec_hal_cuda" / f"lib{name}.so").touch()
    assert loader.library_path("specdec_planted") is None
    monkeypatch.syspath_prepend(str(tmp_path))
    assert loader.library_path("specdec_planted") == tmp_path / "specdec_hal_cuda" / "libspecdec_planted.so"
    assert not loader.library_path("specdec_common").is_relative_to(tmp_path)


def test_a_missing_library_names_the_hint():
    assert loader.library_path("specdec_absent") is None
    with pytest.raises(BackendUnavailableError, match=r"libspecdec_absent\.so.*build it: `make setup`"):
        loader.load_library("specdec_absent")


def test_a_library_that_is_none(monkeypatch, tmp_path):
    broken = tmp_path / "libspecdec_broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(loader, "library_path", lambda name: broken)
    with pytest.raises(BackendUnavailableError, match=r"expected to load .*libspecdec_broken\.so, got: .*reinstall"):
        loader.load_library("specdec_broken")


F32, U64 = np.float32, np.uint64


def test_a_read_only_output_is_refused(native):
    out = np.zeros(3, U64)
    out.flags.writeable = False
    with pytest.raises(BufferError):
        native.library["exp2_mass"](np.zeros(3, F32), out)
    assert not out.any()
