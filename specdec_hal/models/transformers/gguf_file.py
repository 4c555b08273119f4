"""What `transformers` leaves out when it reads a GGUF file: read here, or refused by name.

The library maps some keys and tensors of each architecture and ignores the rest without a word. The meaning of keys is
llama.cpp's (`llama-arch.cpp`, `ggml_rope_yarn`).
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from transformers import modeling_gguf_pytorch_utils as library
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.weights import some_names

_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary embedding's frequencies, which Llama 3.1 to 3.3 has."""
_SET = {
    "attention.key_length": "head_dim",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""Keys that a configuration has under another name, and the library does not read for each architecture."""
_NEUTRAL = {
    "attention.causal": True,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
"""Keys with the only supported values."""
_SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3", 62)}
"""Models of 27B, by their layers: llama.cpp scales their scores by the embedding's width over the heads."""
_SILENT = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "rope.dimension_count"}
_ROPE = {
    "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor",
}  # fmt: skip


class GgufFile:
    """A GGUF file's metadata of its architecture and tensors, for a configuration that the library made of it."""

    def __init__(self, path: Path, config: Any) -> None:
        self._path, self._reader, self._config = path, GGUFReader(path), config
        self._architecture = self._reader.fields["general.architecture"].contents()
        start = f"{self._architecture}."
        self._values = {
            name.removeprefix(start): field.contents()
            for name, field in self._reader.fields.items()
            if name.startswith(start)
        }
        self._divisors: Any = None

    def complete(self) -> None:
        """Give the configuration what the library has left out; UnsupportedError for what it cannot have."""
        config, values = self._config, self._values
        known = next(
            GGUF_CONFIG_MAPPING[name]
            for name in (config.model_type, config.model_type.removesuffix("_text"), self._architecture)
            if name in GGUF_CONFIG_MAPPING
        )
        read = {key for key, name in known.items() if name is not None}
        for key, name in _SET.items():
            if key in values and key not in read and hasattr(config, name):
                setattr(config, name, values[key])
                read.add(key)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        same = {
            "attention.key_length": width,
            "attention.value_length": width,
            "attention.sliding_window": getattr(config, "sliding_window", None),
            **_NEUTRAL,
        }
        read |= {key for key, value in same.items() if values.get(key) == value}
        self._check_turned(width)
        if hasattr(config, "query_pre_attn_scalar"):
            by_width = (self._architecture, config.num_hidden_layers) in _SCALED_BY_WIDTH
            config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if by_width else width
        rope = getattr(config, "rope_parameters", None) or {}
        rope = rope.get("full_attention", rope)  # llama.cpp never scales the embeddings of Gemma's sliding windows
        if "rope_theta" in rope and rope.get("rope_type", "default") == "default":
            rope |= self._rope()
            read |= _ROPE
        if ignored := sorted(values.keys() - read - _SILENT):
            raise self._refused(f"transformers ignores {', '.join(f'{key} ({values[key]})' for key in ignored)}")

    def _check_turned(self, width: int) -> None:
        """The width of a head that rotary embeddings turn: the library makes it head_dim, or ignores it."""
        turned, config = self._values.get("rope.dimension_count"), self._config
        rope = getattr(config, "rope_parameters", None) or {}
        share = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0)) or 1.0
        if turned is not None and turned != int(width * share):
            raise self._refused(f"rope.dimension_count is {turned}, and transformers turns {int(width * share)}")

    def _rope(self) -> dict[str, Any]:
        """Keys of `rope_parameters`."""
        get = self._values.get
        base = {"rope_theta": float(get("rope.freq_base", 10000.0)), "rope_type": "default"}
        factor = float(get("rope.scaling.factor", get("rope.scale_linear", 0.0))) or 1.0
        kind = get("rope.scaling.type", "linear")
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return base
        if kind == "linear":
            return {**base, "rope_type": "linear", "factor": factor}
        if kind != "yarn":
            raise self._refused(f"rope.scaling.type is {kind}, expected none, linear or yarn")
        return {
            **base,
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": get(
                "rope.scaling.original_context_length", self._config.max_position_embeddings
            ),
            "attention_factor": get("rope.scaling.attn_factor", 1.0) * (1.0 + 0.1 * math.log(factor)),
        }

    def weights(self, model_class: Any) -> dict[str, Any]:
        """The tensors under the names of `transformers`, dequantised; UnsupportedError for one that it ignores."""
        with torch.device("meta"):
            empty = model_class(copy.deepcopy(self._config))
        convert = library.TENSOR_PROCESSORS.get(self._architecture, library.TensorProcessor)
        processor = convert(config=self._config.to_dict())
        names = library.get_gguf_hf_weights_map(empty, processor)
        parsed: dict[str, Any] = {"config": self._config.to_dict(), "tensors": {}}
        ignored = []
        for tensor in self._reader.tensors:
            array = dequantize(tensor.data, tensor.tensor_type)
            if tensor.name == _FACTORS:
                self._divisors = torch.from_numpy(array.copy())
                continue
            done = processor.process(
                weights=array, name=tensor.name, tensor_key_mapping=names, parsed_parameters=parsed
            )
            if done.name in names:
                parsed["tensors"][names[done.name]] = torch.from_numpy(done.weights.copy())
            elif done.name is not None:  # None: the processor has put it there
                ignored.append(tensor.name)
        if ignored:
            raise self._refused(f"transformers ignores the tensors {some_names(ignored)}")
        found: dict[str, Any] = parsed["tensors"]
        return found

    def finish(self, model: Any) -> None:
        """Divide the frequencies of the model's rotary embeddings by the file's divisors, if it has any."""
        if self._divisors is None:
            return
        divisors = self._divisors
        buffers = [b for name, b in model.named_buffers() if name.endswith("inv_freq") and b.shape == divisors.shape]
        if not buffers:
            raise self._refused(f"{type(model).__name__} has no frequencies for {_FACTORS}")
        for buffer, divided in [(buffer, buffer / divisors) for buffer in buffers]:  # two may share their memory
            buffer.copy_(divided)

    def _refused(self, reason: str) -> UnsupportedError:
        return UnsupportedError(f"{self._path}: {reason}; leave model.framework to llama.cpp, or use a folder")
