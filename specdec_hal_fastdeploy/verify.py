"""Ops that verify drafts and advance the slots."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import paddle

from specdec_hal.ops import AcceptPolicy, Strategy
from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor, older

_STRATEGIES = (Strategy.TOPP, Strategy.GREEDY, Strategy.TARGET_MATCH)
"""By FastDeploy's numbers."""
_NO_LIMIT = 1 << 62


@adaptor(
    "gpu",
    "xpu",
    arguments="step_output_ids step_output_len step_input_ids target_tokens? candidate_ids? candidate_scores? "
    "candidate_lens? topp stop_flags seq_lens_encoder seq_lens_this_time end_tokens is_block_step cu_seqlens_q_output "
    "reasoning_status max_dec_len step_idx max_seq_len:int verify_window:int verify_strategy:int reject_all:bool "
    "accept_all:bool",
    returns="step_output_ids step_output_len",
)
def verify_draft_tokens(
    plan: Plan,
    step_output_ids: Tensor,
    step_output_len: Tensor,
    step_input_ids: Tensor,
    target_tokens: Tensor | None,
    stop_flags: Tensor,
    seq_lens_encoder: Tensor,
    seq_lens_this_time: Tensor,
    end_tokens: Tensor,
    is_block_step: Tensor,
    cu_seqlens_q_output: Tensor,
    reasoning_status: Tensor,
    max_dec_len: Tensor,
    step_idx: Tensor,
    verify_window: int,
    verify_strategy: int,
    reject_all: bool,
    accept_all: bool,
) -> None:
    """Accept a prefix of each slot's drafts and emit one more token, into step_output_ids and step_output_len."""
    slots, used, first = step_output_ids.shape[0], seq_lens_this_time.shape[0], plan.first
    if slots == 0:
        return
    zeros = plan.constant(0, [slots], "int64")
    emitted, write = (step_output_ids, None) if plan.platform == "gpu" else _beside(plan, step_output_ids)
    plan.run("verify_draft_tokens", **{
        **_compared(plan, slots, verify_strategy, target_tokens, zeros), "draft_tokens": step_input_ids,
        "accept_tokens": emitted, "accept_num": step_output_len, "seq_lens_this_time": seq_lens_this_time,
        "end_tokens": end_tokens, "step_idx": first(slots, step_idx), "max_dec_len": first(slots, max_dec_len),
        "stop_flags": first(slots, stop_flags), "is_block_step": first(slots, is_block_step), "prompt_lens": zeros,
        "seq_lens_encoder": first(slots, seq_lens_encoder), "reasoning_status": first(slots, reasoning_status),
        "seq_lens_decoder": plan.constant(0, [slots], "int32"),  # with prompt_lens: any chunk may be the last
        "cu_seqlens_q_output": _offsets(plan, used, cu_seqlens_q_output), "verify_window": max(verify_window, 1),
        "accept_policy": _policy(reject_all, accept_all), "end_at_limit": True,
    })  # fmt: skip
    if write is not None:
        write(step_output_len)


def _beside(plan: Plan, ids: Tensor) -> tuple[Tensor, Callable[[Tensor], None]]:
    """Memory for emitted tokens, and what copies the counted ones: on XPU, a row keeps what follows them."""
    emitted, kept, column = (
        plan.scratch(ids.shape, "int64"),
        plan.alias(ids),
        paddle.arange(ids.shape[1], dtype="int32"),
    )

    def write(lens: Tensor) -> None:
        counts = plan.alias(plan.flat(lens))
        plan.step(lambda: paddle.assign(paddle.where(column < counts.unsqueeze(1), emitted, kept), kept))

    return emitted, write


def _compared(plan: Plan, slots: int, number: int, targets: Tensor | None, zeros: Tensor) -> dict[str, Any]:
    """A strategy's inputs and seeds: FastDeploy's seeds differ by slot and call, not by request."""
    if not 0 <= number < len(_STRATEGIES):
        plan.fail("verify_strategy", "0 TOPP | 1 GREEDY | 2 TARGET_MATCH", str(number), "pass one of them")
    strategy = _STRATEGIES[number]
    if strategy is not Strategy.TOPP:
        return {"target_tokens": targets, "seed": zeros, "strategy": strategy}
    seeds, more = _seeds(slots, plan.device), plan.constant(slots, [], "int64")
    plan.step(lambda: seeds.add_(more))
    candidates = plan.given("candidate_ids", "candidate_scores", "candidate_lens")
    return {**candidates, "top_p": plan.first(slots, plan.given("topp")["topp"]), "seed": seeds, "strategy": strategy}


@cache
def _seeds(slots: int, device: str) -> Tensor:
    """A seed for each slot, which every call advances: calls and slots draw for themselves."""
    return paddle.arange(slots, dtype="int64").to(paddle.CPUPlace() if device == "cpu" else device)


def _policy(reject_all: bool, accept_all: bool) -> AcceptPolicy:
    if reject_all:
        return AcceptPolicy.REJECT_ALL
    return AcceptPolicy.ACCEPT_ALL if accept_all else AcceptPolicy.NORMAL


def _offsets(plan: Plan, used: int, offsets: Tensor) -> Tensor:
    """The first `used` + 1 offsets; callers that have no last one, which is not read, get a copy with one."""
    if (count := offsets.shape[0]) != used:
        return offsets if count == used + 1 else plan.first(used + 1, offsets)
    longer, given = plan.scratch([used + 1], "int32"), plan.alias(plan.flat(offsets))
    head = longer[:used]
    plan.step(lambda: paddle.assign(given, head))
    return longer


