"""Target models. The runner depends only on :mod:`specdec_hal.plugin.model`.

- :mod:`.checkpoint`: config.json and model.safetensors, read and checked
- :mod:`.layout`: weights rearranged for few and large matrix products, rotary tables, attention masks
- :mod:`.rows`: which batch sizes give a token the same bits, measured
- :mod:`.llama`: a decoder over the primitives of :mod:`.llama_paddle`
- :mod:`.transformers`: decoders of `transformers`; :mod:`.triton_kernels` are theirs on GPUs
- :mod:`.llama_cpp`: GGUF files, computed by llama.cpp through :mod:`.llama_cpp_api`
- :mod:`.tokenizer`: text to token ids and back; :mod:`.detokenizer`: back piece by piece
- :mod:`.loader`: ``load_model`` and ``load_tokenizer``

Names below are resolved on first use, so that nothing here imports a framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_hal import lazy

if TYPE_CHECKING:
    from specdec_hal.models.detokenizer import Detokenizer
    from specdec_hal.models.loader import load_model, load_tokenizer
    from specdec_hal.models.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_model", "load_tokenizer"]

__getattr__ = lazy(
    __name__,
    {"Detokenizer": "detokenizer", "Tokenizer": "tokenizer", "load_model": "loader", "load_tokenizer": "loader"},
)
