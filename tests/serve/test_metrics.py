"""/metrics says what the engine has done, under vLLM's names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families

from specdec_hal.runner import Request, SamplingParams
from specdec_hal.serve.metrics import SECONDS, Histogram
from tests.runner.conftest import make_runner
from tests.serve.conftest import MODEL, Running, serving

LABELS = {"model_name": MODEL, "backend": "reference", "method": "ngram"}


def scrape(running: Running) -> Callable[..., float]:
    answer = running.http.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    families = list(text_string_to_metric_families(answer.text))
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    def value(name: str, labels: dict[str, str] = LABELS, **more: str) -> float:
        return found[name, tuple(sorted({**labels, **more}.items()))]

    return value


def test_histograms_are_prometheus_s() -> None:
    registry, names = prometheus_client.CollectorRegistry(), ("a", "b", "c")
    theirs = prometheus_client.Histogram("vllm:x", "x", LABELS, buckets=SECONDS, registry=registry)
    whole = theirs.labels(*names)
    mine, other = (Histogram("vllm:x", "x", SECONDS, names) for _ in range(2))
    for at, (seconds, times) in enumerate([(0.0, 1), (0.001, 3), (0.0011, 2), (0.5, 7), (640.0, 1), (641.0, 2)]):
        (other if at % 2 else mine).observe(seconds, times)
        for _ in range(times):
            whole.observe(seconds)
    mine.others = [(other.counts, other.sum)]
    found, expected = (
        {(s.name, s.labels.get("le")): s.value for family in families for s in family.samples}
        for families in (mine.collect(), registry.collect())
    )
    assert found.keys() == {key for key in expected if key[0] != "vllm:x_created"} and len(found) == len(SECONDS) + 3
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
    assert value("specdec_hal:method_steps_total", draft_method="ngram") == steps
    assert value("vllm:iteration_tokens_total_count") == steps
    assert value("vllm:iteration_tokens_total_sum") == running.engine.runner.metrics.total.input_tokens
    few = value("vllm:iteration_tokens_total_bucket", le="1.0")
    assert few <= value("vllm:iteration_tokens_total_bucket", le="16.0") == steps
    cache = {"enable_prefix_caching": "False"}  # a model without blocks
    assert value("vllm:cache_config_info", **cache) == 1
    assert value("specdec_hal:http_workers") == 1
    assert value("process_start_time_seconds", labels={}) > 1e9 and value("process_open_fds", labels={}) > 2
    for name in ("time_to_first_token", "request_queue_time", "e2e_request_latency"):
        assert value(f"vllm:{name}_seconds_count") == 3, name
    for name in ("prefill_time", "decode_time", "inference_time", "time_per_output_token"):
        assert value(f"vllm:request_{name}_seconds_count") == 3, name
        assert 0 <= value(f"vllm:request_{name}_seconds_sum") < value("vllm:e2e_request_latency_seconds_sum"), name
    parts = [value(f"vllm:request_{name}_time_seconds_sum") for name in ("prefill", "decode", "inference")]
    assert math.isclose(parts[0] + parts[1], parts[2], abs_tol=1e-6)
    counts = {"prompt_tokens": 11, "generation_tokens": 120, "max_num_generation_tokens": 80, "params_n": 3}
    for name, total_of in {**counts, "params_max_tokens": 80}.items():
        assert value(f"vllm:request_{name}_sum") == total_of, name
    # vLLM counts the choices of a request one by one, but these once.
    assert value("vllm:request_prompt_tokens_count") == 3 and value("vllm:request_params_n_count") == 2
    # Those that come together with the first are not counted.
    assert 0 < value("vllm:inter_token_latency_seconds_count") <= 117
    for name in ("time_to_first_token", "inter_token_latency", "request_queue_time", "e2e_request_latency"):
        assert 0 < value(f"vllm:{name}_seconds_sum") < math.inf


# What the panels of vLLM's published Grafana dashboards ask for (examples/online_serving in its repository).
VLLM_DASHBOARD = """
vllm:e2e_request_latency_seconds_bucket vllm:e2e_request_latency_seconds_sum vllm:e2e_request_latency_seconds_count
vllm:prompt_tokens_total vllm:generation_tokens_total vllm:inter_token_latency_seconds_bucket
vllm:inter_token_latency_seconds_sum vllm:inter_token_latency_seconds_count vllm:num_requests_running
vllm:num_requests_waiting vllm:time_to_first_token_seconds_bucket vllm:time_to_first_token_seconds_sum
vllm:time_to_first_token_seconds_count vllm:kv_cache_usage_perc vllm:request_prompt_tokens_bucket
vllm:request_generation_tokens_bucket vllm:request_success_total vllm:request_queue_time_seconds_sum
vllm:request_prefill_time_seconds_sum vllm:request_decode_time_seconds_sum
vllm:request_max_num_generation_tokens_sum vllm:request_time_per_output_token_seconds_bucket
"""
DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/specdec_hal.json"


def test_every_panel_of_the_dashboards_has_data(running: Running) -> None:
    assert running.post({"prompt": [3, 5, 6, 5, 6], "max_tokens": 20, "ignore_eos": True}).status_code == 200
    families = list(text_string_to_metric_families(running.http.get("/metrics").text))
    samples = {sample.name for family in families for sample in family.samples}
    known = samples | {f"{family.name}_total" for family in families if family.type == "counter"}
    assert not set(VLLM_DASHBOARD.split()) - samples
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = {name for one in expressions for name in re.findall(r"(?:vllm|specdec_hal):\w+", one)}
    assert len(panels) >= 12 and len(asked) >= 15
    # A family without a sample (no fallback has been called) is still announced.
    assert not asked - known


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


def test_the_method_that_was_chosen_is_named() -> None:
    with serving(speculative={}) as running:
        body = {"prompt": [3, 5, 6, 5, 6], "max_tokens": 30, "ignore_eos": True}
        assert running.post({**body, "method": "mtp"}).json()["usage"]["drafted_tokens"] > 0
        assert (
            "method: expected 'mtp' or 'none'" in running.post({**body, "method": "ngram"}).json()["error"]["message"]
        )
        assert re.search(r'vllm:num_requests_running{[^}]*method="mtp"', running.http.get("/metrics").text)
