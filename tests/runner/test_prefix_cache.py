"""Requests share the KV blocks of equal beginnings: same tokens, same acceptance, and less is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import ConfigError, RequestError
from specdec_hal.plugin.model import ModelCapabilities, ModelConfig
from specdec_hal.proposers.mtp import MTPProposer
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner, journal
from specdec_hal.runner.blocks import BlockPool, PrefixStates, block_keys
from tests.proposers.conftest import registry_with_draft_model, settings_of
from tests.support.decoding import outputs_of, plain_decoding, scored_prompt
from tests.support.history_model import VOCABULARY, DeviceHistoryModel, HistoryModel

BLOCK = 4


def make(method: str = "ngram", k: int = 3, *, model: DeviceHistoryModel | None = None, **sizes: Any) -> ModelRunner:
    target = model or DeviceHistoryModel()

    def imitator() -> DeviceHistoryModel:
        target.module = DeviceHistoryModel()
        return target.module

    registry = registry_with_draft_model(imitator)
    speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": k, "adaptive": False}
    if method != "naive" and (section := settings_of(method)):
        speculative[method] = section
    runner = {"max_num_seqs": 3, "prefill_chunk": 9, "block_size": BLOCK, "overlap": False, **sizes}
    config = parse({"runner": runner, "speculative": speculative}, registry=registry)
    return build_runner(config, ReferenceBackend(), target, registry=registry)


class Blocks:
    """Holds the blocks of a runner against the texts that its requests have had."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.pool = runner, runner.scheduler.pool
        self.lookahead = runner.proposer.cache_lookahead or 0
        self.texts: dict[bytes, list[int]] = {}
        self.found = 0

    def check(self) -> None:
        pool, scheduler = self.pool, self.runner.scheduler
        assert pool is not None
        used = Counter(block for sequence in scheduler.sequences for block in sequence.blocks)
        assert len(used) + pool.free == pool.num_blocks and not pool.idle(used)
        for slot, sequence in scheduler.running.items():
            table = self.runner.state.schedule.host["block_tables"][slot]
            assert table[: len(sequence.blocks)].tolist() == sequence.blocks
        for sequence in self.runner.streams:
            text = [*sequence.request.prompt_token_ids, *sequence.token_ids]
            salt = sequence.request.params.cache_salt
            keys = keys_of(text, self.lookahead, salt)
            for at, key in enumerate(keys):
                self.texts[key] = text[: (at + 1) * BLOCK + self.lookahead]
        model: Any = self.runner.model
        for key, text in self.texts.items():
            for block in pool.find([key], False):
                end = len(text) - self.lookahead
                assert model.cache[block].tolist() == text[end - BLOCK : end]
            for block in pool.find([key], True) if model.module else ():  # each of its rows goes with a token
                start, end = end - BLOCK + self.lookahead, end + self.lookahead
                assert model.module.cache[block].tolist() == text[start:end]
                self.found += 1


def random_request(rng: np.random.Generator, texts: list[list[int]], number: int) -> Request:
    """One whose prompt begins as one of `texts`, often at a border of blocks."""
    begun = texts[rng.integers(len(texts))]
    cut = int(rng.integers(len(begun) + 1)) if rng.random() < 0.4 else len(begun) // BLOCK * BLOCK
    prompt = (begun[:cut] + rng.integers(1, VOCABULARY, rng.integers(1, 7)).tolist())[-44:]
    some = lambda value, default, share=0.2: value if rng.random() < share else default  # noqa: E731
    params = SamplingParams(
        temperature=some(0.8, 0.0, 0.5), seed=number, max_new_tokens=int(rng.integers(1, 16)),
        num_speculative_tokens=some(int(rng.integers(0, 2)), None), logprobs=some(1, None),
        prompt_logprobs=some(0, None, 0.1), repetition_penalty=some(1.3, 1.0),
        stop_token_ids=some([int(rng.integers(1, VOCABULARY))], []), cache_salt=some("salt", None),
    )  # fmt: skip
    return Request(str(number), prompt, params)


