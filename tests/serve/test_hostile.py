"""Whatever a body holds, the answer is 200 or an error of the client's, and the next request works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.serve.protocol import ChatCompletionRequest, CompletionRequest
from tests.serve.conftest import Running, serving

NUMBERS = st.one_of(
    st.integers(-3, 70), st.sampled_from([1 << 31, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**400, -(10**400)]),
    st.floats(), st.sampled_from([1e-320, 1e308, -0.0, 100.0, -100.0]),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=5), st.text("abcde", max_size=70), st.sampled_from(["\ud800", "\0", "3", "-1", "9" * 9])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
ROUTES = {
    "/v1/completions": ({"prompt": "abab", "max_tokens": 3}, sorted(CompletionRequest.model_fields)),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "abab"}], "max_tokens": 3},
        sorted(ChatCompletionRequest.model_fields),
    ),
    "/abort": ({"request_id": "x"}, ["request_id"]),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with serving(sampling={"max_new_tokens": 4}) as found:
        yield found


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=80)
@given(data=st.data())
def test_any_body(shared: Running, path: str, data: st.DataObject) -> None:
    body, keys = ROUTES[path]
    changes = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=3))
    answer = shared.http.post(path, content=json.dumps({**body, **changes}))
    if answer.status_code == 200:
        assert answer.headers["Content-Type"].startswith("text/event-stream") == (changes.get("stream") is True)
        assert '"error"' not in answer.text
    else:
        assert answer.status_code in (404, 422), answer.text
        error: dict[str, Any] = answer.json()["error"]
        assert error["message"] and len(answer.content) < 3000
    assert shared.engine.alive
