"""What is not imported with `transformers`, and comes once it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

_PROGRAM = """
import json, sys
from specdec_hal.models.transformers.importing import import_transformers
import_transformers()
import specdec_hal.models.transformers.load
from transformers.generation import candidate_generator
from transformers.loss import loss_for_object_detection
before = [name for name in ("sklearn", "scipy", "sklearn.metrics", "scipy.optimize") if name in sys.modules]
curve = candidate_generator.roc_curve(1, 2, 3)
pairs = loss_for_object_detection.linear_sum_assignment(cost=4)
from scipy.optimize import minimize
print(json.dumps([before, curve, pairs, minimize, sys.modules["sklearn.metrics"].__file__]))
"""
_LIBRARIES = """
import gc, sys
from specdec_hal.models.transformers import importing
importing._load_libraries()
assert "libtorch_cpu.so" in open("/proc/self/maps").read() and "torch" not in sys.modules
generations = []
gc.callbacks.append(lambda phase, found: generations.append(found["generation"]))
importing.import_transformers()
assert not generations and gc.isenabled(), generations
import torch
assert torch.ones(2).sum() == 2
"""


def package(folder: Path, name: str, source: str, module: str) -> None:
    """An installed package with one module."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    (folder / name / f"{module}.py").write_text(source)
    (folder / f"{name}-9.0.dist-info").mkdir()
    (folder / f"{name}-9.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n")
    (folder / f"{name}-9.0.dist-info" / "RECORD").write_text(f"{name}/__init__.py,,\n{name}/{module}.py,,\n")


def test_optional_packages_come_when_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for both: their functions are called with what was given, other names are there at once."""
    package(tmp_path, "sklearn", "def roc_curve(*args): return ['curve', *args]", "metrics")
    package(tmp_path, "scipy", "def linear_sum_assignment(cost): return cost\nminimize = 'other'", "optimize")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True, check=True)
    *got, file = json.loads(done.stdout)
    assert got == [[], ["curve", 1, 2, 3], 4, "other"]
    assert Path(file).parent == tmp_path / "sklearn"


def test_libraries_are_loaded_before_pytorch_and_imports_without_collections() -> None:
    subprocess.run([sys.executable, "-c", _LIBRARIES], check=True)


def test_packages_by_module() -> None:
    """Every package that Python finds by a module, or by the declared names where its files are elsewhere."""
    from specdec_hal.models.transformers.importing import packages_distributions

    found = packages_distributions()
    missing = {
        name: set(names) - set(found.get(name, ()))
        for name, names in metadata.packages_distributions().items()
        if name.isidentifier()
    }
    assert len(missing) > 20 and not any(missing.values())
