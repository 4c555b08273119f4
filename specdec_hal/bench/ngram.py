"""N-gram look-up, by search and by index: the five groups of FastDeploy's pull requests #6960, #7103, #7136, and more.

Vocabulary 10..499 at random, n-grams of 3 to 1 tokens, 10 drafts; 20 generated tokens. A hit has the last three of them
planted elsewhere, followed by ten others. With an index each step enters the six tokens accepted since the last step,
by `ngram_index_update` and `ngram_match`, or by `ngram_match` alone if the backend's does both. Consecutive steps make
sure that no run finds its tokens already entered; "up to date" is a look-up alone. Targets and figures of other
implementations were measured in another run on an H200; FastDeploy's rule is LEFTMOST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.bench.case import Case, Index, OpCall, WarmCold, WrongResult

DRAFTS = 10
GENERATED = 20
ACCEPTED = 6  # tokens a step, where there are several
STEPS = 20
_SIZES = {"max_ngram_size": 3, "min_ngram_size": 1}
_KEY, _FOLLOWING = (1001, 1002, 1003), tuple(range(2001, 2011))
_PLANTED = len(_KEY) + len(_FOLLOWING)
_FAR = 1 << 20
_MUCH = 1 << 23
"""From this length on the reference computes only the last step."""
_GROWING = ("cuda",)
"""Backends whose `ngram_match` also updates the index."""

_BY_BOTH = ("latency", "length", "hit type", "extreme")
"""Groups that both policies search."""
KINDS = ("high_input", "low_input", "high_pre", "low_pre", "none")
"""Where the match lies: early or late in the prompt, early or late in the generated tokens, nowhere."""


@dataclass(frozen=True)
class Text:
    """A batch of histories: prompts of `length` tokens."""

    slots: int
    length: int
    kind: str
    budget: int
    policy: str = "LEFTMOST"

    @property
    def column(self) -> int | None:
        """Column of the match."""
        at = {"high_input": 5, "low_input": self.length - 18, "high_pre": self.length, "low_pre": self.length + 4}
        return at.get(self.kind)

    @property
    def moved(self) -> int:
        """Bytes that a search must read: from where the policy starts to the match."""
        end = self.length + GENERATED
        if self.column is None:
            tokens = end
        elif self.policy == "LATEST":
            tokens = end - self.column
        else:
            tokens = self.column + len(_KEY)
        return 8 * self.slots * tokens


_PEERS: Mapping[tuple[int, int, str], tuple[WarmCold, WarmCold, dict[str, WarmCold]]] = {
    (32, 512, "low_input"): ((3.4, 7.2), (3.4, 7.2), {"FastDeploy": (7.4, 11.5), "vLLM V2, L 1,024": (3.6, 7.5)}),
    (16, 16_384, "low_input"): (
        (4.7, 8.5), (4, 7.5), {"FastDeploy": (11.4, 19.1), "vLLM V2, B 32, L 8,192": (4.7, 8.0)}
    ),
    (16, 131_072, "low_input"): ((9, 15), (4, 7.5), {"FastDeploy": (40.9, 73.8)}),
    (16, 32_768, "none"): ((5, 9), (4, 7.5), {"FastDeploy": (29.0, 39.6)}),
    (128, 16_384, "low_input"): ((8, 14), (4.2, 7.8), {"FastDeploy": (12.4, 22.0), "vLLM V2, L 8,192": (8.7, 12.5)}),
    (512, 16_384, "low_input"): ((22, 28), (5.5, 9), {"FastDeploy": (35.4, 45.8), "vLLM V2, L 8,192": (24.7, 28.8)}),
    (256, 131_072, "low_input"): ((68, 78), (4.5, 8), {"FastDeploy": (83.5, 95.1)}),
    (256, 131_072, "none"): ((68, 78), (4.5, 8), {"FastDeploy": (224.8, 235.3)}),
}  # fmt: skip
"""Targets of search and index, and figures of other implementations, in us (warm, cold)."""


def cases(quick: bool) -> Iterator[Case]:
    """Every text in both forms, most with both policies."""
    for group, text in _quick_texts() if quick else _texts():
        for policy in ("LEFTMOST", "LATEST") if group in _BY_BOTH else ("LEFTMOST",):
            yield _search(group, replace(text, policy=policy))
            yield _indexed(group, replace(text, policy=policy), alone=True)
            yield _up_to_date(group, replace(text, policy=policy))
            if group in ("latency", "length"):
                yield _indexed(group, replace(text, policy=policy), alone=False)
    if not quick:
        yield _built(Text(1, 131_072, "low_input", 512))
        yield _built(Text(16, 16_384, "low_input", 512))


def _quick_texts() -> Iterator[tuple[str, Text]]:
    yield "latency", Text(32, 512, "low_input", 128)
    yield "length", Text(4, 4096, "low_input", 512)


def _texts() -> Iterator[tuple[str, Text]]:
    yield "latency", Text(32, 512, "low_input", 128)
    for length in (1024, 4096, 16_384, 65_536, 131_072):
        yield "length", Text(16, length, "low_input", 512)
    yield "length", Text(32, 8192, "low_input", 512)
    for slots in (1, 8, 32, 128, 512):
        yield "batch", Text(slots, 16_384, "low_input", 8192)
    for kind in KINDS:
        yield "hit type", Text(16, 32_768, kind, 512)
    for slots, group in ((8, "budget"), (128, "budget and batch")):
        for budget in (16, 32, 64, 128, 256):
            yield group, Text(slots, 32_768, "low_input", budget)
    for kind in ("low_input", "none"):
        for budget in (8192, 16_384):
            yield "extreme", Text(256, 131_072, kind, budget)
    for slots in (32, 128, 256, 512, 1024):
        yield "scaling", Text(slots, 512, "low_input", 8192)


def _tensors(text: Text, steps: int, seed: int) -> dict[str, NDArray[Any]]:
    """The op's tensors, but `step_idx`. Step i ends after GENERATED + ACCEPTED * i generated tokens."""
    rng = np.random.default_rng(seed)
    m, generated = text.slots, GENERATED + ACCEPTED * (steps - 1)
    rows = rng.integers(10, 500, (m, text.length + generated), dtype=np.int64)
    if text.column is not None:
        rows[:, text.column : text.column + _PLANTED] = _KEY + _FOLLOWING
    for step in range(steps):
        end = text.length + GENERATED + ACCEPTED * step
        # Without a match in the text, earlier steps must not match either.
        rows[:, end - len(_KEY) : end] = np.array(_KEY) + (len(_KEY) * step if text.column is None else 0)
    return {
        "token_ids_all": rows,
        "prompt_lens": np.full(m, text.length, np.int64),
        "draft_token_num": np.full(m, DRAFTS, np.int32),
        "seq_lens_encoder": np.zeros(m, np.int32),
        "seq_lens_decoder": np.full(m, text.length + GENERATED, np.int32),
        "max_dec_len": np.full(m, _FAR, np.int64),
        "draft_tokens": rng.integers(10, 500, (m, DRAFTS + 1), dtype=np.int64),
        "seq_lens_this_time": np.ones(m, np.int32),
    }


