"""Target models: what the runner decodes with.

- :mod:`.protocol`: ``TargetModel`` and its inputs, which is all that the runner knows
- :mod:`.checkpoint`: config.json and model.safetensors, read and checked
- :mod:`.layout`: weights rearranged for few and large matrix products, rotary tables, attention masks
- :mod:`.rows`: which batch sizes give a token the same bits, measured
- :mod:`.llama`: the decoder, written once; :mod:`.llama_paddle` and :mod:`.llama_torch` are its primitives
- :mod:`.llama_cpp`: GGUF files, computed by llama.cpp through :mod:`.llama_cpp_api`
- :mod:`.cpu_threads`: how many threads they take
- :mod:`.tokenizer`: text to token ids and back; :mod:`.detokenizer`: back piece by piece
- :mod:`.loader`: ``load_model`` and ``load_tokenizer``

Names below are resolved on first use, so that nothing here imports a framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specdec_hal.models import cpu_threads as cpu_threads  # before Paddle, see there

if TYPE_CHECKING:
    from specdec_hal.models.detokenizer import Detokenizer
    from specdec_hal.models.loader import load_model, load_tokenizer
    from specdec_hal.models.protocol import (
        FINAL_NORM,
        ForwardBatch,
        ModelCapabilities,
        ModelConfig,
        Segment,
        TargetModel,
    )
    from specdec_hal.models.tokenizer import Tokenizer

_HOME = {
    "FINAL_NORM": "protocol",
    "Detokenizer": "detokenizer",
    "DeviceBatch": "protocol",
    "DeviceModel": "protocol",
    "ForwardBatch": "protocol",
    "ModelCapabilities": "protocol",
    "ModelConfig": "protocol",
    "Segment": "protocol",
    "TargetModel": "protocol",
    "Tokenizer": "tokenizer",
    "load_model": "loader",
    "load_tokenizer": "loader",
}

__all__ = [
    "FINAL_NORM",
    "Detokenizer",
    "DeviceBatch",
    "DeviceModel",
    "ForwardBatch",
    "ModelCapabilities",
    "ModelConfig",
    "Segment",
    "TargetModel",
    "Tokenizer",
    "load_model",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specdec_hal.models' has no attribute '{name}'")
    value = getattr(import_module(f"specdec_hal.models.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
