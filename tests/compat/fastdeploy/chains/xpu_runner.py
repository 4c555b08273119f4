"""FastDeploy's step on XPUs: what `XPUModelRunner`, `SpeculativeSampler.forward_xpu` and `MTPProposerXPU` call.

Prompts stand before all other slots in the batch that the model sees. By version (what the runner passes):
    to 2026-05-20  unified_update_model_status of 18 arguments; sampling parameters are padded in Python; an MTP
                   proposer with draft_model_preprocess of 26 arguments, which the layer refuses
    2026-06-17 (PR #7938, #8032)  14 arguments; build_sampling_params; draft_model_preprocess of 19
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains import kernels_drafts, kernels_rows, kernels_tokens
from tests.compat.fastdeploy.chains.draft_runner import DraftRunner
from tests.compat.fastdeploy.chains.lockstep import Buffer, Lockstep
from tests.compat.fastdeploy.chains.runner import ChainRunner, Rows
from tests.compat.fastdeploy.chains.scenes import MODEL_LEN, Scene

Array = NDArray[Any]


def _unified_update_model_status(*args: Any) -> None:
    forms = {
        14: kernels_tokens.unified_update_model_status,
        18: kernels_tokens.unified_update_model_status_18,
    }
    forms[len(args)](*args)


KERNELS: dict[str, Callable[..., Any]] = {
    "adjust_batch": kernels_rows.adjust_batch,
    "build_sampling_params": kernels_tokens.build_sampling_params_xpu,
    "draft_model_postprocess": kernels_drafts.draft_model_postprocess,
    "draft_model_preprocess": kernels_drafts.draft_model_preprocess,
    "draft_model_update": kernels_drafts.draft_model_update,
    "eagle_get_hidden_states": kernels_rows.eagle_get_hidden_states_xpu,
    "eagle_get_self_hidden_states": kernels_rows.eagle_get_self_hidden_states_xpu,
    "gather_next_token": kernels_rows.gather_next_token,
    "get_infer_param": kernels_rows.get_infer_param,
    "get_padding_offset": kernels_rows.get_padding_offset,
    "get_token_penalty_multi_scores": kernels_tokens.get_token_penalty_multi_scores_xpu,
    "naive_update_model_status": kernels_tokens.naive_update_model_status,
    "reasoning_phase_token_constraint": kernels_tokens.reasoning_phase_token_constraint,
    "recover_batch_sequence": kernels_rows.recover_batch_sequence,
    "speculate_clear_accept_nums": kernels_tokens.speculate_clear_accept_nums,
    "speculate_get_token_penalty_multi_scores": kernels_tokens.speculate_get_token_penalty_multi_scores_xpu,
    "speculate_limit_thinking_content_length": kernels_tokens.speculate_limit_thinking_content_length,
    "speculate_save_output": kernels_tokens.speculate_save_output,
    "speculate_pre_process": kernels_rows.speculate_pre_process,
    "speculate_set_stop_value_multi_seqs": kernels_tokens.speculate_set_stop_value_multi_seqs,
    "top_p_candidates": kernels_tokens.top_p_candidates,
    "unified_update_model_status": _unified_update_model_status,
    "verify_draft_tokens": kernels_tokens.verify_draft_tokens_xpu,
}


class BatchOrder:
    """The lists of `get_infer_param`, on the device and on the host, for one model."""

    def __init__(self, runner: ChainRunner) -> None:
        self.runner = runner
        self._buffers: dict[int, dict[str, Buffer]] = {}
        self.names: dict[str, Buffer] = {}

    def _allocate(self, slots: int) -> dict[str, Buffer]:
        """As FastDeploy's `init_inplace_tensor`; kept by the number of slots in use."""
        if slots not in self._buffers:
            sizes = {name: slots + name.endswith("lod") for name in kernels_rows.INFER_LISTS}
            lists = {name: Buffer(np.zeros(size, np.int32)) for name, size in sizes.items()}
            hosts = {f"{name}_cpu": Buffer(np.zeros(size, np.int32)) for name, size in sizes.items()}
            tables = Buffer(np.zeros_like(self.runner.share["block_tables"].array[:slots]))
            info = Buffer(np.zeros(7, np.int32))
            self._buffers[slots] = lists | {"prefix_block_tables": tables} | hosts | {"len_info_cpu": info}
        return self._buffers[slots]

    def describe(self, enc: Buffer, dec: Buffer, lens: Buffer) -> None:
        """`get_infer_param`."""
        scene = self.runner.scene
        self.names = self._allocate(lens.array.shape[0])
        tables = self.runner.share["block_tables"].first(lens.array.shape[0])
        given = (enc, dec, lens, tables, *self.names.values())
        self.runner.ops.run("get_infer_param", *given, scene.block_size, scene.drafts)

    def lods(self, which: str) -> list[Buffer]:
        """Offsets and slots for the ops that move rows: "map" or "idx"."""
        names = ("encoder_seq_lod", "decoder_seq_lod", f"encoder_batch_{which}", f"decoder_batch_{which}")
        on_host = [self.names[f"{name}_cpu"] for name in names]
        return [*(self.names[name] for name in names), *on_host, self.names["len_info_cpu"]]

    def adjust(self, rows: Buffer) -> Buffer:
        """Rows in slot order, prompts moved before all others."""
        out: Buffer = self.runner.ops.run("adjust_batch", rows, *self.lods("idx"), None, -1)
        return out

    def recover(self, rows: Buffer, lens: Buffer) -> Buffer:
        """The inverse."""
        offsets = Buffer(np.cumsum(MODEL_LEN - lens.flat).astype(np.int32)[:, None])
        out: Buffer = self.runner.ops.run("recover_batch_sequence", rows, offsets, *self.lods("map"))
        return out

    def gather(self, rows: Buffer, is_speculative: bool, slots: int) -> Buffer:
        """The rows that predict a token."""
        out: Buffer = self.runner.ops.run("gather_next_token", rows, *self.lods("map"), is_speculative, slots)
        return out

    def segments(self) -> list[tuple[int, slice]]:
        """Each slot's rows in the adjusted batch."""
        info, found = self.names["len_info_cpu"].array, []
        for kind, count, start in (("encoder", info[0], 0), ("decoder", info[1], int(info[2]))):
            lod, slots = (self.names[f"{kind}_{name}"].array for name in ("seq_lod", "batch_map"))
            found += [(int(slots[k]), slice(start + int(lod[k]), start + int(lod[k + 1]))) for k in range(count)]
        return found


