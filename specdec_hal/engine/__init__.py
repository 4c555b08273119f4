"""Decoding for programs: a batch at once (:class:`LLM`), or requests as they come (:class:`AsyncEngine`).

Both drive a :class:`~specdec_hal.runner.ModelRunner`, which is the layer to read for how a step works.
:mod:`.rendering` renders chat templates within limits, for these and the server. Names below are resolved on first use,
so that its process starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec_hal import lazy

if TYPE_CHECKING:
    from specdec_hal.engine.async_engine import AsyncEngine
    from specdec_hal.engine.llm import LLM

__all__ = ["LLM", "AsyncEngine"]

__getattr__ = lazy(__name__, {"AsyncEngine": "async_engine", "LLM": "llm"})