@pytest.mark.parametrize(("method", "k"), [("ngram", 3), ("mtp", 1), ("mtp", 3), ("imitation", 2), ("hybrid", 4)])
@pytest.mark.parametrize("overlap", [False, True])
def test_random_interleavings(method: str, k: int, overlap: bool) -> None:
    """Arrivals, cancellations, failed steps and too few blocks: tokens are those of plain decoding, and every block
    that can be found holds its text."""
    rng = np.random.default_rng([k, overlap])
    model = DeviceHistoryModel()
    runner = make(method, k, model=model, num_kv_blocks=18, overlap=overlap)
    blocks = Blocks(runner)
    texts = [rng.integers(1, VOCABULARY, 30).tolist() for _ in range(2)]
    asked: dict[str, Request] = {}
    cancelled = set[str]()
    while len(asked) < 30 or runner.has_requests:
        for _ in range(rng.integers(0, 3) if len(asked) < 30 else 0):
            request = random_request(rng, texts, len(asked))
            asked[request.request_id] = request
            runner.add_request(request)
        if rng.random() < 0.03 and runner.bisection.on_trial is None:
            model.failures.append(OSError("injected"))
        runner.step()
        blocks.check()
        if rng.random() < 0.03 and runner.cancel(name := str(rng.integers(len(asked)))):
            cancelled.add(name)
        for sequence in [one for one in runner.streams if one.finish_reason]:  # what a chat goes on with
            texts.append([*sequence.request.prompt_token_ids, *sequence.token_ids][-40:])
    outputs, summary = runner.take_finished(), runner.summary()
    assert summary["prefix_cache_hits"] > 40 and summary["failed_proposals"] == 0 and summary["preemptions"] > 0
    assert blocks.found > 40 or method == "ngram"
    for name, request in asked.items():
        output, wanted = outputs[name], plain_decoding(list(request.prompt_token_ids), request.params)
        if output.finish_reason == "error":  # failed alone twice
            continue
        count = len(output.token_ids) if name in cancelled else None
        assert list(output.token_ids) == wanted.tokens[:count], name
        if not cancelled:
            assert output.prompt_logprobs == scored_prompt(
                list(request.prompt_token_ids), request.params.prompt_logprobs
            )


@pytest.mark.parametrize(("method", "k"), [("mtp", 1), ("mtp", 3), ("imitation", 3)])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("before", "common"),
    [({"num_speculative_tokens": 0}, 0), ({"max_new_tokens": 1}, 0), ({"max_new_tokens": 2}, 16), ({}, 24)],
)
def test_drafts_after_a_found_prefix_are_those_without(
    method: str, k: int, overlap: bool, before: Any, common: int
) -> None:
    """A drafter that is always right is always accepted, also after a request that it has not read, or not to its end.

    An MTP module's last row of a block goes with the first token after it.
    """
    shared = [(5 * i * i + i) % 23 + 1 for i in range(24)]
    first = SamplingParams(**{"max_new_tokens": 9, "bad_token_ids": [0], **before})
    params = SamplingParams(max_new_tokens=20, bad_token_ids=[0])
    found = []
    for cached in (False, True):
        runner = make(method, k, overlap=overlap, enable_prefix_caching=cached)
        (earlier,) = outputs_of(runner, ([*shared, 7], first))
        found.append(outputs_of(runner, ([*shared, 8, 9], params), ([*shared, 7, *earlier.token_ids, 3], params)))
    for plain, after in zip(*found, strict=True):
        assert plain == after and after.accepted == after.drafted > 0
        assert plain.num_cached_tokens == 0
    one, other = found[1]
    assert one.num_cached_tokens == common - (BLOCK if common == 24 and method == "mtp" else 0)
    assert other.num_cached_tokens == (28 if common == 24 else common)  # its last step fed the drafter nothing


def test_the_tenth_turn_of_a_chat_computes_its_new_tokens() -> None:
    class Long(DeviceHistoryModel):
        config = ModelConfig(vocab_size=VOCABULARY, hidden_size=VOCABULARY + 1, max_position_embeddings=400)

    rng, computed = np.random.default_rng(0), {}
    for cached in (False, True):
        runner, text = make("naive", 0, model=Long(), enable_prefix_caching=cached), list[int]()
        for turn in range(10):
            text += rng.integers(1, VOCABULARY, 20).tolist() if turn else list(range(1, 21))
            before = runner.summary()["input_tokens"]
            (output,) = outputs_of(runner, (text, SamplingParams(max_new_tokens=12)))
            text += output.token_ids
            computed[cached] = runner.summary()["input_tokens"] - before
        assert output.num_cached_tokens == (len(text) - 20 - 12 - 1) // BLOCK * BLOCK * cached
    assert computed[False] == len(text) - 1 and computed[True] <= 1.2 * (20 + 12)
    assert runner.counts().load.prefix_hits > 0.8 * runner.counts().load.prefix_queries


