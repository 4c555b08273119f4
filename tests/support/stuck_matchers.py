"""Matchers of one grammar that do not return, as a library's may."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from specdec_hal.structured.llguidance import LLGrammar

STUCK = "[b-f]{5,9}"
"""The expression of that grammar."""


def stuck_matchers(monkeypatch: pytest.MonkeyPatch, method: str) -> threading.Event:
    """Lets `method` of these matchers wait for the event where the runner calls it, after their trial."""
    gate, made = threading.Event(), LLGrammar.matcher

    def matcher(self: LLGrammar) -> Any:
        found: Any = made(self)
        if "[b-f]" in self.exported:
            usual = getattr(found, method)

            def stuck(*arguments: Any) -> Any:
                if threading.current_thread().name == "specdec-grammars":
                    gate.wait(60)
                return usual(*arguments)

            setattr(found, method, stuck)
        return found

    monkeypatch.setattr(LLGrammar, "matcher", matcher)
    return gate
