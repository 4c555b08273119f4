"""Drafts for flat histories: what the facade gives is what the op gives, however it is asked."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import specdec_hal as sd
from specdec_hal.errors import ArgumentError, ConfigError, UnsupportedError
from specdec_hal.loop import drafter as module
from specdec_hal.ops import MatchPolicy
from specdec_hal.plugin.hookspecs import ProposerSpec
from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, StepView
from specdec_hal.plugin.registry import Registry
from specdec_hal_conformance.building import build
from tests.support.running import run

K, SIZES = 4, range(3, 0, -1)
TEXTS = st.lists(st.integers(0, 3), max_size=40)


def expected(
    history: list[int], wanted: int = K, policy: MatchPolicy = MatchPolicy.LATEST, cycles: bool | None = None
) -> list[int]:
    """By the reference's op on one slot. Drafts go on beyond the end according to `cycles`, by default under LATEST."""
    if not history:
        return []
    sizes = {"M": 1, "B": 1, "S": wanted + 1, "L": len(history) + 1}
    given = build(
        "ngram_match", sizes, token_ids_all=[[*history, 0]], step_idx=[len(history)], prompt_lens=[0],
        draft_token_num=[wanted], seq_lens_decoder=[1], max_dec_len=[10**9], max_ngram_size=SIZES[0], min_ngram_size=1,
        match_policy=policy, continue_cycles=policy is MatchPolicy.LATEST if cycles is None else cycles,
        token_budget=10**9,
    )  # fmt: skip
    found = run("ngram_match", given)
    return found["draft_tokens"][0, 1 : found["seq_lens_this_time"][0]].tolist()  # type: ignore[no-any-return]


def make(backend: str = "cpu", **settings: Any) -> sd.Drafter:
    return sd.Drafter(backend=backend, num_speculative_tokens=K, max_ngram_size=SIZES[0], **settings)


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(module).attempted >= 5
    assert doctest.testmod(module).failed == 0


@given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from(["reference", "cpu"]), st.sampled_from(MatchPolicy))
def test_drafts_are_those_of_the_op_on_one_slot(texts: list[list[int]], backend: str, policy: MatchPolicy) -> None:
    drafter = make(backend, match_policy=policy)
    want = [expected(text, policy=policy) for text in texts]
    assert drafter.propose(texts) == want
    assert drafter.propose(texts, request_ids=range(len(texts))) == want


@given(st.data(), st.sampled_from(["reference", "cpu"]))
def test_histories_under_names_give_the_drafts_of_whole_histories(data: st.DataObject, backend: str) -> None:
    """Requests that come, grow, pause, shrink, change and go, more of them and longer ones as time passes."""
    drafter = make(backend)
    texts: dict[int, list[int]] = {}
    known: set[Any] = set()
    for _ in range(data.draw(st.integers(1, 8))):
        changed = data.draw(st.lists(st.integers(0, 9), unique=True))
        for name in changed:
            old = texts.setdefault(name, [])
            change = data.draw(st.sampled_from(["grow", "grow", "replace", "cut", "forget"]))
            if change == "grow":
                texts[name] = old + data.draw(TEXTS)
            elif change == "replace":  # of any text, the last token seen; or all of it, said outright
                texts[name] = [*old[:-1], *(3 - token for token in old[-1:]), *data.draw(TEXTS)]
            elif change == "cut":
                texts[name] = old[:-1]
            else:
                assert drafter.forget(name) == (name in known)
                known.discard(name)
                texts[name] = data.draw(TEXTS)
        others = [name for name in sorted(texts) if name not in changed and data.draw(st.booleans())]
        asked = data.draw(st.permutations(changed + others))
        histories = [np.array(texts[name], np.int64) for name in asked]
        assert drafter.propose(histories, request_ids=asked) == [expected(texts[name]) for name in asked]
        known |= {*asked}


def forms(texts: list[list[int]]) -> dict[str, tuple[Any, Any]]:
    """The same histories in every form: (histories, lengths)."""
    lengths = [len(text) for text in texts]
    padded = np.full((len(texts), max(lengths) + 3), 7)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text
    return {
        "lists": (texts, None),
        "tuples": (tuple(tuple(text) for text in texts), None),
        "int64": ([np.array(text) for text in texts], None),
        "int32": ([np.array(text, np.int32) for text in texts], None),
        "uint16": ([np.array(text, np.uint16) for text in texts], None),
        "strided": ([np.repeat(text, 2)[::2] for text in texts], None),
        "padded": (padded, lengths),
        "padded int32": (padded.astype(np.int32), np.array(lengths, np.int32)),
        "padded columns": (np.asfortranarray(padded), lengths),
    }


