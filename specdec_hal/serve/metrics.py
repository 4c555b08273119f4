"""Prometheus metrics: vLLM's names where it has them, `specdec_hal:` for the rest.

Counters come from the engine; latencies are measured here, as clients see them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from specdec_hal.engine.async_engine import EngineInfo
from specdec_hal.runner import Counts, RequestOutput, StreamDelta

LABELS = ("model_name", "backend", "method")
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
)  # fmt: skip
_COUNTS = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20)
_POWERS = (0, *range(3, 15))
"""Powers of two that bound the sizes of steps, as vLLM's."""
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From the arrival of a request to its first token.", SECONDS),
    "inter_token_latency_seconds": ("From token to token; tokens of one step share its time evenly.", SECONDS),
    "request_time_per_output_token_seconds": ("Decode time over the tokens after the first.", SECONDS),
    "request_queue_time_seconds": ("From the arrival of a request to its first slot.", SECONDS),
    "request_prefill_time_seconds": ("From the first slot of a request to its first token.", SECONDS),
    "request_decode_time_seconds": ("From the first token of a request to its last.", SECONDS),
    "request_inference_time_seconds": ("From the first slot of a request to its last token.", SECONDS),
    "e2e_request_latency_seconds": ("From the arrival of a request to its end.", SECONDS),
    "request_prompt_tokens": ("Prompt tokens of a request.", _COUNTS),
    "request_generation_tokens": ("Generated tokens of a request.", _COUNTS),
    "request_max_num_generation_tokens": ("Generated tokens of a request's longest choice.", _COUNTS),
    "request_params_max_tokens": ("The max_tokens of a request.", _COUNTS),
    "request_params_n": ("The choices of a request.", _CHOICES),
}
"""Histograms per engine request, the last three per HTTP request, as in vLLM."""


class Observed(NamedTuple):
    """Observations of one HTTP process: bucket counts and sum of each histogram."""

    histograms: Sequence[tuple[Sequence[int], float]] = ()
    prompt_tokens: int = 0
    process: dict[str, float] = {}  # noqa: RUF012
    """Prometheus's metrics of the process."""


class ServerMetrics:
    """The metrics of one server."""

    def __init__(self, model_name: str, engine: EngineInfo) -> None:
        self._registry = CollectorRegistry()
        labels = (model_name, engine.backend, engine.method)
        self._engine = _EngineCollector(labels, engine.num_speculative_tokens, engine.cache)
        self._registry.register(self._engine)
        self._processes = _Processes()
        self._registry.register(self._processes)
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, bounds, labels) for name, (text, bounds) in _HISTOGRAMS.items()
        }
        for histogram in self._histograms.values():
            self._registry.register(histogram)
        self.prompt_tokens = 0

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Repeat an observation of a histogram."""
        self._histograms[name].observe(value, times)

    def observed(self) -> Observed:
        """This process's observations, for another that renders them."""
        histograms = [(list(one.counts), one.sum) for one in self._histograms.values()]
        return Observed(histograms, self.prompt_tokens, self._processes.own())

    def render(self, counts: Counts, others: Collection[Observed] = ()) -> bytes:
        """All metrics in Prometheus's text format, with the engine's counts and other processes' observations."""
        self._engine.counts, self._engine.http_workers = counts, 1 + len(others)
        self._processes.others = [other.process for other in others]
        self._engine.prompt_tokens = self.prompt_tokens + sum(other.prompt_tokens for other in others)
        for at, histogram in enumerate(self._histograms.values()):
            histogram.others = [other.histograms[at] for other in others if other.histograms]
        return generate_latest(self._registry)


@dataclass
class Timing:
    """Times of one answer's tokens. Created when its request arrives; `max_tokens` is set later."""

    metrics: ServerMetrics
    arrived_s: float = field(default_factory=time.perf_counter)
    max_tokens: int = 0
    _first: dict[str, float] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)

    def gained(self, deltas: Iterable[StreamDelta]) -> None:
        """Record new tokens of choices."""
        now = time.perf_counter()
        for delta in deltas:
            if not (count := len(delta.token_ids)):
                continue
            last = self._last.get(delta.request_id)
            if last is None:
                self._first[delta.request_id] = now
                self.metrics.observe("time_to_first_token_seconds", now - self.arrived_s)
            else:
                self.metrics.observe("inter_token_latency_seconds", (now - last) / count, count)
            self._last[delta.request_id] = now

    def ended(self, outputs: Collection[RequestOutput]) -> None:
        """Record the end of all choices."""
        observe = self.metrics.observe
        for output in outputs:
            observe("e2e_request_latency_seconds", time.perf_counter() - self.arrived_s)
            observe("request_prompt_tokens", output.prompt_tokens)
            observe("request_generation_tokens", len(output.token_ids))
            if output.queue_s is None:
                continue
            observe("request_queue_time_seconds", output.queue_s)
            first, last = self._first.get(output.request_id), self._last.get(output.request_id)
            if first is None or last is None:
                continue
            began = min(self.arrived_s + output.queue_s, first)
            observe("request_prefill_time_seconds", first - began)
            observe("request_decode_time_seconds", last - first)
            observe("request_inference_time_seconds", last - began)
            if len(output.token_ids) > 1:
                observe("request_time_per_output_token_seconds", (last - first) / (len(output.token_ids) - 1))
        if outputs:
            observe("request_max_num_generation_tokens", max(len(output.token_ids) for output in outputs))
            observe("request_params_max_tokens", self.max_tokens)
            observe("request_params_n", len(outputs))


