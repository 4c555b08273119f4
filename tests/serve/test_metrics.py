"""/metrics says what the engine has done, under vLLM's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from specdec_hal.runner import Request, SamplingParams
from specdec_hal.serve.metrics import _SECONDS, _Seconds
from tests.runner.conftest import make_runner
from tests.serve.conftest import MODEL, Running, serving

LABELS = {"model_name": MODEL, "backend": "reference", "method": "ngram"}


def scrape(running: Running) -> Callable[..., float]:
    answer = running.http.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    def value(name: str, **labels: str) -> float:
        return found[name, tuple(sorted({**LABELS, **labels}.items()))]

    return value


def test_histograms_are_prometheus_s() -> None:
    registry, names = CollectorRegistry(), ("a", "b", "c")
    whole = Histogram("vllm:x", "x", LABELS, buckets=_SECONDS, registry=registry).labels(*names)
    mine, other = (_Seconds("vllm:x", "x", names) for _ in range(2))
    for at, (seconds, times) in enumerate([(0.0, 1), (0.001, 3), (0.0011, 2), (0.5, 7), (640.0, 1), (641.0, 2)]):
        (other if at % 2 else mine).observe(seconds, times)
        for _ in range(times):
            whole.observe(seconds)
    mine.others = [(other.counts, other.sum)]
    found, expected = (
        {(s.name, s.labels.get("le")): s.value for family in families for s in family.samples}
        for families in (mine.collect(), registry.collect())
    )
    assert found.keys() == {key for key in expected if key[0] != "vllm:x_created"} and len(found) == len(_SECONDS) + 3
    assert all(math.isclose(value, expected[key]) for key, value in found.items())


def test_counters_are_those_of_the_answers(running: Running) -> None:
    before = scrape(running)
    assert before("vllm:spec_decode_num_draft_tokens_total") == 0
    bodies: list[dict[str, Any]] = [{"prompt": [3, 5, 6, 5, 6], "n": 2}, {"prompt": [1], "num_speculative_tokens": 0}]
    answers = [running.post({**body, "max_tokens": 40, "ignore_eos": True}).json() for body in bodies]
    value = scrape(running)
    total = {key: sum(answer["usage"][key] for answer in answers) for key in ("drafted_tokens", "accepted_tokens")}
    assert value("vllm:spec_decode_num_draft_tokens_total") == total["drafted_tokens"] > 0
    assert value("vllm:spec_decode_num_accepted_tokens_total") == total["accepted_tokens"] > 0
    positions = [value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(at)) for at in range(3)]
    assert sum(positions) == total["accepted_tokens"] and positions == sorted(positions, reverse=True)
    drafts = value("vllm:spec_decode_num_drafts_total")
    assert positions[0] <= drafts <= total["drafted_tokens"] <= 3 * drafts
    assert value("vllm:generation_tokens_total") == 120 and value("vllm:prompt_tokens_total") == 11
    assert value("vllm:request_success_total", finished_reason="length") == 3
    assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0
    steps, tokens = running.engine.runner.metrics.steps, running.engine.runner.state.symbols["T_cap"]
    assert value("specdec_hal:steps_total", slots="4", tokens=str(tokens), context="64") == steps
    for name in ("time_to_first_token", "request_queue_time", "e2e_request_latency"):
        assert value(f"vllm:{name}_seconds_count") == 3, name
    # Those that come together with the first are not counted.
    assert 0 < value("vllm:inter_token_latency_seconds_count") <= 117
    for name in ("time_to_first_token", "inter_token_latency", "request_queue_time", "e2e_request_latency"):
        assert 0 < value(f"vllm:{name}_seconds_sum") < math.inf


def test_gauges_while_requests_run_and_wait() -> None:
    with serving(runner={"max_num_seqs": 2}) as running:
        running.model.gate.clear()
        body = {"prompt": [1], "n": 5, "max_tokens": 3, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as answer:
            running.until(lambda: running.engine.runner.load().running == 2)
            value = scrape(running)
            assert value("vllm:num_requests_running") == 2 and value("vllm:num_requests_waiting") == 3
            assert value("vllm:kv_cache_usage_perc") == 1
            running.model.gate.set()
            answer.read()


def test_failures_are_counted(running: Running) -> None:
    running.model.failures.append(RuntimeError("once"))
    assert running.post({"prompt": [1], "max_tokens": 2}).status_code == 200
    assert scrape(running)("specdec_hal:failed_steps_total") == 1


def test_the_queue_time_of_a_request_that_never_ran() -> None:
    runner = make_runner(runner={"max_num_seqs": 1})
    for name in ("first", "second"):
        runner.add_request(Request(name, [1], SamplingParams(max_new_tokens=3)))
    runner.step()
    runner.cancel("second")
    outputs = runner.run()
    assert outputs["second"].queue_s is None and outputs["first"].queue_s is not None