class XpuRunner(ChainRunner):
    """A step on an XPU."""

    def __init__(self, scene: Scene, lockstep: Lockstep) -> None:
        super().__init__(scene, lockstep)
        self.order, self.draft_order = BatchOrder(self), BatchOrder(self)
        self.pre_ids = Buffer(np.full((scene.slots, MODEL_LEN), -1))
        """Generated tokens alone, for the penalties."""

    @property
    def unified(self) -> bool:
        """Whether the signatures are those of the platforms' unification."""
        return self.scene.version >= "2026-06-17"

    def _token_num(self, lens: Buffer) -> Buffer:
        """As the runner has it: a tensor of no axes on the host."""
        return Buffer(lens.array.sum(dtype=np.int64))

    def _forward(self, ids: Buffer) -> Buffer:
        """Adjust the packed tokens, and run the target on them: hidden rows, prompts first."""
        adjusted = self.order.adjust(ids.shaped([-1, 1])).flat
        return Buffer(np.concatenate([self.forward(b, adjusted[rows]) for b, rows in self.order.segments()]))

    def target_rows(self) -> Rows:
        lens, enc, dec = self.given("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
        texts = self.given("input_ids", "seq_lens_this_time", "draft_tokens")
        ids, _, _, _, cu_out, owners, _ = self.ops.run("speculate_pre_process", self._token_num(lens), *texts, enc, dec)
        self.order.describe(enc, dec, lens)
        hidden = self._forward(ids)
        out = self.order.gather(hidden, True, self.scene.slots if self.scene.whole_buffers else -1)
        return Rows(self.order.recover(hidden, lens), out.array, owners, cu_out)

    def plain_rows(self) -> Array:
        lens, enc, dec = self.given("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
        given = (self.share["input_ids"], lens, None, None, self._token_num(lens))
        ids, _, _, _ = self.ops.run("get_padding_offset", *given)
        self.order.describe(enc, dec, lens)
        out = self.order.gather(self._forward(ids), False, self.in_use).array
        return np.where(lens.flat[:, None] > 0, out, 0)

    _PENALTIES = ("penalty_score", "frequency_score", "presence_score", "temperature")
    _LIMITS = ("step_idx", "min_dec_len", "eos_token_id")

    def _history(self) -> Buffer:
        """`pre_ids`, which FastDeploy's runner keeps beside the whole text."""
        prompts, step = self.array("prompt_lens"), self.array("step_idx")
        self.pre_ids.array[:] = -1
        for b in range(self.scene.slots):
            text = self.share["token_ids_all"].array[b, prompts[b] : prompts[b] + step[b]]
            self.pre_ids.array[b, : len(text)] = text
        self.pre_ids.flush()
        return self.pre_ids

    def penalise(self, logits: Buffer, rows: Rows) -> None:
        scores, limits = self.given(*self._PENALTIES), self.given(*self._LIMITS, "seq_lens_this_time")
        none = Buffer(np.full((1, 1), -1))
        self.ops.run("speculate_get_token_penalty_multi_scores", self._history(), logits, *scores, none, *limits,
                     rows.owners, rows.cu_out, MODEL_LEN)  # fmt: skip

    def plain_penalise(self, logits: Buffer) -> None:
        used = self.in_use
        scores = [buffer.first(used) for buffer in self.given(*self._PENALTIES)]
        step, least, ends = self.given(*self._LIMITS)
        none, limits = Buffer(np.full((1, 1), -1)), (step.first(used), least.first(used), ends)
        history = self._history().first(used)
        self.ops.run("get_token_penalty_multi_scores", history, logits, *scores, none, *limits)

    def sampling_params(self, rows: Rows) -> None:
        if self.unified:
            given = self.given("top_p", "top_k", "infer_seed", "seq_lens_this_time", "seq_lens_encoder")
            self.ops.run("build_sampling_params", *given, rows.count, 4 * (self.scene.drafts + 1))

    def take_one(self, tokens: Array, rows: Rows) -> None:
        if self.unified:
            given = self.given("accept_tokens", "accept_num", "seq_lens_this_time")
            self.ops.run("naive_update_model_status", *given, Buffer(tokens[:, None]), rows.cu_out)
            return
        emitted, counts = self.given("accept_tokens", "accept_num")  # `_normal_sample_xpu`, on the host
        runs = self.lens.flat > 0
        emitted.array[: self.in_use, 0][runs] = tokens
        counts.flat[: self.in_use] = runs
        emitted.flush()
        counts.flush()

    def update_status(self) -> None:
        if self.unified:
            self.update()
        else:
            is_naive = self.scene.method == "naive"
            self.ops.run(
                "unified_update_model_status",
                *self.given(
                    "seq_lens_encoder", "seq_lens_decoder", "not_need_stop", "draft_tokens", "actual_draft_token_num",
                    "accept_tokens", "accept_num", "stop_flags", "seq_lens_this_time", "is_block_step", "mask_rollback",
                    "token_ids_all", "prompt_lens", "step_idx", "eos_token_id", "max_dec_len",
                ),
                is_naive, self.scene.drafts,
            )  # fmt: skip

    def propose(self, all_hidden: Buffer) -> None:
        self.ops.run("speculate_clear_accept_nums", *self.given("accept_num", "seq_lens_decoder"))
        self.propose_common(all_hidden)

    def propose_substep(self, drafter: DraftRunner, substep: int, hidden: Array) -> Array:
        own, order = drafter.buffers, self.draft_order
        lens, enc, dec = (own[f"seq_lens_{name}"] for name in ("this_time", "encoder", "decoder"))
        ids, owners, cu_q, _, cu_out, _, _ = self.ops.run(
            "speculate_pre_process", self._token_num(lens), own["input_ids"], lens, own["draft_tokens"], enc, dec
        )
        order.describe(enc, dec, lens)
        order.adjust(ids.shaped([-1, 1]))
        out = drafter.forward(ids.array, owners.array, cu_q.array, hidden, substep)
        rows = order.gather(order.adjust(Buffer(out)), True, -1)
        before = Buffer(lens.array)
        ends = np.cumsum(np.where(enc.flat > 0, np.minimum(lens.flat, 1), lens.flat))[lens.flat > 0] - 1
        drafter.update(self.scene.model.draft_logits(rows.array[ends]).argmax(1), cu_out, substep)
        if substep == self.scene.model_steps - 1:
            return rows.array
        kept: Array = self.ops.run("eagle_get_self_hidden_states", rows, before, lens, own["step_idx"]).array
        return kept
