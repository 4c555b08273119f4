"""The commands `backends` and `explain`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import pytest

from specdec_hal.cli import main
from specdec_hal.ops import OPS, MatchPolicy
from specdec_hal.plugin import registry
from specdec_hal.plugin.backend import API_VERSION, Backend, BackendSpec, Capability, Probe
from specdec_hal.plugin.hookspecs import hookimpl

Run = Callable[..., Any]


class Partial(Backend):
    """Has one op, in one mode."""

    name = "partial"
    capabilities: ClassVar = {"ngram_match": Capability(attrs={"match_policy": frozenset({MatchPolicy.LATEST})})}


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Beside the built-in backends: "partial", "gone" (unavailable) and "odd" (wrong api_version)."""
    monkeypatch.delenv("SPECDEC_HAL_BACKEND", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    module = ModuleType("fake")

    @hookimpl
    def specdec_backends() -> list[BackendSpec]:
        return [
            BackendSpec("partial", API_VERSION, lambda: Probe(True), lambda options: Partial(), 1000, "one op only"),
            BackendSpec(
                "gone", API_VERSION, lambda: Probe(False, "no such chip", "buy one"), lambda options: Partial(), 900
            ),
            BackendSpec("odd", API_VERSION + 1, lambda: Probe(True), lambda options: Partial(), 800),
        ]

    module.specdec_backends = specdec_backends  # type: ignore[attr-defined]
    plugin = registry.register(module, "fake")
    yield
    registry.unregister(plugin)


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_json(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run_json


@pytest.fixture
def run_text(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_text(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    return run_text


class TestBackends:
    def test_json(self, run_json: Run) -> None:
        document = run_json("backends")
        infos = {info["name"]: info for info in document["backends"]}
        assert {"reference", "partial", "gone", "odd"} <= set(infos)
        for info in infos.values():
            assert {"name", "available", "reason", "hint", "priority", "api_version", "plugin"} <= set(info)
        assert infos["reference"]["available"] is True
        assert infos["gone"]["available"] is False
        assert (infos["gone"]["reason"], infos["gone"]["hint"]) == ("no such chip", "buy one")
        assert (infos["odd"]["available"], infos["odd"]["api_version"]) == (False, API_VERSION + 1)
        assert str(API_VERSION + 1) in infos["odd"]["error"]
        assert document["auto"] == "partial"
        assert document["plugin_errors"] == []

    def test_text(self, run_text: Run) -> None:
        text = run_text("backends")
        lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
        assert lines["partial"].split() == ["partial", "yes", "1000", str(API_VERSION), "fake", "one", "op", "only"]
        assert "no such chip; buy one" in lines["gone"]
        assert lines["auto:"] == "auto: partial"

    def test_environment_that_names_nothing(self, run_json: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPECDEC_HAL_BACKEND", "nonsense")
        assert run_json("backends")["auto"] is None


class TestExplainOp:
    def test_every_op(self, run_text: Run) -> None:
        for op in OPS:
            text = run_text("explain", op)
            assert op in text
            for operand in OPS[op].operands:
                assert operand.name in text

    def test_json(self, run_json: Run) -> None:
        document = run_json("explain", "ngram_match")
        assert document["op"] == "ngram_match"
        drafts = next(operand for operand in document["operands"] if operand["name"] == "draft_tokens")
        assert (drafts["role"], drafts["dtypes"], drafts["shape"]) == ("inout", ["int64"], ["M", "S"])
        policy = next(attr for attr in document["attrs"] if attr["name"] == "match_policy")
        assert policy["allowed"] == "LEFTMOST | LATEST"


class TestExplainBackend:
    def test_json(self, run_json: Run) -> None:
        document = run_json("explain", "partial")
        assert document["backend"] == "partial"
        statuses = {status["op"]: status for status in document["ops"]}
        assert list(statuses) == list(OPS)
        assert statuses["ngram_match"]["available"] is True
        assert statuses["ngram_match"]["modes"] == "match_policy: LATEST"
        assert statuses["sample_target"]["available"] is False
        assert statuses["sample_target"]["reason"]
        assert statuses["sample_target"]["hint"] != ""

    def test_one_reason_for_every_op_is_one_row(self, run_text: Run) -> None:
        assert run_text("explain", "gone").count("no such chip; buy one") == 1

    def test_configuration_with_a_fallback(self, run_json: Run) -> None:
        document = run_json("explain", "--set", "backend.name=partial", "--set", "fallback.allow=[reference]")
        statuses = {status["op"]: status for status in document["ops"]}
        assert statuses["ngram_match"]["via"] == ""
        assert statuses["sample_target"]["via"] == "reference"
        assert all(status["available"] for status in statuses.values())

    def test_a_name_and_a_configuration(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["explain", "partial", "--set", "backend.name=partial"]) == 2
        assert "give a name or --config/--set, not both" in capsys.readouterr().err
