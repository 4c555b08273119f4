"""``load_model`` and ``load_tokenizer``: objects for the runner from a checkpoint folder or GGUF file."""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.errors import ArgumentError, BackendUnavailableError, SpecDecError
from specdec_hal.models import llama_cpp_api
from specdec_hal.models.batch import refused
from specdec_hal.models.checkpoint import CONFIG, read_json
from specdec_hal.models.folder import check_files, warn_unapplied
from specdec_hal.models.paddleformers import INSTALL
from specdec_hal.plugin.backend import AUTO
from specdec_hal.plugin.hookspecs import ANY_ARCHITECTURE
from specdec_hal.plugin.model import ModelMemory, TargetModel
from specdec_hal.plugin.registry import Registry, or_default
from specdec_hal.tensors.device import get_device
from specdec_hal.tensors.memory import require

if TYPE_CHECKING:
    from specdec_hal.models.tokenizer import Tokenizer
    from specdec_hal.tensors.group import Group

_log = logging.getLogger("specdec_hal")
BUILTIN_FRAMEWORKS = {
    "paddle": ("paddle",),
    "torch": ("torch",),
    "transformers": ("torch", "transformers"),
    "paddleformers": ("paddle", "paddleformers"),
}
"""Candidates of "auto" in order, with required modules; each is an extra of this package."""


def load_model(
    path: str | Path, framework: str = AUTO, *, registry: Registry | None = None, **options: Any
) -> TargetModel:
    """The model of a checkpoint folder, by the architecture in its config.json, or of a GGUF file.

    `framework`: "paddle", "transformers", "paddleformers", "llama.cpp" for a file ``*.gguf``, or one announced by a
    plug-in of `registry` (None: the process's). "auto": llama.cpp for such a file, else the first installed one of
    Paddle, a plug-in's for "torch", transformers and paddleformers with a model of the architecture.
    `options` go to the model: ``device`` ("cpu"), ``batch_invariant``; on a CPU ``threads``; ``dtype`` for
    transformers, by default float32 on CPUs and the checkpoint's own on GPUs, and for llama.cpp, see
    :class:`~specdec_hal.models.llama_cpp.LlamaCpp`; ``quantization`` for transformers: what the key
    ``model.quantization`` may be.

    Logs the tokens that end a text, and a warning for each file that would change the model and is not applied.

    CheckpointError for anything wrong with the files, or weights that are not finite. InsufficientMemoryError, before
    weights are read, if the device has no room for them. BackendUnavailableError if the framework is not installed;
    UnsupportedError for an unknown or unsupported architecture; PluginError for a failing loader of a plug-in.
    """
    registry = or_default(registry)
    with warnings.catch_warnings():
        # Paddle's warning about ccache on every import does not help users.
        warnings.filterwarnings("ignore", message="No ccache found")
        name, framework = _announced(path, framework, registry)
        _check_memory(path, name, framework, registry, **options)
        model = registry.build_model(name, framework, path, **options)
    if (group := options.get("group")) is None or group.rank == 0:
        if Path(path).is_dir():
            warn_unapplied(path)
        _log.debug("%s: a text ends at the tokens %s", path, list(model.config.eos_token_ids))
    return model


def begin_imports(path: str | Path, framework: str, device: str, registry: Registry) -> None:
    """Begin what :func:`load_model` imports. Before a backend's library: apache-tvm-ffi imports PyTorch itself, and
    what could go on meanwhile would come later."""
    with suppress(SpecDecError):  # load_model raises it
        if _announced(path, framework, registry)[1] == "transformers":
            from specdec_hal.models.transformers.importing import begin

            begin(device)


def _check_memory(
    path: str | Path,
    name: str,
    framework: str,
    registry: Registry,
    *,
    device: str = "cpu",
    group: Group | None = None,
    quantization: str = AUTO,
    **options: Any,
) -> None:
    """InsufficientMemoryError if the weights, as stored, or this rank's part of them, do not fit."""
    holder = {"transformers": "torch", "paddleformers": "paddle"}.get(framework, framework)
    if device != "cpu":
        if not re.fullmatch(r"cuda(:\d+)?", device) or holder != "torch":  # Paddle does not say what is free
            return
        from specdec_hal.models.from_host import gpu

        try:
            device = gpu(device)
        except ArgumentError:  # which the loader raises, after those for other arguments
            return
    need = registry.model_memory(name, framework, path, device)
    if need is None:
        return
    shares = 1 if group is None or device == "cpu" else group.size  # each rank reads all on the host
    if quantization.startswith("fp8"):  # at least half of weights of 16 bits
        shares *= 2
    require(
        str(path),
        {part: size // shares for part, size in need.weights.items()},
        device,
        get_device(device, holder).free_bytes(),
        "use a smaller checkpoint, a smaller model.dtype on a GPU, or end other programs",
    )


def checkpoint_memory(
    path: str | Path, framework: str = AUTO, *, registry: Registry | None = None, device: str = "cpu"
) -> ModelMemory | None:
    """Memory that :func:`load_model` would need; None if unknown. Errors as there."""
    registry = or_default(registry)
    return registry.model_memory(*_announced(path, framework, registry), path, device)


def _announced(path: str | Path, framework: str, registry: Registry) -> tuple[str, str]:
    """Architecture and framework of a checkpoint's model in the registry."""
    if framework != AUTO and framework not in (known := registry.frameworks()):
        expected = " or ".join(filter(None, (", ".join((AUTO, *known[:-1])), *known[-1:])))
        raise refused("models", "load_model", "framework", expected, repr(framework), "choose one of them")
    check_files(path)
    if is_gguf(path):
        if framework in ("paddle", "paddleformers"):
            expected = f"{AUTO} or another framework, for a GGUF file"
            hint = "leave it out, or convert the file with examples/gguf/gguf_to_hf.py"
            raise refused("models", "load_model", "framework", expected, repr(framework), hint)
        chosen = llama_cpp_api.FRAMEWORK if framework == AUTO else framework
        return "GGUF", chosen
    if framework == llama_cpp_api.FRAMEWORK:
        return "GGUF", framework  # its loader reports the problem
    raw = read_json(path, CONFIG)
    names = raw.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else "LlamaForCausalLM"
    if framework == AUTO:
        having = {spec.framework for spec in registry.models() if spec.name in (architecture, ANY_ARCHITECTURE)}
        return architecture, _installed([name for name in BUILTIN_FRAMEWORKS if name in having])
    return architecture, _installed([framework])


def is_gguf(path: str | Path) -> bool:
    """Whether a path has the name of a GGUF file."""
    return Path(path).suffix == ".gguf"


def _installed(wanted: Sequence[str]) -> str:
    """The first framework that can be imported; those of plug-ins are not checked."""
    for name in wanted:
        if all(importlib.util.find_spec(module) for module in BUILTIN_FRAMEWORKS.get(name, ())):
            return name
    own = {"paddleformers": INSTALL}
    extras = " or ".join(own.get(name, f"pip install 'specdec-hal[{name}]'") for name in wanted)
    raise BackendUnavailableError(f"expected {' or '.join(wanted)} to compute the model, got none; {extras}")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder or a GGUF file.

    CheckpointError if it is missing, corrupt, or does not fit config.json.
    """
    check_files(path)
    if is_gguf(path):
        from specdec_hal.models.llama_cpp import GgufTokenizer

        return GgufTokenizer(path)
    from specdec_hal.models.tokenizer import Tokenizer

    return Tokenizer(path)
