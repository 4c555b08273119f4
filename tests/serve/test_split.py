"""Two processes: whichever is killed, every client gets its exact tokens or an error, and none hangs."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from specdec_hal.config import parse
from specdec_hal.config.schema import ServeSettings
from specdec_hal.engine.async_engine import EngineInfo, RequestStream
from specdec_hal.errors import EngineDeadError, FrameError, QueueFullError, RequestError, WorkerError
from specdec_hal.runner import ModelRunner, Request, SamplingParams, StreamDelta, TokenLogprobs
from specdec_hal.runner.journal import Journal
from specdec_hal.serve import bodies
from specdec_hal.serve.split import addresses, messages
from specdec_hal.serve.split.engine import EngineProcess
from specdec_hal.serve.split.remote import MAX_DEATHS, RemoteEngine
from specdec_hal.serve.split.supervisor import Supervisor
from specdec_hal.serve.split.text import TextThread
from specdec_hal.serve.stream import FrameWriter
from specdec_hal.serve.stream.channel import FrameSender
from specdec_hal.serve.stream.processor import OutputDelta, RequestSummary
from tests.runner.conftest import make_runner
from tests.serve.conftest import Running, serving
from tests.serve.test_service import reading_nothing
from tests.support.history_model import LetterTokenizer
from tests.support.killing import Server, kill_under_load, split_server
from tests.support.split_server import DEADLY

pytestmark = pytest.mark.anyio
INFO = EngineInfo("reference", 64, [0], "ngram", 3)


def kills(count: int, seed: int, **more: int) -> None:
    outcomes, findings = kill_under_load(count, 4, seed, **more)
    assert not findings
    assert outcomes["whole"] >= count and outcomes.keys() <= {"whole", "connection lost"}, outcomes


def test_each_process_is_killed_under_load() -> None:
    kills(4, 3)


@pytest.mark.slow
def test_processes_are_killed_at_random() -> None:
    kills(4, 2, http_workers=1)


@pytest.mark.slow
def test_a_request_that_kills_engines_is_given_up_and_the_next_is_served() -> None:
    with split_server() as server:
        server.until_ready()
        answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": DEADLY, "max_tokens": 9}, timeout=60)
        assert answer.status_code in (500, 503), answer.text
        server.until_ready()
        body = {"prompt": [1, 2], "max_tokens": 9, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("code", [3, 2, 0])
def test_a_process_that_does_not_start_ends_the_server(code: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 2: it has printed what is wrong with its input."""
    script = "import sys, time; time.sleep(60) if sys.argv[1] != 'engine' else sys.exit(int(sys.argv[2]))"
    status = """
import subprocess, sys
from specdec_hal.serve.split.supervisor import Supervisor
subprocess.Popen(["true"])  # a child that is none of its processes
supervisor = Supervisor(lambda part: [sys.executable, "-c", sys.argv[1], part.name, sys.argv[2]], ())
code = supervisor.run()
assert not supervisor.directory.exists()
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", status, script, str(code)], timeout=60, check=False)
    assert done.returncode == (code or 1)
    said = f"the process 'engine' ends with status {code}; the server ends"
    assert capfd.readouterr().err.splitlines() == ([] if code == 2 else [said])


# ---- the same answers as of one process


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Server, Running]]:
    with split_server() as server, serving(runner={"max_num_seqs": 4}) as running:
        server.until_ready()
        yield server, running


SAMPLED = {"temperature": 0.9, "seed": 5, "max_tokens": 30}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "dfgfgfg", "max_tokens": 40, "return_spans": True, "return_drafts": True},
        {"prompt": [3, 5, 6, 5, 6], "return_token_ids": True, **SAMPLED},
        {"prompt": ["ab", "cde"], "n": 3, "echo": True, **SAMPLED},
        {"prompt": [3, 5, 6, 5, 6], "logprobs": 3, **SAMPLED},
        {"prompt": [[3, 5, 6, 5, 6], [1]], "logprobs": 1, "echo": True, "prompt_logprobs": 2, **SAMPLED},
        {"prompt": [3, 5, 6, 5, 6], "logit_bias": {"5": 2.5, "7": -100}, "prompt_logprobs": 0, "max_tokens": 9},
        {"prompt": [3, 5, 6, 5, 6], "logprobs": 0, "stop": ["g", "qq"], "max_tokens": 40},
        {
            "prompt": [3, 5],
            "stop": ["zzzz"],
            "min_tokens": 4,
            "stop_token_ids": [7],
            "presence_penalty": 0.5,
            **SAMPLED,
        },
        {"prompt": [3, 5, 3], "method": "none", "max_tokens": 9},
        {"prompt": [3, 5, 3], "user": "x" * bodies.LONG, "max_tokens": 9},
        {"messages": [{"role": "user", "content": "a" * 9}], "user": "x" * bodies.LONG, "max_tokens": 9},
        {"prompt": [[3, 5, 6], [1]], "echo": True, "logprobs": 1, "max_tokens": 0},
        {"messages": [{"role": "user", "content": "abab"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 9},
        {"prompt": [99]},
        {"prompt": [1] * 64},
        {"prompt": [1], "model": "other"},
        {"prompt": [1], "method": "mtp"},
    ],
    ids=lambda body: "-".join(body),
)
def test_the_same_answer_as_of_one_process(both: tuple[Server, Running], body: dict[str, Any], stream: bool) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answers = [httpx.post(one.url + path, json={**body, **options}, timeout=60) for one in both]
    assert answers[0].status_code == answers[1].status_code
    first, second = ([comparable(event) for event in events(answer)] for answer in answers)
    assert (merged(first) == merged(second)) if stream else (first == second)
    assert first


def test_the_same_limits_as_of_one_process(both: tuple[Server, Running]) -> None:
    """Heads, hosts, and numbers: a token id of 2^64 was status 500 here, and 70 lines in the log."""
    split, one = both
    long = {"A": "x" * 40_000, "B": "y" * 40_000}
    for url in (split.url, one.url):
        with httpx.Client(base_url=url, timeout=60) as client:
            for ids in ([1 << 64], [[1 << 64]], [1 << 31]):
                answer = client.post("/v1/completions", json={"prompt": ids, "max_tokens": 1})
                assert answer.status_code == 400, answer.text
            assert client.get("/health", headers=long).status_code == 431
            assert client.get("/v1/models", headers={"Host": "evil.com"}).status_code == 400
            many = client.post("/v1/completions", json={"prompt": [1], "n": 100, "max_tokens": 1})
            assert len(many.json()["choices"]) == 100


def test_a_streams_first_event_has_the_log_probabilities_of_its_prompt(both: tuple[Server, Running]) -> None:
    """While the request runs: its process does not wait for them until it ends."""
    body = {"prompt": [[3, 5, 6], [1, 2]], "prompt_logprobs": 1, "stream": True, "max_tokens": 40, "ignore_eos": True}
    for one in both:
        chunks = events(httpx.post(one.url + "/v1/completions", json=body, timeout=60))
        for index in range(2):
            parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
            assert len(parts[0]["prompt_logprobs"]) == 3 - index and parts[0]["finish_reason"] is None
            assert len(parts) > 1 and not any("prompt_logprobs" in part for part in parts[1:])


def test_a_client_that_does_not_read_is_ended() -> None:
    with split_server(send_timeout_s=0.3) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        server.until_ready()

        def counted(metric: str) -> int:
            return sum(int(float(n)) for n in re.findall(f"^vllm:{metric}.* (.*)$", client.get("/metrics").text, re.M))

        with reading_nothing(server.url):
            until(lambda: counted("num_requests_(?:running|waiting)") > 0)
            until(lambda: counted("num_requests_(?:running|waiting)") == 0)
            assert counted('request_success_total.*"cancelled"') > 30
            assert client.post("/v1/completions", json={"prompt": [1], "max_tokens": 1}).status_code == 200


def until(what: Callable[[], bool]) -> None:
    for _ in range(600):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it has not happened within half a minute")


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    if not answer.headers["Content-Type"].startswith("text/event-stream"):
        return [answer.json()]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def comparable(event: dict[str, Any]) -> dict[str, Any]:
    """Without what no two answers have in common. Engine ids are in messages too."""
    text = re.sub(r"(cmpl-|chatcmpl-)(1-)?[0-9a-f]+", "ID", json.dumps({**event, "created": 0}))
    found: dict[str, Any] = json.loads(text)
    return found


def merged(chunks: list[dict[str, Any]]) -> dict[Any, Any]:
    """All of each choice: which steps come together in a chunk depends on the reader."""
    found: dict[Any, Any] = {}
    for chunk in chunks:
        found["usage"] = chunk.get("usage")
        for choice in chunk.get("choices", []):
            flatten(choice, (choice["index"],), found)
    return found


def flatten(value: Any, path: tuple[Any, ...], found: dict[Any, Any]) -> None:
    if isinstance(value, dict) and path[-1] != "top_logprobs":
        for name, part in value.items():
            flatten(part, (*path, name), found)
    elif isinstance(value, (str, list)):
        found[path] = found.get(path, type(value)()) + value
    elif value is not None:
        found[path] = value


def test_health_metrics_and_what_is_aborted(both: tuple[Server, Running]) -> None:
    url = both[0].url
    for path in ("/health", "/ready", "/v1/models"):
        assert httpx.get(url + path).json() == httpx.get(both[1].url + path).json()
    body = {"prompt": [1, 2], "max_tokens": 60, "ignore_eos": True, "stream": True, "n": 2}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        assert httpx.post(f"{url}/abort", json={"request_id": answer.headers["X-Request-Id"]}).status_code == 200
        lines = [line for line in answer.iter_lines() if line]
    ends = [json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"] for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]" and ends.count("abort") == 2
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())  # and goes away
    for _ in range(1000):
        metrics = httpx.get(f"{url}/metrics").text
        (count,) = re.findall(r'request_success_total\{.*finished_reason="cancelled".*\} (\S+)', metrics)
        if float(count) == 4:
            break
    assert float(count) == 4 and 'vllm:num_requests_running{backend="reference"' in metrics


def know_of_each_other(server: Server) -> None:
    """Whichever of them a connection goes to."""
    body = {"prompt": [1, 2], "max_tokens": 6, "ignore_eos": True}
    ids = [httpx.post(f"{server.url}/v1/completions", json=body).json()["id"] for _ in range(40)]
    assert {addresses.owner(one) for one in ids} == {0, 1}
    spent = 0.0
    for _ in range(8):
        metrics = httpx.get(f"{server.url}/metrics").text
        assert re.search(r"specdec_hal:http_workers{.*} 2\.0", metrics), metrics
        before, spent = spent, float(re.findall(r"^process_cpu_seconds_total (\S+)", metrics, re.M)[0])
        assert spent >= before, "a counter, although any process answers"
        for name, count in (("prompt_tokens_total", 80), ("e2e_request_latency_seconds_count", 40)):
            assert re.search(rf"vllm:{name}{{.*}} {count}\.0", metrics), metrics
    body |= {"max_tokens": 60, "stream": True, "method": "none"}  # for long enough
    for _ in range(8):
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            named = {"request_id": answer.headers["X-Request-Id"]}
            assert httpx.post(f"{server.url}/abort", json=named).status_code == 200
            assert '"finish_reason":"abort"' in "".join(answer.iter_lines())
        assert httpx.post(f"{server.url}/abort", json=named).status_code == 404


def test_processes_that_speak_http_know_of_each_other_and_share_the_limit_of_concurrent_requests() -> None:
    """Whichever of them is killed."""
    body = {"prompt": [1, 2], "max_tokens": 60, "ignore_eos": True, "stream": True, "method": "none"}
    with split_server(max_concurrent_requests=2) as server, ExitStack() as held:
        server.until_ready()
        know_of_each_other(server)
        server.slow_down()

        def ask() -> httpx.Response:
            request = httpx.Request("POST", f"{server.url}/v1/completions", json=body)
            return held.enter_context(httpx.Client(timeout=60)).send(request, stream=True)  # a connection of its own

        answers = dict[int, httpx.Response]()
        while answers.keys() != {0, 1}:  # one of each process
            answer = ask()
            assert answer.status_code == 200
            if (owner := addresses.owner(answer.headers["X-Request-Id"])) in answers:
                answer.close()
                server.until_ready()
            else:
                answers[owner] = answer
        for _ in range(12):
            refused = ask()
            assert refused.status_code == 429 and "at most 2 requests" in refused.read().decode()
            assert httpx.get(f"{server.url}/ready").status_code == 503
        server.kill("engine")
        while httpx.get(f"{server.url}/metrics", timeout=60).status_code != 200:  # of the next engine
            pass
        assert ask().status_code == 429  # what HTTP has taken, it still has
        server.kill("http-1")
        server.until_ready()  # with the place of the one that was killed
        assert [ask().status_code for _ in range(2)] == [200, 429]
        answers[0].close()
        server.until_ready()


def test_an_engine_waits_for_every_process_that_speaks_http(tmp_path: Path) -> None:
    engine = EngineProcess(make_runner(), tmp_path, ServeSettings(split=True, http_workers=2), resume=True)
    try:
        for name in ("cmpl-aa-0", "cmpl-1-bb-0"):
            engine.runner.add_request(Request(name, [1, 2]))
        engine.carry_out(messages.Keep([], 0))
        assert [one.request.request_id for one in engine.runner.streams] == ["cmpl-1-bb-0"] and not engine.works
        engine.carry_out(messages.Adopt(1))
        assert not engine.runner.streams
        engine.runner.add_request(Request("cmpl-1-cc-0", [1, 2]))
        assert engine.works
    finally:
        engine.close()


# ---- HTTP's end, without processes


class Sent(list[Any]):
    """Stands in for the way to the engine."""

    send = list.append

    def close(self) -> None:
        pass


Remote = tuple[RemoteEngine, Sent]


@pytest.fixture
async def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Remote]:
    tokenizer: Any = LetterTokenizer()
    sent = Sent()
    monkeypatch.setattr("specdec_hal.serve.split.remote.Outbox", lambda *args: sent)
    engine = RemoteEngine(parse({"serve": {"http_workers": 1}}), tokenizer, tmp_path)
    engine.receive(messages.Hello(INFO, []))
    assert not engine.unready and engine.info == INFO
    yield engine, sent
    engine.close()


async def submitted(engine: RemoteEngine, sent: Sent, *names: str) -> RequestStream:
    """Requests that the engine has queued."""
    waiting = asyncio.create_task(engine.submit([Request(name, [1, 2], SamplingParams(seed=3)) for name in names]))
    await asyncio.sleep(0)
    assert isinstance(sent[-1], messages.Submit) and [asked.request_id for asked in sent[-1].requests] == list(names)
    engine.receive(messages.Queued(sent[-1].number))
    return await waiting


def live(engine: RemoteEngine, sent: Sent, names: str) -> str:
    """Those of these requests that are not over: only they can be aborted."""
    sent.clear()
    for name in names:
        engine.abort(name)
    return "".join(abort.request_id for abort in sent)


def update(name: str, text: str, tokens: int = 0, chars: int = 0, ended: bool = False) -> OutputDelta:
    ids = tuple(LetterTokenizer().encode(text))
    prompt = () if tokens else (None, TokenLogprobs(-1.0, 2, ()))
    delta = StreamDelta(name, ids, (True,) * len(ids), ((text, True),), "length" if ended else None, (), prompt)
    return OutputDelta(delta, tokens, chars, RequestSummary(2, "", (3, 4, 5, 2), 0.5, 1) if ended else None)


async def test_news_may_come_before_the_engine_says_that_it_has_queued_the_request(remote: Remote) -> None:
    engine, sent = remote
    waiting = asyncio.create_task(engine.submit([Request("a", [1, 2])]))
    await asyncio.sleep(0)
    engine.take([update("a", "b")])
    engine.receive(messages.Queued(sent[-1].number))
    assert [delta.text for delta in await (await waiting).read()] == ["b"]


async def test_what_a_new_session_repeats_is_left_out(remote: Remote) -> None:
    engine, sent = remote
    stream = await submitted(engine, sent, "a")
    engine.take([update("a", "bcd")])
    assert [delta.text for delta in await stream.read()] == ["bcd"]
    engine.take([update("a", "bc"), update("a", "defg", 2, 2), update("a", "h", 6, 6, ended=True)])
    assert [(d.text, d.token_ids, d.finish_reason) for d in await stream.read()] == [("efgh", (4, 5, 6, 7), "length")]
    assert await stream.read() == []
    output = stream.outputs["a"]
    assert output.prompt_logprobs == (None, TokenLogprobs(-1.0, 2, ())), "once"
    assert output.text == "bcdefgh" and (output.drafted, output.accepted, output.queue_s) == (4, 5, 0.5)
    assert output.num_cached_tokens == 1
    assert sent[-1] == messages.Release("a", "length")
    engine.take([update("a", "bcdefgh", ended=True)])
    assert sent[-1] == messages.Release("a", "cancelled"), "nobody waits for it any more"


@pytest.mark.parametrize("missing", [update("a", "d", 2, 1), update("a", "d", 1, 2)])
async def test_a_part_that_is_missing_ends_the_request(remote: Remote, missing: OutputDelta) -> None:
    engine, sent = remote
    stream = await submitted(engine, sent, "a")
    engine.take([update("a", "b"), missing])
    (delta,) = await stream.read()
    assert (delta.text, delta.finish_reason) == ("b", "error")
    assert await stream.read() == [] and "missing" in stream.outputs["a"].error
    assert sent[-1] == messages.Release("a", "error")


async def test_a_new_engine_gets_what_was_not_in_the_journal(remote: Remote) -> None:
    engine, sent = remote
    for names in (("a",), ("b", "c")):
        await submitted(engine, sent, *names)
    engine.abort("c")
    waiting = asyncio.create_task(engine.submit([Request("d", [1])]))
    await asyncio.sleep(0)
    sent.clear()
    engine.receive(addresses.Down())
    engine.receive(messages.Hello(INFO, ["a", "ghost", "d"]))
    assert (await waiting).outputs == {}
    keep, submit, abort = sent
    assert keep == messages.Keep(["a", "b", "c", "d"]) and abort == messages.Abort("c")
    assert [asked.request_id for asked in submit.requests] == ["b", "c"]
    assert submit.requests[0].request() == Request("b", [1, 2], SamplingParams(seed=3))
    engine.receive(messages.Refused(submit.number, "too long", None))
    assert live(engine, sent, "abcd") == "ad", "what the new engine refuses has ended"


async def test_a_new_engine_gets_the_seed_that_was_drawn(remote: Remote) -> None:
    engine, sent = remote
    waiting = asyncio.create_task(engine.submit([Request("a", [1, 2], SamplingParams(temperature=1.0))]))
    await asyncio.sleep(0)
    first = sent[-1].requests[0].request()
    engine.receive(messages.Hello(INFO, []))
    second = sent[-1].requests[0].request()
    assert first == second and first.params.seed is not None
    engine.receive(messages.Queued(sent[-1].number))
    stream = await waiting
    engine.take([update("a", "b", ended=True)])
    assert stream.outputs["a"].seed == first.params.seed


async def test_a_request_that_engines_die_of_is_given_up(remote: Remote) -> None:
    engine, sent = remote
    stream = await submitted(engine, sent, "a")
    waiting = asyncio.create_task(engine.submit([Request("b", [1])]))
    await asyncio.sleep(0)
    for _ in range(MAX_DEATHS):
        engine.receive(addresses.Down())
        engine.receive(messages.Hello(INFO, []))
    (delta,) = await stream.read()
    assert delta.finish_reason == "error" and await stream.read() == []
    assert stream.outputs["a"].error == f"{MAX_DEATHS} engines died while they computed it"
    with pytest.raises(EngineDeadError, match="engines died"):
        await waiting
    assert not live(engine, sent, "ab")


# ---- HTTP's text


@dataclass
class Text:
    """A thread that makes text, with a runner at the other end."""

    thread: TextThread
    runner: ModelRunner
    writer: FrameWriter
    sender: FrameSender
    taken: list[bytes]
    """The frames so far."""
    calls: list[list[OutputDelta]]
    """What each call on the event loop brought."""
    attached: asyncio.Event

    async def until_ended(self, name: str) -> list[OutputDelta]:
        while True:
            deltas = [one for call in self.calls for one in call if one.delta.request_id == name]
            if deltas and deltas[-1].ended is not None:
                return deltas
            await asyncio.sleep(0.001)

    def decode(self, *names: str) -> None:
        """Requests of 12 tokens each, all their frames at once."""
        for name in names:
            self.runner.add_request(Request(name, [3, 5, 6], SamplingParams(max_new_tokens=12, bad_token_ids=[0])))
        while self.runner.has_requests:
            self.runner.step()


@pytest.fixture
async def text(tmp_path: Path) -> AsyncIterator[Text]:
    context: Any = zmq.Context()
    calls, attached, tokenizer = list[list[OutputDelta]](), asyncio.Event(), LetterTokenizer()
    settings = ServeSettings(http_workers=2, output_queue=8)
    thread = TextThread(tokenizer, tmp_path, settings, 1, calls.append, attached.set)  # type: ignore[arg-type]
    sender = FrameSender(context, [addresses.endpoint(tmp_path, addresses.frames(1))], 8, drop=True)
    runner, taken = make_runner(), list[bytes]()

    def send(data: bytes) -> bool:
        taken.append(data)
        return sender.send(data)

    yield Text(thread, runner, FrameWriter(runner, send), sender, taken, calls, attached)
    thread.close()
    context.destroy(linger=0)


async def test_frames_become_text_while_the_loop_is_busy(text: Text) -> None:
    """One call brings what has gathered; the requests of other processes are left out."""
    text.decode("cmpl-aa-0", "cmpl-1-aa-0")  # nothing else runs on the loop meanwhile
    deltas = await text.until_ended("cmpl-1-aa-0")
    output = text.runner.take_finished()["cmpl-1-aa-0"]
    whole = StreamDelta.joined([one.delta for one in deltas])
    assert whole.token_ids == output.token_ids and whole.text == LetterTokenizer().decode(list(output.token_ids))
    assert {one.delta.request_id for call in text.calls for one in call} == {"cmpl-1-aa-0"}
    assert len(text.calls) < text.runner.metrics.steps, "several frames come in one call"


async def test_fast_steps_share_a_call(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-overs are some time apart, less with a short queue, which would be full otherwise. The first is at once."""

    class Clock:
        now, slept = 100.0, list[float]()

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)

    monkeypatch.setattr("specdec_hal.serve.split.text.time", clock := Clock())
    for at, waits in enumerate((False, True, False)):
        clock.slept.clear()
        text.writer.begin()
        text.runner.add_request(Request(f"cmpl-1-{at}a-0", [3, 5, 6], SamplingParams(max_new_tokens=1)))
        while text.runner.has_requests:
            text.runner.step()
        text.writer.flush()
        await text.until_ended(f"cmpl-1-{at}a-0")
        assert clock.slept == pytest.approx([8e-4] * waits)
        clock.now += 1.0 * waits


