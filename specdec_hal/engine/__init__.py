"""Decoding for programs: a batch at once (:class:`LLM`), or requests as they come (:class:`AsyncEngine`).

Both drive a :class:`~specdec_hal.runner.ModelRunner`, which is the layer to read for how a step works.
"""

from __future__ import annotations

from specdec_hal.engine.async_engine import AsyncEngine
from specdec_hal.engine.llm import LLM

__all__ = ["LLM", "AsyncEngine"]
