"""`specdec-hal audit`: an honest server passes, and every fault that engines' drafts have had is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from specdec_hal.cli import main
from specdec_hal.errors import ConfigError
from specdec_hal_conformance.audit.answers import Answers
from specdec_hal_conformance.audit.endpoint import Answer, Endpoint, EndpointError, RefusedError, Token
from specdec_hal_conformance.audit.forced import Forced
from specdec_hal_conformance.audit.report import document, page
from specdec_hal_conformance.audit.run import SEEDS, Audit, Budget, Report
from specdec_hal_conformance.audit.verdict import Verdict, compare, detectable, fewer, two_samples
from specdec_hal_conformance.statistics import ALPHA
from tests.support.drafting_server import DraftingServer

SMALL = Budget(requests=1)
HONEST_RUNS = 14
"""Of each size of noise; docs/use/audit.md has more."""


def end(server: DraftingServer) -> Endpoint:
    return Endpoint("http://server", transport=server.transport)


def audit(drafted: DraftingServer, plain: DraftingServer | None = None, **more: Any) -> Report:
    return Audit(end(plain or DraftingServer()), end(drafted), SMALL, Answers(), **more).run()


def faults(report: Report) -> set[str]:
    return {check.name for check in report.checks if check.findings}


TOKENS = {"greedy", "together", "forced"}
FOUND = {
    "stale state": TOKENS,
    "off by one": TOKENS,
    "dropped": TOKENS,
    "boundary": TOKENS,
    "temperature": {"sampled"},
    "window": {"sampled"},
    "greedy": {"sampled"},
    "logprobs": {"logprobs", "forced"},
    "far logprobs": {"logprobs", "forced"},
    "seed": {"seed"},
    "stop": {"stop"},
    "usage": {"usage"},
    "second choice": {"n"},
}


@pytest.mark.parametrize("fault", FOUND)
def test_a_fault_is_found(fault: str) -> None:
    report = audit(DraftingServer(fault))
    assert report.status == 1 and FOUND[fault] <= faults(report)
    if FOUND[fault] != TOKENS:
        assert faults(report) == FOUND[fault]
    assert (FOUND[fault] == TOKENS) == any(kind.faults for kind in report.kinds)
    for check in report.checks:
        for finding in check.findings:
            assert "curl -s http://server/v1/" in finding.curl and finding.what


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02, 0.08])  # the last as of bfloat16
def test_an_honest_server_passes(noise: float) -> None:
    report = audit(DraftingServer(noise=noise), DraftingServer(noise=noise))
    assert report.status == 0, [check.findings[:1] for check in report.checks if check.findings]
    greedy = next(check for check in report.checks if check.name == "greedy")
    assert greedy.asked > 25 and greedy.equal + greedy.ties == greedy.asked
    assert not greedy.ties or noise


@pytest.mark.parametrize("only", ["chats", "texts", "counts"])
def test_honest_servers_of_other_kinds_pass(only: str) -> None:
    plain = "zeros" if only == "counts" else only
    report = audit(DraftingServer(noise=0.0, only=only), DraftingServer(noise=0.0, only=plain))
    assert report.status == 0
    skipped = {check.name for check in report.checks if check.skipped}
    assert skipped == {"chats": {"forced"}, "texts": {"logprobs", "forced"}, "counts": set()}[only]


def test_servers_of_chats_get_chats() -> None:
    report = audit(DraftingServer("boundary", only="chats"), DraftingServer(only="chats"), only=("greedy",))
    curl = report.checks[0].findings[0].curl
    assert "http://server/v1/chat/completions" in curl and '"messages"' in curl and '"prompt"' not in curl


def test_texts_without_log_probabilities_cannot_tell_a_tie() -> None:
    servers = DraftingServer("boundary", only="texts"), DraftingServer(only="texts")
    report = audit(*servers, only=("greedy", "together"))
    assert report.status == 2 and {check.verdict for check in report.checks} == {"cannot tell"}


def test_drafts_and_speed_are_counted_by_kind() -> None:
    report = audit(DraftingServer(only="counts"), only=("greedy",))
    kinds = {kind["name"]: kind for kind in document(report)["kinds"]}
    assert {"one token", "mixed lengths", "shared prefix", "long context", "unicode"} < set(kinds)
    assert (kinds["json"]["drafted"], kinds["json"]["accepted"]) == (64, 64)  # every third of twice 96 tokens
    assert kinds["json"]["tokens"] == {"plain": 192, "drafted": 192} and kinds["json"]["faster"] > 0
    assert (kinds["one token"]["answers"], kinds["one token"]["tokens"]["drafted"]) == (4, 2)
    total = report.acceptance["drafted"]["vllm:spec_decode_num_draft_tokens_total"]
    assert total > sum(kind["drafted"] for kind in kinds.values()) > 500


def test_sglang_reports_lengths_not_counts() -> None:
    server = DraftingServer()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/metrics":
            return server.answer(request)
        return httpx.Response(200, text='sglang:spec_accept_length{model_name="m"} 2.5\nsglang:num_used_tokens 7.0\n')

    report = Audit(
        end(server), Endpoint("http://s", transport=httpx.MockTransport(answer)), SMALL, Answers(), ("greedy",)
    ).run()
    assert report.acceptance == {"drafted": {"sglang:spec_accept_length": 2.5}} and report.status == 0


def test_sides_that_are_not_what_they_are_called_get_no_verdict() -> None:
    report = audit(DraftingServer(only="zeros"), only=("greedy",))
    assert report.status == 2 and "the drafted side has drafted nothing" in report.cannot
    report = audit(DraftingServer(only="counts"), DraftingServer(only="counts"), only=("greedy",))
    assert report.status == 2 and "the plain side has drafted too" in report.cannot


def test_prompts_that_are_too_long_are_left_out() -> None:
    report = audit(DraftingServer(refuses=(1000,)), DraftingServer(), only=("greedy", "forced"))
    assert report.status == 0 and "prompts are refused" in report.checks[0].detail
    assert report.checks[0].asked == 29 and report.checks[1].asked > 50
    with pytest.raises(RefusedError, match="not supported"):
        audit(DraftingServer(), DraftingServer(refuses=(4,)), only=("greedy",))


def test_tokens_after_a_tie_are_scored() -> None:
    """A fault that only comes where the greedy comparison has ended."""
    plain = [answer(token("a", a=-0.700, b=-0.701), token("c", c=-0.1))]
    drafted = answer(token("b", a=-0.701, b=-0.700), token("d", c=-0.1, d=-3.0))
    scored = [token("b", a=-0.700, b=-0.701), token("d", c=-0.1, d=-3.0)]
    assert compare(plain[0], drafted, 0.01).verdict is Verdict.TIE
    found = Forced(lambda name, *_: scored if name == "x" else plain[0].tokens, {0: plain[0]}, 0.01).compare(
        "x", 0, drafted
    )
    assert found is not None and (found.verdict, found.at, found.far) == (Verdict.FAULT, 1, 0)
    assert found.gap == pytest.approx(2.9)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.05])
def test_honest_servers_pass_again_and_again(noise: float) -> None:
    for seed in range(HONEST_RUNS):
        servers = [DraftingServer(noise=noise, seed=2 * seed + side) for side in range(2)]
        assert audit(servers[0], servers[1]).status == 0, seed


def test_a_server_that_is_not_even_like_itself_gives_no_verdict() -> None:
    report = audit(DraftingServer("stale state"), DraftingServer(noise=1.0))
    assert report.status == 2 and "differs from itself" in report.cannot


def test_checks_that_the_server_refuses_are_skipped_by_name() -> None:
    refuses = ("response_format", "n", "echo")
    report = audit(*(DraftingServer(noise=0.0, refuses=refuses) for _ in range(2)))
    skipped = {check.name: check.skipped for check in report.checks if check.skipped}
    assert set(skipped) == {"structured", "n", "forced"} and "n: not supported" in skipped["n"]
    assert report.status == 0


def test_a_side_is_recorded_and_a_run_resumed(tmp_path: Path) -> None:
    plain, path = DraftingServer(), tmp_path / "plain.jsonl"
    assert Audit(end(plain), None, SMALL, Answers(path)).run().status == 0
    drafted, half = DraftingServer("greedy"), tmp_path / "half.jsonl"
    whole = Audit(None, end(drafted), SMALL, Answers(half, path)).run()
    assert faults(whole) == {"sampled"} and whole.status == 1
    asked = drafted.requests
    again = Audit(None, end(drafted), SMALL, Answers(half, path)).run()
    assert drafted.requests == asked + 1  # which finds out what the server has
    assert document(again)["checks"] == document(whole)["checks"]
    shorter = replace(SMALL, tokens=SMALL.tokens - 1)  # answers of other lengths are not compared
    with pytest.raises(RefusedError, match=r"no answer to greedy/alone/.*/95; record it with the same options"):
        Audit(None, end(drafted), shorter, Answers(None, path), ("greedy",)).run()
    half.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"half\.jsonl:1: expected answers of an audit"):
        Answers(half)


def test_time_that_is_over_is_no_verdict() -> None:
    server = DraftingServer()
    report = Audit(end(server), end(server), Budget(minutes=0.0, requests=1), Answers()).run()
    assert report.status == 2 and "minutes were over" in report.cannot


def token(text: str, **top: float) -> Token:
    return Token(text, top[text], top)


def answer(*tokens: Token) -> Answer:
    return Answer("".join(one.text for one in tokens), list(tokens), "length", len(tokens))


def test_ties_and_faults_by_hand() -> None:
    start = token("a", a=-0.1, b=-2.5)
    near = [answer(start, token(one, b=-0.700, c=-0.701)) for one in "bc"]
    assert compare(*near, 0.01).verdict is Verdict.TIE and compare(*near, 0.0005).verdict is Verdict.FAULT
    far = [answer(start, token(one, b=-0.1, c=-3.0)) for one in "bc"]
    result = compare(*far, 0.5)
    assert (result.verdict, result.at, result.compared) == (Verdict.FAULT, 1, 1) and result.gap == pytest.approx(2.9)
    draft = Answer("ac", [start, Token("c", 0.0, {})], "length", 2)  # without alternatives: what the other side says
    for one, verdict in ((near[0], Verdict.TIE), (far[0], Verdict.FAULT)):
        assert compare(one, draft, 0.01).verdict is verdict is compare(draft, one, 0.01).verdict
    assert compare(draft, draft._replace(tokens=[start, Token("d", 0.0, {})]), 0.01).verdict is Verdict.UNKNOWN
    ended = compare(answer(start, token("b", b=-0.01)), answer(start), 0.5)
    assert ended.verdict is Verdict.FAULT and ended.gap == pytest.approx(-0.01 - np.log(-np.expm1(-0.01)))
    assert compare(answer(start, token("b", b=-0.69)), answer(start), 0.5).verdict is Verdict.TIE
    bare = Answer("x", [], "length", 1)
    assert compare(bare, bare, 0.1).verdict is Verdict.EQUAL
    assert compare(bare, bare._replace(text="y"), 0.1).verdict is Verdict.UNKNOWN
    shifted = compare(answer(start), answer(token("a", a=-0.4, b=-1.5)), 0.1)
    assert (shifted.far, shifted.apart_at) == (1, 0) and shifted.apart == pytest.approx(0.3)


def test_samples_by_hand() -> None:
    same = two_samples(["a"] * 60 + ["b"] * 40, ["a"] * 40 + ["b"] * 60)
    assert same.cells == 2 and same.distance == pytest.approx(0.2)
    assert same.p == pytest.approx(0.00454, rel=0.01)  # G = 8.054
    assert two_samples(["a"] * 100, ["b"] * 100).p < 1e-50
    assert two_samples(list(range(100)), list(range(100, 200))).p == 1.0  # rare outcomes share a cell


def test_a_seed_without_effect_is_told_from_rounding() -> None:
    assert fewer(22, 21, SEEDS) > 0.1 and fewer(SEEDS, 14, SEEDS) > ALPHA
    assert fewer(18, 0, SEEDS) < ALPHA and fewer(22, 2, SEEDS) < ALPHA and fewer(3, 0, SEEDS) > 0.1
    assert fewer(4, 0, 4) == pytest.approx(1 / 70)  # one of 8 over 4 ways


def test_the_power_is_what_is_said() -> None:
    """Of two outcomes: nine times in ten."""
    rng, samples = np.random.default_rng(3), 400
    distance = detectable(samples)
    found = 0
    for _ in range(400):
        sides = [rng.random(samples) < 0.5 + sign * distance / 2 for sign in (-1, 1)]
        found += two_samples(*(side.tolist() for side in sides)).p < ALPHA
    assert 0.85 < found / 400 < 0.97


def test_the_page_shows_both_texts_escaped() -> None:
    report = audit(DraftingServer("off by one"), only=("greedy",))
    report.checks[0].findings[0].drafted += "<script>"
    text = page(report)
    assert "&lt;script&gt;" in text and "<script>" not in text and "drafts change answers" in text


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = {"http://plain": DraftingServer(), "http://drafted": DraftingServer("greedy")}
    made = Endpoint.__init__

    def connect(self: Endpoint, url: str, model: str | None, extra: Any, wait: float) -> None:
        made(self, url, model, extra, wait, servers[url].transport)

    monkeypatch.setattr(Endpoint, "__init__", connect)
    sides = ["--plain", "http://plain", "--drafted", "http://drafted", "--requests", "1", "--tokens", "24"]
    assert main(["audit", *sides, "--html", str(tmp_path / "page.html")]) == 1
    printed, warned = capsys.readouterr()
    assert "192 samples of a side show a total variation of 0.35" in warned and "Greedy answers" in printed
    assert "sampled" in printed and "FAULT" in printed and "drafts change answers" in printed
    assert max(map(len, printed.splitlines())) < 2000 and (tmp_path / "page.html").read_text().startswith("<!doctype")
    recorded = str(tmp_path / "plain.jsonl")
    short = ["--check", "sampled", "--requests", "1", "--tokens", "24"]
    assert main(["audit", "--plain", "http://plain", "--record", recorded, *short]) == 0
    capsys.readouterr()
    assert main(["audit", "--json", "--drafted", "http://drafted", "--against", recorded, *short]) == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["verdict"] == "FAULT"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--drafted", "http://x", "--model-path", "y", "--against", "z"], "--plain: expected one of"),
        (["--record", "x.jsonl", "--plain", "http://x", "--model-path", "y"], "--record: expected --plain"),
        (["--plain", "http://x"], "--drafted: expected the URL of the server with speculation"),
        (["--drafted", "http://x"], "--plain: expected one of"),
        (["--record", "x.jsonl", "--drafted", "http://x"], "--record: expected --plain"),
        (["--drafted", "http://x", "--against", "nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["--plain", "http://x", "--drafted", "http://y", "--check", "x"], "--check: expected some of greedy"),
    ],
)
def test_options_that_say_nothing(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["audit", *options]) == 2
    assert message in capsys.readouterr().err


def test_more_keys_are_in_every_request() -> None:
    """So that one server can draft for one side only."""
    server, bodies = DraftingServer(), list[bytes]()

    def record(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return server.answer(request)

    one = Endpoint("http://server", "markov", {"speculate": False}, transport=httpx.MockTransport(record))
    one.complete("a", 2)
    one.chat("a", 2)
    one.abandon("a", 2)
    assert [json.loads(body)["speculate"] for body in bodies] == [False] * 4  # the first finds out what the server has


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(EndpointError, match="is the server running"):
        Endpoint("http://127.0.0.1:9")


def test_a_server_that_starts_is_waited_for() -> None:
    server, refused = DraftingServer(), [503, None, None]

    def answer(request: httpx.Request) -> httpx.Response:
        if not refused:
            return server.answer(request)
        if refused.pop() is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(503)

    assert Endpoint("http://server", wait=60, transport=httpx.MockTransport(answer)).model == "markov"
