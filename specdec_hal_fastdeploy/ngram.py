"""Ops that draft by looking the last tokens up in the text."""

from __future__ import annotations

import os

import paddle

from specdec_hal.ops import MatchPolicy
from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor, older

ENV_BUDGET = "INFER_WITH_REFERENCE_TOKENUM_THRESHOLD"
"""FastDeploy's: input tokens of a step that drafts may fill up; 128 if it is not set."""


_DRAFTED = "draft_tokens seq_lens_this_time"


@adaptor(
    "gpu",
    arguments="token_ids_all prompt_lens step_idx draft_token_num draft_tokens seq_lens_this_time seq_lens_encoder "
    "seq_lens_decoder max_dec_len max_ngram_size:int max_draft_tokens:int pad_to_max:bool=False",
    returns=_DRAFTED,
)
def ngram_match(
    plan: Plan, draft_tokens: Tensor, seq_lens_this_time: Tensor, max_ngram_size: int, pad_to_max: bool = False
) -> None:
    """Draft what followed the leftmost earlier occurrence of the last tokens; seq_lens_this_time counts it."""
    texts = plan.given("token_ids_all", "prompt_lens", "step_idx", "draft_token_num", "max_dec_len")
    state = {**texts, **plan.given("seq_lens_encoder", "seq_lens_decoder")}
    plan.run(
        "ngram_match",
        **{name: plan.first(draft_tokens.shape[0], tensor) for name, tensor in state.items()},
        **{"draft_tokens": draft_tokens, "seq_lens_this_time": seq_lens_this_time},
        **{"max_ngram_size": max_ngram_size, "pad_to_max": pad_to_max, "match_policy": MatchPolicy.LEFTMOST},
        token_budget=_budget(plan, ENV_BUDGET, 128),
    )


def _budget(plan: Plan, variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if text and not text.isdecimal():
        plan.refuse(f"{variable}: expected a number of tokens, got {text!r}; unset it")
    return int(text or default)


@older(
    ngram_match,
    arguments="input_ids input_ids_len token_ids_all prompt_lens step_idx draft_token_num draft_tokens "
    "seq_lens_this_time seq_lens_encoder seq_lens_decoder max_dec_len max_ngram_size:int max_draft_tokens:int",
    returns=_DRAFTED,
)
def _ngram_match_13(plan: Plan, token_ids_all: Tensor, prompt_lens: Tensor, draft_tokens: Tensor) -> None:
    """Of release/2.6, where column prompt_lens + step_idx has the newest token, and the prompt its own buffer."""
    slots, width = draft_tokens.shape[0], token_ids_all.shape[1]
    text, prompts = plan.alias(plan.first(slots, token_ids_all)), plan.alias(plan.flat(prompt_lens))[:slots]
    generated, column = plan.scratch([slots, width], "int64"), paddle.arange(width)

    def cut() -> None:
        columns = paddle.clip(prompts.unsqueeze(1) + column, 0, width - 1)
        paddle.assign(paddle.take_along_axis(text, columns, 1, broadcast=False), generated)

    plan.step(cut)
    _look_up_2025(plan, generated)


@older(
    ngram_match,
    arguments="input_ids input_ids_len pre_ids step_idx draft_token_num draft_tokens seq_lens_this_time "
    "seq_lens_encoder seq_lens_decoder max_dec_len max_ngram_size:int max_draft_tokens:int",
    returns=_DRAFTED,
)
def _ngram_match_12(plan: Plan, pre_ids: Tensor) -> None:
    """Of 2025, with the prompt in a buffer of its own, and `step_idx` a column of `pre_ids`."""
    _look_up_2025(plan, pre_ids)


def _look_up_2025(plan: Plan, generated: Tensor) -> None:
    """Look up the last of the generated tokens, which end at column step_idx, in input_ids and in themselves."""
    drafted = plan.given("draft_tokens", "seq_lens_this_time")
    slots = drafted["draft_tokens"].shape[0]
    buffers = plan.given("step_idx", "draft_token_num", "seq_lens_encoder", "seq_lens_decoder", "max_dec_len")
    buffers |= {"pre_ids": generated, **plan.given(token_ids_all="input_ids", prompt_lens="input_ids_len")}
    plan.run(
        "ngram_match",
        **{name: plan.first(slots, tensor) for name, tensor in buffers.items()},
        **drafted,
        **plan.given("max_ngram_size"),
        token_budget=_budget(plan, ENV_BUDGET, 128),
        match_policy=MatchPolicy.LEFTMOST,
        skip_last=True,
    )


ENV_HYBRID_BUDGET = "SPEC_TOKENUM_THRESHOLD"
"""FastDeploy's: the same for drafts after those of a draft model; 1024 if it is not set."""


@adaptor(
    "gpu",
    arguments="token_ids_all prompt_lens pre_ids step_idx draft_token_num draft_tokens seq_lens_this_time "
    "seq_lens_decoder max_dec_len max_ngram_size:int min_ngram_size:int max_draft_tokens:int pad_to_max:bool",
    returns=_DRAFTED,
)
def hybrid_mtp_ngram(
    plan: Plan,
    draft_tokens: Tensor,
    seq_lens_this_time: Tensor,
    max_ngram_size: int,
    min_ngram_size: int,
    max_draft_tokens: int,
    pad_to_max: bool,
) -> None:
    """Continue the draft model's drafts by what followed their last tokens earlier in its history or in the prompt."""
    slots = draft_tokens.shape[0]
    buffers = plan.given("token_ids_all", "prompt_lens", "pre_ids", "step_idx", "max_dec_len")
    plan.run(
        "hybrid_mtp_ngram",
        **{name: plan.first(slots, tensor) for name, tensor in buffers.items()},
        **plan.given("draft_tokens", "seq_lens_this_time"),
        seq_lens_encoder=plan.constant(0, [slots], "int32"),
        seq_lens_decoder=_with_tokens(plan, slots, seq_lens_this_time),
        draft_token_num=plan.constant(max_draft_tokens, [slots], "int32"),  # FastDeploy asks no request
        use_draft_token_num=True,
        max_ngram_size=max_ngram_size,
        min_ngram_size=min_ngram_size,
        token_budget=_budget(plan, ENV_HYBRID_BUDGET, 1024),
        match_policy=MatchPolicy.LEFTMOST,
        pad_to_max=pad_to_max,
        skip_last=True,
    )


def _with_tokens(plan: Plan, slots: int, lens: Tensor) -> Tensor:
    """A copy of the lengths on entry: FastDeploy's op asks them, and not `seq_lens_decoder`, which slots decode."""
    copy, fed = plan.scratch([slots], "int32"), plan.alias(plan.flat(lens))
    head = copy[: fed.shape[0]]
    plan.step(lambda: paddle.assign(fed, head))
    return copy


@adaptor(
    "gpu",
    arguments="input_ids input_ids_len pre_ids step_idx draft_token_num draft_tokens seq_lens_this_time "
    "seq_lens_decoder max_dec_len max_ngram_size:int min_ngram_size:int max_draft_tokens:int",
    returns=_DRAFTED,
)
def hybird_mtp_ngram(plan: Plan) -> None:
    """Before PR #7849, with the prompt in a buffer of its own; FastDeploy spells the name like this."""
    given = plan.given("input_ids", "input_ids_len", *hybrid_mtp_ngram.forms[0].names[2:12])
    hybrid_mtp_ngram.plan(plan, *given.values(), False)


for one, other in ((hybrid_mtp_ngram, hybird_mtp_ngram), (hybird_mtp_ngram, hybrid_mtp_ngram)):
    one.forms.append(other.forms[0])
