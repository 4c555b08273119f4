"""FastDeploy's step on GPUs: what `GPUModelRunner`, `SpeculativeSampler.forward_cuda` and the proposers call.

By version (what the runner passes):
    2026-05-09 (PR #7727)  get_padding_offset(input_ids, seq_len, draft_tokens, enc, dec, token_num)
    2026-05-11 (PR #7766)  get_padding_offset(input_ids, seq_len, enc, dec, draft_tokens, token_num)
    2026-05-20 (PR #7774, #7849)  ngram_match of 11 arguments and pad_to_max; hybrid_mtp_ngram of 13
    2026-06-17  the same
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains import kernels_drafts, kernels_rows, kernels_tokens
from tests.compat.fastdeploy.chains.draft_runner import DraftRunner
from tests.compat.fastdeploy.chains.lockstep import Buffer
from tests.compat.fastdeploy.chains.runner import ChainRunner, Rows
from tests.compat.fastdeploy.chains.scenes import MODEL_LEN

Array = NDArray[Any]

KERNELS: dict[str, Callable[..., Any]] = {
    name: getattr(module, name)
    for module, names in {
        kernels_rows: (
            "speculate_pre_process",
            "get_padding_offset",
            "rebuild_padding",
            "eagle_gather_hidden_states",
            "eagle_get_hidden_states",
        ),
        kernels_tokens: (
            "build_sampling_params",
            "naive_update_model_status",
            "reasoning_phase_token_constraint",
            "speculate_get_accept_tokens_and_logits",
            "speculate_get_token_penalty_multi_scores",
            "speculate_limit_thinking_content_length",
            "speculate_save_output",
            "speculate_set_stop_value_multi_seqs",
            "top_p_candidates",
            "unified_update_model_status",
            "verify_draft_tokens",
        ),
        kernels_drafts: (
            "draft_model_postprocess",
            "draft_model_preprocess",
            "draft_model_update",
            "hybird_mtp_ngram",
            "hybrid_mtp_ngram",
            "ngram_match",
        ),
    }.items()
    for name in names
}


class GpuRunner(ChainRunner):
    """A step on a GPU: rows are in slot order throughout."""

    def target_rows(self) -> Rows:
        s, scene = self.share, self.scene
        lens, enc, dec = self.given("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
        total = int(lens.array.sum())
        capacity = total + int(scene.rng.integers(0, 5)) if scene.overlap else total
        ids, owners, cu_q, _, cu_out, row_owners, count = self.ops.run(
            "speculate_pre_process", capacity, s["input_ids"], lens, s["draft_tokens"], enc, dec
        )
        if scene.whole_buffers:
            for name, given in (("cu_seqlens_q_output", cu_out), ("batch_id_per_token_output", row_owners)):
                s[name].flat[: given.array.size] = given.array
                s[name].flush()
            cu_out, row_owners = s["cu_seqlens_q_output"], s["batch_id_per_token_output"]
        hidden = self._forward(ids.array[:total], owners.array[:total])
        drawn = row_owners.first(int(count.array[0]))
        out = self.ops.run("rebuild_padding", hidden, cu_q, lens, dec, enc, drawn, cu_out, None, False)
        return Rows(hidden, out.array, row_owners, cu_out)

    def _forward(self, ids: Array, owners: Array) -> Buffer:
        """The target's hidden rows of packed tokens."""
        return Buffer(np.concatenate([self.forward(b, ids[owners == b]) for b in np.unique(owners)]))

    def plain_rows(self) -> Array:
        lens, enc, dec = self.given("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
        given = (None, enc, dec) if self.scene.version < "2026-05-11" else (enc, dec, None)
        total = int(lens.array.sum())
        ids, owners, cu_q, _ = self.ops.run("get_padding_offset", self.share["input_ids"], lens, *given, total)
        hidden = self._forward(ids.array, owners.array)
        out: Array = self.ops.run("rebuild_padding", hidden, cu_q, lens, dec, enc, None, None, None, False).array
        return out

    _PENALTIES = (
        "penalty_score", "frequency_score", "presence_score", "temperature", "bad_tokens", "bad_tokens_len", "step_idx",
        "min_dec_len", "eos_token_id", "seq_lens_this_time",
    )  # fmt: skip

    def penalise(self, logits: Buffer, rows: Rows) -> None:
        self.ops.run(
            "speculate_get_token_penalty_multi_scores", *self.given("token_ids_all", "prompt_lens"), logits,
            *self.given(*self._PENALTIES), rows.owners, rows.cu_out, MODEL_LEN,
        )  # fmt: skip

    def plain_penalise(self, logits: Buffer) -> None:
        """FastDeploy's own op, which is left to it."""
        slots = np.arange(len(logits.array) + 1)
        texts = [buffer.array for buffer in self.given("token_ids_all", "prompt_lens")]
        given = [buffer.array for buffer in self.given(*self._PENALTIES)]
        kernels_tokens.speculate_get_token_penalty_multi_scores(
            *texts, logits.array, *given, slots[:-1], slots, MODEL_LEN
        )

    def sampling_params(self, rows: Rows) -> None:
        increment = 4 * (self.scene.drafts + 1)
        given = self.given("top_p", "top_k", "infer_seed", "seq_lens_this_time")
        self.ops.run("build_sampling_params", *given, rows.cu_out, rows.count, increment)

    def take_one(self, tokens: Array, rows: Rows) -> None:
        given = self.given("accept_tokens", "accept_num", "seq_lens_this_time")
        offsets = rows.cu_out.first(self.in_use + 1)
        self.ops.run("naive_update_model_status", *given, Buffer(tokens[:, None]), offsets)

    def update_status(self) -> None:
        self.update()

    def propose(self, all_hidden: Buffer) -> None:
        scene = self.scene
        if scene.method != "ngram":
            self.propose_common(all_hidden)
            if self.draft_runner is not None and scene.drafts > scene.model_steps:
                self._hybrid(self.draft_runner)
            return
        given = self.given(
            "token_ids_all", "prompt_lens", "step_idx", "actual_draft_token_num", "draft_tokens", "seq_lens_this_time",
            "seq_lens_encoder", "seq_lens_decoder", "max_dec_len",
        )  # fmt: skip
        pad = (scene.pad_to_max,) if scene.version >= "2026-06-17" or scene.pad_to_max else ()
        self.ops.run("ngram_match", *given, 3, scene.drafts, *pad)

    def _hybrid(self, drafter: DraftRunner) -> None:
        """`MTPProposer` with n-grams after its own drafts."""
        own, scene = drafter.buffers, self.scene
        given = (
            *self.given("token_ids_all", "prompt_lens"), own["pre_ids"], own["step_idx"],
            *self.given(
                "actual_draft_token_num", "draft_tokens", "seq_lens_this_time", "seq_lens_decoder", "max_dec_len"
            ),
        )  # fmt: skip
        if scene.version >= "2026-05-20":
            self.ops.run("hybrid_mtp_ngram", *given, 3, 1, scene.drafts, scene.pad_to_max)
        else:
            self.ops.run("hybird_mtp_ngram", *given, 3, 1, scene.drafts)

    def propose_substep(self, drafter: DraftRunner, substep: int, hidden: Array) -> Array:
        own = drafter.buffers
        lens, enc, dec = (own[f"seq_lens_{name}"] for name in ("this_time", "encoder", "decoder"))
        total = int(lens.array.sum())
        ids, owners, cu_q, _, cu_out, row_owners, count = self.ops.run(
            "speculate_pre_process", total, own["input_ids"], lens, own["draft_tokens"], enc, dec
        )
        out = Buffer(drafter.forward(ids.array, owners.array, cu_q.array, hidden[:total], substep))
        drawn = row_owners.first(int(count.array[0]))
        rows, active = self.ops.run("eagle_gather_hidden_states", out, cu_q, lens, dec, enc, drawn, cu_out, count)
        kept: Array = rows.array[: int(active.array[0])]
        drafter.update(self.scene.model.draft_logits(kept).argmax(1), cu_out, substep)
        return kept
