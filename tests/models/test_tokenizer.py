"""Encoding, decoding, and decoding piece by piece."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.errors import CheckpointError, RequestError
from specdec_hal.models import Tokenizer, load_tokenizer

TEXT = "def größe(straße: str) -> float:\n    return 3.14  # π ≈ 3, 日本語 🎉🎉 e\u0301\n" * 3
SPECIAL = ["<pad>", "<s>", "</s>"]
VOCABULARY = 300

Make = Callable[..., Path]


def write_tokenizer(folder: Path, vocab_size: int = VOCABULARY) -> Path:
    """A byte-level BPE trained on TEXT: 256 bytes, three special tokens, and merges that cut characters."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([TEXT], trainer)
    library.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def folder(make_checkpoint: Make) -> Path:
    return write_tokenizer(make_checkpoint(vocab_size=VOCABULARY))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "vocab_size": VOCABULARY + 5, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 1, "max_position_embeddings": 8, "rope_theta": 10.0, "rms_norm_eps": 1e-5,
                "bos_token_id": 1, "eos_token_id": [2, 1],
            },
        ),
    )  # fmt: skip
    return load_tokenizer(write_tokenizer(folder))


def add_bos(folder: Path) -> Path:
    """Give the tokenizer a post-processor that puts <s> first, as Llama's has."""
    from tokenizers import Tokenizer as Library
    from tokenizers import processors

    library = Library.from_file(str(folder / "tokenizer.json"))
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    library.save(str(folder / "tokenizer.json"))
    return folder


def test_special_tokens_are_added_as_the_post_processor_says(folder: Path) -> None:
    plain = load_tokenizer(folder).encode(TEXT)
    tokenizer = load_tokenizer(add_bos(folder))
    assert tokenizer.encode(TEXT) == [1, *plain] and tokenizer.encode("") == [1]
    assert tokenizer.encode(TEXT, add_special_tokens=False) == plain
    assert tokenizer.encode("<s>a", add_special_tokens=False) == tokenizer.encode("a")


@pytest.mark.torch
def test_special_tokens_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoTokenizer

    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    for _ in range(2):
        ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
        for text in (TEXT, "", "<s>x</s>", " x"):
            for added in (True, False):
                expected = theirs(text, add_special_tokens=added).input_ids
                assert ours.encode(text, add_special_tokens=added) == expected
        add_bos(folder)


def test_ids(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eos_token_ids) == (1, 2, (2, 1))
    assert tokenizer.vocab_size == VOCABULARY
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""
    assert tokenizer.encode("</s>") == [2] and tokenizer.decode([2]) == "</s>"


@given(st.text())
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert all(type(i) is int and 0 <= i < VOCABULARY for i in ids)
    assert tokenizer.decode(ids) == text


@given(st.one_of(st.text(), st.text(alphabet="eé\u0301日🎉👨\u200d👩 \n")))
def test_pieces_of_text_are_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.push(i) for i in tokenizer.encode(text)]
    assert "".join(pieces) + detokenizer.finish() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) == text


def test_tokenizer_with_too_many_tokens(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "vocab_size": VOCABULARY - 1}))
    message = r"tokenizer\.json: expected token ids in 0..298, the model's vocabulary, got ids up to 299; use the tok"
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder)


def test_tokenizer_without_the_end_token(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "vocab_size": 400, "eos_token_id": 350}))
    with pytest.raises(
        CheckpointError, match=r"expected a token for id 350 \(bos or eos of the checkpoint\), got none"
    ):
        load_tokenizer(folder)


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe", None])
def test_corrupt_tokenizer(folder: Path, damage: bytes | None) -> None:
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-10] if damage is None else damage)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: expected a tokenizer of the tokenizers library, got"):
        load_tokenizer(folder)


def test_missing_tokenizer(make_checkpoint: Make) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: expected a file, got none \(the folder holds config"):
        load_tokenizer(make_checkpoint())


def test_any_architecture(folder: Path) -> None:
    """A model of a plug-in has a tokenizer, too; the tokenizer ignores other keys of its config.json."""
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 999, "eos_token_id": [2]}))
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, (2,))


# ---- what tokenizer.json may ask for


def change(folder: Path, **parts: Any) -> Path:
    """A tokenizer.json with other parts."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))
    return folder


PADDING = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("truncation", {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}),
        ("padding", {"strategy": {"Fixed": 1000}, "pad_to_multiple_of": None, **PADDING}),
        ("padding", {"strategy": "BatchLongest", "pad_to_multiple_of": 64, **PADDING}),
    ],
)
def test_prompts_are_neither_cut_nor_padded(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str, settings: dict[str, Any]
) -> None:
    """39 tokens became 8, and a padding of 10^9 aborted the process; both without a word."""
    expected = load_tokenizer(folder).encode(TEXT)
    assert len(expected) > 100
    assert load_tokenizer(change(folder, **{name: settings})).encode(TEXT) == expected
    assert f"tokenizer.json: its {name} is not applied" in caplog.text


FIXED = {"type": "FixedLength", "length": 0}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<none>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {},
}


@pytest.mark.parametrize("parts", [{"pre_tokenizer": FIXED}, {"post_processor": TEMPLATE}])
def test_a_panic_is_an_error_of_the_request(folder: Path, parts: dict[str, Any]) -> None:
    """Rust's panics are no Exception."""
    tokenizer = load_tokenizer(change(folder, **parts))
    with pytest.raises(RequestError, match="the tokenizer cannot encode 'a b'"):
        tokenizer.encode("a b")


def test_half_of_a_surrogate_pair(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"cannot encode 'a.*': it has half of a surrogate pair"):
        tokenizer.encode("a\ud800")


def test_a_panic_while_decoding(folder: Path) -> None:
    tokenizer = load_tokenizer(change(folder, decoder={"type": "Strip", "content": "a", "start": 5, "stop": 5}))
    with pytest.raises(RequestError, match="the tokenizer cannot decode"):
        tokenizer.decode(tokenizer.encode("a"))


def test_a_panic_in_a_stream_ends_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Steps make text of many requests: what one cannot be decoded to must not raise there."""
    tokenizer = load_tokenizer(change(folder, decoder={"type": "Strip", "content": "a", "start": 5, "stop": 5}))
    detokenizer = tokenizer.detokenizer()
    letter, *_ = tokenizer.encode("a")
    assert [detokenizer.push(letter) for _ in range(3)] == ["\ufffd"] * 3 and detokenizer.finish() == ""
    assert "the tokenizer cannot decode" in caplog.text


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    """The library's `encode` holds the interpreter: 2 s for 1 MB of text, without any events."""
    done, turns = threading.Event(), 0

    def encode() -> None:
        tokenizer.encode(TEXT * 3000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 20
