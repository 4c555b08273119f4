"""Checks of a checkpoint's files before anything opens them, and warnings for those that are not applied."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.errors import CheckpointError, UnsupportedError
from specdec_hal.models import load_model, load_tokenizer
from specdec_hal.models.chat import load_chat_template
from specdec_hal.models.folder import check_files, warn_unapplied
from specdec_hal.models.loader import checkpoint_memory
from tests.models.test_tokenizer import VOCABULARY, write_tokenizer

Make = Callable[..., Path]
FRAMEWORKS = ["paddle", pytest.param("transformers", marks=pytest.mark.torch)]


def fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "model-00002-of-00002.safetensors", "config.json", "generation_config.json",
     "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"],
)  # fmt: skip
def test_a_fifo_is_refused_at_once(make_checkpoint: Make, framework: str, name: str) -> None:
    folder = write_tokenizer(make_checkpoint(vocab_size=VOCABULARY))
    fifo(folder / name)
    message = rf"{name}: expected a readable file, got .*a FIFO"
    for load in (lambda: load_model(folder, framework), lambda: checkpoint_memory(folder, framework)):
        with pytest.raises(CheckpointError, match=message):
            load()
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.json", "chat_template.jinja"])
def test_a_fifo_of_a_chat_template_is_refused(tmp_path: Path, name: str) -> None:
    fifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name}: .*a FIFO"):
        load_chat_template(tmp_path)


@pytest.mark.parametrize("framework", ["auto", "llama.cpp", pytest.param("transformers", marks=pytest.mark.torch)])
def test_a_gguf_file_that_is_a_fifo_is_refused(tmp_path: Path, framework: str) -> None:
    message = r"\.gguf: expected a readable file, got .*a FIFO"
    file, part = fifo(tmp_path / "model.gguf"), tmp_path / "parts-00001-of-00002.gguf"
    part.touch()
    fifo(tmp_path / "parts-00002-of-00002.gguf")
    for path in (file, part):
        with pytest.raises(CheckpointError, match=message):
            load_model(path, framework)
        with pytest.raises(CheckpointError, match=message):
            load_tokenizer(path)


def test_other_special_files_and_what_is_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "model.safetensors"))
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            check_files(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*a device"):
        check_files(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    fifo(tmp_path / "control")  # nothing reads it
    (tmp_path / "a.json").symlink_to("nowhere")
    (tmp_path / "b.json").mkdir()
    check_files(tmp_path)
    check_files(tmp_path / "missing")


# ---- adapters


def write_adapter(folder: Path, **settings: Any) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file({}, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("framework", ["auto", *FRAMEWORKS])
def test_an_adapter_alone_is_refused_by_name(tmp_path: Path, framework: str) -> None:
    folder = write_adapter(tmp_path / "adapter", peft_type="LORA", base_model_name_or_path="some/base")
    for with_config in (False, True):
        if with_config:
            (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        for load in (load_tokenizer, lambda path: load_model(path, framework)):
            with pytest.raises(
                CheckpointError, match=r"whole model, got a LoRA adapter of 'some/base' .*merge it into"
            ):
                load(folder)
    with pytest.raises(CheckpointError, match="got a 'IA3' adapter"):
        load_model(write_adapter(folder, peft_type="IA3"), framework)


def warnings_of(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    warn_unapplied(folder)
    return [record.getMessage().removeprefix(f"{folder}/") for record in caplog.records]


def test_each_file_that_is_not_applied_is_named_once(make_checkpoint: Make, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_checkpoint()
    assert warnings_of(folder, caplog) == []
    settings: dict[str, Any] = {"tokenizer_class": "LlamaTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert warnings_of(folder, caplog) == []
    write_adapter(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "code.Config"}}))
    (folder / "custom_generate").mkdir()
    settings = {"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": ["code.MyTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert warnings_of(folder, caplog) == [
        "adapter_config.json: this adapter is not applied; merge it into the weights",
        "config.json: auto_map names code, which is not run: {'AutoConfig': 'code.Config'}",
        "tokenizer_config.json: auto_map names code, which is not run: {'AutoTokenizer': ['code.MyTokenizer', None]}",
        "custom_generate: this code for decoding is not run",
        "tokenizer_config.json: tokenizer_class 'MyTokenizer' is unknown and not applied; "
        "tokenizer.json alone encodes texts",
    ]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_loading_logs_them_and_the_tokens_that_end_a_text(
    make_checkpoint: Make, framework: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip(framework, reason=f"{framework} is not installed (pip install 'specdec-hal[{framework}]')")
    caplog.set_level(logging.DEBUG, "specdec_hal")
    folder = write_adapter(write_tokenizer(make_checkpoint(vocab_size=VOCABULARY, num_nextn_predict_layers=0)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<s>"}))
    plain = load_model(folder, framework)
    assert plain.config.eos_token_ids == load_tokenizer(folder).eos_token_ids == (2, 1)
    assert caplog.text.count("adapter_config.json: this adapter is not applied") == 1
    assert caplog.text.count(f"{folder}: a text ends at the tokens [2, 1]") == 1


@pytest.mark.torch
def test_no_adapter_is_applied_with_the_package_peft_either(
    make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedModel
    from transformers.integrations import peft

    applied: list[str] = []
    monkeypatch.setattr(peft, "is_peft_available", lambda: True)
    monkeypatch.setattr(PreTrainedModel, "load_adapter", lambda self, path, **_: applied.append(path))
    monkeypatch.setattr(peft, "find_adapter_config_file", lambda path, **_: str(Path(path) / "adapter_config.json"))
    folder = write_adapter(make_checkpoint(num_nextn_predict_layers=0), base_model_name_or_path="some/base")
    load_model(folder, "transformers")
    assert not applied


@pytest.mark.torch
def test_code_of_a_checkpoint_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # which transformers asks on a terminal
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}')
    (tmp_path / "code.py").write_text("raise SystemExit('run')")
    for load in (load_model, checkpoint_memory):
        with pytest.raises(UnsupportedError, match=r"got 'own', whose code .* is never run \(trust_remote_code\)"):
            load(tmp_path, "transformers")
