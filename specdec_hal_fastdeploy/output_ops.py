"""Ops on emitted tokens, between verification and the advance of the slots, and what callers keep of them."""

from __future__ import annotations

from functools import partial

import paddle

from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor, older
from specdec_hal_fastdeploy.found import is_release_2_6

_NEVER = 2**62
"""A min_tokens that no request reaches."""


@adaptor(
    "gpu",
    "xpu",
    arguments="accept_tokens accept_num token_ids_all prompt_lens step_idx stop_flags seq_lens stop_seqs "
    "stop_seqs_len end_ids min_tokens",
    returns="accept_tokens accept_num",
)
def speculate_set_stop_value_multi_seqs(
    plan: Plan, accept_tokens: Tensor, accept_num: Tensor, stop_seqs_len: Tensor
) -> None:
    """Put an end token after the first stop sequence in accept_tokens; what follows it is not counted, and stays."""
    slots = accept_num.shape[0]
    texts = plan.given("token_ids_all", "prompt_lens", "step_idx", "stop_seqs", min_dec_len="min_tokens")
    plan.run(
        "set_stop_sequences",
        **{name: plan.first(slots, tensor) for name, tensor in texts.items()},
        stop_seqs_lens=plan.first(slots, stop_seqs_len),
        accept_tokens=plan.first(slots, accept_tokens),
        max_dec_len=plan.scratch([slots], "int64"),
        end_after_stop=True,
        keep_tail=True,
        **plan.given("accept_num", end_tokens="end_ids"),
    )


_STOPPED = "accept_tokens accept_num pre_ids step_idx stop_flags seq_lens stop_seqs stop_seqs_len end_ids"


@older(speculate_set_stop_value_multi_seqs, arguments=f"{_STOPPED} min_tokens", returns="accept_tokens accept_num")
def _set_stop_value_10(plan: Plan, min_tokens: Tensor) -> None:
    """As XPU's of release/2.6: see `_set_stop_value`."""
    _set_stop_value(plan, min_tokens)


@older(speculate_set_stop_value_multi_seqs, arguments=_STOPPED, returns="accept_tokens accept_num")
def _set_stop_value_9(plan: Plan, step_idx: Tensor) -> None:
    """As XPU's of release/2.6: see `_set_stop_value`."""
    _set_stop_value(plan, plan.constant(0, step_idx.shape, "int64"))


def _set_stop_value(plan: Plan, min_tokens: Tensor) -> None:
    """Of release/2.6, where step_idx counts the accepted tokens and pre_ids has the newest one before them in column
    step_idx - accept_num; slots that have just stopped are left alone.
    """
    state = plan.given("accept_tokens", "accept_num", "pre_ids", "step_idx", "stop_flags")
    slots = state["accept_num"].shape[0]
    counts, steps, stopped, least = (
        plan.alias(plan.flat(tensor))[:slots]
        for tensor in (state["accept_num"], state["step_idx"], state["stop_flags"], min_tokens)
    )
    before, minimum = plan.scratch([slots], "int64"), plan.scratch([slots], "int64")
    column_of_first, never = plan.constant(1, [slots], "int64"), plan.constant(_NEVER, [slots], "int64")
    plan.step(lambda: paddle.assign(steps - paddle.clip(counts, 0).astype("int64"), before))
    plan.step(lambda: paddle.assign(paddle.where(stopped, never, least), minimum))
    sequences = plan.given("seq_lens", "stop_seqs", "stop_seqs_len", "end_ids").values()
    text = (state["pre_ids"], column_of_first, before, state["stop_flags"])
    speculate_set_stop_value_multi_seqs.plan(
        plan, state["accept_tokens"], state["accept_num"], *text, *sequences, minimum
    )


