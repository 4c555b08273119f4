"""Did you mean ...? The one wording for names that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from specdec_hal.errors import ConfigError

LONGEST_NAME = 100
"""No name is longer, and to compare a long text takes time."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name` (case ignored), or None when nothing is near."""
    if len(name) > LONGEST_NAME:
        return None
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or nothing, ready to be appended to a message."""
    found = nearest(name, known)
    return f"; did you mean '{found}'?" if found else ""


def check_backend_options(given: Iterable[str], known: Collection[str]) -> None:
    """ConfigError for the first name under ``backend.options`` that the backend does not know."""
    for name in given:
        if name not in known:
            raise ConfigError(
                f"backend.options.{name}: unknown option{did_you_mean(name, known)}; options: {', '.join(known)}"
            )
