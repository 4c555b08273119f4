"""Triton's interpreter without two fifths of its overhead; import it where TRITON_INTERPRET is set."""

from __future__ import annotations

import importlib.util
import os
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
