"""``load_model`` and ``load_tokenizer``: a checkpoint folder in, objects for the runner out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.errors import ArgumentError, BackendUnavailableError
from specdec_hal.models.checkpoint import read_json_config
from specdec_hal.models.protocol import TargetModel

if TYPE_CHECKING:
    from specdec_hal.models.tokenizer import Tokenizer

FRAMEWORKS = ("paddle", "torch")


def load_model(path: str | Path, framework: str = "auto", **options: Any) -> TargetModel:
    """The model of a checkpoint folder, by the architecture that its config.json names.

    `framework`: "paddle", "torch", or "auto": the first of the two that is installed. `options` go to the model:
    ``device`` ("cpu"), ``bit_stable`` (see :mod:`specdec_hal.models.llama`), and for PyTorch ``dtype`` ("float32").
    CheckpointError for anything wrong with the files; BackendUnavailableError if the framework is not installed;
    UnsupportedError for an architecture that no plug-in knows.
    """
    if framework not in ("auto", *FRAMEWORKS):
        raise ArgumentError(
            op="load_model",
            backend="models",
            argument="framework",
            expected="auto, " + " or ".join(FRAMEWORKS),
            got=repr(framework),
            cure="choose one of them",
        )
    raw = read_json_config(path)
    wanted = FRAMEWORKS if framework == "auto" else (framework,)
    installed = [name for name in wanted if importlib.util.find_spec(name) is not None]
    if not installed:
        extras = " or ".join(f"pip install 'specdec-hal[{name}]'" for name in wanted)
        raise BackendUnavailableError(f"expected {' or '.join(wanted)} to compute the model, got neither; {extras}")
    from specdec_hal import registry

    names = raw.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else "LlamaForCausalLM"
    model: TargetModel = registry.get_model(str(architecture), installed[0]).loader(path, **options)
    return model


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder; CheckpointError if it is missing, corrupt, or does not fit config.json."""
    from specdec_hal.models.tokenizer import Tokenizer

    return Tokenizer(path)