@adaptor(
    "gpu",
    "xpu",
    arguments="next_tokens max_think_lens max_reply_lens step_idx limit_status accept_num stop_flags "
    "eos_token_ids inject_token_ids think_end_id:int splitwise_role_is_decode:bool",
    returns="next_tokens max_reply_lens limit_status accept_num",
)
def speculate_limit_thinking_content_length(
    plan: Plan,
    next_tokens: Tensor,
    eos_token_ids: Tensor,
    inject_token_ids: Tensor,
    think_end_id: int,
    splitwise_role_is_decode: bool,
) -> None:
    """End thinking and answers at their limits, in next_tokens and accept_num; max_reply_lens may grow."""
    slots = next_tokens.shape[0]
    given = plan.given("max_think_lens", "max_reply_lens", "step_idx", "limit_status", "accept_num", "stop_flags")
    state = {name: plan.first(slots, tensor) for name, tensor in given.items()}
    if splitwise_role_is_decode:
        _skip_first_of_text(plan, **state)
    plan.run(
        "limit_thinking",
        accept_tokens=next_tokens,
        **state,
        end_tokens=plan.flat(eos_token_ids),
        inject_token_ids=plan.flat(inject_token_ids),
        think_end_id=think_end_id,
        fastdeploy=True,
        keep_tail=True,
    )


def _skip_first_of_text(
    plan: Plan, max_think_lens: Tensor, limit_status: Tensor, accept_num: Tensor, stop_flags: Tensor, **state: Tensor
) -> None:
    """Without any thinking, the prefill node has emitted the first token of the text that ends it."""
    names = {"max_think_lens": max_think_lens, "limit_status": limit_status, "accept_num": accept_num}
    plan.expect("int32", *names)
    limits, status, counts = (plan.alias(plan.flat(tensor)) for tensor in names.values())
    stopped, second = plan.alias(plan.flat(stop_flags)), plan.constant(2, [limits.shape[0]], "int32")

    def skip() -> None:
        begins = (limits == 0) & (status <= 0) & (counts > 0) & ~stopped
        paddle.assign(paddle.where(begins, second, status), status)

    plan.step(skip)


@adaptor("gpu", "xpu", returns="accept_num")
def speculate_clear_accept_nums(plan: Plan, accept_num: Tensor, seq_lens_decoder: Tensor) -> None:
    """Forget the counts of slots that are not in the KV cache."""
    slots = min(accept_num.shape[0], seq_lens_decoder.shape[0])
    counts = {name: plan.first(slots, tensor) for name, tensor in plan.given("accept_num", "seq_lens_decoder").items()}
    plan.run("clear_accept_num", **counts)


_WRITTEN = "accept_tokens accept_num stop_flags seq_lens_this_time seq_lens_encoder seq_lens_decoder step_idx"


@adaptor("gpu", "xpu", arguments=f"token_ids_all prompt_lens {_WRITTEN}", returns="token_ids_all")
def speculate_set_value_by_flags_and_idx(plan: Plan) -> None:
    """Write the accepted tokens into the history; the last one goes to column prompt_lens + step_idx."""
    plan.run("write_accepted", **plan.given("token_ids_all", "prompt_lens", *_WRITTEN.split()), last_index=True)


@older(speculate_set_value_by_flags_and_idx, arguments=f"pre_ids_all {_WRITTEN}", returns="pre_ids_all")
def _set_value_8(plan: Plan, pre_ids_all: Tensor, stop_flags: Tensor) -> None:
    """As on XPU, and before histories had prompts: the generated tokens alone, the last one in column step_idx."""
    no_prompts = plan.constant(0, [stop_flags.shape[0]], "int64")
    others = plan.given(*_WRITTEN.split()).values()
    speculate_set_value_by_flags_and_idx.plan(plan, pre_ids_all, no_prompts, *others)


