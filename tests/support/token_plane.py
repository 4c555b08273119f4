"""Everything of a decode step but the model, bound once: what a captured step holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_hal.ops import MatchPolicy, SlotAction, Strategy
from specdec_hal.plugin.backend import Backend, BoundOp
from specdec_hal.runner.state import DecodeState
from specdec_hal.tensors.device import Device

SIZES = {"max_ngram_size": 3, "min_ngram_size": 1}
COMPARED = (
    "draft_tokens", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "token_ids_all", "step_idx",
    "stop_flags", "has_running", "accept_tokens", "accept_num", "ids_remove_padding", "batch_id_per_token",
    "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_q_output", "batch_id_per_token_output", "num_tokens", "target_tokens",
    "row_temperature", "row_seed", "position", "cu_batch_token_offset", "input_ids", "max_dec_len",
)  # fmt: skip


class TokenPlane:
    """Slots in the middle of their decoding, and the ops of a step in order, from the logits to the next step's input.

    `logits` [R_cap, V] is what the model would give; write into it before each step.
    """

    def __init__(self, backend: Backend, device: Device, *, slots: int, k: int, vocabulary: int, seed: int) -> None:
        self.device, self.vocabulary = device, vocabulary
        self.state = state = DecodeState(
            max_num_seqs=slots, num_speculative_tokens=k, max_model_len=160, prefill_chunk=8, end_tokens=[0],
            max_bad_tokens=2, max_stop_sequences=(2, 3), device=device,
        )  # fmt: skip
        self._fill(np.random.default_rng(seed))
        rows = state.symbols["R_cap"]
        self.logits = device.zeros((rows, vocabulary), "float32")
        shape = {"A_cap": rows, "N": 4}
        self.outputs = {n: state.allocate(n, **shape) for n in ("token_ids", "rows", "ids", "logprobs", "ranks")}
        layout = backend.workspace("ngram_match", M=slots, L=state.symbols["L"], **SIZES)["index"]
        self.index = state.allocate("index", X=layout.shape[1])
        everywhere = device.upload(np.ones(slots, np.bool_))
        backend.ngram_index_reset(self.index, everywhere)
        self.plans = self._bind(backend)
        for plan in self.plans[:2]:  # the packing of the first step
            plan()

    def _fill(self, rng: np.random.Generator) -> None:
        state = self.state
        m, s, length = (state.symbols[name] for name in "MSL")
        prompt = rng.integers(4, 60, m)
        values = {
            "token_ids_all": rng.integers(1, 6, (m, length)),
            "prompt_lens": prompt,
            "step_idx": np.ones(m, np.int64),
            "max_dec_len": np.minimum(rng.integers(20, 90, m), length - prompt),
            "seq_lens_decoder": prompt.astype(np.int32),
            "seq_lens_this_time": rng.integers(1, s + 1, m).astype(np.int32),
            "draft_tokens": rng.integers(1, 6, (m, s)),
            "draft_token_num": np.full(m, s - 1, np.int32),
            "temperature": rng.choice(np.array([0, 0.5, 1], np.float32), m),
            "top_p": rng.choice(np.array([0.8, 1], np.float32), m),
            "top_k": rng.choice(np.array([0, 3], np.int32), m),
            "seed": rng.integers(-(1 << 63), (1 << 63) - 1, m),
            "repetition": np.full(m, 1.1, np.float32),
            "bad_tokens": np.full((m, 2), -1),
            "stop_flags": rng.random(m) < 0.1,
            "stop_seqs": rng.integers([[6], [1]], [[self.vocabulary], [7]], (m, 2, 3)),
            "stop_seqs_lens": np.array([[1, 3]] * m, np.int32),
            "slot_actions": rng.choice(
                np.array([SlotAction.KEEP] * 18 + [SlotAction.PREFILL, SlotAction.WAIT], np.int32), m
            ),
            "chunk_lens": np.full(m, 3, np.int32),
        }
        for name, value in values.items():
            state.write(name, slice(None), value)

    def _bind(self, backend: Backend) -> list[BoundOp]:
        state, out, logits = self.state, self.outputs, self.logits
        packed = {name: out[name] for name in ("token_ids", "rows")}
        scores = {name: out[name] for name in ("ids", "logprobs", "ranks")}
        offsets = state["cu_batch_token_offset"]
        match = {"token_budget": 3 * state.symbols["M"], "match_policy": MatchPolicy.LATEST, **SIZES}
        return [
            backend.bind("schedule_slots", **state.args("schedule_slots")),
            backend.bind("prepare_inputs", **state.args("prepare_inputs")),
            backend.bind("build_sampling_params", **state.args("build_sampling_params")),
            backend.bind("apply_penalties", logits, **state.args("apply_penalties")),
            backend.bind("sample_target", logits, **state.args("sample_target")),
            backend.bind("verify_draft_tokens", **state.args("verify_draft_tokens", strategy=Strategy.TARGET_MATCH)),
            backend.bind("gather_accepted", logits, **packed, **state.args("gather_accepted")),
            backend.bind("token_logprobs", logits, **packed, cu_batch_token_offset=offsets, **scores),
            backend.bind("set_stop_sequences", **state.args("set_stop_sequences")),
            backend.bind("update_model_status", **state.args("update_model_status")),
            backend.bind("ngram_index_update", index=self.index, **state.args("ngram_index_update"), **SIZES),
            backend.bind("ngram_match", index=self.index, **state.args("ngram_match"), **match),
        ]

    def write_logits(self, step: int) -> None:
        """The model's part: random logits, the same in planes of equal state, in which 1 2 3 4 5 1 ... is likely."""
        rng = np.random.default_rng([step, 7])
        logits = rng.normal(0, 1, (self.state.symbols["R_cap"], self.vocabulary)).astype(np.float32)
        slots, offsets = self.state.read("batch_id_per_token_output"), self.state.read("cu_seqlens_q_output")
        rows = np.flatnonzero(slots >= 0)
        inputs = self.state.read("draft_tokens")[slots[rows], rows - offsets[slots[rows]]]
        logits[rows, inputs % 5 + 1] += 9
        self.device.write(self.logits, slice(None), logits)

    def values(self) -> dict[str, Any]:
        """All results of a step, on the host."""
        outputs = {name: self.device.download(tensor) for name, tensor in self.outputs.items()}
        return {**{name: self.state.read(name).copy() for name in COMPARED}, **outputs}
