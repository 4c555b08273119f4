"""Runners over the history model."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.ops import TokenOrder
from specdec_hal.runner import ModelRunner, build_runner
from tests.support.history_model import HistoryModel, LetterTokenizer


class PrefillFirst(ReferenceBackend):
    """The reference as hardware sees it that wants all prefill tokens first."""

    token_order = TokenOrder.PREFILL_FIRST


def make_runner(
    *, prefill_first: bool = False, model: HistoryModel | None = None, model_settings: dict[str, Any] | None = None,
    **sections: Any,
) -> ModelRunner:  # fmt: skip
    speculative = sections.get("speculative", {"method": "ngram", "num_speculative_tokens": 4})
    fixed = {"adaptive": False} if "method" in speculative else {}  # unless a test asks for what depends on time
    sections["speculative"] = {**fixed, **speculative}
    sections.setdefault("structured", {"backend": "llguidance"})
    config = parse({**sections, "model": model_settings or {}})
    backend = PrefillFirst() if prefill_first else ReferenceBackend()
    backend.debug = config.runner.debug
    return build_runner(config, backend, model or HistoryModel(), LetterTokenizer())  # type: ignore[arg-type]


@pytest.fixture
def runner() -> ModelRunner:
    return make_runner(runner={"max_num_seqs": 2, "prefill_chunk": 4})
