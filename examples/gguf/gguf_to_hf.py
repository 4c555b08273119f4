"""A GGUF file of a Llama as a Hugging Face checkpoint: ``python gguf_to_hf.py MODEL.gguf FOLDER [float16]``.

Needs the packages `gguf` and `safetensors`, no framework. Quantised tensors are dequantised. The tokenizer is rebuilt
from the file's vocabulary and merges, for byte-level BPE ("gpt2") with the rule of GPT-2 ("gpt-2") or of SmolLM
("smollm"), which takes digits one by one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
"""Type of a special token in a GGUF vocabulary."""


class Fields:
    """The metadata of a GGUF file by key, those of the architecture without its name in front."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._values = {name: field.contents() for name, field in reader.fields.items()}
        architecture = self._values["general.architecture"]
        if architecture != "llama":
            raise SystemExit(f"expected a GGUF file of architecture 'llama', got '{architecture}'")

    def __call__(self, key: str, default: Any = None) -> Any:
        """The value of a key, with or without ``llama.``."""
        value = self._values.get(f"llama.{key}", self._values.get(key, default))
        if value is None:
            raise SystemExit(f"expected '{key}' in the GGUF file's metadata, got nothing")
        return value


def weights(reader: gguf.GGUFReader, fields: Fields, dtype: str) -> dict[str, NDArray[Any]]:
    """The tensors under their names in `transformers`."""
    heads = {"attn_q": fields("attention.head_count"), "attn_k": fields("attention.head_count_kv")}
    out = {}
    for tensor in reader.tensors:
        *block, kind, _ = tensor.name.split(".")
        if kind not in _TENSORS:
            continue  # rope_freqs, which follow from the configuration
        array = dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1].tolist())
        if kind in heads:  # llama.cpp interleaves the halves that rotary embeddings turn against each other
            half = array.shape[0] // heads[kind] // 2
            array = array.reshape(heads[kind], half, 2, -1).swapaxes(1, 2).reshape(array.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        out[f"{prefix}{_TENSORS[kind]}.weight"] = np.ascontiguousarray(array, dtype)
    return out


def configuration(fields: Fields, tensors: dict[str, NDArray[Any]], dtype: str) -> dict[str, Any]:
    """config.json."""
    heads, width = fields("attention.head_count"), fields("embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tensors["model.embed_tokens.weight"]),
        "hidden_size": width,
        "intermediate_size": fields("feed_forward_length"),
        "num_hidden_layers": fields("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields("attention.head_count_kv"),
        "head_dim": fields("attention.key_length", width // heads),
        "max_position_embeddings": fields("context_length"),
        "rope_theta": _shortest(fields("rope.freq_base", 10000.0)),
        "rms_norm_eps": _shortest(fields("attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "bos_token_id": fields("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields("tokenizer.ggml.eos_token_id"),
        "torch_dtype": dtype,
    }


def _shortest(value: float) -> float:
    """The shortest decimal number with this float32."""
    return float(str(np.float32(value)))


def tokenizer(fields: Fields) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE."""
    model, rule = fields("tokenizer.ggml.model"), fields("tokenizer.ggml.pre", "default")
    if model != "gpt2" or rule not in ("smollm", "gpt-2"):
        raise SystemExit(f"expected a tokenizer 'gpt2' with the rule 'smollm' or 'gpt-2', got '{model}' with '{rule}'")
    tokens, types = fields("tokenizer.ggml.tokens"), fields("tokenizer.ggml.token_type")
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = [{"type": "Digits", "individual_digits": True}] if rule == "smollm" else []
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, **special}
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*digits, bytes_]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in fields("tokenizer.ggml.merges")],
        },
    }


def convert(source: Path, folder: Path, dtype: str = "float16") -> None:
    """Write config.json, model.safetensors and tokenizer.json into a folder, which may exist."""
    reader = gguf.GGUFReader(source)
    fields = Fields(reader)
    tensors = weights(reader, fields, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    ends = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
    names = {name: fields("tokenizer.ggml.tokens")[fields(f"tokenizer.ggml.{key}")] for name, key in ends.items()}
    template = fields("tokenizer.chat_template", "")
    if template:
        names["chat_template"] = template
    files = {
        "config.json": configuration(fields, tensors, dtype),
        "tokenizer.json": tokenizer(fields),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **names},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
