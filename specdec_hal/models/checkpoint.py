"""Reads the config.json of a Hugging Face checkpoint folder; :mod:`specdec_hal.models.weights` reads the weights.

Every fault of a file is a CheckpointError with the file, the expected and actual contents, and a hint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec_hal.config.files import missing_folder, open_regular, read_regular
from specdec_hal.errors import CheckpointError
from specdec_hal.models.rope import ROPE_TYPES, RopeScaling, yarn_attention_factor
from specdec_hal.plugin.model import ModelConfig
from specdec_hal.text import one_line, short

DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes of weights, stored and computed with."""
_log = logging.getLogger("specdec_hal")
_OTHER = "set model.framework transformers"


@dataclass(frozen=True)
class TokenIds:
    """The token ids in any config.json."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """config.json of a Llama-style decoder. `dtype`: declared dtype of the weights, one of :data:`DTYPES`."""

    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_nextn_predict_layers: int = 0
    rope_scaling: RopeScaling | None = None
    dtype: str | None = None

    @property
    def kv_width(self) -> int:
        """Cached numbers per layer and position: keys and values."""
        return 2 * self.num_key_value_heads * self.head_dim


CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
WEIGHTS = "model.safetensors"

MAX_CONFIG = 4 << 20
"""Bytes of a config.json."""
MAX_TOKENIZER = 128 << 20
"""Bytes of a tokenizer.json."""
MAX_SIZE = (1 << 31) - 1
"""The largest allowed count."""
MAX_NUMBER = 1e30
"""The largest other number: float32 holds its inverse and its square root."""

# Defaults of transformers' LlamaConfig: Llama-2's config.json has no rope_theta.
_DEFAULT_ROPE_THETA, _DEFAULT_RMS_NORM_EPS, _DEFAULT_POSITIONS = 10000.0, 1e-6, 2048

# Keys that change the arithmetic, and their only supported values.
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}


def checkpoint_error(file: Path, expected: str, got: str, hint: str) -> CheckpointError:
    """The format of these errors."""
    return CheckpointError(f"{file}: expected {expected}, got {got}; {hint}")


def check_file(folder: str | Path, name: str) -> Path:
    """A file of the checkpoint; CheckpointError if it is missing or unreadable."""
    folder = Path(folder)
    file = folder / name
    if not folder.is_dir():
        got, near = ("a file", "") if folder.exists() else ("nothing there", missing_folder(folder))
        hint = f"give the folder that holds {CONFIG} and {WEIGHTS}{near}"
        raise checkpoint_error(folder, "a checkpoint folder", got, hint)
    try:
        with open_regular(file):
            return file
    except FileNotFoundError:
        there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "an empty folder"
        hint = "download or export the whole checkpoint"
        raise checkpoint_error(file, "a file", f"none (the folder holds {there})", hint) from None
    except OSError as error:
        raise checkpoint_error(file, "a readable file", str(error), "check its type and permissions") from error


def read_file(folder: str | Path, name: str, limit: int) -> tuple[Path, bytes]:
    """A file of the checkpoint, of at most `limit` bytes, and what is in it."""
    file = check_file(folder, name)
    try:
        return file, read_regular(file, limit)
    except OSError as error:
        raise checkpoint_error(file, "a readable file", error.strerror or str(error), "restore the file") from error


def parse_json(file: Path, text: bytes) -> Any:
    """JSON with unique keys; CheckpointError for anything else, at any depth."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        got = f"{len(text)} bytes that are not ({one_line(error)})"
        raise checkpoint_error(file, "JSON", got, "restore the file") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {short(again)}")
    return found


def read_json(folder: str | Path, name: str, limit: int = MAX_CONFIG) -> dict[str, Any]:
    """A JSON file of the checkpoint, of at most `limit` bytes."""
    file, text = read_file(folder, name, limit)
    raw = parse_json(file, text)
    if not isinstance(raw, dict):
        raise checkpoint_error(file, "a JSON object", type(raw).__name__, "restore the file")
    return raw


def read_optional(folder: str | Path, name: str, limit: int = MAX_CONFIG) -> dict[str, Any]:
    """A JSON file of the checkpoint, or an empty object if there is none."""
    return read_json(folder, name, limit) if (Path(folder) / name).exists() else {}