async def test_a_loop_that_takes_nothing_fills_the_queue(text: Text) -> None:
    """So that the engine waits, or drops, instead of memory growing here."""
    text.decode("cmpl-1-aa-0")
    frame = text.taken[0]  # a session's first, which may come again
    while text.sender.send(frame):
        text.taken.append(frame)
        assert len(text.taken) < 1000
        time.sleep(1e-3)
    assert not text.calls


async def test_frames_out_of_order_ask_for_a_session(text: Text) -> None:
    text.decode("cmpl-1-aa-0")
    await text.until_ended("cmpl-1-aa-0")
    text.calls.clear()
    text.sender.send(b"not a frame")
    await text.attached.wait()
    text.writer.begin()
    text.writer.flush()
    (again,) = await text.until_ended("cmpl-1-aa-0")
    assert (again.token_start, again.char_start) == (0, 0) and len(again.delta.token_ids) == 12


async def test_refusals(remote: Remote) -> None:
    engine, sent = remote
    for late, kind in ((None, RequestError), (2.5, QueueFullError)):
        waiting = asyncio.create_task(engine.submit([Request("a", [99])]))
        await asyncio.sleep(0)
        engine.receive(messages.Refused(sent[-1].number, "token 99 is outside", late))
        with pytest.raises(kind, match="token 99 is outside"):
            await waiting
        assert not live(engine, sent, "a")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xa5hello", b"\x92\xa6submit\x01"])
