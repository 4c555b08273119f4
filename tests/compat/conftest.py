"""The embedded model as `transformers` loads it, and the example prompts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/tiny-py-lm"


@pytest.fixture(scope="session")
def transformers() -> Any:
    import torch

    torch.set_num_threads(1)
    return pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")


@pytest.fixture(scope="session")
def model(transformers: Any) -> Any:
    import torch

    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def prompts(transformers: Any) -> dict[str, list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    files = sorted((ROOT / "examples/prompts").glob("*.txt"))
    return {file.stem: tokenizer(file.read_text().removesuffix("\n"))["input_ids"] for file in files}


@pytest.fixture(scope="session")
def adapter(transformers: Any) -> Any:
    return import_module("specdec_hal.compat.transformers")
