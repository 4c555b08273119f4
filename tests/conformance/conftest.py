"""A plug-in from outside, installed for the length of a test: a backend that is wrong in chosen ways."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGIN = '''
"""Wrong backends, chosen by the option `fault`."""

import ctypes
import os
import sys
import time

import numpy as np

import specdec_hal as sd
from specdec_hal.backends.reference.backend import ReferenceBackend


class Faulty(ReferenceBackend):
    name = "faulty"

    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        if fault == "no workspace":
            self.workspace = lambda op, **sizes: {}
        if fault == "partial":
            self.capabilities = {"ngram_index_reset": sd.Capability(limits={"M": 3})}

    def plan(self, call):
        launch = super().plan(call)
        arrays = self.arrays(call)

        def run(stream):
            launch(stream)
            if call.op.name == "gather_accepted" and self.fault == "value" and len(arrays["rows"]) > 2:
                arrays["rows"][2] += 1
            if call.op.name == "gather_accepted" and self.fault == "read":
                rows = arrays["rows"]
                ctypes.string_at(rows.ctypes.data + rows.nbytes, 4)
            if call.op.name == "ngram_index_reset" and len(arrays["index"]) == 4:
                if self.fault == "abort":
                    os.abort()
                if self.fault == "hang":
                    time.sleep(3600)
                if self.fault == "hog":
                    self.hoard = np.ones(5 << 25)  # 1.25 GiB
                    time.sleep(3600)

        return run


def make(options):
    if options.get("fault") == "start" and "pytest" not in sys.modules:
        os._exit(5)
    return Faulty(options.get("fault"))


@sd.hookimpl
def specdec_backends():
    return sd.BackendSpec(
        "faulty", sd.API_VERSION, lambda: sd.Probe(True), make, -20
    )
'''


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Installs it for child processes and for a fresh registry here; gives its name."""
    from specdec_hal.plugin import registry

    folder = tmp_path / "site"
    info = folder / "faulty_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "faulty_backend.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specdec_hal]\nfaulty = faulty_backend\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry.default, "plugins", registry.Registry().plugins)
    yield "faulty"
    sys.modules.pop("faulty_backend", None)
