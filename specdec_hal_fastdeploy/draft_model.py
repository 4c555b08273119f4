"""Ops around a draft model that reads the target's hidden states: its slots' state, its rows, and how many drafts."""

from __future__ import annotations

from collections.abc import Callable

import paddle

from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor, refused
from specdec_hal_fastdeploy.packing import WIDEST_STEP

_OWN = ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "step_idx")
"""A draft model's slots."""
_NO_LIMIT = 2**62
"""A max_dec_len that no request reaches."""


@adaptor(
    "gpu",
    "xpu",
    arguments="draft_tokens input_ids stop_flags seq_lens_this_time seq_lens_encoder seq_lens_decoder step_idx "
    "not_need_stop pre_ids accept_tokens accept_num target_model_seq_lens_encoder target_model_seq_lens_decoder "
    "target_model_step_idx target_model_stop_flags max_dec_len target_model_draft_tokens num_model_step:int "
    "is_splitwise_prefill:bool",
    returns=f"draft_tokens input_ids stop_flags {' '.join(_OWN)} not_need_stop pre_ids target_model_draft_tokens",
)
def draft_model_preprocess(
    plan: Plan,
    draft_tokens: Tensor,
    seq_lens_this_time: Tensor,
    not_need_stop: Tensor,
    accept_tokens: Tensor,
    max_dec_len: Tensor,
    target_model_draft_tokens: Tensor,
    num_model_step: int,
    is_splitwise_prefill: bool,
) -> None:
    """Set the draft model's slots to what the target's step has accepted; not_need_stop: whether any slot drafts."""
    one = plan.constant(1, draft_tokens.shape[:1], "int32")
    width = min(draft_tokens.shape[1], accept_tokens.shape[1], WIDEST_STEP)
    drafts, write_drafts = plan.columns(draft_tokens, width)
    accepted, target_drafts = (plan.columns(t, width)[0] for t in (accept_tokens, target_model_draft_tokens))
    plan.run(
        "draft_model_preprocess",
        **{"draft_tokens": drafts, "accept_tokens": accepted, "base_model_draft_tokens": target_drafts},
        **plan.given("input_ids", "stop_flags", "pre_ids", "accept_num", *_OWN),
        **plan.given(base_model_seq_lens_decoder="target_model_seq_lens_decoder"),
        **plan.given(base_model_step_idx="target_model_step_idx", base_model_stop_flags="target_model_stop_flags"),
        has_running=plan.flat(not_need_stop),
        max_dec_len=plan.constant(_NO_LIMIT, one.shape, "int64") if is_splitwise_prefill else max_dec_len,
        draft_token_num=one,  # FastDeploy has no limit per request
        min_room=num_model_step + 1,
    )
    write_drafts()
    if target_drafts is not target_model_draft_tokens:  # the op clears all columns
        drafts_of_target = plan.alias(target_model_draft_tokens)[: seq_lens_this_time.shape[0], 1:]
        plan.step(lambda: drafts_of_target.fill_(-1))


refused(
    draft_model_preprocess,
    "draft_tokens input_ids stop_flags seq_lens_this_time seq_lens_encoder seq_lens_decoder step_idx "
    "not_need_stop is_block_step batch_drop pre_ids mask_rollback recompute_token_num accept_tokens "
    "accept_num base_model_seq_lens_this_time base_model_seq_lens_encoder base_model_seq_lens_decoder "
    "base_model_step_idx base_model_stop_flags base_model_is_block_step base_model_draft_tokens "
    "num_model_step:int truncate_first_token:bool splitwise_prefill:bool kvcache_scheduler_v1:bool",
    "26 arguments are XPU's of early 2026, which drops and recomputes tokens; update it to the 19 of GPUs",
)


@adaptor(
    "gpu",
    "xpu",
    arguments="inter_next_tokens draft_tokens pre_ids seq_lens_this_time seq_lens_encoder seq_lens_decoder "
    "step_idx cu_seqlens_q_output stop_flags not_need_stop max_dec_len end_ids base_model_draft_tokens "
    "max_seq_len:int substep:int",
    returns=f"draft_tokens pre_ids {' '.join(_OWN)} not_need_stop base_model_draft_tokens",
)
def draft_model_update(
    plan: Plan,
    inter_next_tokens: Tensor,
    draft_tokens: Tensor,
    not_need_stop: Tensor,
    base_model_draft_tokens: Tensor,
    substep: int,
) -> None:
    """Take one token of the draft model per slot with tokens; not_need_stop: whether any slot goes on."""
    width = draft_tokens.shape[1]
    if base_model_draft_tokens.shape[1] != width or width > WIDEST_STEP:  # one column of each is written
        width = substep + 2
    drafts, write_drafts = plan.columns(draft_tokens, width)
    target_drafts, write_target_drafts = plan.columns(base_model_draft_tokens, width)
    plan.run(
        "draft_model_update",
        draft_tokens=drafts,
        base_model_draft_tokens=target_drafts,
        **plan.given("pre_ids", "stop_flags", "max_dec_len", *_OWN),
        has_running=plan.flat(not_need_stop),
        inter_next_tokens=plan.flat(inter_next_tokens),
        draft_token_num=plan.constant(1, [draft_tokens.shape[0]], "int32"),
        substep=substep,
    )
    write_drafts()
    write_target_drafts()


