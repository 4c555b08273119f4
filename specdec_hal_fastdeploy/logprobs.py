"""Ops that gather what log-probabilities are computed of."""

from __future__ import annotations

import paddle

from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor


@adaptor("gpu", "xpu", returns="token_ids target_logits cu_batch_token_offset")
def speculate_get_accept_tokens_and_logits(
    plan: Plan,
    token_ids: Tensor,
    target_logits: Tensor,
    logits: Tensor,
    cu_batch_token_offset: Tensor,
    cu_seqlens_q_output: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
    accept_num: Tensor,
    accept_tokens: Tensor,
) -> None:
    """The accepted tokens, packed, the logit rows that predict them, and the slots' offsets; the tails stay."""
    used, count = seq_lens_this_time.shape[0], min(token_ids.shape[0], target_logits.shape[0])
    packed, rows = plan.scratch([count], "int64"), plan.scratch([count], "int32")
    plan.run(
        "gather_accepted",
        **plan.given("logits", "accept_tokens", "accept_num", "seq_lens_encoder", "seq_lens_this_time"),
        cu_seqlens_q_output=plan.first(used + 1, cu_seqlens_q_output),
        token_ids=packed,
        rows=rows,
        cu_batch_token_offset=plan.first(used + 1, cu_batch_token_offset),
    )
    kept = [plan.alias(plan.flat(token_ids))[:count], plan.alias(target_logits)[:count]]
    source = plan.alias(logits)
    plan.step(lambda: _copy_tokens(rows, packed, kept[0]))
    plan.step(lambda: _copy_rows(rows, kept[1], source))


@adaptor("gpu", returns="cu_batch_token_offset")
def speculate_compute_cu_batch_offset(
    plan: Plan, cu_batch_token_offset: Tensor, accept_num: Tensor, real_bsz: int
) -> None:
    """The slots' offsets among accepted tokens, [real_bsz + 1]; negative counts are none."""
    plan.expect("int32", "cu_batch_token_offset", "accept_num")
    offsets, counts = plan.alias(plan.flat(cu_batch_token_offset)), plan.alias(plan.flat(accept_num))
    if not 0 <= real_bsz < offsets.shape[0] or real_bsz > counts.shape[0]:
        sizes = f"[{offsets.shape[0]}] and [{counts.shape[0]}]"
        plan.fail(
            "real_bsz",
            "at most the slots of accept_num, and one offset more",
            f"{real_bsz} of {sizes}",
            "pass the slots in use",
        )
    first, ends, used = offsets[:1], offsets[1 : real_bsz + 1], counts[:real_bsz]
    plan.step(lambda: first.fill_(0))
    if real_bsz:
        plan.step(lambda: paddle.assign(paddle.cumsum(paddle.clip(used, 0), dtype="int32"), ends))


@adaptor(
    "gpu",
    "xpu",
    arguments="target_logits logits cu_batch_token_offset ori_cu_batch_token_offset seq_lens_this_time "
    "seq_lens_encoder accept_num",
    returns="target_logits",
)
def speculate_get_target_logits(plan: Plan, target_logits: Tensor, logits: Tensor, seq_lens_this_time: Tensor) -> None:
    """The logit rows that predict the accepted tokens, to the offsets that are given; what is in between stays.

    Before PR #7600, and on XPU, where offsets need no total.
    """
    used, names = seq_lens_this_time.shape[0], ("cu_batch_token_offset", "ori_cu_batch_token_offset")
    plan.expect("int32", *names, "seq_lens_this_time", "seq_lens_encoder", "accept_num")
    slots = plan.given(*names, "seq_lens_encoder", "accept_num").values()
    row_starts, sources, enc, counts = (plan.alias(plan.flat(tensor))[:used] for tensor in slots)
    kept, source = plan.alias(target_logits), plan.alias(logits)
    row = paddle.arange(target_logits.shape[0], dtype="int32")

    def copy() -> None:
        slot = paddle.clip(paddle.searchsorted(row_starts, row, out_int32=True, right=True) - 1, 0)
        inside = row - row_starts.index_select(slot)
        sent = paddle.where(enc > 0, paddle.clip(counts, 0, 1), counts).index_select(slot)
        rows = paddle.where(inside < sent, sources.index_select(slot) + inside, -1 - 0 * row)
        _copy_rows(paddle.where(inside >= 0, rows, -1 - 0 * row), kept, source)

    if used and target_logits.shape[0]:
        plan.step(copy)


def _copy_tokens(rows: Tensor, packed: Tensor, token_ids: Tensor) -> None:
    """The tokens that have a row; the others stay."""
    paddle.assign(paddle.where(rows >= 0, packed, token_ids), token_ids)


def _copy_rows(rows: Tensor, target_logits: Tensor, logits: Tensor) -> None:
    """Rows `rows` of `logits`; where there is no such row, one stays."""
    last = logits.shape[0] - 1
    if last >= 0:
        there = ((rows >= 0) & (rows <= last)).unsqueeze(1)
        chosen = logits.index_select(paddle.clip(rows, 0, last))
        paddle.assign(paddle.where(there, chosen, target_logits), target_logits)