def test_what_is_no_message(data: bytes) -> None:
    for decode, what in ((messages.for_engine, "to the engine"), (messages.for_http, "to HTTP")):
        with pytest.raises(FrameError, match=f"expected a message {what}, got {len(data)} bytes"):
            decode(data)


def test_an_engine_has_a_journal_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Journal]()

    def make(*args: Any) -> Journal:
        made.append(Journal(*args))
        return made[-1]

    monkeypatch.setattr("specdec_hal.runner.journal.Journal", make)
    for resume in (False, True):
        engine = EngineProcess(make_runner(), tmp_path, ServeSettings(http_workers=1), resume=resume)
        try:
            if not resume:
                engine.runner.add_request(Request("a", [1, 2], SamplingParams(max_new_tokens=30, bad_token_ids=[0])))
                engine.runner.step()
                made[0].step(engine.runner.snapshot)
            (stream,) = engine.runner.streams
            assert stream.request.request_id == "a" and len(stream.token_ids) == 1
        finally:
            engine.close()


async def test_deadlines_count_from_the_arrival_in_http(remote: Remote, tmp_path: Path) -> None:
    http, sent = remote
    waiting = asyncio.create_task(http.submit([Request("a", [1, 2])]))
    await asyncio.sleep(0)
    submit = sent[-1]
    http.receive(messages.Hello(INFO, []))  # of an engine that did not take it before it died
    assert sent[-1] == submit
    await asyncio.sleep(0.3)
    engine = EngineProcess(
        make_runner(runner={"queue_timeout_s": 0.2}), tmp_path, ServeSettings(http_workers=1), resume=False
    )
    try:
        engine.carry_out(messages.for_engine(addresses.encode(submit)))
        engine.runner.step()
        (output,) = engine.runner.take_finished().values()
        assert (output.finish_reason, output.token_ids) == ("timeout", ())
        assert engine.runner.metrics.steps == 0
    finally:
        engine.close()
    waiting.cancel()


