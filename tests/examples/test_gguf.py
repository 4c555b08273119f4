"""examples/gguf/gguf_to_hf.py: the embedded model as a GGUF file, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.models import load_tokenizer
from tests.support.scripts import script

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/tiny-py-lm"
gguf: Any = pytest.importorskip("gguf", reason="gguf is not installed (pip install gguf)")


@pytest.fixture(scope="module")
def tool() -> Any:
    return script("examples/gguf/gguf_to_hf.py")


def write(path: Path, architecture: str = "llama", tied: bool = True) -> dict[str, np.ndarray]:
    """The embedded model as GGUF; its weights by name."""
    from safetensors.numpy import load_file, save_file

    source = path.parent / "source"
    script("tools/drop_mtp.py").convert(MODEL, source)
    tensors = load_file(source / "model.safetensors")
    if not tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][::-1].copy()
        save_file(tensors, source / "model.safetensors")
    script("examples/gguf/hf_to_gguf.py").convert(source, path, architecture=architecture)
    return tensors


def byte_level() -> Any:
    """The embedded model's tokenizer with GGUF's rule "gpt-2", since GGUF has no name for its own."""
    from tokenizers import Tokenizer, pre_tokenizers

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer


@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back(tool: Any, tmp_path: Path, tied: bool) -> None:
    from safetensors.numpy import load_file

    tensors = write(tmp_path / "model.gguf", tied=tied)
    tool.convert(tmp_path / "model.gguf", tmp_path / "hf")
    back = load_file(tmp_path / "hf/model.safetensors")
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        assert back[name].dtype == np.float16
        assert np.array_equal(back[name], array.astype(np.float16)), name
    config, original = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "hf", MODEL))
    assert config.pop("tie_word_embeddings") is tied
    known = {name: value for name, value in original.items() if name in config}
    assert {**config, **known} == config
    assert len(known) >= 15
    ours, theirs = load_tokenizer(tmp_path / "hf"), byte_level()
    template = (MODEL / "chat_template.jinja").read_text()
    assert json.loads((tmp_path / "hf/tokenizer_config.json").read_text())["chat_template"] == template
    prompts = [file.read_text() for file in (ROOT / "examples/prompts").glob("*.txt")]
    assert len(prompts) >= 4
    for prompt in prompts:
        ids = ours.encode(prompt)
        assert ids == theirs.encode(prompt).ids
        assert ours.decode(ids) == prompt


def test_another_architecture_is_refused(tool: Any, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", architecture="gemma")
    with pytest.raises(SystemExit, match="expected a GGUF file of architecture 'llama', got 'gemma'"):
        tool.convert(tmp_path / "model.gguf", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