def _match(text: Text, tensors: Mapping[str, Any], generated: int, index: Index | None = None) -> OpCall:
    attrs = {"token_budget": text.budget, "match_policy": text.policy, "pad_to_max": False, **_SIZES}
    steps = np.full(text.slots, generated, np.int64)
    return OpCall("ngram_match", {**tensors, "step_idx": steps, **attrs, **({"index": index} if index else {})})


def _update(tensors: Mapping[str, Any], generated: int, index: Index) -> OpCall:
    names = ("token_ids_all", "prompt_lens", "seq_lens_encoder", "seq_lens_decoder")
    steps = np.full(index.slots, generated, np.int64)
    return OpCall(
        "ngram_index_update", {"index": index, **{name: tensors[name] for name in names}, "step_idx": steps, **_SIZES}
    )


def _reset(index: Index) -> OpCall:
    return OpCall("ngram_index_reset", {"index": index, "reset_slots": np.ones(index.slots, np.bool_)})


def _search(group: str, text: Text) -> Case:
    def calls(seed: int) -> tuple[Sequence[OpCall], Sequence[OpCall]]:
        return [], [_match(text, _tensors(text, 1, seed), GENERATED)]

    target, _, peers = _PEERS.get((text.slots, text.length, text.kind), ((None, None), (None, None), {}))
    return Case(_label("search", text), group, calls, text.moved, target, peers, _params("search", text))


