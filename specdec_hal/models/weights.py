"""Reads the weights of a Hugging Face checkpoint: model.safetensors, or the shards of its index.

Names are Llama's; the multi-token-prediction (MTP) module, if config.json announces one with
``num_nextn_predict_layers``, sits after the last layer under DeepSeek-V3's names (arXiv:2412.19437, section 2.2).
Weights that are not finite are refused: one NaN would silently corrupt every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_hal.config.files import open_regular
from specdec_hal.errors import CheckpointError
from specdec_hal.models.checkpoint import (
    CONFIG,
    WEIGHTS,
    LlamaConfig,
    check_file,
    checkpoint_error,
    parse_json,
    read_json,
)
from specdec_hal.tensors.transfer import Field
from specdec_hal.text import short

Shapes = dict[str, tuple[int, ...]]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
INDEX = f"{WEIGHTS}.index.json"
MAX_INDEX = 64 << 20
"""Most bytes of an index of shards."""
MAX_HEADER = 16 << 20
"""Most bytes of a safetensors header: some 100,000 weights."""
STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Other tensors of older checkpoints; recomputed here.
_DERIVED = ".rotary_emb.inv_freq"


def read_weights(folder: str | Path, config: LlamaConfig) -> dict[str, npt.NDArray[np.float32]]:
    """The checkpoint's weights as float32 arrays, exactly the names and shapes of :func:`expected_shapes`."""
    from safetensors import deserialize

    files = _files(Path(folder), config)
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for file, stored in files.items():
        weights |= {name: widened(info) for name, info in deserialize(file.read_bytes()) if name in stored}
        check_finite(file, {name: weights[name] for name in stored})
    return weights


def read_memory(folder: str | Path, config: LlamaConfig) -> dict[str, int]:
    """Bytes that :func:`read_weights` needs, by purpose."""
    files = _files(Path(folder), config)
    return {
        "weights as float32": _bytes(expected_shapes(config), "float32"),
        "largest file": max(file.stat().st_size for file in files),
    }


