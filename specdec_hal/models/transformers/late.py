"""Stand-ins for what `transformers` imports for other uses than ours, which are imported once they are used.

Where scikit-learn and SciPy are installed, its modules import a function of each, for assisted generation and losses of
object detection: 1.6 s. For PyTorch's compiler, whose decorators mark a few functions, and its distributed tensors it
takes 1 s. A stand-in leads to the module itself for everything that it does not know.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import patch

_NAMES = {
    "scipy.optimize": {"linear_sum_assignment"},
    "sklearn.metrics": {"roc_curve"},
    "torch._dynamo._trace_wrapped_higher_order_op": {"TransformGetItemToIndex"},
    "torch._dynamo.utils": {"is_compile_supported"},  # for torchvision
    "torch.distributed._composable.fsdp": {"fully_shard"},
    "torch.distributed.fsdp": {"CPUOffloadPolicy", "MixedPrecisionPolicy"},
    "transformers.distributed.sharding_utils": {"DtensorShardOperation", "_dtensor_from_local_like"},
    "transformers.distributed.tensor_parallel": {
        "_get_parameter_tp_plan", "_validate_tp_plan_styles", "apply_tensor_parallelism", "gather_state_dict_for_save",
        "replace_layer_number_by_wildcard", "verify_tp_plan",
    },
}  # fmt: skip
_CHECK = "_validate_tp_plan_styles"
"""Checks a plan's words, for who divides a model by the library and so imports its module."""
_DYNAMO = "torch._dynamo"


class _Late(ModuleType):
    """A module that is not imported yet."""

    def __init__(self, name: str, names: set[str]) -> None:
        super().__init__(name)
        self._names = names
        self.__path__: list[str] = []  # so that finders are asked for its submodules

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return _Name(self.__name__, name)
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)


def _imported(name: str) -> ModuleType:
    if isinstance(sys.modules.get(name), _Late):
        del sys.modules[name]
    return import_module(name)


class _Name:
    """A function or class of such a module."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _real(self) -> Any:
        return getattr(_imported(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._name == _CHECK and isinstance(sys.modules.get(self._module, self), (_Late, _Name)):
            return None
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __instancecheck__(self, one: object) -> bool:
        return isinstance(one, self._real())

    def __mro_entries__(self, bases: Any) -> tuple[Any]:
        return (self._real(),)

    def __or__(self, other: Any) -> Any:
        return self._real() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._real()


class _Submodules:
    """Finds submodules of packages with a stand-in, which is replaced by the package."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        parent = name.rpartition(".")[0]
        if not isinstance(sys.modules.get(parent), _Late):
            return None
        _imported(parent)
        if name in sys.modules:
            module = sys.modules[name]
            loader: Any = _There(module)
            module.__spec__ = importlib.util.spec_from_loader(name, loader)  # which Python takes otherwise
        return importlib.util.find_spec(name)


class _There:
    """Loads a module that its package has imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: Any) -> ModuleType:
        """See importlib.abc.Loader."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """See importlib.abc.Loader."""
        module.__spec__ = self._spec


@contextmanager
def late_modules() -> Iterator[None]:
    """Context in which modules get stand-ins for those of _NAMES."""
    late = {name: _Late(name, names) for name, names in _NAMES.items() if name not in sys.modules}
    sys.modules.update(late)
    finder: Any = _Submodules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in late.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _Marks:
    """PyTorch's compiler, where it only marks functions."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._marked: list[tuple[str, Any]] = []

    def allow_in_graph(self, fn: Any) -> Any:
        self._marked.append(("allow_in_graph", fn))
        return fn

    def assume_constant_result(self, fn: Any) -> Any:
        self._marked.append(("assume_constant_result", fn))
        return fn

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        return self._torch._disable_dynamo(fn, recursive)  # PyTorch's own, which imports it at a call

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(_DYNAMO), name)

    def repeat(self, compiler: Any) -> None:
        """Mark the functions."""
        for mark, fn in self._marked:
            getattr(compiler, mark)(fn)


class _Finder:
    """Finds PyTorch's compiler, and calls `then` once it is imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._then(module)

        spec.loader.exec_module = exec_module
        return spec


@contextmanager
def late_compiler() -> Iterator[None]:
    """Context in which PyTorch's compiler is not imported to mark functions."""
    import torch

    if _DYNAMO in sys.modules or not hasattr(torch, "_disable_dynamo"):
        yield
        return
    marks = _Marks(torch)
    names = ("allow_in_graph", "assume_constant_result", "disable")
    torch._dynamo = marks
    try:
        with patch.multiple(torch.compiler, **{name: getattr(marks, name) for name in names}):
            yield
    finally:
        if torch._dynamo is marks:
            del torch._dynamo
        if (compiler := sys.modules.get(_DYNAMO)) is not None:
            marks.repeat(compiler)
        else:
            sys.meta_path.insert(0, _Finder(marks.repeat))


def is_dtensor(one: object) -> bool:
    """As of `transformers`, which imports these tensors to look for one."""
    return isinstance(one, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))