TEXT = [[1, 2, 3, 1, 2], [5, 5, 5], [9]]


@pytest.mark.parametrize("form", forms(TEXT))
@pytest.mark.parametrize("named", [False, True])
def test_every_form_of_a_history_is_the_same_history(form: str, named: bool) -> None:
    histories, lengths = forms(TEXT)[form]
    drafter = make()
    names = ["a", "b", "c"] if named else None
    for _ in range(2):
        assert drafter.propose(histories, names, lengths=lengths) == [[3, 1, 2, 3], [5] * 4, []]


def test_an_array_without_lengths_is_full() -> None:
    assert make().propose(np.array([[1, 2, 1], [4, 4, 4]])) == [[2, 1, 2, 1], [4] * 4]


@pytest.mark.torch
@pytest.mark.parametrize("named", [False, True])
def test_tensors_of_pytorch(named: bool) -> None:
    import torch

    histories = [torch.tensor(text) for text in TEXT]
    drafter = make()
    names = range(3) if named else None
    assert drafter.propose(histories, names) == [[3, 1, 2, 3], [5] * 4, []]
    padded = torch.nn.utils.rnn.pad_sequence(histories, batch_first=True)
    assert drafter.propose(padded, names, lengths=torch.tensor([5, 3, 1])) == [[3, 1, 2, 3], [5] * 4, []]


def test_tensors_of_paddle() -> None:
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    assert make().propose([paddle.to_tensor(text) for text in TEXT], "abc") == [[3, 1, 2, 3], [5] * 4, []]


def test_every_request_may_want_less() -> None:
    drafter = make()
    text = [1, 2, 3, 4, 1, 2, 3, 4]
    assert drafter.propose([text] * 3, num_speculative_tokens=[0, 2, 4]) == [[], [1, 2], [1, 2, 3, 4]]
    assert drafter.propose([text] * 2, num_speculative_tokens=1) == [[1], [1]]
    assert drafter.propose([text]) == [[1, 2, 3, 4]]  # what one call wanted does not stay


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(0, K), st.booleans(),
    st.sampled_from(MatchPolicy), st.none() | st.booleans(),
)  # fmt: skip
def test_drafts_that_reach_the_end_go_round(
    history: list[int], wanted: int, named: bool, policy: MatchPolicy, cycles: bool | None
) -> None:
    names = ["a"] if named else None
    drafter = make(match_policy=policy, continue_cycles=cycles)
    (drafts,) = drafter.propose([history], names, num_speculative_tokens=wanted)
    assert drafts == expected(history, wanted, policy, cycles)


@given(TEXTS.filter(bool), st.integers(0, K), st.integers(1, 3))
def test_short_matches_give_few_drafts(history: list[int], wanted: int, factor: int) -> None:
    (drafts,) = make(match_factor=factor).propose([history], num_speculative_tokens=wanted)
    text = "".join(map(str, history))
    matched = max(n for n in range(SIZES[0] + 1) if n < len(text) and text[len(text) - n :] in text[:-1])
    assert drafts == expected(history, wanted)[: factor * matched]


@pytest.mark.parametrize(("method", "factor"), [("suffix", 2), ("ngram", 0)])
def test_a_factor_without_a_meaning_is_refused(method: str, factor: int) -> None:
    with pytest.raises(ConfigError, match=f"match_factor: expected at least 1, and method 'ngram', got {factor}"):
        sd.Drafter(method, "reference", match_factor=factor)


def test_nothing_is_kept_of_a_history_without_a_name() -> None:
    drafter = make()
    assert drafter.propose([[1, 2, 3]]) == [[]]
    assert drafter.propose([[2, 7, 3, 2]]) == [[7, 3, 2, 7]]


def test_nothing_is_proposed_for_nothing() -> None:
    drafter = make()
    assert drafter.propose([]) == drafter.propose([], request_ids=[]) == []
    assert drafter.propose([[], [1]]) == [[], []]