@older(
    verify_draft_tokens,
    arguments="step_output_ids step_output_len step_input_ids target_tokens? candidate_ids? candidate_scores? "
    "candidate_lens? topp stop_flags seq_lens_encoder seq_lens_this_time end_tokens is_block_step cu_seqlens_q_output "
    "reasoning_status max_seq_len:int verify_window:int verify_strategy:int reject_all:bool accept_all:bool",
    returns="step_output_ids step_output_len",
)
def _verify_draft_tokens_20(
    plan: Plan,
    step_output_ids: Tensor,
    max_seq_len: int,
    verify_window: int,
    verify_strategy: int,
    reject_all: bool,
    accept_all: bool,
) -> None:
    """As before PR #6973, without a length limit."""
    slots = step_output_ids.shape[0]
    limits = {"max_dec_len": _NO_LIMIT, "step_idx": 0}
    args = [*plan.given(*list(plan.names)[:15]).values()]
    args += [plan.constant(value, [slots], "int64") for value in limits.values()]
    verify_draft_tokens.plan(plan, *args, max_seq_len, verify_window, verify_strategy, reject_all, accept_all)


_ADVANCED = "seq_lens_encoder seq_lens_decoder has_running_seqs step_input_ids step_output_ids step_output_len"


@adaptor(
    "gpu",
    "xpu",
    arguments="seq_lens_encoder seq_lens_decoder has_running_seqs step_input_ids step_output_ids step_output_len "
    "stop_flags seq_lens_this_time is_paused token_ids_all prompt_lens step_idx end_tokens max_dec_len",
    returns=f"{_ADVANCED} stop_flags seq_lens_this_time token_ids_all step_idx",
)
def unified_update_model_status(plan: Plan, has_running_seqs: Tensor) -> None:
    """Append the emitted tokens to the history and advance every slot."""
    plan.run(
        "update_model_status",
        **plan.given("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "stop_flags", "token_ids_all"),
        **plan.given("prompt_lens", "step_idx", "end_tokens", "max_dec_len", is_block_step="is_paused"),
        **plan.given(draft_tokens="step_input_ids", accept_tokens="step_output_ids", accept_num="step_output_len"),
        has_running=plan.flat(has_running_seqs),
        end_at_limit=True,
    )


@older(
    unified_update_model_status,
    arguments="seq_lens_encoder seq_lens_decoder has_running_seqs step_input_ids adaptive_step_input_len "
    "step_output_ids step_output_len stop_flags seq_lens_this_time is_paused mask_rollback token_ids_all prompt_lens "
    "step_idx end_tokens max_dec_len is_naive_mode:bool prefill_one_step_stop:int",
    returns=f"{_ADVANCED} stop_flags seq_lens_this_time mask_rollback token_ids_all step_idx",
)
def _unified_update_model_status_18(
    plan: Plan,
    seq_lens_encoder: Tensor,
    step_output_len: Tensor,
    stop_flags: Tensor,
    seq_lens_this_time: Tensor,
    is_paused: Tensor,
    mask_rollback: Tensor,
    is_naive_mode: bool,
    prefill_one_step_stop: int,
) -> None:
    """As before PR #6973 and on XPU, where the last argument may be `max_draft_tokens`, which is not needed."""
    if prefill_one_step_stop is True:
        plan.refuse("prefill_one_step_stop ends requests on a prefill node, which FastDeploy's own op has to do")
    used = seq_lens_this_time.shape[0]
    lens, enc, num, stop, paused, rollback = (
        plan.alias(plan.flat(tensor))[:used]
        for tensor in (seq_lens_this_time, seq_lens_encoder, step_output_len, stop_flags, is_paused, mask_rollback)
    )
    ran, decoding = (plan.scratch([used], "bool") for _ in range(2))
    plan.step(lambda: (paddle.assign(~stop & ~paused, ran), paddle.assign(enc <= 0, decoding)))
    if is_naive_mode:
        plan.step(lambda: num.fill_(1))
    unified_update_model_status.plan(plan)

    def roll_back() -> None:  # slots that had stopped before keep theirs
        rejected = paddle.where(decoding & ~stop, lens - num, 0 * num)
        paddle.assign(paddle.where(ran, rejected, rollback), rollback)

    plan.step(roll_back)
    if is_naive_mode:
        plan.step(lambda: paddle.assign((~stop).astype("int32"), lens))


@adaptor("gpu", "xpu", returns="accept_tokens accept_num seq_lens_this_time")
def naive_update_model_status(
    plan: Plan,
    accept_tokens: Tensor,
    accept_num: Tensor,
    seq_lens_this_time: Tensor,
    next_tokens: Tensor,
    cu_seqlens_q_output: Tensor,
) -> None:
    """Take each running slot's newest token as its only one: non-speculative decoding on the speculative path."""
    plan.expect("int64", "accept_tokens", "next_tokens")
    plan.expect("int32", "accept_num", "seq_lens_this_time", "cu_seqlens_q_output")
    used = seq_lens_this_time.shape[0]
    tokens, lens = plan.alias(plan.flat(next_tokens)), plan.alias(plan.flat(seq_lens_this_time))
    ends = plan.alias(plan.flat(cu_seqlens_q_output))[1 : used + 1]
    firsts, counts = plan.alias(accept_tokens)[:used, 0], plan.alias(plan.flat(accept_num))[:used]

    def update() -> None:
        running = lens > 0
        drawn = tokens.index_select(paddle.clip(ends - 1, 0, max(tokens.shape[0] - 1, 0)))
        paddle.assign(paddle.where(running, drawn, firsts), firsts)
        paddle.assign(running.astype("int32"), counts)
        paddle.assign(counts, lens)

    plan.step(update)
