"""Triton's interpreter without two fifths of its overhead; import it where TRITON_INTERPRET is set."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Any

if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None:
    from triton import language
    from triton.runtime import interpreter

    def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Theirs patches Triton's language again for each call of a function, though the kernel's launch has."""
        if any(language.core.is_builtin(module.load) for module in (language, language.core)):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = _call


def read_late(seconds: float = 0.02) -> None:
    """Let this rank pause after meetings of ranks, before it reads what others have, which must not change."""

    def create_barrier(self: Any) -> Any:
        time.sleep(seconds)

    interpreter.InterpreterBuilder.create_barrier = create_barrier