def test_slots_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, sizes = make(), list[int]()

    def state(**sized: Any) -> sd.DecodeState:
        sizes.append(sized["max_num_seqs"])
        return sd.DecodeState(**sized)

    monkeypatch.setattr("specdec_hal.loop.drafter.DecodeState", state)
    for round_ in range(50):
        drafter.propose([[1, 2, round_]], request_ids=[round_])
        drafter.forget(round_)
    assert set(sizes) == {1}


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (([[1.5, 2]],), "histories", "expected integers, got dtype float64"),
        (([[1, 2], [[1], [2]]],), "histories", "flat token ids"),
        (([["a"]],), "histories", "expected integers"),
        (([[1, 1 << 70]],), "histories", "expected integers"),
        (([np.zeros((2, 2), np.int64)],), "histories", "flat token ids, got rank 2"),
        (([np.zeros(2)],), "histories", "dtype float64"),
        (([np.zeros(2, bool)],), "histories", "dtype bool"),
        (([None],), "histories", "expected integers"),
        ((3,), "histories", "rank 0"),
        ((np.zeros(4, np.int64),), "histories", "rank 1"),
        (([[1]], ["a", "b"]), "request_ids", "1 different names"),
        (([[1], [1]], ["a", "a"]), "request_ids", "2 different names"),
        (([[1]], [[]]), "request_ids", "hashable"),
        (([[1]], None, [1]), "lengths", "nothing with a list"),
        ((np.zeros((2, 3), np.int64), None, [1]), "lengths", "shape [2]"),
        ((np.zeros((2, 3), np.int64), None, [1, 4]), "lengths", "in [0, 3]"),
        ((np.zeros((2, 3), np.int64), None, [-1, 2]), "lengths", "in [0, 3]"),
        (([[1]], None, None, K + 1), "num_speculative_tokens", f"in [0, {K}]"),
        (([[1]], None, None, -1), "num_speculative_tokens", f"in [0, {K}]"),
        (([[1]], None, None, [1, 1]), "num_speculative_tokens", "1 of them"),
        (([[1]], None, None, 1.5), "num_speculative_tokens", "integers"),
    ],
)
def test_wrong_arguments_are_one_clear_error_and_change_nothing(
    arguments: tuple[Any, ...], named: str, message: str
) -> None:
    histories, names, lengths, wanted = (*arguments, None, None, None)[:4]
    drafter = make()
    before = drafter.propose([[1, 2, 1]], request_ids=["kept"])
    with pytest.raises(ArgumentError) as error:
        drafter.propose(histories, names, lengths=lengths, num_speculative_tokens=wanted)
    assert error.value.argument == named
    assert message in str(error.value)
    assert drafter.propose([[1, 2, 1]], request_ids=["kept"]) == before == [[2, 1, 2, 1]]
    assert drafter.propose([[4, 4]]) == [[4] * 4]


@pytest.mark.parametrize("named", [False, True])
def test_a_bad_history_among_good_ones_leaves_the_good_ones(named: bool) -> None:
    drafter = make()
    names = ["a", "b", "c"] if named else None
    good = [[1, 2, 1], [5, 6, 5], [8, 9, 8]]
    for bad in ([1, 2, 1.5], [[1]]):
        with pytest.raises(ArgumentError):
            drafter.propose([good[0], bad, good[2]], names)
        assert not any(map(drafter.forget, "abc"))
    assert drafter.propose(good, names) == [[2, 1, 2, 1], [6, 5, 6, 5], [9, 8, 9, 8]]
    with pytest.raises(ArgumentError):
        drafter.propose([[1, 2, 1, 2], [*good[1], 0.5], [3, 3, 3]], names)
    assert drafter.propose([[7, 7], [*good[1], 6], [8, 9, 8, 9]], names) == [[7] * 4, [5, 6, 5, 6], [8, 9, 8, 9]]


@pytest.mark.torch
def test_buffers_of_a_framework_are_written_as_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host cannot write into the state, as on a GPU: here PyTorch's CPU tensors, written through PyTorch."""
    from specdec_hal.tensors.on_torch import TorchDevice

    host = make()
    monkeypatch.setattr(module, "get_device", lambda place, framework: TorchDevice("cpu"))
    drafter = make()
    texts: list[list[int]] = [[], [1, 2, 1], [3, 3, 3, 1]]
    for new in ([], [2, 1, 3], [1], [2] * 20):
        texts = [text + new for text in texts]
        wanted = [4, 2, 0]
        for names in (None, "abc", "cab"):
            drafts = drafter.propose(texts, names, num_speculative_tokens=wanted)
            assert drafts == host.propose(texts, names, num_speculative_tokens=wanted)
        assert drafter.propose(texts[1:], "ab") == host.propose(texts[1:], "ab")


def test_settings_are_those_of_a_configuration() -> None:
    with pytest.raises(ConfigError, match=r"Drafter:speculative\.ngram\.max_ngram_sise: unknown key; did you mean"):
        make(max_ngram_sise=3)
    with pytest.raises(ConfigError, match=r"num_speculative_tokens: expected an integer in 0\.\.31"):
        sd.Drafter(num_speculative_tokens=32)
    with pytest.raises(ConfigError, match="unknown speculative method 'ngrams'; did you mean 'ngram'"):
        sd.Drafter(method="ngrams")


