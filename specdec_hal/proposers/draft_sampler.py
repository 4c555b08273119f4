"""Draws drafts from a drafter's logits, and keeps their distributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specdec_hal.ops import Purpose, Strategy
from specdec_hal.plugin.proposer import ProposerContext

Call = Callable[[int], None]


class DraftSampler:
    """Draws drafts with each request's temperature, filters, seed and position.

    The caller writes logits for the next draft of slot b to row b of :attr:`logits`, float32 [M, V], and calls
    :meth:`draw`. It uses only ops of the contract over the runner's state, so it can be captured with a step. A draft
    depends only on its logits, the request's seed and the position.

    Random numbers depend on the strategy. GREEDY and TARGET_MATCH accept a draft equal to the target's draw, so drafts
    use the same numbers (purpose SAMPLE). The closer the two distributions, the more often both draws agree (common
    random numbers; Daliri et al. 2024, arXiv:2408.07978, for couplings without communication). REJECTION and TOPP
    compare a draft with probabilities and need independent numbers (purpose DRAFT). For REJECTION, :attr:`probs`,
    float32 [M, K, V], has each draft's distribution after temperature and filters, to be returned from `propose`. It is
    None for the others.

    `certain`: under REJECTION and TOPP, drafts are the most probable tokens, which count as certain: :attr:`probs` is
    None. For proposers that add drafts without a distribution.
    """

    def __init__(self, context: ProposerContext, *, certain: bool = False) -> None:
        self._backend, self._state = context.backend, context.state
        strategy = context.config.speculative.verify_strategy
        by_token = strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH)
        self._purpose = Purpose.SAMPLE if by_token else Purpose.DRAFT
        device, size = self._state.device, self._state.symbols
        self._slots, self._k = size["M"], size["S"] - 1
        vocabulary = context.model.config.vocab_size
        self.logits = device.zeros((self._slots, vocabulary), "float32")
        self.probs: Any = None
        self._argmax = certain and not by_token
        if strategy is Strategy.REJECTION and not certain:
            self.probs = device.zeros((self._slots, self._k, vocabulary), "float32")
            self._drawn_from = device.zeros((self._slots, vocabulary), "float32")
        # Row i + s stands for slot s, i rows after where its slot begins: its position is that of draft i.
        self._offsets = device.upload(np.arange(self._slots + 1, dtype=np.int32))
        owners = np.concatenate([np.full(self._k, -1), np.arange(self._slots)]).astype(np.int32)
        self._owners = device.upload(owners)
        names = ("row_temperature", "row_top_p", "row_top_k", "row_min_p", "row_seed", "position")
        self._params = {name: self._state.allocate(name, R_cap=self._slots + self._k) for name in names}
        self.tokens = self._state.allocate("target_tokens")[: self._slots]
        self._calls: dict[tuple[int, int], list[Call]] = {}
        self._path: dict[str, Any] | None = None

    def bind_path(self, path: Mapping[str, Any], slots: int) -> tuple[Any, list[Call]]:
        """Calls of `select_draft_path` that draw all drafts of slots [0, slots), and the tokens [slots, K].

        `path`: its operands, K rows a slot. The distributions go to :attr:`probs`.
        """
        device, drafts = self._state.device, self._k
        rows = self._slots * drafts
        if self._path is None:
            ends = np.arange(0, rows + 1, drafts, dtype=np.int32)
            self._path = {
                "cu_seqlens_q_output": device.upload(ends),
                "batch_id_per_token_output": device.upload(np.repeat(np.arange(self._slots, dtype=np.int32), drafts)),
                **{name: self._state.allocate(name, R_cap=rows) for name in (*self._params, "path_tokens")},
            }
            if self.probs is not None:
                self._path["probs"] = self.probs.reshape(rows, -1)
        used = slots * drafts
        kept = {name: tensor[: slots + 1 if name.startswith("cu_") else used] for name, tensor in self._path.items()}
        params = {name: kept[name] for name in self._params}
        ends, tokens, probs = kept["cu_seqlens_q_output"], kept["path_tokens"], kept.get("probs")
        spread = {
            **self._state.args("build_sampling_params"), **params, "cu_seqlens_q_output": ends,
            "batch_id_per_token_output": kept["batch_id_per_token_output"],
        }  # fmt: skip
        if self._argmax:
            params = {**params, "row_temperature": self._state.allocate("row_temperature", R_cap=used)}  # 0
        calls: list[Call] = [
            self._backend.bind("build_sampling_params", **spread),
            self._backend.bind(
                "select_draft_path", **path, **params, cu_seqlens_q_output=ends, path_tokens=tokens, probs=probs,
                purpose=self._purpose,
            ),
        ]  # fmt: skip
        return tokens.reshape(slots, drafts), calls

    def draw(self, index: int, slots: int, stream: int = 0) -> Any:
        """Draft `index` (0: the next token) of the slots [0, slots): int64 [slots], overwritten by the next call.

        -1 for a row without a distribution (NaN, or all -inf). Rows of slots without drafts are drawn too, from stale
        values.
        """
        key = index, slots
        if key not in self._calls:
            self._calls[key] = self._bind(index, slots)
        for call in self._calls[key]:
            call(stream)
        return self.tokens[:slots]

    def _bind(self, index: int, slots: int) -> list[Call]:
        backend, state = self._backend, self._state
        rows = index + slots
        spread = {
            **state.args("build_sampling_params"),
            "cu_seqlens_q_output": self._offsets[: slots + 1],
            "batch_id_per_token_output": self._owners[self._k - index :][:rows],
            **{name: tensor[:rows] for name, tensor in self._params.items()},
        }
        params = {name: tensor[index:rows] for name, tensor in self._params.items()}
        if self._argmax:
            params["row_temperature"] = state.allocate("row_temperature", R_cap=slots)  # 0
        logits = self.logits[:slots]
        calls: list[Call] = [
            backend.bind("build_sampling_params", **spread),
            backend.bind("sample_target", logits, target_tokens=self.tokens[:slots], purpose=self._purpose, **params),
        ]
        if self.probs is not None:
            del params["row_seed"]
            probs, kept = self._drawn_from[:slots], self.probs[:slots, index]
            calls.append(backend.bind("processed_probs", logits, probs=probs, **params))
            calls.append(lambda stream: state.device.assign(kept, probs))
        return calls