class Histogram(Collector):
    """A histogram that counts equal observations at once, as those of a step's tokens."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...]) -> None:
        self._name, self._text, self._bounds, self._labels = name, text, bounds, labels
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.others: list[tuple[Sequence[int], float]] = []
        """The same of other processes."""

    def observe(self, value: float, times: int = 1) -> None:
        """Count equal observations."""
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def collect(self) -> Iterator[Metric]:
        """The one family."""
        family = HistogramMetricFamily(self._name, self._text, labels=LABELS)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        counts = map(sum, zip(self.counts, *(counts for counts, _ in self.others), strict=True))
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric(self._labels, buckets, self.sum + sum(other for _, other in self.others))
        yield family


class _Processes(Collector):
    """Prometheus's metrics of a process, of all HTTP processes together: sums, except for the earliest start and the
    lowest limit of open files.
    """

    def __init__(self) -> None:
        self._own = ProcessCollector(registry=None)
        self.others: list[dict[str, float]] = []
        """The same of other processes."""

    def own(self) -> dict[str, float]:
        """This process's values by name."""
        return {sample.name: sample.value for family in self._own.collect() for sample in family.samples}

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        for family in self._own.collect():
            least = family.name in ("process_start_time_seconds", "process_max_fds")
            together: Callable[[list[float]], float] = min if least else sum
            family.samples = [
                sample._replace(
                    value=together([sample.value, *(one[sample.name] for one in self.others if sample.name in one)])
                )
                for sample in family.samples
            ]
            yield family


class _EngineCollector(Collector):
    """The latest counts of an engine."""

    def __init__(self, labels: tuple[str, ...], positions: int, cache: Mapping[str, str]) -> None:
        self._labels, self._positions, self._cache = labels, positions, cache
        self.counts: Counts | None = None
        self.prompt_tokens, self.http_workers = 0, 1

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        counts = self.counts
        if counts is None:  # when the registry asks for names
            return
        load, drafted, accepted = counts.load, counts.drafted, counts.accepted
        spec = "vllm:spec_decode_num"
        yield self._counter(f"{spec}_drafts", "Drafts: one for each slot and step that had any.", drafted.get(0, 0))
        yield self._counter(f"{spec}_draft_tokens", "Draft tokens.", sum(drafted.values()))
        yield self._counter(f"{spec}_accepted_tokens", "Accepted draft tokens.", sum(accepted.values()))
        positions = {(str(at),): accepted.get(at, 0) for at in range(self._positions)}
        text = "Accepted draft tokens by position; 0 is the first."
        yield self._counters(f"{spec}_accepted_tokens_per_pos", text, ("position",), positions)
        text = "Prompt tokens of requests that were queued, once for each choice."
        yield self._counter("vllm:prompt_tokens", text, self.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Generated tokens.", counts.emitted)
        yield self._gauge("specdec_hal:http_workers", "Processes that serve HTTP.", self.http_workers)
        yield self._counter("vllm:num_preemptions", "Preempted requests.", load.preemptions)
        text = "Tokens looked up in the prefix cache, once per request with a slot."
        yield self._counter("vllm:prefix_cache_queries", text, load.prefix_queries)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", load.prefix_hits)
        ended = {(reason,): count for reason, count in counts.finished.items()}
        yield self._counters("vllm:request_success", "Requests that have ended.", ("finished_reason",), ended)
        yield self._gauge("vllm:num_requests_running", "Running requests.", load.running)
        yield self._gauge("vllm:num_requests_waiting", "Waiting requests.", load.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Used fraction of the KV cache.", load.kv_usage)
        info = GaugeMetricFamily("vllm:cache_config_info", "The KV cache, in labels.", labels=(*LABELS, *self._cache))
        info.add_metric((*self._labels, *self._cache.values()), 1)
        yield info
        text = "Tokens that the model reads in a step: of prompts, last tokens and drafts."
        sizes = HistogramMetricFamily("vllm:iteration_tokens_total", text, labels=LABELS)
        steps = [sum(count for size, count in counts.sizes.items() if size <= power) for power in _POWERS]
        ends = [*map(floatToGoString, (2**power for power in _POWERS)), "+Inf"]
        steps.append(sum(counts.sizes.values()))
        sizes.add_metric(self._labels, list(zip(ends, steps, strict=True)), counts.input_tokens)
        yield sizes
        buckets = {tuple(map(str, bucket)): count for bucket, count in counts.buckets}
        text = "Steps by padded size."
        yield self._counters("specdec_hal:steps", text, ("slots", "tokens", "context"), buckets)
        methods = {(method,): count for method, count in counts.methods.items()}
        text = "Steps by the method that drafts; the label method has the first choice alone."
        yield self._counters("specdec_hal:method_steps", text, ("draft_method",), methods)
        fallbacks = {(op,): count for op, count in counts.fallback_calls.items()}
        yield self._counters("specdec_hal:fallback_calls", "Launches served by a fallback.", ("op",), fallbacks)
        late = {(kind,): count for kind, count in counts.late.items()}
        text = "Plans bound or captured, and kernels compiled, while requests waited."
        yield self._counters("specdec_hal:late_preparations", text, ("kind",), late)
        stages = {(stage,): seconds for stage, seconds in counts.seconds.items()}
        yield self._counters("specdec_hal:stage_seconds", "Seconds by stage of a step.", ("stage",), stages)
        yield self._counter("specdec_hal:failed_steps", "Failed steps that were retried.", counts.failed_steps)
        text = "Failed calls of the proposer."
        yield self._counter("specdec_hal:failed_proposals", text, counts.failed_proposals)
        yield self._counter("specdec_hal:dropped_drafts", "Invalid lists of drafts.", counts.dropped_drafts)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return self._counters(name, text, (), {(): value})

    def _counters(self, name: str, text: str, more: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*LABELS, *more))
        for labels, value in values.items():
            family.add_metric((*self._labels, *labels), value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family
