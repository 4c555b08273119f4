"""Both grammar libraries over a vocabulary of bytes."""

from __future__ import annotations

import pytest

from specdec_hal.structured.backend import GrammarBackend, Vocabulary
from specdec_hal.structured.llguidance import LLGuidance

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
END, OTHER_END, SPECIAL, PADDED = 256, 257, 258, 262
BYTES = Vocabulary(
    size=269,  # no multiple of 32
    tokens=[bytes([byte]) for byte in range(256)] + [b"</s>", b"<eot>", b"<tool>", b'{"', b'": ', b"ab"],
    special_ids=frozenset((END, OTHER_END, SPECIAL)),
    end_ids=frozenset((END, OTHER_END)),
    encode=lambda text: list(text.encode()),
)


def xgrammar(vocabulary: Vocabulary) -> GrammarBackend:
    from specdec_hal.structured.xgrammar import XGrammar

    return XGrammar(vocabulary, 60.0)


@pytest.fixture(scope="module", params=["llguidance", pytest.param("xgrammar", marks=pytest.mark.torch)])
def backend(request: pytest.FixtureRequest) -> GrammarBackend:
    return LLGuidance(BYTES) if request.param == "llguidance" else xgrammar(BYTES)
