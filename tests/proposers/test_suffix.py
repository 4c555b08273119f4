"""The counts after suffix drafts, against a search of all texts; the cache of earlier responses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import RequestError
from specdec_hal.proposers.suffix import SuffixCounts
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from tests.runner.conftest import make_runner
from tests.support.decoding import outputs_of, plain_decoding
from tests.support.history_model import HistoryModel

DEPTH = 3
texts = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=5)


def followers(known: list[list[int]], context: tuple[int, ...]) -> Counter[int]:
    """What followed a context, by looking at every place of every text."""
    size = len(context)
    return Counter(
        text[at + size] for text in known for at in range(len(text) - size) if tuple(text[at : at + size]) == context
    )


def contexts(known: list[list[int]]) -> set[tuple[int, ...]]:
    return {
        tuple(text[at : at + size]) for text in known for size in range(1, DEPTH + 1) for at in range(len(text) - size)
    }


@given(known=texts, gone=texts, cut=st.integers(0, 12), end=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_counts_are_those_of_the_texts_that_are_there(
    known: list[list[int]], gone: list[list[int]], cut: int, end: list[int]
) -> None:
    counts = SuffixCounts(DEPTH)
    for text in gone:
        counts.add(text)
    for text in known:
        counts.add(text[:cut])
        counts.add(text, cut)  # in two parts
    for text in gone:
        counts.remove(text)
    assert len(counts) == len(contexts(known))
    found = counts.continuation(end, most=1, factor=1.0, least=0.01)
    shares = []
    for size in range(1, min(DEPTH, len(end)) + 1):
        seen = followers(known, tuple(end[-size:]))
        if seen:
            shares.append(max(seen.values()) / seen.total())
    assert found.expected == max(shares, default=0)
    if shares:
        (token,) = found.drafts
        assert any(
            seen[token] == max(seen.values()) and seen[token] / seen.total() == found.expected
            for seen in (followers(known, tuple(end[-size:])) for size in range(1, DEPTH + 1))
            if seen
        )


def drafts(counts: SuffixCounts, end: list[int], most: int = 8, factor: float = 4.0, least: float = 0.1) -> list[int]:
    return list(counts.continuation(end, most, factor, least).drafts)


def test_how_many_drafts() -> None:
    counts = SuffixCounts(DEPTH)
    counts.add([1, 2, 3, 4, 5, 6, 7])
    assert drafts(counts, [1, 2]) == [3, 4, 5, 6, 7]
    assert drafts(counts, [1, 2], most=2) == [3, 4]
    assert drafts(counts, [9, 2], factor=2.0) == [3, 4]  # one token of context
    counts.add([2, 3, 8, 8])
    counts.add([2, 3, 8, 9])
    assert drafts(counts, [1, 2]) == [3, 4, 5, 6, 7]  # three tokens back, it was always 4
    assert drafts(counts, [9, 2], least=0.7) == [3]  # 8 in two of three texts
    assert drafts(counts, [9, 2], least=0.6) == [3, 8]  # then 8 or 9, half each
    assert drafts(counts, [0]) == []


def test_among_equals_the_latest() -> None:
    counts = SuffixCounts(DEPTH)
    counts.add([1, 2, 0, 1, 3])
    assert drafts(counts, [1], most=1) == [3]
    counts.add([1, 2])
    assert drafts(counts, [1], most=1) == [2]


def runner(method: str, **settings: Any) -> ModelRunner:
    speculative = {"method": method, "num_speculative_tokens": 5, "adaptive": False, method: settings}
    config = parse({"runner": {"max_num_seqs": 1, "prefill_chunk": 8}, "speculative": speculative})
    return build_runner(config, ReferenceBackend(), HistoryModel())


def steps(one: ModelRunner, prompts: list[list[int]]) -> list[int]:
    """Decode steps of requests one after the other."""
    params = SamplingParams(max_new_tokens=30, bad_token_ids=[0])
    return [outputs_of(one, (prompt, params))[0].steps for prompt in prompts]


def test_the_second_of_two_requests_follows_the_first() -> None:
    prompts = [[3, 4, 5], [3, 4, 5]]
    first, second = steps(runner("suffix"), prompts)
    assert second <= first // 2
    assert second < steps(runner("ngram", max_ngram_size=3), prompts)[1]


def test_the_least_recently_used_response_goes() -> None:
    alike, other, third = [3, 4, 5], [9, 9, 7], [12, 6]
    cold = steps(runner("suffix", max_cached_requests=0), [alike, alike])
    assert cold[0] == cold[1]
    # Asked again, the first response is used, so that the second one makes room for the third.
    kept = steps(runner("suffix", max_cached_requests=2), [alike, other, alike, third, alike])
    assert kept[2] < kept[0] and kept[4] < kept[0]
    lost = steps(runner("suffix", max_cached_requests=1), [alike, other, third, alike])
    assert lost[3] >= kept[4]


def test_what_is_forgotten() -> None:
    """Metrics, cached responses, and that of the slot's last request, but not pending requests."""
    one = runner("suffix")
    alike = [3, 4, 5]
    cold = steps(one, [alike, alike])
    before = one.summary()
    for _ in range(2):
        one.forget()
        assert one.summary()["steps"] == one.summary()["drafted_tokens"] == 0
        assert steps(one, [alike, alike]) == cold
        after = one.summary()
        assert all(after[name] == before[name] for name in ("steps", "drafted_tokens", "acceptance_by_position"))
    one.add_request(Request("waits", alike, SamplingParams(max_new_tokens=30)))
    with pytest.raises(RequestError, match="got 1 live and 0 finished ones"):
        one.forget()
    one.cancel("waits")
    with pytest.raises(RequestError, match="got 0 live and 1 finished ones"):
        one.forget()
    one.take_finished()
    one.forget()


def test_the_check_of_drafts_passes_over_chunks_of_prompts() -> None:
    """A slot inside its prompt has the length of its chunk, which may be more than drafts may take."""
    runner = make_runner(
        runner={"prefill_chunk": 3, "debug": True, "overlap": False},
        speculative={"method": "suffix", "num_speculative_tokens": 1},
    )
    params = SamplingParams(max_new_tokens=6, temperature=0.0)
    long, short = outputs_of(runner, ([1, 2, 3] * 4, params), ([4, 5], params))
    assert [list(one.token_ids) for one in (long, short)] == [
        plain_decoding(prompt, params).tokens for prompt in ([1, 2, 3] * 4, [4, 5])
    ]
