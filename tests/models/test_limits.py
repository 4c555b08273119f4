"""Hostile checkpoints: each is a CheckpointError within bounds of time and memory, its message short."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.errors import CheckpointError
from specdec_hal.models import load_tokenizer
from specdec_hal.models.checkpoint import MAX_CONFIG, read_config
from specdec_hal.models.weights import MAX_HEADER, read_weights
from specdec_hal.text import MESSAGE_LIMIT
from tests.support.bounded import bounded

Make = Callable[..., Path]


def refused(folder: Path, message: str) -> None:
    with bounded(), pytest.raises(CheckpointError) as caught:
        read_weights(folder, read_config(folder))
    text = str(caught.value)
    assert message in text
    assert text.startswith(str(folder)) and len(text.encode()) <= MESSAGE_LIMIT


def configure(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def reheader(folder: Path, change: Callable[[str], str]) -> Path:
    """Rewrite the header's text."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    text = change(data[8 : 8 + size].decode()).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 1_000_000}, "expected the 1000001 layers of config.json, got 33 weights"),
        ({"num_nextn_predict_layers": 2_000_000_000}, "expected the 2000000002 layers of config.json"),
        ({"num_hidden_layers": 30}, "got none of model.layers.10."),
        ({"num_hidden_layers": 10**4000}, "num_hidden_layers: an integer <= 2147483647, got <integer of 13288 bits>"),
        ({"vocab_size": 1 << 31}, "vocab_size: an integer <= 2147483647"),
        ({"vocab_size": (1 << 31) - 1}, "model.embed_tokens.weight of shape [2147483647, 48]"),
        ({"hidden_size": 2_000_000_000, "head_dim": 2_000_000_000}, "of shape [131, 2000000000]"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps: a number <= 1e+30"),
        ({"rope_theta": 1e200}, "rope_theta: a number <= 1e+30"),
        ({"model_type": "x" * 100_000}, "model_type: one of llama"),
        ({"eos_token_id": list(range(100_000))}, "eos_token_id: token ids in 0..130, got [0, 1, 2"),
    ],
)
def test_config(make_checkpoint: Make, changes: dict[str, Any], message: str) -> None:
    refused(configure(make_checkpoint(), **changes), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "200000 bytes that are not"),
        ('{"a":' * 200_000, "1000000 bytes that are not"),
        ('{"vocab_size": ' + "1" * 5000 + "}", "5016 bytes that are not"),
        ('{"vocab_size": 1, "vocab_size": 2}', "that are not (duplicate key 'vocab_size')"),
        ('{"vocab_size": "\\ud800"}', "vocab_size: an integer >= 1, got '\\ud800'"),
    ],
)
def test_config_text(make_checkpoint: Make, text: str, message: str) -> None:
    folder = make_checkpoint()
    (folder / "config.json").write_text(text)
    refused(folder, message)


def test_size_of_a_config(make_checkpoint: Make) -> None:
    folder = make_checkpoint()
    file = folder / "config.json"
    file.write_text(file.read_text().ljust(MAX_CONFIG))
    read_config(folder)
    os.truncate(file, 1 << 40)
    refused(folder, f"expected a readable file, got expected at most {MAX_CONFIG} bytes, got {1 << 40}")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_fifo(make_checkpoint: Make, name: str) -> None:
    folder = make_checkpoint()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with bounded(), pytest.raises(CheckpointError, match="expected a regular file, got a FIFO"):
        read_weights(folder, read_config(folder)) if name != "tokenizer.json" else load_tokenizer(folder)


def test_long_header(make_checkpoint: Make) -> None:
    folder = make_checkpoint()
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", 50 << 20) + b"{" + file.read_bytes()[9:])
    os.truncate(file, 60 << 20)
    refused(folder, f"expected a header of at most {MAX_HEADER} bytes, got {50 << 20} bytes")


def test_names_that_come_twice(make_checkpoint: Make) -> None:
    folder = make_checkpoint()

    def twice(header: str) -> str:
        info = json.dumps(json.loads(header)["model.norm.weight"])
        return f'{{"model.norm.weight": {info}, {header[1:]}'

    refused(reheader(folder, twice), "duplicate key 'model.norm.weight'")


def test_nested_header(make_checkpoint: Make) -> None:
    refused(reheader(make_checkpoint(), lambda header: '{"a":' * 100_000), "expected JSON, got 500000 bytes")


def test_offsets_beyond_the_file(make_checkpoint: Make) -> None:
    def far(header: str) -> str:
        data = json.loads(header)
        data["model.norm.weight"] = {"dtype": "F16", "shape": [1 << 50], "data_offsets": [0, 1 << 51]}
        return json.dumps(data)

    refused(reheader(make_checkpoint(), far), "expected a safetensors file")


@pytest.mark.parametrize("merges", [["a b"], [["a", "b"]], [7], [[]]])
def test_merges_that_would_end_the_process(make_checkpoint: Make, merges: list[Any]) -> None:
    folder = make_checkpoint()
    model = {"type": "BPE", "continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": merges}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    with pytest.raises(CheckpointError, match="merges whose second part starts with continuing_subword_prefix '##'"):
        load_tokenizer(folder)
