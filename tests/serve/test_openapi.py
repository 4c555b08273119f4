"""schemathesis asks what the OpenAPI document allows, and some of what it does not, and holds the answers to it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.conftest import Running, serving

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (pip install schemathesis)")

# Null stands for what is left out, and what the model cannot do is refused: neither is the document's to say.
NOT_OURS = ("negative_data_rejection", "positive_data_acceptance")


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with serving(sampling={"max_new_tokens": 4}) as found:
        yield found


ROUTES = [
    ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/v1/responses"), ("POST", "/abort"),
    ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/v1/models"), ("GET", "/v1/models/{model}"),
    ("GET", "/version"), ("GET", "/ping"), ("GET", "/metrics"), ("GET", "/health"), ("GET", "/ready"),
]  # fmt: skip


def hold_to_document(running: Running, method: str, path: str, examples: int) -> None:
    checks = importlib.import_module("schemathesis.specs.openapi.checks")
    document = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    assert sorted(ROUTES) == sorted((o.ok().method.upper(), o.ok().path) for o in document.get_all_operations())
    operation = document[path][method]
    both = st.one_of(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=both)
    def run(case: Any) -> None:
        case.call_and_validate(excluded_checks=[getattr(checks, name) for name in NOT_OURS])
        assert running.engine.alive

    run()


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_answers_are_what_the_document_says(shared: Running, method: str, path: str) -> None:
    hold_to_document(shared, method, path, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), ROUTES[:3])
def test_answers_are_what_the_document_says_for_long(shared: Running, method: str, path: str) -> None:
    hold_to_document(shared, method, path, 60)
