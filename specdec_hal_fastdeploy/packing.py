"""Ops that pack a step's tokens and pick the hidden rows after which tokens are drawn, on slots in slot order."""

from __future__ import annotations

from typing import Any

import paddle

from specdec_hal.ops import TokenOrder
from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor, older

WIDEST_STEP = 32
"""Columns of placeholder drafts if FastDeploy only passes lengths, and the most for an op."""


def pack(
    plan: Plan,
    lens: Tensor,
    enc: Tensor,
    dec: Tensor,
    input_ids: Tensor,
    draft_tokens: Tensor,
    capacity: int,
    rows: int,
) -> dict[str, Any]:
    """Add `prepare_inputs` with fresh outputs for `capacity` tokens and `rows` output rows; gives them by name."""
    slots = lens.shape[0]
    sizes = {
        "batch_id_per_token": capacity,
        "cu_seqlens_q": slots + 1,
        "cu_seqlens_k": slots + 1,
        "cu_seqlens_q_output": slots + 1,
        "batch_id_per_token_output": rows,
        "num_tokens": 2,
    }
    out = {name: plan.empty([size], "int32") for name, size in sizes.items()}
    out["ids_remove_padding"] = plan.empty([capacity], "int64")
    plan.run(
        "prepare_inputs",
        input_ids=plan.first(slots, input_ids),
        draft_tokens=plan.first(slots, draft_tokens),
        seq_lens_this_time=lens,
        seq_lens_encoder=plan.first(slots, enc),
        seq_lens_decoder=plan.first(slots, dec),
        **out,
    )
    return out