class Fields:
    """Typed look-ups in a config.json or a section of it, with specific errors; null counts as missing.

    `other`: the hint about values that are not supported. `unread`: keys with a value that nothing has looked up.
    """

    def __init__(self, file: Path, raw: Mapping[str, Any], prefix: str = "", other: str = _OTHER) -> None:
        self._file, self._prefix, self._given, self.other = file, prefix, raw, other
        self._raw = {key: value for key, value in raw.items() if value is not None}
        self.unread = set(self._raw)

    def __contains__(self, key: str) -> bool:
        return key in self._raw

    def error(self, key: str, expected: str, hint: str = "correct config.json") -> CheckpointError:
        """An error about a key."""
        got = short(self._raw[key]) if key in self._raw else "null" if key in self._given else "no such key"
        return checkpoint_error(self._file, f"{self._prefix}{key}: {expected}", got, hint)

    def value(self, key: str, default: Any = None) -> Any:
        """The value; `default` if missing."""
        self.unread.discard(key)
        return self._raw.get(key, default)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers >= 0; None if missing."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            raise self.error(key, "a list of integers")
        if not value or min(value) < 0 or max(value) > MAX_SIZE:
            raise self.error(key, f"at least one integer, each in 0..{MAX_SIZE}")
        return tuple(value)

    def section(self, key: str) -> Fields:
        """The object under a key, or an empty one."""
        value = self.value(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "a JSON object")
        return Fields(self._file, value, f"{key}.", self.other)

    def only(self, key: str, value: Any) -> None:
        """Refuse any other value."""
        if self.value(key, value) != value:
            raise self.error(key, f"{json.dumps(value)} or no such key", self.other)

    def one_of(self, key: str, choices: Sequence[str], default: str, hint: str) -> str:
        """One of these strings."""
        value = self.value(key, default)
        if value not in choices:
            raise self.error(key, f"one of {', '.join(choices)}", hint)
        return str(value)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """An integer in minimum..:data:`MAX_SIZE`."""
        value = self.value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(key, f"an integer >= {minimum}")
        if value > MAX_SIZE:
            raise self.error(key, f"an integer <= {MAX_SIZE}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self.value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.error(key, "a number > 0")
        if value > MAX_NUMBER:
            raise self.error(key, f"a number <= {MAX_NUMBER:.0e}")
        return float(value)

    def number(self, key: str, default: float | None = None, most: float = MAX_NUMBER) -> float:
        """A number in 0..most."""
        value = self.value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.error(key, f"a number in 0..{most:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def token_ids(self) -> TokenIds:
        """Vocabulary size, bos and eos ids."""
        vocab_size = self.integer("vocab_size")
        bos, ends = (self.token_id_list(key, vocab_size) for key in ("bos_token_id", "eos_token_id"))
        return TokenIds(vocab_size, bos[0] if bos else None, ends)

    def token_id_list(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Token ids: one, a list, or none."""
        value = self.value(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
                raise self.error(key, f"token ids in 0..{vocab_size - 1}")
        return tuple(ids)


def read_token_ids(folder: str | Path) -> TokenIds:
    """Vocabulary size, bos and eos ids of a checkpoint of any architecture.

    Of one with other parts beside its decoder, which has a `text_config`, the size may be left to the class: MAX_SIZE.
    """
    raw = read_json(folder, CONFIG)
    if isinstance(text := raw.get("text_config"), dict):
        raw = {"vocab_size": MAX_SIZE, **text, **{key: value for key, value in raw.items() if value is not None}}
    return _token_ids(folder, Fields(Path(folder) / CONFIG, raw))


def _token_ids(folder: str | Path, fields: Fields) -> TokenIds:
    """Those of config.json; a text ends at the end tokens of all files, generation_config.json's first.

    `transformers` takes those of generation_config.json, vLLM also the tokenizer's. A fine-tune often changes only one.
    """
    tokens = fields.token_ids()
    generation = _generation_fields(folder).token_id_list("eos_token_id", tokens.vocab_size)
    ends = (*generation, *tokens.eos_token_ids, *_tokenizer_ends(folder, tokens.vocab_size))
    return replace(tokens, eos_token_ids=tuple(dict.fromkeys(ends)))


def _tokenizer_ends(folder: str | Path, vocab_size: int) -> tuple[int, ...]:
    """The id of the tokenizer's `eos_token`, if it has one."""
    files = (TOKENIZER_CONFIG, SPECIAL_TOKENS)
    name, token = next(
        ((name, token) for name in files if (token := read_optional(folder, name).get("eos_token")) is not None),
        ("", None),
    )
    text = token.get("content") if isinstance(token, dict) else token
    if token is None or text == "":
        return ()
    file = Path(folder) / name
    if not isinstance(text, str):
        raise checkpoint_error(file, "eos_token: a text, or an object with `content`", short(token), "correct the file")
    found = _token_id(folder, text)
    if found is None:
        _log.warning("%s: eos_token %s is not in the vocabulary, so it ends no text", file, short(text))
        return ()
    if not 0 <= found < vocab_size:
        hint = "use the tokenizer and config.json of one and the same checkpoint"
        raise checkpoint_error(file, f"eos_token: an id in 0..{vocab_size - 1}", f"{short(text)}, id {found}", hint)
    return (found,)


def _token_id(folder: str | Path, text: str) -> int | None:
    """The id of a token by its text: of tokenizer_config.json, which is short, or of tokenizer.json."""
    decoder = read_optional(folder, TOKENIZER_CONFIG).get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("content") == text and key.isdecimal():
            return int(key)
    raw = read_optional(folder, TOKENIZER, MAX_TOKENIZER)
    added, model = raw.get("added_tokens"), raw.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    entries = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    ids = [token.get("id") for token in entries if token.get("content") == text]
    if isinstance(vocabulary, dict):
        ids.append(vocabulary.get(text))
    elif isinstance(vocabulary, list):  # Unigram: pairs of a text and a score
        ids += [at for at, pair in enumerate(vocabulary) if isinstance(pair, list) and pair[:1] == [text]]
    return next((found for found in ids if isinstance(found, int)), None)


def _generation_fields(folder: str | Path) -> Fields:
    """generation_config.json, or an empty object."""
    return Fields(Path(folder) / GENERATION_CONFIG, read_optional(folder, GENERATION_CONFIG))


def read_generation_defaults(path: str | Path) -> dict[str, Any]:
    """Sampling defaults in the generation_config.json beside a checkpoint, under the names of the section `sampling`.

    As in `transformers`: without ``do_sample: true`` decoding is greedy and temperature and filters are ignored; with
    it a missing temperature is 1. Empty for a checkpoint without the file, and for a GGUF file. CheckpointError for a
    value out of range.
    """
    if not Path(path).is_dir():
        return {}
    fields = _generation_fields(path)
    found: dict[str, Any] = {}
    if "repetition_penalty" in fields:
        found["repetition_penalty"] = fields.positive("repetition_penalty")
    if fields.boolean("do_sample", default=False):
        found["temperature"] = fields.number("temperature", 1.0)
        found |= {key: fields.number(key, most=1.0) for key in ("top_p", "min_p") if key in fields}
        if "top_k" in fields:
            found["top_k"] = fields.integer("top_k", minimum=0)
    return found


def read_config(folder: str | Path) -> LlamaConfig:
    """config.json of a Llama-style model, checked; unsupported features are refused by name."""
    fields = Fields(Path(folder) / CONFIG, read_json(folder, CONFIG))
    return llama_config(fields, _token_ids(folder, fields))


def llama_config(fields: Fields, tokens: TokenIds, kinds: Sequence[str] = ("llama",)) -> LlamaConfig:
    """The same for a section, or for a file with token ids elsewhere. `kinds`: choices of model_type."""
    fields.one_of("model_type", kinds, kinds[0], fields.other)
    for key, value in _FIXED.items():
        fields.only(key, value)
    hidden_size = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim = fields.integer("head_dim", default=hidden_size // heads)
    if head_dim % 2:
        raise fields.error("head_dim", "an even number, for rotary embeddings")
    positions = fields.integer("max_position_embeddings", default=_DEFAULT_POSITIONS)
    rope_theta, rope_scaling = _rope(fields, positions)
    return LlamaConfig(
        vocab_size=tokens.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=positions,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        rms_norm_eps=fields.positive("rms_norm_eps", _DEFAULT_RMS_NORM_EPS),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        num_nextn_predict_layers=fields.integer("num_nextn_predict_layers", default=0, minimum=0),
        dtype=_dtype(fields),
        bos_token_id=tokens.bos_token_id,
        eos_token_ids=tokens.eos_token_ids,
    )


def _dtype(fields: Fields) -> str | None:
    """`dtype`, or `torch_dtype` of transformers before version 5; None if both are missing."""
    for key in ("dtype", "torch_dtype"):
        if key in fields:
            return fields.one_of(key, DTYPES, "", "convert the checkpoint")
    return None


def _rope(fields: Fields, positions: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary embeddings, from all keys that versions of transformers use."""
    rope = next(
        (fields.section(key) for key in ("rope_scaling", "rope_parameters") if key in fields), Fields(Path(), {})
    )
    theta = (rope if "rope_theta" in rope else fields).positive("rope_theta", _DEFAULT_ROPE_THETA)
    rope.only("partial_rotary_factor", 1.0)
    key = "rope_type" if "rope_type" in rope else "type"
    kind = rope.one_of(key, (*ROPE_TYPES, "mrope"), "default", fields.other)
    if kind in ("default", "mrope"):  # the three positions of a text's token are the same
        return theta, None
    if kind in ("linear", "dynamic"):
        return theta, RopeScaling(kind, rope.positive("factor"))
    original = rope.integer("original_max_position_embeddings", positions)
    factor = rope.positive("factor", positions / original if kind == "yarn" else None)
    scaling = RopeScaling(kind, factor, original_max_position_embeddings=original)
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if low >= high:
            raise rope.error("high_freq_factor", f"a number > low_freq_factor ({low})")
        return theta, replace(scaling, low_freq_factor=low, high_freq_factor=high)
    mscales = (rope.positive(name) if name in rope else None for name in ("mscale", "mscale_all_dim"))
    return theta, replace(
        scaling,
        attention_factor=rope.positive("attention_factor", yarn_attention_factor(scaling.factor, *mscales)),
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        truncate=rope.boolean("truncate", True),
    )
