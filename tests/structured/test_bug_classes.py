"""Where grammars and drafts broke in public engines: a test for each class of fault."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.config.schema import ServeSettings, StructuredOutput
from specdec_hal.engine import AsyncEngine
from specdec_hal.errors import RequestError
from specdec_hal.runner import Request, SamplingParams
from specdec_hal.serve.split import messages
from specdec_hal.serve.split.engine import EngineProcess
from specdec_hal.structured.backend import GrammarBackend, GrammarFailedError, Vocabulary
from specdec_hal.structured.llguidance import LLGuidance
from specdec_hal.structured.state import GrammarState
from tests.runner.conftest import make_runner
from tests.structured.conftest import BYTES, END, PADDED, PERSON, SPECIAL, xgrammar
from tests.support.decoding import plain_decoding
from tests.support.history_model import DeviceHistoryModel, HistoryModel, LetterTokenizer
from tests.support.sessions import params

ROOT = Path(__file__).parents[2]


def state_of(backend: GrammarBackend, text: str, **wanted: Any) -> GrammarState:
    """After a text."""
    wanted = wanted or {"json_schema": PERSON}
    matcher, words = backend.compile(StructuredOutput(**wanted)).matcher(), -(-BYTES.size // 32)
    state = GrammarState(matcher, None, words, frozenset(BYTES.end_ids), lambda position, text: True)
    assert state.commit(list(text.encode()))
    return state


def masks_of(state: GrammarState, drafts: list[int]) -> list[set[int]]:
    """What each row of a step allows; rows without a mask are missing at the end."""
    rows: list[NDArray[np.int32]] = []

    def row(at: int) -> NDArray[np.int32]:
        assert at == len(rows)
        rows.append(np.full(-(-BYTES.size // 32), -1, np.int32))
        return rows[at]

    state.fill(drafts, row)
    bits = [np.unpackbits(one.view(np.uint8), bitorder="little")[: BYTES.size] for one in rows]
    return [set(np.flatnonzero(one).tolist()) for one in bits]


def test_drafts_end_with_the_text(backend: GrammarBackend) -> None:
    state = state_of(backend, '{"name": "x", "age": 3')
    before = masks_of(state, [])
    drafts = [ord("1"), ord("}"), END]
    for after in ([], [END], [ord("a")], [*b'{"name"']):
        assert state.plan([*drafts, *after], 16, forced=False) == drafts
    allowed = masks_of(state, drafts)
    assert len(allowed) == 3 and allowed[0] == before[0] and allowed[2] == set(BYTES.end_ids)
    assert masks_of(state, []) == before, "rolled back over the end token"
    tokens = [*b'{"name": "x", "age": 3}', END]
    assert state.commit(tokens) and masks_of(state, []) == [] and state.plan([ord("a")], 4, forced=True) == []
    with pytest.raises(GrammarFailedError, match="refuses token 97"):
        state.commit([*tokens, ord("a")])


@pytest.mark.parametrize("wrong", [-1, ord("x"), END, SPECIAL, PADDED, 5000])
def test_drafts_are_cut_at_the_first_that_is_refused(backend: GrammarBackend, wrong: int) -> None:
    state = state_of(backend, '{"name": "x", "age": ')
    before = masks_of(state, [])
    for right in ([], [ord("1")], [ord("1"), ord("2")]):
        drafts = [*right, wrong, ord("3"), ord("}")]
        assert state.plan(drafts, 8, forced=False) == right
        assert len(masks_of(state, drafts)) == 1 + len(right), "no mask after the one that refuses it"
    assert masks_of(state, []) == before


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"choice": ["😀", "🎉", "👍"]}, "🎉"),
        ({"json_schema": {"enum": ["日本語", "日曜"]}}, '"日曜"'),
        ({"regex": "é+🎉"}, "éé🎉"),
    ],
)
def test_what_is_forced_may_be_a_part_of_a_character(backend: GrammarBackend, wanted: Any, text: str) -> None:
    state, count = state_of(backend, "", **wanted), 0
    for at in range(len(text.encode())):
        assert state.commit(list(text.encode()[:at]))
        drafts = state.plan([], 8, forced=True)
        allowed = masks_of(state, drafts)
        assert [{draft} for draft in drafts] == allowed[: len(drafts)], "nothing else is allowed"
        count += len(drafts)
    assert count or backend.name == "xgrammar"


@pytest.mark.parametrize("make", [LLGuidance, pytest.param(xgrammar, marks=pytest.mark.torch)])
def test_a_step_costs_the_same_however_long_the_forced_text_is(make: Callable[[Vocabulary], GrammarBackend]) -> None:
    asked = list[str]()

    def encode(text: str) -> list[int]:
        asked.append(text)
        return list(text.encode())

    backend = make(replace(BYTES, encode=encode))
    state = state_of(backend, "", regex="a{200000}")
    asked.clear()  # by its trial
    for at in range(20):
        assert state.commit([ord("a")] * at) and state.plan([ord("b")], 4, forced=True) == [ord("a")] * 4
    assert max(map(len, asked)) < 100
    itself = {"json_schema": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}}
    if backend.name == "llguidance":
        for wanted in ({"regex": "a{1000000}"}, itself):
            with pytest.raises(RequestError, match=r"refuses it: .*[Tt]oo many [^<]*$"):
                state_of(backend, "", **wanted)
    else:
        assert state_of(backend, "", **itself).plan([], 9, forced=True) == [*b'{"a": {"a']


def test_the_last_token_of_a_cut_text_is_not_drafted() -> None:
    """The rest of the text may belong to it."""
    long, short = len(BYTES.tokens), len(BYTES.tokens) + 1

    def encode(text: str) -> list[int]:
        return [long] * (len(text) // 20) + [short] * (len(text) % 20 // 12)

    vocabulary = replace(BYTES, tokens=[*BYTES.tokens, b"a" * 20, b"a" * 12], encode=encode)
    assert vocabulary.begun(b"a" * 20, 2) == [long]
    assert vocabulary.begun(b"a" * 12, 2) == [short]
    assert vocabulary.begun(b"a" * 32, 2) == vocabulary.begun(b"a" * 40, 2) == [long]


def test_what_is_forced_does_not_depend_on_earlier_drafts(backend: GrammarBackend) -> None:
    grammar, choose = backend.compile(StructuredOutput(regex="((ab|ac)d{30}(x|y)z{20})*")), random.Random(1)
    matcher, tokens, most = grammar.matcher(), list[int](), 0
    for _ in range(300):
        fresh = grammar.matcher()
        assert all(map(fresh.advance, tokens))
        room = choose.randrange(1, 9)
        assert matcher.forced(room) == fresh.forced(room)
        back = choose.randrange(1 + min(len(tokens), choose.choice([0, 0, 3, 40])))
        matcher.rollback(back)
        del tokens[len(tokens) - back :]
        for token in [*matcher.forced(8)][: choose.randrange(9)] or choose.choices(b"abcdxyz", k=20):
            if matcher.advance(token):
                tokens.append(token)
        most = max(most, len(tokens))
    assert most > 60


@pytest.mark.parametrize("device", [False, True])
def test_lengths_that_adapt_change_nothing(device: bool) -> None:
    runner = make_runner(
        model=DeviceHistoryModel() if device else HistoryModel(),
        speculative={"method": "ngram", "num_speculative_tokens": 6, "adaptive": True},
        runner={"max_num_seqs": 3},
    )
    wanted = {"structured": {"regex": "(bcdef|bcd|fed)+"}, "return_drafts": True}
    requests = [Request(str(seed), [2, 3, 4] * 3, params(seed, **(wanted if seed % 3 else {}))) for seed in range(9)]
    for request in requests:
        runner.add_request(request)
    outputs, lens = runner.run(), set[int]()
    for request in requests:
        output = outputs[request.request_id]
        assert list(output.token_ids) == plain_decoding(list(request.prompt_token_ids), request.params).tokens
        lens |= {len(drafts.token_ids) for drafts in output.drafts}
    assert len(lens) > 2


class Gate:
    """Grammars that are compiled when the test lets them."""

    def __init__(self, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.open, compiled = threading.Event(), threading.Event(), runner.compile_grammars

        def compile_grammars(requests: Any) -> Any:
            self.begun.set()
            assert self.open.wait(60)
            return compiled(requests)

        monkeypatch.setattr(runner, "compile_grammars", compile_grammars)


def test_who_gives_up_while_it_compiles_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse({"backend": {"name": "reference"}, "structured": {"backend": "llguidance"}})

    async def work() -> None:
        async with AsyncEngine(HistoryModel(), config, tokenizer=LetterTokenizer()) as engine:  # type: ignore[arg-type]
            gate = Gate(engine.runner, monkeypatch)
            asked = asyncio.ensure_future(engine.submit([Request("a", [1, 2], params(1))]))
            await asyncio.to_thread(gate.begun.wait, 60)
            plain = [delta async for delta in engine.generate([1, 2], SamplingParams(max_new_tokens=3, seed=1))]
            assert plain[-1].finish_reason == "length", "others do not wait"
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            gate.open.set()
            again = await engine.submit([Request("a", [1, 2], params(1))])
            while await again.read():
                pass
            assert again.outputs["a"].finish_reason == "stop"
            assert not engine.runner.has_requests and engine.runner.metrics.requests["cancelled"] == 0

    asyncio.run(work())


@pytest.mark.parametrize("wrong", [False, True])
def test_the_process_of_an_engine_hears_an_abort_while_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    sent = list[Any]()
    monkeypatch.setattr("specdec_hal.serve.split.engine.Outbox", lambda *args: SimpleNamespace(send=sent.append))
    engine = EngineProcess(make_runner(), tmp_path, ServeSettings(split=True), resume=False)
    try:
        gate = Gate(engine.runner, monkeypatch)
        wanted = {"structured": {"regex": "("}} if wrong else {}
        engine.carry_out(messages.Submit(7, [messages.SubmittedRequest.of(Request("a", [1, 2], params(1, **wanted)))]))
        engine.carry_out(messages.Abort("a"))
        gate.open.set()
        engine.submit_compiled(60)
        (answer,) = sent
        assert isinstance(answer, messages.Refused if wrong else messages.Queued)
        assert not engine.runner.has_requests and engine.runner.metrics.requests == ({} if wrong else {"cancelled": 1})
        engine.carry_out(messages.Release("a", "cancelled"))
        engine.carry_out(messages.Submit(8, [messages.SubmittedRequest.of(Request("a", [1, 2], params(1)))]))
        engine.submit_compiled(60)
        assert engine.runner.has_requests, "it is another request"
    finally:
        engine.close()


EMBEDDED = ["model.framework=transformers", "structured.backend=llguidance", "speculative.num_speculative_tokens=3"]
ASKED: list[dict[str, Any]] = [
    {"structured": {"json_schema": PERSON}},
    {},
    {"structured": {"json_schema": {"type": "array", "items": {"enum": ["red", "green"]}}}, "temperature": 0.9},
    {"structured": {"regex": "(return|yield) [a-z_]{3,9}"}, "temperature": 0.9},
]


def decoded(runner: Any) -> dict[str, Any]:
    for number, keys in enumerate(ASKED):
        prompt = runner.tokenizer.encode("def colours(person):\n    return ")
        runner.add_request(Request(str(number), prompt, SamplingParams(max_new_tokens=32, seed=number, **keys)))
    return {name: list(output.token_ids) for name, output in runner.run().items()}


@pytest.fixture(scope="module")
def embedded() -> tuple[Any, Any, dict[str, Any]]:
    """The embedded model, its tokenizer, and what plain decoding makes of requests with a grammar and without."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    runner = sd.load(ROOT / "configs/reference.yaml", EMBEDDED).naive().runner()
    return runner.model, runner.tokenizer, decoded(runner)


@pytest.mark.torch
@pytest.mark.parametrize("method", ["suffix", "draft_model", "mtp", "hybrid", "eagle3", "dflash"])
def test_every_method_says_what_plain_decoding_says(embedded: tuple[Any, Any, dict[str, Any]], method: str) -> None:
    model, tokenizer, plain = embedded
    path = {"eagle3": "tiny-py-lm-eagle3", "dflash": "tiny-py-lm-dflash"}.get(method)
    keys = [
        f"speculative.method={method}",
        "speculative.adaptive=false",
        *([f"speculative.path={ROOT / 'models' / path}"] if path else []),
    ]
    runner = sd.load(ROOT / "configs/reference.yaml", [*EMBEDDED, *keys]).runner(model=model, tokenizer=tokenizer)
    assert decoded(runner) == plain and runner.summary()["accepted_tokens"] > 12
