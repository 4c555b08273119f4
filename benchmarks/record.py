"""Writing figures with their circumstances."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from specdec_hal.bench.record import circumstances


def document(figures: Any) -> dict[str, Any]:
    """The figures with their circumstances."""
    return {**circumstances(["python", *sys.argv]), "figures": figures}


def write(figures: Any, out: Path | None) -> None:
    """Print the document, or write it to a file."""
    text = json.dumps(document(figures))
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n")
