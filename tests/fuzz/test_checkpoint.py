"""Mutated checkpoints are read, or refused with an error of this project in bounds."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import CheckpointError
from specdec_hal.models import load_tokenizer
from specdec_hal.models.checkpoint import read_config
from specdec_hal.models.weights import expected_shapes, read_weights
from specdec_hal.text import MESSAGE_LIMIT
from tests.support.bounded import bounded
from tests.support.fuzz import fuzz

TINY = Path(__file__).parents[2] / "models" / "tiny-py-lm"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 11, "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 32, "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "num_nextn_predict_layers": 1, "eos_token_id": [2], "dtype": "float32",
}  # fmt: skip
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 1 << 31, 1 << 63, 10**300, 10**4000, 0.5, 1e300, float("nan"), float("inf")),
    *(
        "",
        "llama",
        "x" * 5000,
        "\ud800",
        "\0",
        [],
        [1],
        [[]],
        ["a", 2],
        {},
        {"type": "linear"},
        {"rope_type": "llama3"},
    ),
]


def file_of(config: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Header and data of a good model.safetensors."""
    header: dict[str, Any] = {}
    data = b""
    for name, shape in expected_shapes(config_of(config)).items():
        values = np.ones(shape, np.float16).tobytes()
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    return header, data


def config_of(config: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return read_config(folder)


def odd(random: random.Random, value: Any) -> Any:
    """Something else at one place of a JSON value."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(sorted(value))
        changed = dict(value)
        how = random.randrange(4)
        if how == 0:
            del changed[key]
        elif how == 1:
            changed[random.choice(["x", "a" * 3000, "model.norm.weight"])] = changed[key]
        else:
            changed[key] = odd(random, value[key])
        return changed
    if isinstance(value, list) and value and random.random() < 0.6:
        at = random.randrange(len(value))
        return [*value[:at], odd(random, value[at]), *value[at + 1 :]]
    if isinstance(value, int) and random.random() < 0.5:
        return value + random.choice([-1, 1, 2, 1 << 40])
    return random.choice(ODD)


def torn(random: random.Random, data: bytes) -> bytes:
    """Some bytes changed, left out or put in."""
    at = random.randrange(len(data) + 1)
    some = random.choice([b"", b"[" * 500, b'{"a":' * 300, b"\xff\xfe", b"\0" * 9, b"1" * 5000, random.randbytes(3)])
    return data[:at] + some + data[at + random.choice([0, 1, 8, 100]) :]


@pytest.fixture(scope="module")
def good() -> tuple[dict[str, Any], bytes]:
    return file_of(CONFIG)


def test_checkpoints(tmp_path: Path, good: tuple[dict[str, Any], bytes]) -> None:
    def checkpoint(random: random.Random) -> tuple[bytes, bytes]:
        config, (header, data) = dict(CONFIG), good
        kind = random.randrange(4)
        for _ in range(random.randint(1, 3)):
            config, header = (
                (odd(random, config) if kind == 0 else config),
                (odd(random, header) if kind == 1 else header),
            )
        texts = [json.dumps(part).encode() for part in (config, header)]
        if kind == 2:
            texts[0] = torn(random, texts[0])
        weights = struct.pack("<Q", len(texts[1])) + texts[1] + data
        return texts[0], torn(random, weights) if kind == 3 else weights

    def check(files: tuple[bytes, bytes]) -> str:
        for name, content in zip(("config.json", "model.safetensors"), files, strict=True):
            (tmp_path / name).write_bytes(content)
        try:
            with bounded():
                read_weights(tmp_path, read_config(tmp_path))
        except CheckpointError as error:
            assert len(str(error).encode()) <= MESSAGE_LIMIT
            return "refused"
        return "read"

    assert set(fuzz(checkpoint, check)) == {"read", "refused"}


def test_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    text = (TINY / "tokenizer.json").read_bytes()
    whole = json.loads(text)

    def tokenizer(random: random.Random) -> bytes:
        return torn(random, text) if random.random() < 0.5 else json.dumps(odd(random, whole)).encode()

    def check(content: bytes) -> str:
        (tmp_path / "tokenizer.json").write_bytes(content)
        try:
            load_tokenizer(tmp_path)
        except CheckpointError as error:
            assert len(str(error).encode()) <= MESSAGE_LIMIT
            return "refused"
        return "read"

    assert "refused" in fuzz(tokenizer, check)