def expected_shapes(config: LlamaConfig) -> Shapes:
    """Every weight of the model's checkpoint, with its MTP modules."""
    d = config.hidden_size
    shapes: Shapes = {EMBEDDING: (config.vocab_size, d), "model.norm.weight": (d,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, d)
    for i in range(config.num_hidden_layers + config.num_nextn_predict_layers):
        layer = f"model.layers.{i}"
        shapes |= layer_shapes(layer, config, d)
        if i >= config.num_hidden_layers:
            shapes |= {
                f"{layer}.enorm.weight": (d,),
                f"{layer}.hnorm.weight": (d,),
                f"{layer}.eh_proj.weight": (d, 2 * d),
                f"{layer}.shared_head.norm.weight": (d,),
            }
    return shapes


def layer_shapes(layer: str, config: LlamaConfig, width: int, head_norms: bool = False) -> Shapes:
    """The weights of a decoder layer of that name. `width`: columns of what its queries, keys and values come from.

    `head_norms`: norms of queries and keys by head too.
    """
    d, ffn = config.hidden_size, config.intermediate_size
    q, kv = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    norms = {f"{layer}.self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk" if head_norms}
    return norms | {
        f"{layer}.input_layernorm.weight": (d,),
        f"{layer}.self_attn.q_proj.weight": (q, width),
        f"{layer}.self_attn.k_proj.weight": (kv, width),
        f"{layer}.self_attn.v_proj.weight": (kv, width),
        f"{layer}.self_attn.o_proj.weight": (d, q),
        f"{layer}.post_attention_layernorm.weight": (d,),
        f"{layer}.mlp.gate_proj.weight": (ffn, d),
        f"{layer}.mlp.up_proj.weight": (ffn, d),
        f"{layer}.mlp.down_proj.weight": (d, ffn),
    }


def _files(folder: Path, config: LlamaConfig) -> dict[Path, dict[str, str]]:
    """The checkpoint's files, and the dtype of each weight in them; headers are checked against config.json."""
    files: dict[Path, dict[str, str]] = {}
    got: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for file in shards(folder):
        files[file] = {}
        for name, (shape, dtype) in header(file).items():
            if name.endswith(_DERIVED) or (name == HEAD and config.tie_word_embeddings):
                continue
            if name in got:
                raise checkpoint_error(file, "each weight in one shard", f"{name}, also in {got[name][0].name}", _AGAIN)
            if dtype not in STORED:
                raise checkpoint_error(file, f"{name} as F16, BF16 or F32", dtype, "convert the checkpoint")
            got[name] = file, shape
            files[file][name] = STORED[dtype]
    whole = folder / WEIGHTS if len(files) == 1 else folder / INDEX
    hint = f"use the {CONFIG} and {WEIGHTS} of one and the same checkpoint"
    layers = config.num_hidden_layers + config.num_nextn_predict_layers
    if layers > len(got):  # before building a name per weight
        raise checkpoint_error(whole, f"the {layers} layers of {CONFIG}", f"{len(got)} weights", hint)
    check_shapes(whole, got, expected_shapes(config))
    return files


def check_shapes(whole: Path, got: Mapping[str, tuple[Path, tuple[int, ...]]], expected: Shapes) -> None:
    """CheckpointError unless exactly the expected weights and shapes are present."""
    hint = f"use the {CONFIG} and {WEIGHTS} of one and the same checkpoint"
    if missing := sorted(expected.keys() - got.keys()):
        raise checkpoint_error(
            whole, f"the {len(expected)} weights of {CONFIG}", f"none of {some_names(missing)}", hint
        )
    if extra := sorted(got.keys() - expected.keys()):
        raise checkpoint_error(
            whole, f"only the {len(expected)} weights of {CONFIG}", f"also {some_names(extra)}", hint
        )
    for name, (file, shape) in got.items():
        if shape != expected[name]:
            raise checkpoint_error(file, f"{name} of shape {list(expected[name])}", f"shape {list(shape)}", hint)


_AGAIN = "download or export it again"


def shards(folder: Path, whole: str = WEIGHTS) -> list[Path]:
    """The files of weights: `whole`, or those of its index."""
    file = folder / f"{whole}.index.json"
    if (folder / whole).exists() or not file.exists():
        return [check_file(folder, whole)]
    names = read_json(folder, file.name, MAX_INDEX).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise checkpoint_error(file, "weight_map: a JSON object of files by weight", short(names), _AGAIN)
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise checkpoint_error(file, "names of files beside it in weight_map", short(name), _AGAIN)
    return [check_file(folder, name) for name in sorted(set(names.values()))]


def header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype by name; no weight is read."""
    from safetensors import SafetensorError, safe_open

    _check_header(file)
    try:
        with safe_open(file, framework="np") as shard:
            slices = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118  (not a mapping)
            return {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()}
    except SafetensorError as error:
        got = f"{file.stat().st_size} bytes of an invalid or incomplete one ({error})"
        raise checkpoint_error(file, "a safetensors file", got, _AGAIN) from error


def _check_header(file: Path) -> None:
    """Refuse inputs that the library accepts: headers of up to 100 MB, and duplicate names."""
    with open_regular(file) as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > MAX_HEADER:
            raise checkpoint_error(file, f"a header of at most {MAX_HEADER} bytes", f"{size} bytes", _AGAIN)
        text = opened.read(size)
    if text.startswith(b"{") and len(text) == size:  # the library reports the rest
        parse_json(file, text)


def _bytes(shapes: Shapes, dtype: str) -> int:
    return sum(Field(shape, dtype).nbytes for shape in shapes.values())


def widened(info: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """A stored weight as float32."""
    shape, dtype = tuple(info["shape"]), STORED[info["dtype"]]
    if dtype == "bfloat16":  # the upper half of a float32
        widened = np.frombuffer(info["data"], np.uint16).astype(np.uint32) << np.uint32(16)
        return widened.view(np.float32).reshape(shape)
    return np.frombuffer(info["data"], dtype).reshape(shape).astype(np.float32, copy=False)


def check_finite(file: Path, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """CheckpointError for a weight with NaN or an infinity."""
    for name, array in weights.items():
        if bad := int(array.size - np.isfinite(array).sum()):
            raise not_finite(file, name, bad)


def not_finite(file: Path, what: str, bad: int) -> CheckpointError:
    """The error for a weight with so many numbers that are not finite."""
    return checkpoint_error(file, f"finite numbers in {what}", f"{bad} that are not", "export the weights again")


def some_names(names: list[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