refused(
    draft_model_update,
    "inter_next_tokens draft_tokens pre_ids seq_lens_this_time seq_lens_encoder seq_lens_decoder step_idx "
    "output_cum_offsets stop_flags not_need_stop max_dec_len end_ids base_model_draft_tokens batch_drop "
    "prompt_lens max_seq_len:int substep:int",
    "17 arguments are those of 2025, which finds its rows by padded offsets; update it",
)


@adaptor("gpu", "xpu", returns="base_model_seq_lens_this_time")
def draft_model_postprocess(
    plan: Plan,
    base_model_draft_tokens: Tensor,
    base_model_seq_lens_this_time: Tensor,
    base_model_seq_lens_encoder: Tensor,
    base_model_stop_flags: Tensor,
) -> None:
    """Count the tokens that the target verifies next."""
    slots = base_model_draft_tokens.shape[0]
    plan.run(
        "draft_model_postprocess",
        **plan.given(draft_tokens="base_model_draft_tokens", seq_lens_this_time="base_model_seq_lens_this_time"),
        **plan.given(seq_lens_encoder="base_model_seq_lens_encoder", stop_flags="base_model_stop_flags"),
        seq_lens_decoder=plan.constant(1, [slots], "int32"),  # FastDeploy ignores whether a slot is idle
    )


def last_rows(plan: Plan, op: str, x: Tensor, slots: int, lens: Callable[[], Tensor], **more: Tensor) -> list[Tensor]:
    """Add an op that packs the last rows of slots with `lens` rows each; gives them and their number."""
    offsets = plan.scratch([slots + 1], "int32")
    ends = offsets[1:]
    plan.step(lambda: paddle.assign(paddle.cumsum(lens(), dtype="int32"), ends))
    hidden, count = plan.empty([slots, x.shape[1]], x.dtype), plan.empty([1], "int32")
    plan.run(op, x=plan.contiguous(x), cu_seqlens_q=offsets, last_hidden=hidden, output_token_num=count, **more)
    return [hidden, count]


@adaptor(
    "gpu",
    arguments="input cu_seqlens_q seq_lens_this_time seq_lens_decoder seq_lens_encoder batch_id_per_token_output? "
    "cu_seqlens_q_output? real_output_token_num?",
)
def eagle_gather_hidden_states(plan: Plan, input: Tensor, seq_lens_this_time: Tensor) -> list[Tensor]:
    """The last row of every slot that has tokens, packed, and how many there are."""
    lens = plan.flat(seq_lens_this_time)
    return last_rows(plan, "eagle_gather_hidden_states", input, lens.shape[0], lambda: lens)


@adaptor("gpu")
def eagle_get_self_hidden_states(
    plan: Plan, input: Tensor, last_seq_lens_this_time: Tensor, seq_lens_this_time: Tensor, seq_lens_encoder: Tensor
) -> list[Tensor]:
    """The rows of the last substep that feed the next one, packed, and how many there are."""
    last, now, enc = (plan.flat(t) for t in (last_seq_lens_this_time, seq_lens_this_time, seq_lens_encoder))
    slots = now.shape[0]

    def lens() -> Tensor:  # a prompt has one row here
        return paddle.where(enc[:slots] > 0, paddle.clip(last[:slots], 0, 1), last[:slots])

    op = "eagle_get_self_hidden_states"
    return last_rows(plan, op, input, slots, lens, seq_lens_this_time=seq_lens_this_time)


