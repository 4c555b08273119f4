"""Reading checkpoints: what is accepted, and one clear error for everything that is not."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.config import parse
from specdec_hal.errors import CheckpointError
from specdec_hal.models.checkpoint import read_config, read_generation_defaults, read_token_ids
from specdec_hal.models.weights import expected_shapes, read_weights
from specdec_hal.runner import SamplingParams

Make = Callable[..., Path]


def store(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Rewrite model.safetensors after `change` to its tensors."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


def configure(folder: Path, **changes: Any) -> Path:
    """Rewrite config.json; None removes a key."""
    file = folder / "config.json"
    raw = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
    return folder


def load(folder: Path) -> Any:
    return read_weights(folder, read_config(folder))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert str(caught.value).startswith(str(folder)) and "; " in str(caught.value)


def test_weights_are_widened(make_checkpoint: Make) -> None:
    from safetensors.numpy import load_file

    folder = make_checkpoint()
    stored, read = load_file(folder / "model.safetensors"), load(folder)
    assert read.keys() == stored.keys() == expected_shapes(read_config(folder)).keys()
    for name, array in read.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, stored[name].astype(np.float32))


def test_float32_and_bfloat16(make_checkpoint: Make) -> None:
    folder = make_checkpoint()
    expected = load(folder)
    store(folder, lambda weights: weights.update({name: array.astype(np.float32) for name, array in weights.items()}))
    for name, array in load(folder).items():
        np.testing.assert_array_equal(array, expected[name])

    data = (folder / "model.safetensors").read_bytes()  # by hand: NumPy has no bfloat16
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    words, end = b"", 0
    for name, info in sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0])[0]):
        first, last = info["data_offsets"]
        high = (np.frombuffer(body[first:last], np.uint32) >> 16).astype(np.uint16)
        words += high.tobytes()
        header[name] = {**info, "dtype": "BF16", "data_offsets": [end, end := end + 2 * high.size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + words)
    for name, array in load(folder).items():
        np.testing.assert_array_equal(array.view(np.uint32), expected[name].view(np.uint32) & 0xFFFF0000)


def test_config(make_checkpoint: Make) -> None:
    folder = make_checkpoint()
    config = read_config(folder)
    assert (config.num_key_value_heads, config.head_dim, config.num_nextn_predict_layers) == (2, 16, 1)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    configure(folder, eos_token_id=[5, 2], bos_token_id=None, num_key_value_heads=None, head_dim=None)
    config = read_config(folder)
    assert (config.num_key_value_heads, config.head_dim) == (4, 12)
    assert (config.bos_token_id, config.eos_token_ids) == (None, (5, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: one of llama, got 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act: \"silu\" or no such key, got 'gelu'"),
        ({"attention_bias": True}, "attention_bias: false or no such key, got True"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: a number > 0, got no such key"),
        ({"hidden_size": None}, "hidden_size: an integer >= 1, got no such key"),
        ({"hidden_size": "48"}, "hidden_size: an integer >= 1, got '48'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: an integer >= 1, got 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers: an integer >= 1, got True"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers: an integer >= 0, got -1"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads: a divisor of num_attention_heads \(4\), got 3"),
        ({"head_dim": 15}, "head_dim: an even number, for rotary embeddings, got 15"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: a number > 0, got 0"),
        ({"rope_theta": 0}, "rope_theta: a number > 0, got 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: true or false, got 'yes'"),
        ({"eos_token_id": 131}, "eos_token_id: token ids in 0..130, got 131"),
        ({"eos_token_id": [2, "x"]}, r"eos_token_id: token ids in 0..130, got \[2, 'x'\]"),
        ({"bos_token_id": -1}, "bos_token_id: token ids in 0..130, got -1"),
    ],
)
def test_bad_config(make_checkpoint: Make, changes: dict[str, Any], message: str) -> None:
    refused(configure(make_checkpoint(), **changes), rf"config\.json: expected {message}")


def test_keys_that_transformers_gives_a_default_may_be_missing(make_checkpoint: Make) -> None:
    keys = ("rope_theta", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "hidden_act")
    folder = configure(make_checkpoint(tie_word_embeddings=False), **dict.fromkeys(keys))
    config = read_config(folder)
    found = (config.rope_theta, config.rms_norm_eps, config.max_position_embeddings, config.tie_word_embeddings)
    assert found == (10000.0, 1e-6, 2048, False)


@pytest.mark.torch
def test_defaults_are_those_of_transformers() -> None:
    from transformers import LlamaConfig

    theirs = LlamaConfig()
    rope = theirs.rope_parameters["rope_theta"]
    assert (rope, theirs.rms_norm_eps, theirs.max_position_embeddings) == (10000.0, 1e-6, 2048)


def write_generation_config(folder: Path, **keys: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(keys))
    return folder


def test_end_tokens_of_generation_config_come_first(make_checkpoint: Make) -> None:
    folder = write_generation_config(make_checkpoint(), eos_token_id=[7, 9])
    assert read_config(folder).eos_token_ids == (7, 9, 2)
    assert read_token_ids(folder).eos_token_ids == (7, 9, 2)
    refused(write_generation_config(folder, eos_token_id=131), r"generation_config\.json: expected eos_token_id: token")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),  # without do_sample: greedy
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
            {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
        ),
        ({"do_sample": True, "top_k": 64, "top_p": None}, {"temperature": 1.0, "top_k": 64}),
        ({"repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
    ],
)
def test_sampling_defaults_of_generation_config(
    make_checkpoint: Make, keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    folder = write_generation_config(make_checkpoint(), **keys)
    assert read_generation_defaults(folder) == expected
    config = parse({"model": {"path": str(folder)}, "sampling": {"top_p": 0.5}})
    params = SamplingParams.default(config)
    assert params == SamplingParams(**{**expected, "top_p": 0.5})  # what the configuration sets stays
    ignored = parse({"model": {"path": str(folder), "generation_config": "none"}})
    assert SamplingParams.default(ignored) == SamplingParams()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"do_sample": "yes"}, "do_sample: true or false, got 'yes'"),
        ({"do_sample": True, "top_p": 1.5}, r"top_p: a number in 0\.\.1, got 1.5"),
        ({"do_sample": True, "temperature": -1}, r"temperature: a number in 0\.\.1e\+30, got -1"),
        ({"repetition_penalty": 0}, "repetition_penalty: a number > 0, got 0"),
    ],
)
def test_bad_generation_config(make_checkpoint: Make, keys: dict[str, Any], message: str) -> None:
    folder = write_generation_config(make_checkpoint(), **keys)
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: expected {message}"):
        read_generation_defaults(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "expected JSON, got 1 bytes that are not"), ("[1]", "expected a JSON object, got list")]
)
def test_config_that_is_no_config(make_checkpoint: Make, text: str, message: str) -> None:
    folder = make_checkpoint()
    (folder / "config.json").write_text(text)
    refused(folder, message)


def test_missing_files(make_checkpoint: Make, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "expected a checkpoint folder, got nothing there; give the folder that holds")
    folder = make_checkpoint()
    refused(folder / "config.json", "expected a checkpoint folder, got a file")
    (folder / "model.safetensors").unlink()
    refused(folder, r"model\.safetensors: expected a file, got none \(the folder holds config\.json\)")
    (folder / "model.safetensors").mkdir()
    refused(folder, r"model\.safetensors: expected a readable file, got .*directory")
    (folder / "config.json").unlink()
    refused(folder, r"config\.json: expected a file, got none")


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_truncated_weights(make_checkpoint: Make, keep: int) -> None:
    folder = make_checkpoint()
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(folder, r"model\.safetensors: expected a safetensors file, got \d+ bytes of an invalid or incomplete one")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.pop("model.layers.1.mlp.up_proj.weight"),
            r"expected the 33 weights of config\.json, got none of model\.layers\.1\.mlp\.up_proj\.weight; use the",
        ),
        (
            lambda w: [w.pop(name) for name in list(w) if ".layers.0." in name],
            "got none of model.layers.0.input_layernorm.weight, .* and 6 more",
        ),
        (lambda w: w.update({"model.adapter.weight": np.zeros((3, 4), np.float16)}), "got also model.adapter.weight"),
        (
            lambda w: w.update({"model.norm.weight": np.ones(47, np.float16)}),
            r"expected model\.norm\.weight of shape \[48\], got shape \[47\]",
        ),
        (
            lambda w: w.update({"model.norm.weight": np.ones(48, np.int16)}),
            "expected model.norm.weight as F16, BF16 or F32, got I16; convert the checkpoint",
        ),
        (
            lambda w: w["model.layers.0.mlp.up_proj.weight"].__setitem__((0, slice(3)), np.nan),
            r"expected finite numbers in model\.layers\.0\.mlp\.up_proj\.weight, got 3 that are not",
        ),
    ],
)
def test_wrong_weights(make_checkpoint: Make, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    refused(store(make_checkpoint(), change), message)


def test_weights_of_another_config(make_checkpoint: Make) -> None:
    refused(configure(make_checkpoint(), num_hidden_layers=3), "got none of")
    refused(configure(make_checkpoint(), num_nextn_predict_layers=0), "got also model.layers.2")
    refused(configure(make_checkpoint(), tie_word_embeddings=False), "got none of lm_head.weight")


# ---- end tokens


def with_tokenizer(folder: Path, settings: dict[str, Any], *, decoder: bool = False, unigram: bool = False) -> Path:
    """Two tokens of ChatML in tokenizer.json, 40 in its vocabulary and 41 as an added token, and `settings`."""
    texts = [f"t{i}" for i in range(40)] + ["<|im_end|>"]
    vocabulary: Any = [[text, 0.0] for text in texts] if unigram else {text: i for i, text in enumerate(texts)}
    added = [{"id": 41, "content": "<|eot|>", "special": True}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {"vocab": vocabulary}}))
    if decoder:  # as `transformers` writes it beside a tokenizer.json
        settings = {**settings, "added_tokens_decoder": {"41": {"content": "<|im_end|>"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "options", "ends"),
    [
        ({}, {}, (2,)),
        ({"eos_token": None}, {}, (2,)),
        ({"eos_token": "<|im_end|>"}, {}, (2, 40)),
        ({"eos_token": "<|im_end|>"}, {"unigram": True}, (2, 40)),
        ({"eos_token": {"content": "<|eot|>", "special": True}}, {}, (2, 41)),
        ({"eos_token": "<|im_end|>"}, {"decoder": True}, (2, 41)),
        ({"eos_token": "t2"}, {}, (2,)),
    ],
)
def test_the_tokenizers_end_token_ends_a_text(
    make_checkpoint: Make, settings: dict[str, Any], options: dict[str, bool], ends: tuple[int, ...]
) -> None:
    folder = with_tokenizer(make_checkpoint(), settings, **options)
    assert read_config(folder).eos_token_ids == read_token_ids(folder).eos_token_ids == ends
    write_generation_config(folder, eos_token_id=[7])
    assert read_config(folder).eos_token_ids == (7, *ends)


def test_the_end_token_of_special_tokens_map_counts_where_tokenizer_config_names_none(make_checkpoint: Make) -> None:
    folder = with_tokenizer(make_checkpoint(), {})
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert read_token_ids(folder).eos_token_ids == (2, 40)
    with_tokenizer(folder, {"eos_token": "<|eot|>"})
    assert read_token_ids(folder).eos_token_ids == (2, 41)


def test_a_wrong_end_token_of_a_tokenizer(make_checkpoint: Make, caplog: pytest.LogCaptureFixture) -> None:
    folder = with_tokenizer(make_checkpoint(), {"eos_token": "<|end|>"})
    assert read_token_ids(folder).eos_token_ids == (2,)
    assert "eos_token '<|end|>' is not in the vocabulary" in caplog.text
    refused(with_tokenizer(folder, {"eos_token": 7}), r"tokenizer_config\.json: expected eos_token: a text, or an obj")
    settings = {"eos_token": "x", "added_tokens_decoder": {"131": {"content": "x"}}}
    refused(with_tokenizer(folder, settings), r"expected eos_token: an id in 0\.\.130, got 'x', id 131")


@pytest.mark.parametrize("text", ['{"added_tokens": {"a": 1}, "model": []}', '{"added_tokens": [1], "model": {}}'])
def test_an_end_token_that_an_odd_tokenizer_lacks(make_checkpoint: Make, text: str) -> None:
    folder = with_tokenizer(make_checkpoint(), {"eos_token": "t1", "added_tokens_decoder": [{"a": 1}]})
    (folder / "tokenizer.json").write_text(text)
    assert read_token_ids(folder).eos_token_ids == (2,)
