"""Ops that gather what log-probabilities are computed of."""

from __future__ import annotations

import paddle

from specdec_hal.compat.fastdeploy.adaptor import Plan, Tensor, adaptor


@adaptor("gpu", "xpu")
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
    plan.step(lambda: _copy_rows(rows, packed, source, *kept))


def _copy_rows(rows: Tensor, packed: Tensor, logits: Tensor, token_ids: Tensor, target_logits: Tensor) -> None:
    """Tokens and logits of the rows that count; the others stay."""
    counts = rows >= 0
    paddle.assign(paddle.where(counts, packed, token_ids), token_ids)
    chosen = logits.index_select(paddle.clip(rows, 0))
    paddle.assign(paddle.where(counts.unsqueeze(1), chosen, target_logits), target_logits)
