"""Tensors of more than 2^31 elements, where row times width exceeds 32 bits; the last rows are tested.

Other rows are never touched, so the tensors take address space but hardly any memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import MatchPolicy, Strategy, TokenOrder
from specdec_hal.ops.bits import difference
from specdec_hal.ops.ngram import MAX_NGRAM_SIZE
from specdec_hal_conformance.building import build
from specdec_hal_conformance.case import Inputs
from specdec_hal_conformance.subject import REFERENCE, Subject, written

ELEMENTS = 2**31
V = 151_936
"""The vocabulary of a widely used model."""
ROWS = ELEMENTS // V + 3


@dataclass(frozen=True)
class WideCase:
    """`make` returns fresh inputs; `look`: the part of an output to compare, if not all of it."""

    op: str
    name: str
    make: Callable[[], Inputs] = field(repr=False)
    look: Mapping[str, Any] = field(default_factory=dict)

    def refusal(self, subject: Subject) -> str | None:
        """Why the case does not apply to the backend, or None."""
        return subject.refusal(self.op, self.make())

    def wrong(self, subject: Subject) -> str | None:
        """What is wrong, or None. Raises CallFailed."""
        expected = self._outputs(lambda call: getattr(REFERENCE, self.op)(**call))
        return difference(self._outputs(lambda call: subject.launch(subject.bind(self.op, call))), expected)

    def _outputs(self, launch: Callable[[Inputs], None]) -> dict[str, NDArray[Any]]:
        call = self.make()
        launch(call)
        return {name: np.array(call[name][self.look.get(name, ...)]) for name in written(self.op, call)}


class WideIndex:
    """An n-gram index of more than 2^31 bytes or histories of more elements; the last slot is reset, updated and looked
    up.
    """

    op = "ngram_index_update"
    name = "the index of many long requests"
    _ops = ("ngram_index_reset", op, "ngram_match")

    def refusal(self, subject: Subject) -> str | None:
        """Why the case does not apply to the backend, or None."""
        missing = [f"{op} is missing" for op in self._ops if subject.backend.capability(op) is None]
        return next(iter(missing), None)

    def wrong(self, subject: Subject) -> str | None:
        """What is wrong, or None. Raises CallFailed."""
        length, sizes = 2**17, {"max_ngram_size": MAX_NGRAM_SIZE, "min_ngram_size": 1}

        def width(slots: int) -> int:
            return subject.workspace(self.op, M=slots, L=length, **sizes)["index"].shape[1]

        m = ELEMENTS // max(width(ELEMENTS // length), length) + 2
        last = np.arange(m) == m - 1
        text = np.zeros((m, length), np.int64)
        text[-1, :9] = [1, 2, 3, 4, 1, 2, 9, 1, 2]
        history = {
            "token_ids_all": text, "prompt_lens": last * 5, "step_idx": last * 4,
            "seq_lens_encoder": np.zeros(m, np.int32), "seq_lens_decoder": last * np.int32(8),
        }  # fmt: skip
        index = np.zeros((m, width(m)), np.uint8)
        self._call(subject, "ngram_index_reset", {"index": index, "reset_slots": last})
        self._call(subject, self.op, {"index": index, **history, **sizes})
        call: Inputs = {
            **history, **sizes, "draft_token_num": np.full(m, 5, np.int32), "max_dec_len": np.full(m, 99),
            "draft_tokens": np.zeros((m, 6), np.int64), "seq_lens_this_time": last.astype(np.int32), "index": index,
            "token_budget": 10**9, "match_policy": MatchPolicy.LATEST, "pad_to_max": False,
        }  # fmt: skip
        self._call(subject, "ngram_match", call)
        drafts, right = call["draft_tokens"][-1].tolist(), [0, 9, 1, 2, 0, 0]
        return None if drafts == right else f"the last of {m} slots has row {drafts}, expected {right}"

    @staticmethod
    def _call(subject: Subject, op: str, call: Inputs) -> None:
        subject.launch(subject.bind(op, call))


def wide_cases(op: str) -> Iterator[WideCase | WideIndex]:
    """The cases of one op."""
    yield from (case for case in _CASES if case.op == op)


def _row(low: float, high: float) -> NDArray[np.float32]:
    return np.random.default_rng(3).uniform(low, high, V).astype(np.float32)


def _logits() -> NDArray[np.float16]:
    logits = np.zeros((ROWS, V), np.float16)
    logits[-1] = _row(-9, 9)
    return logits


def _last(value: int, others: int, dtype: str) -> NDArray[Any]:
    return np.array([others] * (ROWS - 1) + [value], dtype)


def _token_logprobs() -> Inputs:
    given = {"rows": [ROWS - 1], "token_ids": [V - 1], "cu_batch_token_offset": [0, 1]}
    return build("token_logprobs", {"N": 3}, logits=_logits(), **given)


def _sample_target() -> Inputs:
    return build("sample_target", logits=_logits(), position=_last(77, -1, "int64"))


def _apply_penalties() -> Inputs:
    return build(
        "apply_penalties", {"W": 0, "E": 0}, logits=_logits(), token_ids_all=[[5, V - 1, 9]], prompt_lens=[3],
        draft_tokens=[[0]], cu_seqlens_q_output=[ROWS - 1, ROWS], batch_id_per_token_output=_last(0, -1, "int32"),
        repetition=[2],
    )  # fmt: skip


def _apply_bitmask() -> Inputs:
    """The last row alone has a mask: of every third token."""
    words = np.packbits(np.arange(32 * -(-V // 32)) % 3 == 0, bitorder="little").view("<i4").astype(np.int32)
    return build("apply_token_bitmask", logits=_logits(), bitmask=words[None], bitmask_rows=_last(0, -1, "int32"))


def _top_p_candidates() -> Inputs:
    probs = np.zeros((ROWS, V), np.float32)
    probs[-1] = _row(0, 2 / V)
    owners = _last(0, -1, "int32")
    return build("top_p_candidates", {"C": 3}, probs=probs, top_p=[1e-5], batch_id_per_token_output=owners)


def _gather_next_token(is_speculative: bool) -> Inputs:
    """A long chunk in slot 0, a token and a draft in slot 1."""
    tokens, width = 66_000, 32_800
    x = np.zeros((tokens, width), np.uint16)
    x[-3:] = [[1], [2], [3]]
    return build(
        "gather_next_token", {} if is_speculative else {"B": 2}, x=x, cu_seqlens_q=[0, tokens - 2, tokens],
        cu_seqlens_q_output=[0, 1, 3], batch_id_per_token_output=[0, 1, 1], seq_lens_this_time=[tokens - 2, 2],
        seq_lens_encoder=[tokens - 2, 0], is_speculative=is_speculative, token_order=TokenOrder.SLOT,
    )  # fmt: skip


def _verify_draft_tokens() -> Inputs:
    """Only the last slot runs. Its drafts have probability 1 for the draft model and almost 0 for the target."""
    s = 9
    m = ELEMENTS // ((s - 1) * V) + 2
    draft_probs = np.zeros((m, s - 1, V), np.float32)
    draft_probs[-1, :, 7] = 1
    target_probs = np.zeros((s, V), np.float32)
    target_probs[:, [7, 8]] = [2.0**-30, 0.5]
    slt = np.zeros(m, np.int32)
    slt[-1] = s
    rows = np.zeros(m + 1, np.int32)
    rows[-1] = s
    return build(
        "verify_draft_tokens", {"E": 0}, draft_tokens=np.full((m, s), 7), target_probs=target_probs,
        draft_probs=draft_probs, seq_lens_this_time=slt, seq_lens_decoder=np.full(m, 5, np.int32),
        cu_seqlens_q_output=rows, strategy=Strategy.REJECTION,
    )  # fmt: skip


_CASES = (
    WideCase("gather_next_token", "many tokens of many numbers, packed", lambda: _gather_next_token(True)),
    WideCase("gather_next_token", "many tokens of many numbers, scattered", lambda: _gather_next_token(False)),
    WideCase("apply_penalties", "many rows of a large vocabulary", _apply_penalties, {"logits": slice(-2, None)}),
    WideCase("apply_token_bitmask", "many rows of a large vocabulary", _apply_bitmask, {"logits": slice(-2, None)}),
    WideCase("sample_target", "many rows of a large vocabulary", _sample_target),
    WideCase("top_p_candidates", "many rows of a large vocabulary", _top_p_candidates),
    WideCase("verify_draft_tokens", "draft probabilities of many slots", _verify_draft_tokens),
    WideCase("token_logprobs", "many rows of a large vocabulary", _token_logprobs),
    WideIndex(),
)