@adaptor(
    "gpu",
    "xpu",
    arguments="logits token_ids_all prompt_lens stop_flags seq_lens_this_time seq_lens_encoder step_idx "
    "allowed_tokens reasoning_status batch_id_per_token_output cu_seqlens_q_output enable_thinking think_end_id:int "
    "line_break_id:int",
    returns="logits reasoning_status",
)
def reasoning_phase_token_constraint(
    plan: Plan,
    logits: Tensor,
    seq_lens_this_time: Tensor,
    allowed_tokens: Tensor,
    cu_seqlens_q_output: Tensor,
    think_end_id: int,
    line_break_id: int,
) -> None:
    """Make the first token after thinking one of allowed_tokens, in logits."""
    used = seq_lens_this_time.shape[0]
    names = ("token_ids_all", "prompt_lens", "stop_flags", "seq_lens_encoder", "step_idx", "reasoning_status")
    given = plan.given(*names, "enable_thinking")
    slots = min(tensor.shape[0] for tensor in given.values())
    state = {name: plan.first(slots, tensor) for name, tensor in given.items()}
    if plan.platform == "gpu" and is_release_2_6():
        state["step_idx"] = _generated(plan, **state)
    plan.run(
        "reasoning_constraint",
        logits=logits,
        **state,
        allowed_tokens=plan.flat(allowed_tokens),
        cu_seqlens_q_output=plan.first(used + 1, cu_seqlens_q_output),
        think_end_id=think_end_id,
        line_break_id=line_break_id,
    )


def _generated(
    plan: Plan, step_idx: Tensor, seq_lens_encoder: Tensor, enable_thinking: Tensor, **state: Tensor
) -> Tensor:
    """How many tokens were generated, where column prompt_lens + step_idx has the newest one: see `found`."""
    plan.expect("int64", "step_idx")
    steps, enc, thinks = (plan.alias(plan.flat(tensor)) for tensor in (step_idx, seq_lens_encoder, enable_thinking))
    count = plan.scratch(steps.shape, "int64")

    def add_one() -> None:  # a request that does not think begins with none
        begins = (steps <= 0) & (enc > 0) & ~thinks
        paddle.assign(steps + (~begins).astype("int64"), count)

    plan.step(add_one)
    return count


@adaptor(
    "gpu",
    "xpu",
    arguments="draft_logits next_token_num batch_token_num cu_next_token_offset cu_batch_token_offset logits "
    "first_token_logits seq_lens_this_time seq_lens_encoder",
    returns="draft_logits batch_token_num cu_batch_token_offset",
)
def speculate_get_logits(
    plan: Plan, first_token_logits: Tensor, seq_lens_this_time: Tensor, seq_lens_encoder: Tensor
) -> None:
    """Pack the target's first row of each prefilled slot and the draft model's rows into draft_logits."""
    used = seq_lens_this_time.shape[0]
    slots = min(first_token_logits.shape[0], seq_lens_encoder.shape[0])
    counts = plan.given("next_token_num", "batch_token_num")
    offsets = plan.given("cu_next_token_offset", "cu_batch_token_offset")
    longer = {name: _with_total(plan, used, tensor) for name, tensor in offsets.items()}
    plan.run(
        "gather_draft_logits",
        **plan.given("logits", "draft_logits", "seq_lens_this_time"),
        **{name: plan.first(used, tensor) for name, tensor in counts.items()},
        first_token_logits=plan.first(slots, first_token_logits),
        seq_lens_encoder=plan.first(slots, seq_lens_encoder),
        **longer,
    )
    for name, tensor in offsets.items():
        if tensor.shape[0] == used:
            plan.step(partial(paddle.assign, longer[name][:used], plan.alias(tensor)))


def _with_total(plan: Plan, used: int, offsets: Tensor) -> Tensor:
    """The first `used` + 1 offsets, or memory for as many where the caller, as on XPU, has no place for the last."""
    return plan.scratch([used + 1], "int32") if offsets.shape[0] == used else plan.first(used + 1, offsets)


@adaptor("gpu", "xpu", returns="token_ids")
def speculate_insert_first_token(
    plan: Plan,
    token_ids: Tensor,
    accept_tokens: Tensor,
    next_tokens: Tensor,
    cu_next_token_offset: Tensor,
    cu_batch_token_offset: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
) -> None:
    """Pack the tokens that go with the rows of `speculate_get_logits` into token_ids."""
    slots = min(accept_tokens.shape[0], seq_lens_encoder.shape[0])
    plan.run(
        "insert_first_token",
        draft_token_ids=plan.flat(token_ids),
        accept_tokens=plan.first(slots, accept_tokens),
        next_tokens=plan.flat(next_tokens),
        seq_lens_this_time=seq_lens_this_time,
        seq_lens_encoder=plan.first(slots, seq_lens_encoder),
    )