def test_who_shares_with_whom() -> None:
    prompt, runner = list(range(1, 18)), make("naive", 0)
    for expected, more in (
        (0, {}), (16, {}), (0, {"cache_salt": "a"}), (16, {"cache_salt": "a"}), (0, {"cache_salt": "b"}),
        (0, {"prompt_logprobs": 0}), (16, {}),
    ):  # fmt: skip
        (output,) = outputs_of(runner, (prompt, SamplingParams(max_new_tokens=2, **more)))
        assert output.num_cached_tokens == expected
    (output,) = outputs_of(runner, (prompt[:16], SamplingParams()))  # its last token is computed
    assert output.num_cached_tokens == 12
    assert runner.summary()["prefix_cache_queries"] == 6 * 17 + 16
    runner.forget()
    (output,) = outputs_of(runner, (prompt, SamplingParams()))
    assert output.num_cached_tokens == 0


def test_what_has_failed_is_not_found_again() -> None:
    prompt, model = list(range(1, 18)), DeviceHistoryModel()
    model.poisoned.add(17)
    runner = make("naive", 0, model=model)
    for _ in range(2):
        (output,) = outputs_of(runner, (prompt, SamplingParams()))
        assert (output.finish_reason, output.num_cached_tokens) == ("error", 0)


def test_a_drafter_with_rows_elsewhere_reads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MTPProposer, "cache_lookahead", None)
    prompt, runner = list(range(1, 18)), make("mtp", 2)
    for expected, most in ((0, None), (0, None), (16, 0)):
        (output,) = outputs_of(runner, (prompt, SamplingParams(num_speculative_tokens=most)))
        assert output.num_cached_tokens == expected and output.accepted == output.drafted


def test_a_proposer_that_fails_leaves_no_rows(caplog: pytest.LogCaptureFixture) -> None:
    prompt, runner = [*range(1, 21)], make("mtp", 2)
    module: Any = runner.model.module  # type: ignore[attr-defined]
    forward = module.forward_device

    def fail(*args: Any) -> None:
        module.forward_device = forward
        raise MemoryError("injected")

    module.forward_device = fail
    params = SamplingParams(max_new_tokens=8, bad_token_ids=[0])
    outputs_of(runner, (prompt, params))
    failed = runner.summary()["failed_proposals"]
    (output,) = outputs_of(runner, (prompt, params))
    assert output.num_cached_tokens == 0 and output.accepted == output.drafted > 0
    assert runner.summary()["failed_proposals"] == failed > 0 and "injected" in caplog.text


def test_requests_that_are_not_fed_leave_no_rows() -> None:
    """They find all blocks; those that are fed later find only blocks with rows."""
    runner = make("mtp")
    params, text = SamplingParams(max_new_tokens=12), [3, 5, 6, 7] * 6
    (plain,) = outputs_of(make("naive"), (text, params))

    def decoded(feeds: bool) -> tuple[int, list[int]]:
        runner.scheduler.feed(feeds)
        (output,) = outputs_of(runner, (text, params))
        return output.num_cached_tokens, list(output.token_ids)

    cached = [decoded(feeds) for feeds in (False, False, True, True)]
    assert [count for count, _ in cached] == [0, 24 - BLOCK, 0, 24 - BLOCK]
    assert all(tokens == list(plain.token_ids) for _, tokens in cached)


def test_a_restart_goes_on_with_the_same_tokens(tmp_path: Path) -> None:
    prompts = [[*range(1, 18), extra] for extra in range(3)]
    asked = [(prompt, SamplingParams(max_new_tokens=20, bad_token_ids=[0], cache_salt="s")) for prompt in prompts]
    file = tmp_path / "journal"
    runner = make("mtp", 2, max_num_seqs=1)
    for number, (prompt, params) in enumerate(asked):
        runner.add_request(Request(str(number), prompt, params))
    while sum(bool(one.finish_reason) for one in runner.streams) < 2 or not runner.scheduler.running:
        runner.step()
    runner.step()
    journal.write(file, runner.snapshot())
    restarted = make("mtp", 2, max_num_seqs=1)
    restarted.restore(journal.read(file))
    outputs = restarted.run()
    (more,) = outputs_of(restarted, asked[2])
    assert more.num_cached_tokens == 16
    for number, (prompt, params) in enumerate(asked):
        assert list(outputs[str(number)].token_ids) == plain_decoding(prompt, params).tokens