@adaptor("gpu", "xpu")
def speculate_pre_process(
    plan: Plan,
    cpu_token_num: int,
    input_ids: Tensor,
    seq_len: Tensor,
    draft_tokens: Tensor,
    seq_lens_encoder: Tensor,
    seq_lens_decoder: Tensor,
) -> list[Tensor]:
    """ids_remove_padding, batch_id_per_token, cu_seqlens_q, cu_seqlens_k, the output rows' own, and their number."""
    slots, width = seq_len.shape[0], draft_tokens.shape[1]
    no_history = plan.constant(0, [slots], "int32")
    if width == 0:  # then every slot's tokens are those of input_ids
        seq_lens_encoder, draft_tokens = seq_len, plan.constant(0, [slots, 1], "int64")
    out = pack(
        plan, seq_len, seq_lens_encoder, no_history, input_ids, draft_tokens, cpu_token_num, slots * max(width, 1)
    )
    names = ("ids_remove_padding", "batch_id_per_token", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_q_output")
    return [*(out[name] for name in names), out["batch_id_per_token_output"], out["num_tokens"][1:]]


_PACKED = ("ids_remove_padding", "batch_id_per_token", "cu_seqlens_q", "cu_seqlens_k")


@adaptor("gpu", "xpu", seq_lens_encoder="int32")
def get_padding_offset(
    plan: Plan,
    input_ids: Tensor,
    seq_len: Tensor,
    seq_lens_encoder: Tensor,
    seq_lens_decoder: Tensor,
    draft_tokens: Tensor | None,
    token_num_cpu: int,
) -> list[Tensor]:
    """x_remove_padding, batch_id_per_token, cu_seqlens_q, and cu_seqlens_k, which counts cached tokens as well."""
    return _unpadded(plan, input_ids, seq_len, draft_tokens, seq_lens_encoder, seq_lens_decoder, token_num_cpu)


def _unpadded(
    plan: Plan, input_ids: Tensor, lens: Tensor, drafts: Tensor | None, enc: Tensor | None, dec: Tensor | None,
    capacity: int,
) -> list[Tensor]:  # fmt: skip
    slots = lens.shape[0]
    if drafts is None or enc is None:  # lengths in the place of prompt lengths: all tokens are those of input_ids
        enc, drafts = lens, plan.constant(0, [slots, 1], "int64")
    cached = plan.constant(0, [slots], "int32") if dec is None else plan.first(slots, dec)
    out = pack(plan, lens, enc, cached, input_ids, drafts, capacity, 0)
    if dec is not None:  # FastDeploy counts what idle slots have cached, too
        fed, kept, ends = plan.alias(plan.flat(lens)), plan.alias(plan.flat(cached)), out["cu_seqlens_k"][1:]
        plan.step(lambda: paddle.assign(paddle.cumsum(fed + kept, dtype="int32"), ends))
    return [out[name] for name in _PACKED]


def _older_padding(
    plan: Plan, input_ids: Tensor, seq_len: Tensor, draft_tokens: Tensor | None, seq_lens_encoder: Tensor | None,
    cpu_token_num: int, seq_lens_decoder: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """As the runners of early 2026 and the XPU op call it."""
    return _unpadded(plan, input_ids, seq_len, draft_tokens, seq_lens_encoder, seq_lens_decoder, cpu_token_num)


older(get_padding_offset, "input_ids seq_len draft_tokens? seq_lens_encoder? cpu_token_num:int")(_older_padding)
older(  # as PR #7727 had it for two days, until #7766: lengths may be left out, and drafts stand before them
    get_padding_offset,
    "input_ids seq_len draft_tokens? seq_lens_encoder? seq_lens_decoder? cpu_token_num:int",
    draft_tokens="int64",
    seq_lens_encoder="int32",
)(_older_padding)


@older(get_padding_offset)
def _get_padding_offset_4(
    plan: Plan, input_ids: Tensor, cum_offsets: Tensor, token_num: Tensor, seq_len: Tensor
) -> list[Tensor]:
    """As in 2025: the number of tokens is a tensor. XPU's, also of release/2.6, gives cum_offsets_out second."""
    packed = _unpadded(plan, input_ids, seq_len, None, None, None, token_num.item())
    return packed if plan.platform == "gpu" else _with_cum_offsets(plan, packed, cum_offsets)


@older(get_padding_offset)
def _get_padding_offset_3(plan: Plan, input_ids: Tensor, seq_len: Tensor, token_num: int) -> list[Tensor]:
    """As XPU's op of 2025, which gives cum_offsets_out as the second of five tensors."""
    packed = _unpadded(plan, input_ids, seq_len, None, None, None, token_num)
    return _with_cum_offsets(plan, packed, paddle.cumsum(input_ids.shape[1] - plan.flat(seq_len)))


def _with_cum_offsets(plan: Plan, packed: list[Tensor], cum_offsets: Tensor) -> list[Tensor]:
    """XPU's second tensor among the others: how many places are empty in the rows of input_ids before each slot's."""
    ends = plan.alias(plan.flat(cum_offsets))
    out = paddle.zeros(ends.shape, "int32")
    if len(ends) > 1:
        plan.step(lambda: paddle.assign(ends[:-1].astype("int32"), out[1:]))
    return [packed[0], out, *packed[1:]]


@adaptor("gpu")
def speculate_get_padding_offset(
    plan: Plan,
    input_ids: Tensor,
    draft_tokens: Tensor,
    cum_offsets: Tensor,
    token_num: Tensor,
    seq_len: Tensor,
    seq_lens_encoder: Tensor,
) -> list[Tensor]:
    """x_remove_padding, batch_id_per_token, cu_seqlens_q, cu_seqlens_k: what came before `speculate_pre_process`."""
    return _unpadded(plan, input_ids, seq_len, draft_tokens, seq_lens_encoder, None, token_num.item())


@adaptor("xpu", name="speculate_get_padding_offset")
def _speculate_get_padding_offset_xpu(
    plan: Plan,
    input_ids: Tensor,
    draft_tokens: Tensor,
    cum_offsets: Tensor,
    token_num: Tensor,
    seq_len: Tensor,
    seq_lens_encoder: Tensor,
) -> list[Tensor]:
    """As on GPUs, with cum_offsets_out as the second of five tensors."""
    packed = speculate_get_padding_offset.plan(plan)
    return _with_cum_offsets(plan, packed, cum_offsets)


@adaptor("gpu", "xpu")
def speculate_get_seq_lens_output(
    plan: Plan, seq_lens_this_time: Tensor, seq_lens_encoder: Tensor, seq_lens_decoder: Tensor
) -> list[Tensor]:
    """One tensor: the output rows of each slot."""
    slots = seq_lens_this_time.shape[0]
    prompts, drafts = (plan.constant(0, [slots, width], "int64") for width in (1, WIDEST_STEP))
    out = pack(plan, seq_lens_this_time, seq_lens_encoder, seq_lens_decoder, prompts, drafts, 0, 0)
    rows, offsets = plan.empty([slots], "int32"), out["cu_seqlens_q_output"]
    plan.step(lambda: paddle.assign(offsets[1:] - offsets[:-1], rows))
    return [rows]


@adaptor("gpu")
def rebuild_padding(
    plan: Plan,
    tmp_out: Tensor,
    cu_seqlens_q: Tensor,
    seq_len_this_time: Tensor,
    seq_lens_decoder: Tensor,
    seq_lens_encoder: Tensor,
    batch_id_per_token_output: Tensor | None = None,
    cu_seqlens_q_output: Tensor | None = None,
    first_token_out: Tensor | None = None,
    enable_logprob: bool = False,
) -> Tensor:
    """The hidden rows that predict a token: packed [R, D] if `batch_id_per_token_output` is given, else [B, D]."""
    slots, speculative = seq_len_this_time.shape[0], batch_id_per_token_output is not None
    batch = {"x": plan.contiguous(tmp_out), "cu_seqlens_q": plan.first(slots + 1, cu_seqlens_q)}
    batch["seq_lens_encoder"] = plan.first(slots, seq_lens_encoder)
    if batch_id_per_token_output is None:  # nothing is packed then, and neither is read
        batch_id_per_token_output, cu_seqlens_q_output = plan.constant(-1, [0], "int32"), cu_seqlens_q
    out = plan.empty([batch_id_per_token_output.shape[0] if speculative else slots, tmp_out.shape[1]], tmp_out.dtype)
    plan.run(
        "gather_next_token",
        **batch,
        seq_lens_this_time=seq_len_this_time,
        cu_seqlens_q_output=plan.first(slots + 1, cu_seqlens_q_output),
        batch_id_per_token_output=batch_id_per_token_output,
        out=out,
        is_speculative=speculative,
        token_order=TokenOrder.SLOT,
    )
    if first_token_out is not None and enable_logprob:
        _second_last_rows(plan, batch, first_token_out)
    return out


def _second_last_rows(plan: Plan, batch: dict[str, Any], first_token_out: Tensor) -> None:
    """The row before a prompt's last one, which predicts the first token of a request that was split in two."""
    x, enc = batch["x"], plan.flat(batch["seq_lens_encoder"])
    starts, kept = plan.first(enc.shape[0], plan.flat(batch["cu_seqlens_q"])), plan.first(enc.shape[0], first_token_out)

    def write() -> None:
        rows = paddle.clip(starts + enc - 2, 0, x.shape[0] - 1)
        paddle.assign(paddle.where((enc > 0).unsqueeze(1), paddle.index_select(x, rows), kept), kept)

    plan.step(write)
