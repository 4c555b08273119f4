"""The checkpoint that ranks share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.models.conftest import Shape, write_checkpoint

EMBEDDED = Path(__file__).parents[2] / "models" / "tiny-py-lm"
SHAPE = Shape(vocab_size=4096, num_attention_heads=8, num_key_value_heads=4, head_dim=8, bos_token_id=0, eos_token_id=0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("parallel"), SHAPE)
    shutil.copy(EMBEDDED / "tokenizer.json", folder)
    return folder
