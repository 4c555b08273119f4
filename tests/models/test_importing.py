"""What is not imported with `transformers`, and comes once it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.torch
pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
NAMED = pytest.mark.skipif(
    not metadata.version("transformers").startswith("5.17."), reason="other versions have other private names"
)

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
_BEGUN = """
import sys
from contextlib import suppress
from specdec_hal.engine.runtime import load
from specdec_hal.errors import SpecDecError
from specdec_hal.models.transformers import importing
before = []
importing._begin = lambda: before.append("torch" not in sys.modules and "tvm_ffi" not in sys.modules)
runtime = load("configs/cuda.yaml", [("model.framework", "transformers")])
with suppress(SpecDecError):  # without a GPU
    runtime.load_model()
assert before[0] and "transformers" in sys.modules
"""
_LOADED = """
import os, sys
from specdec_hal.models import load_model
load_model("models/tiny-py-lm", "transformers", device="cpu")
found = [name for name in ("torch._dynamo", "torch.distributed.tensor", "torch.onnx", "sympy") if name in sys.modules]
assert not found, found

import torch
from transformers.core_model_loading import is_dtensor
from transformers.distributed import fsdp, mixin
from transformers.integrations import deepgemm
assert not is_dtensor(torch.zeros(2)) and "torch.distributed.tensor" not in sys.modules
mixin._validate_tp_plan_styles({"layers": "neither"})
assert "transformers.distributed.tensor_parallel" not in sys.modules

import torch._dynamo.config
assert torch._dynamo is sys.modules["torch._dynamo"] and deepgemm.is_sm100._dynamo_marked_constant
assert fsdp.replace_layer_number_by_wildcard("layers.7.mlp") == "layers.*.mlp"
try:
    mixin._validate_tp_plan_styles({"layers": "neither"})
except ValueError as error:
    assert "neither" in str(error)
else:
    raise AssertionError("the library's own check")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
assert is_dtensor(distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (1,))))
"""
_COMPILER = """
import sys
import torch
from specdec_hal.models.transformers.late import late_compiler, late_modules
before = torch.compiler.disable

def count(x):
    print(end="")  # ends a graph
    return x + 1

with late_compiler():
    opaque = torch._dynamo.allow_in_graph(count)
    apart = torch.compiler.disable(lambda x: x + 1)
with late_modules():
    from torch._dynamo.utils import is_compile_supported  # as torchvision does
assert torch.compiler.disable is before and "torch._dynamo" not in sys.modules
assert is_compile_supported("cpu") and sys.modules["torch._dynamo.utils"].__file__

def compiles(function):
    try:
        return bool(torch.compile(lambda x: function(x), backend="eager", fullgraph=True)(torch.ones(1)) == 2)
    except torch._dynamo.exc.Unsupported:
        return False

assert compiles(opaque) and not compiles(apart) and not compiles(lambda x: [print(end=""), x + 1][1])
"""
_STAND_IN = """
import sys
from importlib import import_module
from specdec_hal.models.transformers import late
late._NAMES = {"other": {"Known"}}
with late.late_modules():
    from other import Known
    assert "Known" not in vars(sys.modules["other"])
    assert isinstance(Known(), Known) and not isinstance(3, Known) and Known.number == 7
    assert type("Below", (), {}) | Known and Known | None
    class Child(Known): pass
    assert issubclass(Child, sys.modules["other"].Known)
with late.late_modules():
    assert sys.modules["other"].__file__, "it is there"
del sys.modules["other"]
with late.late_modules():
    import other
    assert other.unknown == 8 and sys.modules["other"].__file__
for name in ("inner", "later"):
    for module in [one for one in sys.modules if one.startswith("other")]:
        del sys.modules[module]
    sys.run = []
    with late.late_modules():
        import_module(f"other.{name}")
        assert sys.modules["other"].__file__ and getattr(sys.modules["other"], name) is sys.modules[f"other.{name}"]
        assert sys.run.count(f"other.{name}") == 1 and sys.modules[f"other.{name}"].__spec__.origin
assert not [one for one in sys.meta_path if isinstance(one, late._Submodules)]
"""


@pytest.mark.parametrize("program", [pytest.param(_LOADED, marks=NAMED), _COMPILER], ids=["loaded", "compiler"])
def test_the_compiler_comes_when_it_is_used_and_knows_what_was_marked(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_stand_in_leads_to_the_module(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    known = "unknown = 8\nclass Known:\n    number = 7\n"
    (folder / "__init__.py").write_text(f"import sys\n{known}import other.inner\n")
    for name in ("inner", "later"):  # the package imports one of them
        (folder / f"{name}.py").write_text("import sys\nsys.run = [*getattr(sys, 'run', ()), __name__]\n")
    subprocess.run([sys.executable, "-c", _STAND_IN], check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})


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


def test_imports_begin_before_a_gpus_backend() -> None:
    subprocess.run([sys.executable, "-c", _BEGUN], check=True, cwd=ROOT)


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