def test_a_registry_of_ones_own() -> None:
    with pytest.raises(sd.SpecDecError, match="unknown backend"):
        sd.Drafter(backend="cpu", registry=Registry(builtins=["specdec_hal.proposers.plugin"], entry_points=[]))


def test_a_context_that_the_backend_cannot_hold_is_refused_and_changes_nothing() -> None:
    from specdec_hal.backends.reference.backend import ReferenceBackend
    from specdec_hal.plugin.backend import Capability

    small = ReferenceBackend()
    small.capabilities = {**small.capabilities, "ngram_match": Capability(limits={"L": 8})}
    drafter = sd.Drafter(backend=small, num_speculative_tokens=2)
    assert drafter.propose([[1, 2, 1]], request_ids=["a"]) == [[2, 1]]
    with pytest.raises(UnsupportedError, match="largest: 8"):
        drafter.propose([[1, 2, 1, 2], [3] * 9], request_ids=["a", "b"])
    assert drafter.propose([[1, 2, 1, 1]], request_ids=["a"]) == [[1, 1]]
    assert list(map(drafter.forget, "ab")) == [True, False]


# ---- proposers of others


class Recorder(Proposer):
    """A proposer on the host: the last token again, as often as the request takes drafts."""

    runs_on: RunsOn = "host"
    gives_draft_probs = False

    def __init__(self, context: ProposerContext, hidden_layers: tuple[int, ...] = (), needs: str = "") -> None:
        self.hidden_layers = hidden_layers
        self.seen: list[tuple[str, list[int], list[int]]] = []
        if needs == "load_model":
            context.load_model("draft/model")
        elif needs:
            getattr(context.model, needs)

    def reset(self, slots: list[int]) -> None:
        pass

    def propose(self, step: StepView) -> None:
        self.seen = [(v.request_id, list(v.token_ids), list(v.accepted)) for v in step.slots]
        step.draft({v.slot: [v.token_ids[-1]] * v.max_drafts for v in step.slots if v.token_ids})


def registry_with(**options: Any) -> Registry:
    made: list[Recorder] = []

    def factory(context: ProposerContext) -> Recorder:
        made.append(Recorder(context, **options))
        return made[-1]

    class Plugin:
        @staticmethod
        @sd.hookimpl
        def specdec_proposers() -> ProposerSpec:
            return ProposerSpec("stutter", factory)

    registry = Registry(entry_points=[])
    registry.register(Plugin(), "test")
    registry.made = made  # type: ignore[attr-defined]
    return registry


def test_a_proposer_on_the_host_sees_each_history_as_generated() -> None:
    registry = registry_with()
    drafter = sd.Drafter("stutter", "reference", num_speculative_tokens=3, registry=registry)
    assert drafter.propose([[1, 2], [7], [0] * 4], "abc", num_speculative_tokens=[3, 1, 0]) == [[2, 2, 2], [7], []]
    assert drafter.propose([[7, 8, 9], [1, 2, 5]], "ba") == [[9, 9, 9], [5, 5, 5]]
    last = registry.made[-1].seen  # type: ignore[attr-defined]
    assert last == [("b", [7, 8, 9], [8, 9]), ("a", [1, 2, 5], [5])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_layers": (-1,)}, r"method 'stutter' wants hidden states of the layers \[-1\], and there is no model"),
        ({"needs": "config"}, "method 'stutter' wants the model's config"),
        ({"needs": "load_model"}, "method 'stutter' wants the model draft/model"),
    ],
)
def test_a_proposer_that_needs_a_model_is_refused(options: dict[str, Any], message: str) -> None:
    drafter = sd.Drafter("stutter", "reference", registry=registry_with(**options))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=message):
            drafter.propose([[1, 2]], request_ids=["a"])
    assert not drafter.forget("a")


def test_a_proposer_on_the_host_remembers_earlier_texts_when_buffers_grow() -> None:
    drafter = sd.Drafter(method="suffix", backend="reference", num_speculative_tokens=3)
    drafter.propose([[1, 2, 3, 4, 5]], ["a"])
    assert drafter.propose([[9] * 40, [7, 2, 3]], ["b", "c"])[1] == [4, 5], "the texts until now count as earlier ones"
    drafter.forget("c")
    assert drafter.propose([list(range(50, 250)), [8, 1, 2]], ["d", "e"])[1] == [3, 4, 5]
