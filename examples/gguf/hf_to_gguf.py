"""A Hugging Face checkpoint of a Llama as a GGUF file: ``python hf_to_gguf.py FOLDER MODEL.gguf [float32]``.

Needs the packages `gguf` and `safetensors`, no framework; `gguf_to_hf.py` is the way back. Matrices are stored as
float32 or float16, vectors as float32, which is what llama.cpp computes with. For tokenizers that are byte-level BPE;
GGUF has no place for a pre-tokenizer's own pattern, so that its rule "gpt-2" stands for every other one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

_CONTROL, _NORMAL = 3, 1
"""Types of tokens in a GGUF vocabulary."""


def interleaved(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of Q and K as llama.cpp has them: the two halves of each head in turn."""
    rows = array.reshape(heads, 2, array.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(np.stack([rows[:, 0], rows[:, 1]], axis=2).reshape(array.shape))


def _add_tokenizer(file: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    if model["type"] != "BPE":
        raise SystemExit(f"expected a tokenizer of type BPE, got {model['type']}")
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(vocabulary)
    file.add_token_types([_CONTROL if token in special else _NORMAL for token in vocabulary])
    file.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])


def convert(folder: Path, target: Path, dtype: str = "float32", *, architecture: str = "llama") -> None:
    """Write the GGUF file of a checkpoint folder."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layers = config["num_hidden_layers"]
    file = gguf.GGUFWriter(target, architecture)
    file.add_block_count(layers)
    file.add_context_length(config["max_position_embeddings"])
    file.add_embedding_length(config["hidden_size"])
    file.add_feed_forward_length(config["intermediate_size"])
    file.add_head_count(config["num_attention_heads"])
    file.add_head_count_kv(config["num_key_value_heads"])
    file.add_rope_freq_base(config["rope_theta"])
    file.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_tokenizer(file, folder)
    file.add_bos_token_id(config["bos_token_id"])
    file.add_eos_token_id(config["eos_token_id"])
    template = folder / "chat_template.jinja"
    if template.is_file():
        file.add_chat_template(template.read_text(encoding="utf-8"))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, array in load_file(folder / "model.safetensors").items():
        parts = name.split(".")
        if "layers" in parts and int(parts[2]) >= layers:
            continue  # a module for multi-token prediction
        stored = interleaved(array, heads[parts[-2]]) if parts[-2] in heads else array
        stored = stored.astype(dtype if stored.ndim > 1 else "float32")
        file.add_tensor(f"{names.get_name(name.removesuffix('.weight'))}.weight", stored)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