def _indexed(group: str, text: Text, *, alone: bool) -> Case:
    def calls(seed: int) -> tuple[Sequence[OpCall], Sequence[OpCall]]:
        tensors = _tensors(text, STEPS, seed)
        index = _index(text, tensors)
        steps: list[OpCall] = []
        for generated in range(GENERATED, GENERATED + ACCEPTED * STEPS, ACCEPTED):
            steps += [] if alone else [_update(tensors, generated, index)]
            steps.append(_match(text, tensors, generated, index))
        return [_reset(index), _update(tensors, GENERATED - ACCEPTED, index)], steps

    _, target, peers = _PEERS.get((text.slots, text.length, text.kind), ((None, None), (None, None), {}))
    moved = 8 * text.slots * (DRAFTS + ACCEPTED + _SIZES["max_ngram_size"])
    form = "index" if alone else "index update and index"
    params = _params(form, text)
    if not alone:
        target, peers = (None, None), {}
    few = text.slots * text.length < _MUCH
    backends = _GROWING if alone else ()
    label = _label(form, text)
    return Case(label, group, calls, moved, target, peers, params, STEPS, backends, few, None if few else _check_last)


def _check_last(calls: Sequence[OpCall], outputs: Mapping[int, NDArray[Any]]) -> None:
    """The last step's drafts; the columns after them keep older values."""
    from specdec_hal.backends.reference.backend import ReferenceBackend

    names = ("draft_tokens", "seq_lens_this_time")
    inputs = {name: value for name, value in calls[-1].inputs.items() if name != "index"}
    inputs.update({name: inputs[name].copy() for name in names})
    ReferenceBackend().ngram_match(**inputs)
    drafts, lengths = (outputs[id(calls[-1].inputs[name])] for name in names)
    proposed = np.arange(DRAFTS + 1) < inputs["seq_lens_this_time"][:, None]
    if not np.array_equal(lengths, inputs["seq_lens_this_time"]):
        raise WrongResult("'seq_lens_this_time' of the last step differs from the reference's: not measured")
    if not np.array_equal(drafts[proposed], inputs["draft_tokens"][proposed]):
        raise WrongResult("'draft_tokens' of the last step differs from the reference's: not measured")


def _up_to_date(group: str, text: Text) -> Case:
    """The look-up alone, with an index up to date."""

    def calls(seed: int) -> tuple[Sequence[OpCall], Sequence[OpCall]]:
        tensors = _tensors(text, 1, seed)
        index = _index(text, tensors)
        return [_reset(index), _update(tensors, GENERATED, index)], [_match(text, tensors, GENERATED, index)]

    form, moved = "index up to date", 8 * text.slots * (DRAFTS + _SIZES["max_ngram_size"])
    return Case(_label(form, text), group, calls, moved, params=_params(form, text))


def _built(text: Text) -> Case:
    """Reset and build the index of a whole prompt, then check it with a look-up."""

    def calls(seed: int) -> tuple[Sequence[OpCall], Sequence[OpCall]]:
        tensors = _tensors(text, 1, seed)
        index = _index(text, tensors)
        return [], [_reset(index), _update(tensors, GENERATED, index), _match(text, tensors, GENERATED, index)]

    label = f"index built, B {text.slots}, L {text.length:,}"
    return Case(label, "build", calls, 8 * text.slots * text.length, params=_params("build", text))


def _index(text: Text, tensors: Mapping[str, Any]) -> Index:
    return Index(text.slots, tensors["token_ids_all"].shape[1], **_SIZES)


def _label(form: str, text: Text) -> str:
    return f"{form}, {text.policy}, B {text.slots}, L {text.length:,}, {text.kind}, budget {text.budget:,}"


def _params(form: str, text: Text) -> dict[str, Any]:
    return {
        "form": form, "policy": text.policy, "B": text.slots, "L": text.length, "kind": text.kind,
        "token_budget": text.budget,
    }  # fmt: skip
