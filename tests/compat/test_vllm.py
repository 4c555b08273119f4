"""The proposer for vLLM, driven as its V1 model runner drives one (vLLM itself: `make engine-test`)."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_hal.compat import vllm as adapter
from specdec_hal.compat.defaults import default_drafter
from specdec_hal.compat.text_cache import PATIENCE, Known, KnownTexts
from specdec_hal.errors import ConfigError, UnsupportedError

K, MAX_MODEL_LEN, MAX_NUM_REQS = 4, 32, 4


def vllm_config(hf_overrides: Any = None, k: int = K, max_model_len: int = MAX_MODEL_LEN) -> Any:
    """The part of vLLM's configuration that the proposer reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=k, method="custom_class"),
        model_config=SimpleNamespace(max_model_len=max_model_len, hf_overrides=hf_overrides or {}),
        scheduler_config=SimpleNamespace(max_num_seqs=MAX_NUM_REQS),
    )


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str, real: Any = importlib.metadata.version) -> str:
        return "0.32.0" if name == "vllm" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.delenv(adapter.ENV_OPTIONS, raising=False)


class Runner:
    """A model runner with vLLM's signatures: int32 rows that requests move between, prompts that come in chunks."""

    def __init__(self, proposer: Any, width: int = MAX_MODEL_LEN) -> None:
        self.proposer = proposer
        self.token_ids_cpu = np.full((MAX_NUM_REQS, width), 99, np.int32)
        self.num_tokens_no_spec = np.zeros(MAX_NUM_REQS, np.int32)
        proposer.load_model(object())

    def step(self, texts: list[list[int]], decoding: list[bool]) -> list[list[int]]:
        """Put the texts into rows 0, 1, ...; propose for those that decode."""
        for row, text in enumerate(texts):
            self.token_ids_cpu[row, : len(text)] = text
            self.num_tokens_no_spec[row] = len(text)
        sampled = [text[-1:] if decodes else [] for text, decodes in zip(texts, decoding, strict=True)]
        drafts = self.proposer.propose(
            sampled, self.num_tokens_no_spec, self.token_ids_cpu, slot_mappings={"layer": None}
        )
        assert type(drafts) is list and all(type(ids) is list for ids in drafts)
        assert all(type(token) is int for ids in drafts for token in ids)
        return list(drafts)


TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=MAX_MODEL_LEN), min_size=1, max_size=MAX_NUM_REQS)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.data())
def test_each_row_gets_the_drafts_of_its_text_wherever_it_stood_before(
    steps: list[list[list[int]]], data: st.DataObject
) -> None:
    runner = Runner(adapter.NgramProposer(vllm_config()))
    drafter = default_drafter(K)
    for texts in steps:
        decoding = [data.draw(st.booleans()) for _ in texts]
        drafts = runner.step(texts, decoding)
        for text, decodes, ids in zip(texts, decoding, drafts, strict=True):
            room = MAX_MODEL_LEN - len(text)
            assert ids == (drafter.propose([text])[0][:room] if decodes else [])


def test_a_decode_loop_with_chunked_prompts_and_moving_rows() -> None:
    """A text that goes round: after its prompt every draft is right, in whichever row it is."""
    runner = Runner(adapter.NgramProposer(vllm_config()))
    cycle = [5, 6, 7, 8]
    text, other = cycle * 2, [1, 2, 3]
    assert runner.step([text[:4], other], [False, True]) == [[], []]
    assert runner.step([text, [*other, 4]], [True, True]) == [cycle, []]
    assert runner.step([[*other, 4, 9], [*text, 5]], [True, True]) == [[], [6, 7, 8, 5]]
    assert runner.step([[*text, 5, 6]], [True]) == [[7, 8, 5, 6]]


