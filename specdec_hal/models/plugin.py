"""Announces the built-in models."""

from __future__ import annotations

import importlib
import logging
import re
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.errors import ArgumentError
from specdec_hal.models.batch import refused
from specdec_hal.models.checkpoint import DTYPES
from specdec_hal.models.llama_cpp_api import FRAMEWORK
from specdec_hal.plugin.hookspecs import ANY_ARCHITECTURE, ModelSpec, hookimpl
from specdec_hal.plugin.model import ModelMemory
from specdec_hal.tensors.transfer import Field

if TYPE_CHECKING:
    from specdec_hal.tensors.group import Group

ARCHITECTURE = "LlamaForCausalLM"
TRANSFORMERS = "transformers"
PADDLEFORMERS = "paddleformers"


def _paddle(path: str | Path, *, dtype: str = "float32", group: Group | None = None, **options: Any) -> Any:
    _not_quantised("paddle", options)
    if dtype != "float32":
        raise _refused("paddle", "dtype", "float32", dtype, "use model.framework transformers for others")
    if group is not None:
        raise _refused("paddle", "tensor_parallel", "1", group.size, "use model.framework transformers for more")
    arguments = _arranged(path)
    _import_paddle()
    from specdec_hal.models.llama_paddle import LlamaPaddle

    return LlamaPaddle(*arguments, **options)


def _paddleformers(path: str | Path, *, group: Group | None = None, **options: Any) -> Any:
    _not_quantised(PADDLEFORMERS, options)
    if group is not None:
        hint = "use model.framework transformers for more"
        raise _refused(PADDLEFORMERS, "tensor_parallel", "1", group.size, hint)
    _import_paddle()
    from specdec_hal.models.paddleformers.importing import import_library

    import_library()
    from specdec_hal.models.paddleformers.load import load

    return load(path, **options)


def _paddleformers_memory(path: str | Path, *, device: str) -> ModelMemory:
    """Weights in float32 on a CPU, at most that on a GPU, with a cache that grows."""
    from specdec_hal.models.checkpoint import CONFIG, read_json
    from specdec_hal.models.weights import header, shards

    elements = sum(prod(shape) for file in shards(Path(path)) for shape, _ in header(file).values())
    width = read_json(path, CONFIG).get("hidden_size")
    return ModelMemory({"weights as float32": 4 * elements}, 0, 4 * (width if isinstance(width, int) else 0))


def _llama_cpp(path: str | Path, *, group: Group | None = None, **options: Any) -> Any:
    _not_quantised(FRAMEWORK, options)
    if group is not None:
        raise _refused(FRAMEWORK, "tensor_parallel", "1", group.size, "use model.framework transformers for more")
    from specdec_hal.models.llama_cpp import LlamaCpp

    return LlamaCpp(path, **options)


def _transformers(
    path: str | Path, *, device: str = "cpu", dtype: str | None = None, group: Group | None = None, **options: Any
) -> Any:
    if dtype not in (None, *DTYPES):
        raise _refused(TRANSFORMERS, "dtype", f"one of {', '.join(DTYPES)}", dtype, "choose one of them")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise _refused(TRANSFORMERS, "device", "cpu, cuda or cuda:N", device, "choose one of them")
    if device == "cpu" and "pdl_rows" in options:
        raise _refused(TRANSFORMERS, "pdl_rows", "none on cpu", options["pdl_rows"], "leave it out (model.pdl_rows)")
    if device != "cpu" and "threads" in options:
        hint = "leave it out (model.num_threads)"
        raise _refused(TRANSFORMERS, "threads", f"none on {device}", options["threads"], hint)
    return _adapter(device).load(path, device=device, dtype=dtype, group=group, **options)


def _transformers_memory(path: str | Path, *, device: str) -> ModelMemory | None:
    need: ModelMemory | None = _adapter(device).memory(path, device=device)
    return need


def _adapter(device: str) -> Any:
    """The module that loads."""
    from specdec_hal.models.transformers.importing import import_transformers

    import_transformers(device)
    from specdec_hal.models.transformers import load

    return load


def _import_paddle() -> None:
    """Import it. The root logger keeps its level and handlers, which Paddle would set."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    importlib.import_module("paddle")
    root.setLevel(level)
    root.handlers[:] = handlers


def _paddle_memory(path: str | Path, *, device: str) -> ModelMemory:
    """Everything is float32, with a cache that grows."""
    from specdec_hal.models.checkpoint import read_config
    from specdec_hal.models.weights import read_memory

    config = read_config(path)
    return ModelMemory(read_memory(path, config), 0, Field((config.hidden_size,), "float32").nbytes)


def _arranged(path: str | Path) -> tuple[Any, Any]:
    from specdec_hal.models.checkpoint import read_config
    from specdec_hal.models.layout import arrange
    from specdec_hal.models.weights import read_weights

    config = read_config(path)
    return config, arrange(read_weights(path, config), config)


def _not_quantised(framework: str, options: dict[str, Any]) -> None:
    """Take the option away, unless it is one of `transformers`."""
    if (chosen := options.pop("quantization", "auto")) not in ("auto", "none"):
        raise _refused(framework, "quantization", "auto or none", chosen, "use model.framework transformers on a GPU")


def _refused(framework: str, argument: str, expected: str, got: object, hint: str) -> ArgumentError:
    return refused(framework, "load_model", argument, expected, repr(got), hint)


@hookimpl
def specdec_models() -> list[ModelSpec]:
    """Llama-style decoders in PaddlePaddle, any decoder of `transformers` or `paddleformers`, any GGUF file."""
    return [
        ModelSpec(ARCHITECTURE, "paddle", _paddle, _paddle_memory),
        ModelSpec(ANY_ARCHITECTURE, TRANSFORMERS, _transformers, _transformers_memory),
        ModelSpec(ANY_ARCHITECTURE, PADDLEFORMERS, _paddleformers, _paddleformers_memory),
        ModelSpec(ANY_ARCHITECTURE, FRAMEWORK, _llama_cpp),
    ]