@adaptor("xpu", name="eagle_get_self_hidden_states")
def _eagle_get_self_hidden_states_xpu(
    plan: Plan, input: Tensor, last_seq_lens_this_time: Tensor, seq_lens_this_time: Tensor, step_idx: Tensor
) -> Tensor:
    """As on GPUs, without unused rows. A slot with step_idx 1 has the rows of a prompt."""
    prompts = (plan.flat(step_idx) == 1).astype("int32")
    given = (input, last_seq_lens_this_time, seq_lens_this_time, prompts)
    hidden, _ = eagle_get_self_hidden_states.plan(plan, *given)
    return hidden[: int((seq_lens_this_time > 0).sum())]


@adaptor(
    "gpu",
    arguments="input seq_lens_this_time seq_lens_encoder seq_lens_decoder stop_flags accept_nums "
    "base_model_seq_lens_this_time base_model_seq_lens_encoder actual_draft_token_num:int",
)
def eagle_get_hidden_states(
    plan: Plan,
    input: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
    accept_nums: Tensor,
    base_model_seq_lens_this_time: Tensor,
) -> list[Tensor]:
    """The target's rows of all tokens that the draft model is fed, packed, and how many there are."""
    slots = seq_lens_this_time.shape[0]
    given = (seq_lens_this_time, seq_lens_encoder, accept_nums, base_model_seq_lens_this_time)
    return _fed_rows(plan, input, *(plan.first(slots, plan.flat(tensor)) for tensor in given))


def _fed_rows(plan: Plan, input: Tensor, fed: Tensor, enc: Tensor, accepted: Tensor, ran: Tensor) -> list[Tensor]:
    """The rows that the draft model is fed, of slots in the order of the rows of `input`, and how many there are."""
    slots = fed.shape[0]
    offsets, base = (plan.scratch([slots + 1], "int32") for _ in range(2))
    row_slots, count = plan.scratch(input.shape[:1], "int32"), plan.empty([1], "int32")
    plan.step(lambda: _packed_rows(fed, enc, accepted, ran, offsets[1:], base[1:], row_slots))
    out, total = plan.empty(input.shape, input.dtype), offsets[slots:]
    plan.run(
        "eagle_get_hidden_states",
        x=plan.contiguous(input),
        cu_seqlens_q=offsets,
        batch_id_per_token=row_slots,
        base_model_cu_seqlens_q=base,
        out=out,
    )
    plan.step(lambda: paddle.assign(total, count))
    return [out, count]


def _packed_rows(
    fed: Tensor, enc: Tensor, accepted: Tensor, ran: Tensor, ends: Tensor, base_ends: Tensor, row_slots: Tensor
) -> None:
    """Where each slot's rows end, among those kept and those of the target's step, and the slot of each kept row."""
    kept = _kept_rows(fed, enc, accepted, ran)
    paddle.assign(paddle.cumsum(kept, dtype="int32"), ends)
    paddle.assign(paddle.cumsum(ran, dtype="int32"), base_ends)
    rows = paddle.arange(row_slots.shape[0], dtype="int32")
    paddle.assign(paddle.searchsorted(ends, rows, out_int32=True, right=True), row_slots)


def _kept_rows(fed: Tensor, enc: Tensor, accepted: Tensor, ran: Tensor) -> Tensor:
    """How many rows of each slot the draft model is fed."""
    return paddle.where(enc > 0, enc, paddle.where((fed > 0) & (ran > 0), paddle.minimum(accepted, ran), 0 * ran))


@adaptor(
    "xpu",
    name="eagle_get_hidden_states",
    arguments="input seq_lens_this_time seq_lens_encoder seq_lens_decoder stop_flags accept_nums "
    "base_model_seq_lens_this_time base_model_seq_lens_encoder actual_draft_token_num:int",
)
def _eagle_get_hidden_states_xpu(
    plan: Plan,
    input: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
    accept_nums: Tensor,
    base_model_seq_lens_this_time: Tensor,
    base_model_seq_lens_encoder: Tensor,
) -> Tensor:
    """As on GPUs, without unused rows. In input and output the rows of prompts come first, as in adjusted batches."""
    slots = seq_lens_this_time.shape[0]
    given = (seq_lens_this_time, seq_lens_encoder, accept_nums, base_model_seq_lens_this_time)
    fed, enc, accepted, ran, base_enc = (
        plan.first(slots, plan.flat(tensor)) for tensor in (*given, base_model_seq_lens_encoder)
    )
    rows = int(_kept_rows(fed, enc, accepted, ran).sum())
    order = paddle.argsort((enc <= 0).astype("int32") * (base_enc <= 0).astype("int32"), stable=True)
    slots_in_order = (plan.hold(paddle.index_select(tensor, order)) for tensor in (fed, enc, accepted, ran))
    return _fed_rows(plan, input, *slots_in_order)[0][:rows]
