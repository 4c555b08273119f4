"""Expected failures: a file in the backend's own repository, one pattern and one reason per line.

    # result id (* and ? match anything)                   # reason
    verify_draft_tokens/edge:window*::equality             # issue 12: the window does not resume
    *::replay [REJECTION*]                                  # driver 5.1 cannot capture it

The run fails if a listed result passes, or if a line matches nothing or, with wildcards, only passing results.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from specdec_hal.errors import ConfigError
from specdec_hal_conformance.report import EXPECTED, FAILED, PASSED, REFUSED, UNEXPECTED, Result


@dataclass
class Entry:
    """One line. `seen`: it matched a result; `failed`: a matched result failed, as expected."""

    pattern: str
    reason: str
    line: int
    seen: bool = False
    failed: bool = False

    def matches(self, result_id: str) -> bool:
        """Whether the pattern matches a result; brackets are literal."""
        return fnmatchcase(result_id, re.sub(r"\[", "[[]", self.pattern))


class ExpectedFailures:
    """The lines of one file."""

    def __init__(self, entries: list[Entry], source: str = "") -> None:
        self.entries, self.source = entries, source

    @classmethod
    def read(cls, path: Path) -> ExpectedFailures:
        """Parse a file; ConfigError with file and line for a pattern without a reason."""
        entries = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot read expected failures ({error}); check the path") from error
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            pattern, mark, reason = line.partition(" #")
            if not mark or not reason.strip():
                raise ConfigError(
                    f"{path}:{number}: expected 'PATTERN # reason', got {line.strip()!r}; give the reason"
                )
            entries.append(Entry(pattern.strip(), reason.strip(), number))
        return cls(entries, str(path))

    def apply(self, result: Result) -> Result:
        """The result with the status according to the file."""
        for entry in self.entries:
            if result.status != REFUSED and entry.matches(result.id):
                entry.seen = True
                if result.status == FAILED:
                    entry.failed = True
                    return replace(result, status=EXPECTED, detail=f"{entry.reason} ({result.detail})")
                if result.status == PASSED and not re.search(r"[*?]", entry.pattern):
                    detail = f"{self.source}:{entry.line} expects a failure ({entry.reason}); delete the line"
                    return replace(result, status=UNEXPECTED, detail=detail)
        return result

    def stale(self) -> list[str]:
        """Complaints about unnecessary lines."""
        return [
            f"{self.source}:{e.line}: '{e.pattern}' {'lists only what passes' if e.seen else 'matches no result'}; "
            "delete the line"
            for e in self.entries
            if not e.failed and not (e.seen and not re.search(r"[*?]", e.pattern))
        ]