def test_an_engine_that_resumes_computes_nothing_before_it_knows_who_waits(tmp_path: Path) -> None:
    """Otherwise a request that kills engines would kill each of them, long after its client got an error."""
    path = tmp_path / "journal"
    runner = make_runner(runner={"journal": str(path), "journal_interval": 1})
    for name in "ab":
        runner.add_request(Request(name, [1, 2], SamplingParams(max_new_tokens=30, bad_token_ids=[0])))
    for _ in range(3):
        runner.step()
    resumed = make_runner(runner={"journal": str(path)})
    engine = EngineProcess(resumed, tmp_path, ServeSettings(http_workers=1), resume=True)
    try:
        assert [stream.request.request_id for stream in resumed.streams] == ["a", "b"] and not engine.works
        engine.carry_out(messages.Keep(["b", "not yet here"]))
        assert [stream.request.request_id for stream in resumed.streams] == ["b"] and engine.works
        engine.carry_out(messages.Release("b", "error"))
        assert not resumed.streams and not engine.works
        assert resumed.metrics.requests == {"cancelled": 1, "error": 1}
    finally:
        engine.close()


def test_the_sockets_are_nobody_else_s() -> None:
    directory = Supervisor(lambda part: [part.name], ()).directory
    assert directory.stat().st_mode & 0o077 == 0
    directory.rmdir()


async def test_an_engine_that_does_not_answer_is_not_ready(remote: Remote) -> None:
    engine, sent = remote
    watching = asyncio.create_task(engine.watch(0.02))
    while not engine.unready:
        await asyncio.sleep(0.01)
    assert engine.unready == "a step has not returned for 0.02 s (runner.watchdog_s)"
    while engine.unready:
        engine.receive(messages.CountsAre(sent[-1].number, make_runner().counts()))
        await asyncio.sleep(0.001)
    watching.cancel()


async def test_a_helper_that_is_killed_in_the_engine_is_no_refusal(remote: Remote) -> None:
    engine, sent = remote
    waiting = asyncio.create_task(engine.submit([Request("a", [1, 2], SamplingParams(seed=3))]))
    await asyncio.sleep(0)
    engine.receive(messages.Refused(sent[-1].number, "it was killed", None, True))
    with pytest.raises(WorkerError, match="it was killed"):
        await waiting
