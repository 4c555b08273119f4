"""Reads a Hugging Face checkpoint folder: config.json and model.safetensors, checked against each other.

Every way in which a file can be wrong is a CheckpointError that names the file, what was expected, what is there, and
the cure. Weight names are Llama's; the multi-token-prediction (MTP) module, if config.json announces one with
``num_nextn_predict_layers``, sits behind the last layer under DeepSeek-V3's names (arXiv:2412.19437, section 2.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_hal.errors import CheckpointError
from specdec_hal.models.protocol import ModelConfig

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class TokenIds:
    """What config.json says of token ids, whatever the architecture."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """config.json of a Llama-style decoder."""

    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_nextn_predict_layers: int = 0


CONFIG = "config.json"
WEIGHTS = "model.safetensors"

# Keys that change the arithmetic, and the one value of each that this project computes.
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_scaling": None}


def checkpoint_error(file: Path, expected: str, got: str, cure: str) -> CheckpointError:
    """The one form of these messages."""
    return CheckpointError(f"{file}: expected {expected}, got {got}; {cure}")


def read_bytes(folder: str | Path, name: str) -> bytes:
    """A file of the checkpoint; CheckpointError if it is not there or cannot be read."""
    folder = Path(folder)
    file = folder / name
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing there"
        raise checkpoint_error(folder, "a checkpoint folder", got, f"give the folder that holds {CONFIG} and {WEIGHTS}")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "an empty folder"
        cure = "download or export the whole checkpoint"
        if name == WEIGHTS and (folder / f"{WEIGHTS}.index.json").exists():
            cure = "merge the shards into one file"
        raise checkpoint_error(file, "a file", f"none (the folder holds {there})", cure) from None
    except OSError as error:
        raise checkpoint_error(file, "a readable file", str(error), "check its type and permissions") from error


def read_json_config(folder: str | Path) -> dict[str, Any]:
    """config.json as it stands."""
    file = Path(folder) / CONFIG
    text = read_bytes(folder, CONFIG)
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise checkpoint_error(file, "JSON", f"{len(text)} bytes that are not ({error})", "restore the file") from error
    if not isinstance(raw, dict):
        raise checkpoint_error(file, "a JSON object", type(raw).__name__, "restore the file")
    return raw


class _Fields:
    """Typed look-ups in a config.json, each with its own error."""

    def __init__(self, file: Path, raw: Mapping[str, Any]) -> None:
        self._file, self._raw = file, raw

    def error(self, key: str, expected: str, cure: str = "correct config.json") -> CheckpointError:
        got = repr(self._raw[key]) if key in self._raw else "no such key"
        return checkpoint_error(self._file, f"{key}: {expected}", got, cure)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._raw.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(key, f"an integer >= {minimum}")
        return value

    def positive(self, key: str) -> float:
        value = self._raw.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.error(key, "a number > 0")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._raw.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def token_ids(self) -> TokenIds:
        vocab_size = self.integer("vocab_size")
        bos, ends = (self._token_ids(key, vocab_size) for key in ("bos_token_id", "eos_token_id"))
        return TokenIds(vocab_size, bos[0] if bos else None, ends)

    def _token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        value = self._raw.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
                raise self.error(key, f"token ids in 0..{vocab_size - 1}")
        return tuple(ids)


def read_token_ids(folder: str | Path) -> TokenIds:
    """Vocabulary size, bos and eos ids of a checkpoint of any architecture."""
    return _Fields(Path(folder) / CONFIG, read_json_config(folder)).token_ids()


def read_config(folder: str | Path) -> LlamaConfig:
    """config.json of a Llama-style model, checked; what this project cannot compute is refused by name."""
    raw = read_json_config(folder)
    fields = _Fields(Path(folder) / CONFIG, raw)
    if raw.get("model_type", "llama") != "llama":
        raise fields.error("model_type", "'llama'", "use a Llama-style checkpoint")
    for key, only in _FIXED.items():
        if raw.get(key, only) != only:
            raise fields.error(key, f"{json.dumps(only)} or no such key", "use a checkpoint without it")
    tokens, hidden_size = fields.token_ids(), fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim = fields.integer("head_dim", default=hidden_size // heads)
    if head_dim % 2:
        raise fields.error("head_dim", "an even number, for rotary embeddings")
    return LlamaConfig(
        vocab_size=tokens.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rope_theta=fields.positive("rope_theta"),
        rms_norm_eps=fields.positive("rms_norm_eps"),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        num_nextn_predict_layers=fields.integer("num_nextn_predict_layers", default=0, minimum=0),
        bos_token_id=tokens.bos_token_id,
        eos_token_ids=tokens.eos_token_ids,
    )


def expected_shapes(config: LlamaConfig) -> Shapes:
    """Every weight that the checkpoint of such a model holds, MTP modules included."""
    d, ffn = config.hidden_size, config.intermediate_size
    q, kv = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, d), "model.norm.weight": (d,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    for i in range(config.num_hidden_layers + config.num_nextn_predict_layers):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (d,),
            f"{layer}.self_attn.q_proj.weight": (q, d),
            f"{layer}.self_attn.k_proj.weight": (kv, d),
            f"{layer}.self_attn.v_proj.weight": (kv, d),
            f"{layer}.self_attn.o_proj.weight": (d, q),
            f"{layer}.post_attention_layernorm.weight": (d,),
            f"{layer}.mlp.gate_proj.weight": (ffn, d),
            f"{layer}.mlp.up_proj.weight": (ffn, d),
            f"{layer}.mlp.down_proj.weight": (d, ffn),
        }
        if i >= config.num_hidden_layers:
            shapes |= {
                f"{layer}.enorm.weight": (d,),
                f"{layer}.hnorm.weight": (d,),
                f"{layer}.eh_proj.weight": (d, 2 * d),
                f"{layer}.shared_head.norm.weight": (d,),
            }
    return shapes


def read_weights(folder: str | Path, config: LlamaConfig) -> dict[str, npt.NDArray[np.float32]]:
    """model.safetensors as float32 arrays, exactly the names and shapes of :func:`expected_shapes`.

    Stored float16, bfloat16 and float32 are accepted. A weight that is not finite is refused: one NaN makes every
    token of every request wrong, and says so nowhere.
    """
    from safetensors import SafetensorError, deserialize

    file = Path(folder) / WEIGHTS
    data = read_bytes(folder, WEIGHTS)
    try:
        stored: dict[str, dict[str, Any]] = dict(deserialize(data))
    except SafetensorError as error:
        got = f"{len(data)} bytes that are not one, or not all of one ({error})"
        raise checkpoint_error(file, "a safetensors file", got, "download or export it again") from error
    _check_names(file, {name: tuple(info["shape"]) for name, info in stored.items()}, expected_shapes(config))
    weights = {}
    for name, info in stored.items():
        weights[name] = array = _to_float32(file, name, info)
        if not np.isfinite(array).all():
            bad = int(array.size - np.isfinite(array).sum())
            raise checkpoint_error(file, f"finite numbers in {name}", f"{bad} that are not", "export the weights again")
    return weights


def _check_names(file: Path, got: Shapes, expected: Shapes) -> None:
    cure = f"use the {CONFIG} and {WEIGHTS} of one and the same checkpoint"
    if missing := sorted(expected.keys() - got.keys()):
        raise checkpoint_error(file, f"the {len(expected)} weights of {CONFIG}", f"none of {_some(missing)}", cure)
    if extra := sorted(got.keys() - expected.keys()):
        raise checkpoint_error(file, f"only the {len(expected)} weights of {CONFIG}", f"also {_some(extra)}", cure)
    for name, shape in expected.items():
        if got[name] != shape:
            raise checkpoint_error(file, f"{name} of shape {list(shape)}", f"shape {list(got[name])}", cure)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _to_float32(file: Path, name: str, info: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    shape, dtype = tuple(info["shape"]), info["dtype"]
    if dtype == "F32":
        return np.frombuffer(info["data"], np.float32).reshape(shape)
    if dtype == "F16":
        return np.frombuffer(info["data"], np.float16).reshape(shape).astype(np.float32)
    if dtype == "BF16":
        widened = np.frombuffer(info["data"], np.uint16).astype(np.uint32) << np.uint32(16)
        return widened.view(np.float32).reshape(shape)
    raise checkpoint_error(file, f"{name} as F16, BF16 or F32", str(dtype), "convert the checkpoint")