def test_where_it_is_on() -> None:
    class Unstable(DeviceHistoryModel):
        capabilities = ModelCapabilities(device_lengths=True, static_shapes=True)

    for model, wanted, on in (
        (DeviceHistoryModel(), None, True), (DeviceHistoryModel(), False, False), (Unstable(), None, False),
        (Unstable(), True, True), (HistoryModel(), None, False),
    ):  # fmt: skip
        runner = make(model=model, enable_prefix_caching=wanted)  # type: ignore[arg-type]
        prompt = list(range(1, 18)), SamplingParams(max_new_tokens=1)
        assert [bool(outputs_of(runner, prompt)[0].num_cached_tokens) for _ in range(2)] == [False, on]
    with pytest.raises(
        ConfigError, match=r"runner\.enable_prefix_caching: expected false for a model that keeps no KV"
    ):
        make(model=HistoryModel(), enable_prefix_caching=True)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cache_salt"):
        SamplingParams(cache_salt="")


def keys_of(
    text: Iterable[int], lookahead: int = 0, salt: str | None = None, keys: list[bytes] | None = None
) -> list[bytes]:
    tokens, made = np.array([*text, -7], np.int64), keys or []
    block_keys(made, tokens, len(tokens) - 1, BLOCK, lookahead, salt)
    return made


def test_keys_are_of_all_tokens_before() -> None:
    text = list(range(1, 14))
    assert len(keys_of(text)) == len(keys_of(text, 1)) == 3 and len(keys_of(text[:12], 1)) == 2
    for at in range(12):
        changed = [*text[:at], 99, *text[at + 1 :]]
        for lookahead in (0, 1):
            same = [a == b for a, b in zip(keys_of(text, lookahead), keys_of(changed, lookahead), strict=True)]
            assert same == [at >= (block + 1) * BLOCK + lookahead for block in range(3)]
    for lookahead in (0, 1):
        grown = keys_of(text[:6], lookahead)
        assert keys_of(text, lookahead, keys=grown) == keys_of(text, lookahead)
    assert not {*keys_of(text)} & {*keys_of(text, salt="")} and keys_of(text, salt="a") != keys_of(text, salt="b")


def test_the_block_that_was_used_longest_ago_makes_way() -> None:
    pool = BlockPool(4, BLOCK)
    texts = keys_of(range(4)) + keys_of(range(4, 8))
    blocks = list[list[int]]()
    for key in texts:
        blocks.append([])
        assert pool.extend(blocks[-1], BLOCK)
        pool.register(blocks[-1][0], key, True)
        pool.release(blocks[-1])
    assert pool.free == 4
    pool.share(found := pool.find(texts[:1], True))  # now the other one is older
    pool.release(found)
    assert pool.extend(taken := [], 3 * BLOCK) and not pool.extend(taken, 5 * BLOCK)  # unknown ones are taken first
    assert [len(pool.find([key], True)) for key in texts] == [1, 0]


def test_states_of_prefixes() -> None:
    """The longest prefix with a known state is found; the least recently used one is replaced."""
    states, keys = PrefixStates(2, lambda rows: rows > 3), [b"a", b"b", b"c", b"d"]
    assert states.longest(keys) == 0 and states.keeps(4) and not states.keeps(3)
    assert [states.add(b"b"), states.add(b"c"), states.add(b"b")] == [0, 1, None]
    assert [states.longest(keys[:n]) for n in (1, 2, 3, 4)] == [0, 2, 3, 3]
    assert states.find(b"b") == 0  # so c goes first
    assert states.add(b"d") == 1
    assert [states.longest(keys[:n]) for n in (2, 3, 4)] == [2, 2, 4]
    states.reset()
    assert states.longest(keys) == 0 and states.add(b"x") == 0
    assert PrefixStates(0, lambda rows: True).add(b"x") is None
