"""Every causal language model of the installed `transformers`: it runs as the library does, or is refused.

`architectures.json` has the outcomes; `tools/architectures.py --write` makes it and the table in docs/use/models.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architectures import outcome, recorded
from tests.support.tiny_configs import types_of_models

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("few_sizes")]


@pytest.mark.parametrize("kind", types_of_models())
def test_outcome(kind: str, tmp_path: Path) -> None:
    """As recorded; one that runs gives the logits and tokens of the library, in chunks, with drafts and preempted."""
    assert outcome(kind, tmp_path) == recorded().get(kind, "not recorded")