def test_options_come_from_the_environment_and_from_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]

    def drafts(overrides: Any = None) -> list[int]:
        return Runner(adapter.NgramProposer(vllm_config(overrides))).step([text], [True])[0]

    assert drafts() == [9, 2, 3, 8]  # the last three tokens, and what followed them
    monkeypatch.setenv(adapter.ENV_OPTIONS, '{"max_ngram_size": 2, "match_policy": "latest"}')
    assert drafts() == [8, 1, 2, 3]
    assert drafts({"specdec_hal": {"match_policy": "leftmost"}}) == [9, 2, 3, 8]
    assert drafts({"specdec_hal": {"max_ngram_size": 3, "backend": "reference"}}) == [9, 2, 3, 8]
    assert drafts({"other": 1}) == drafts(lambda config: config) == [8, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "SPECDEC_HAL_VLLM: expected a JSON object, got '{'"),
        ("[1]", "SPECDEC_HAL_VLLM: expected an object"),
        ('{"max_ngram_sise": 3}', "max_ngram_sise: unknown key; did you mean 'max_ngram_size'"),
    ],
)
def test_wrong_options_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setenv(adapter.ENV_OPTIONS, text)
    with pytest.raises(ConfigError) as error:
        adapter.NgramProposer(vllm_config())
    assert message in str(error.value)
    monkeypatch.delenv(adapter.ENV_OPTIONS)
    with pytest.raises(ConfigError, match=r"hf_overrides\.specdec_hal: expected an object"):
        adapter.NgramProposer(vllm_config({"specdec_hal": 3}))


@pytest.mark.parametrize("version", [None, "0.31.2", "0.33.0"])
def test_a_vllm_that_was_not_run_is_refused(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def installed(name: str) -> str:
        if version is None or name != "vllm":
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(UnsupportedError, match=r"0\.32"):
        adapter.NgramProposer(vllm_config())


def test_a_suffix_look_up_knows_requests_that_move_and_texts_of_those_that_ended() -> None:
    proposer = adapter.SuffixProposer(vllm_config())
    runner = Runner(proposer)
    first, second = [1, 2, 3, 1, 2], [7, 8, 9, 7, 8]
    assert runner.step([first, second], [True, True]) == [[3, 1, 2, 3], [9, 7, 8, 9]]
    assert runner.step([[*second, 9], [*first, 3]], [True, True]) == [[7, 8, 9, 7], [1, 2, 3, 1]]
    runner.step([[0, 7, 8]], [True])
    for length in range(PATIENCE):
        runner.step([list(range(50, 51 + length // 3))], [True])
    assert runner.step([[6, 7, 8]], [True]) == [[9, 7, 8, 9]]


def test_of_those_that_are_missing_the_ones_seen_last_are_kept() -> None:
    ended: list[Known] = []
    requests, text = KnownTexts(2, ended.append), np.arange(40)
    seen = []
    for start in range(5):
        rows = {3: text[start : start + 20 + start]}
        seen.append(requests.find(rows)[3])
        requests.keep(rows, {3: 0})
    assert ended == seen[:2] and len(set(map(id, seen))) == 5
    again = requests.find({0: text[2:33], 1: text[3:26], 2: text[9:]})
    assert [again[0], again[1]] == seen[2:4] and again[2] not in seen
    rows = {0: text[2:33], 1: text[3:26], 2: text[9:]}
    requests.keep(rows, dict.fromkeys(rows, 0))
    assert requests.find({0: rows[1], 1: rows[0]}) == {0: again[1], 1: again[0]}


@pytest.mark.parametrize("proposer", [adapter.NgramProposer, adapter.SuffixProposer])
def test_adaptive_lengths_are_beginnings_and_stop_where_drafts_do_not_pay(
    proposer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock for which a token costs as much as the step: a draft that is always wrong is soon not made."""
    rng, now = np.random.default_rng(0), [0.0]
    monkeypatch.setattr(adapter.time, "perf_counter", lambda: now[0])
    fixed, adaptive = (
        Runner(proposer(vllm_config({"specdec_hal": {"adaptive": choice}}, max_model_len=400)), width=400)
        for choice in (False, True)
    )
    text, drafted = [1, 2, 3, 4, 1, 2], []
    for _ in range(300):
        whole, chosen = (one.step([text], [True])[0] for one in (fixed, adaptive))
        # A match that suffix decoding prefers for fewer tokens may be another one.
        assert chosen == whole[: len(chosen)] or (proposer is adapter.SuffixProposer and len(chosen) <= len(whole))
        drafted.append((len(whole), len(chosen)))
        now[0] += 1.0 + len(chosen)
        text = [*text, int(rng.integers(1, 5))]
    early, late = (np.array(part).sum(axis=0) for part in (drafted[:20], drafted[100:]))
    assert early[1] > 0 and late[1] < 0.1 * late[0]


def test_adaptive_is_a_switch() -> None:
    with pytest.raises(ConfigError, match="adaptive: expected true or false, got 'yes'"):
        adapter.NgramProposer(vllm_config({"specdec_hal": {"adaptive": "yes"}}))
