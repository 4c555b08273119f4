"""Ops that draft by looking the last tokens up in the text."""

from __future__ import annotations

import os

import paddle

from specdec_hal.compat.fastdeploy.adaptor import Plan, Tensor, adaptor, older
from specdec_hal.ops import MatchPolicy

ENV_BUDGET = "INFER_WITH_REFERENCE_TOKENUM_THRESHOLD"
"""FastDeploy's: input tokens of a step that drafts may fill up; 128 if it is not set."""


@adaptor("gpu")
def ngram_match(
    plan: Plan,
    token_ids_all: Tensor,
    prompt_lens: Tensor,
    step_idx: Tensor,
    draft_token_num: Tensor,
    draft_tokens: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
    seq_lens_decoder: Tensor,
    max_dec_len: Tensor,
    max_ngram_size: int,
    max_draft_tokens: int,
    pad_to_max: bool = False,
) -> None:
    """Draft what followed the leftmost earlier occurrence of the last tokens; seq_lens_this_time counts it."""
    slots = draft_tokens.shape[0]
    whole = ("token_ids_all", "prompt_lens", "step_idx", "draft_token_num", "seq_lens_encoder", "seq_lens_decoder")
    plan.run(
        "ngram_match",
        **{name: plan.first(slots, tensor) for name, tensor in plan.given(*whole, "max_dec_len").items()},
        **plan.given("draft_tokens", "seq_lens_this_time"),
        max_ngram_size=max_ngram_size,
        token_budget=_budget(plan, ENV_BUDGET, 128),
        match_policy=MatchPolicy.LEFTMOST,
        pad_to_max=pad_to_max,
    )


def _budget(plan: Plan, variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if text and not text.isdecimal():
        plan.refuse(f"{variable}: expected a number of tokens, got {text!r}; unset it")
    return int(text or default)


@older(ngram_match)
def _ngram_match_13(
    plan: Plan,
    input_ids: Tensor,
    input_ids_len: Tensor,
    token_ids_all: Tensor,
    prompt_lens: Tensor,
    step_idx: Tensor,
    draft_token_num: Tensor,
    draft_tokens: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
    seq_lens_decoder: Tensor,
    max_dec_len: Tensor,
    max_ngram_size: int,
    max_draft_tokens: int,
) -> None:
    """Before PR #7774, where step_idx was an index into the text and not a count."""
    plan.refuse("13 arguments are those before PR #7774, which looked up a token that was not written yet; update it")


@older(ngram_match)
def _ngram_match_12(
    plan: Plan,
    input_ids: Tensor,
    input_ids_len: Tensor,
    pre_ids: Tensor,
    step_idx: Tensor,
    draft_token_num: Tensor,
    draft_tokens: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
    seq_lens_decoder: Tensor,
    max_dec_len: Tensor,
    max_ngram_size: int,
    max_draft_tokens: int,
) -> None:
    """Of 2025, with prompt and generated tokens in two buffers."""
    plan.refuse(
        "12 arguments with `pre_ids` are those of 2025, with prompt and generated tokens in two buffers; update it"
    )


ENV_HYBRID_BUDGET = "SPEC_TOKENUM_THRESHOLD"
"""FastDeploy's: the same for drafts behind those of a draft model; 1024 if it is not set."""


@adaptor("gpu")
def hybrid_mtp_ngram(
    plan: Plan,
    token_ids_all: Tensor,
    prompt_lens: Tensor,
    pre_ids: Tensor,
    step_idx: Tensor,
    draft_token_num: Tensor,
    draft_tokens: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_decoder: Tensor,
    max_dec_len: Tensor,
    max_ngram_size: int,
    min_ngram_size: int,
    max_draft_tokens: int,
    pad_to_max: bool,
) -> None:
    """Continue the draft model's drafts by what followed their last tokens earlier in the text."""
    slots = draft_tokens.shape[0]
    plan.run(
        "hybrid_mtp_ngram",
        **plan.given("draft_tokens", "seq_lens_this_time", "token_ids_all"),
        **{n: plan.first(slots, t) for n, t in plan.given("prompt_lens", "draft_token_num", "max_dec_len").items()},
        step_idx=_generated(plan, slots, step_idx, seq_lens_this_time),
        seq_lens_encoder=plan.constant(0, [slots], "int32"),
        seq_lens_decoder=plan.first(slots, seq_lens_decoder),
        max_ngram_size=max_ngram_size,
        min_ngram_size=min_ngram_size,
        token_budget=_budget(plan, ENV_HYBRID_BUDGET, 1024),
        match_policy=MatchPolicy.LEFTMOST,
        pad_to_max=pad_to_max,
        skip_last=True,
    )


def _generated(plan: Plan, slots: int, step_idx: Tensor, lens: Tensor) -> Tensor:
    """What the target has generated, of the draft model's index of its last draft."""
    count = plan.scratch([slots], "int64")
    last, fed = plan.alias(plan.flat(step_idx)), plan.alias(plan.flat(lens))
    used = fed.shape[0]
    head, index = count[:used], last[:used]
    plan.step(lambda: paddle.assign(paddle.clip(index + 2 - fed.astype("int64"), 0), head))
    return count


@adaptor("gpu")
def hybird_mtp_ngram(
    plan: Plan,
    input_ids: Tensor,
    input_ids_len: Tensor,
    pre_ids: Tensor,
    step_idx: Tensor,
    draft_token_num: Tensor,
    draft_tokens: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_decoder: Tensor,
    max_dec_len: Tensor,
    max_ngram_size: int,
    min_ngram_size: int,
    max_draft_tokens: int,
) -> None:
    """Before PR #7849, with prompt and generated tokens in two buffers."""
    plan.refuse("12 arguments are those before PR #7849, with prompt and generated tokens in two buffers; update it")


older(hybrid_mtp_ngram)(hybird_mtp_ngram.forms[0].function)
older(hybird_mtp_ngram)(hybrid_mtp_ngram.forms[0].function)
