"""Ops between logits and tokens: parameters for each row, candidates, penalties."""

from __future__ import annotations

from typing import Any

import paddle

from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor
from specdec_hal_fastdeploy.packing import WIDEST_STEP, pack

_MODULI = {"gpu": 2**63 - 2, "xpu": 2**31 - 2}
"""FastDeploy's largest seeds, and one more."""
_SEED_STEP = 4
"""Between the seeds of neighbouring rows of a slot."""


def _spread(plan: Plan, lens: Tensor, enc: Tensor, rows: int, *, column: bool = False, **given: Any) -> dict[str, Any]:
    """Add `build_sampling_params` for `rows` rows; gives its outputs [rows], or [rows, 1] as a `column`.

    A row's `position` is its number in its slot.
    """
    slots = lens.shape[0]
    drafts = plan.constant(0, [slots, min(max(rows, 1), WIDEST_STEP)], "int64")
    nothing = {dtype: plan.constant(0, [slots], dtype) for dtype in ("int64", "int32", "float32")}
    packed = pack(plan, lens, enc, nothing["int32"], plan.constant(0, [slots, 1], "int64"), drafts, 0, rows)
    kinds = {"temperature": "float32", "top_p": "float32", "top_k": "int32", "min_p": "float32", "seed": "int64"}
    out = {f"row_{name}": plan.empty([rows, 1] if column else [rows], dtype) for name, dtype in kinds.items()}
    out["position"] = plan.empty([rows], "int64")
    plan.run(
        "build_sampling_params",
        **{name: plan.first(slots, given.pop(name, nothing[dtype])) for name, dtype in kinds.items()},
        **{name: nothing["int64"] for name in ("prompt_lens", "step_idx")},
        **{name: packed[name] for name in ("cu_seqlens_q_output", "batch_id_per_token_output")},
        **out,
        **given,
    )
    return out


def _seeded(
    plan: Plan, modulus: int, top_p: Tensor, top_k: Tensor, infer_seed: Tensor, lens: Tensor, enc: Tensor, rows: int,
    increment_value: int,
) -> list[Tensor]:  # fmt: skip
    """top_p, top_k and a seed for every row, [rows, 1] each; then the slots' seeds advance."""
    seeds = {"infer_seed": plan.first(lens.shape[0], infer_seed), "row_seed_step": _SEED_STEP, "seed_modulus": modulus}
    params = {"top_p": top_p, "top_k": plan.cast(top_k, "int32"), "seed_increment": increment_value}
    out = _spread(plan, lens, enc, rows, column=True, **params, **seeds)
    wide, top_ks = plan.empty([rows, 1], "int64"), out["row_top_k"]
    plan.step(lambda: paddle.assign(top_ks.astype("int64"), wide))
    return [out["row_top_p"], wide, out["row_seed"]]


def _rows_per_slot(plan: Plan, slots: int, offsets: Tensor) -> Tensor:
    """As many output rows as FastDeploy's offsets say."""
    lens, ends = plan.scratch([slots], "int32"), plan.flat(offsets)
    plan.step(lambda: paddle.assign(ends[1 : slots + 1] - ends[:slots], lens))
    return lens


@adaptor("gpu")
def build_sampling_params(
    plan: Plan,
    top_p: Tensor,
    top_k: Tensor,
    infer_seed: Tensor,
    seq_lens_this_time: Tensor,
    cu_seqlens_q_output: Tensor,
    token_num_output_cpu: int,
    increment_value: int,
) -> list[Tensor]:
    """top_p, top_k and seed of every output row; infer_seed advances by increment_value."""
    slots = seq_lens_this_time.shape[0]
    rows, none = _rows_per_slot(plan, slots, cu_seqlens_q_output), plan.constant(0, [slots], "int32")
    given = (top_p, top_k, infer_seed)
    return _seeded(plan, _MODULI["gpu"], *given, rows, none, token_num_output_cpu, increment_value)


@adaptor("xpu", name="build_sampling_params")
def _build_sampling_params_xpu(
    plan: Plan,
    top_p: Tensor,
    top_k: Tensor,
    infer_seed: Tensor,
    seq_lens_this_time: Tensor,
    seq_lens_encoder: Tensor,
    token_num_output_cpu: int,
    increment_value: int,
) -> list[Tensor]:
    """top_p, top_k and seed of every output row; infer_seed advances by increment_value."""
    given = (top_p, top_k, infer_seed, seq_lens_this_time, seq_lens_encoder)
    return _seeded(plan, _MODULI["xpu"], *given, token_num_output_cpu, increment_value)


@adaptor("gpu", "xpu")
def build_sampling_params_logprob(
    plan: Plan, input_params: Tensor, token_num_per_batch: Tensor, token_num_output_cpu: int
) -> Tensor:
    """Each slot's value as often as it has tokens; 1, or False, after them."""
    none, rows = plan.constant(0, token_num_per_batch.shape[:1], "int32"), token_num_output_cpu
    if input_params.dtype == paddle.float32:
        return _spread(plan, token_num_per_batch, none, rows, temperature=input_params)["row_temperature"]
    if input_params.dtype not in (paddle.int32, paddle.bool):
        plan.fail("input_params", "float32 | int32 | bool", str(input_params.dtype), "cast it")
    out = _spread(plan, token_num_per_batch, none, rows, top_k=plan.cast(input_params, "int32"))
    result = plan.empty([rows], input_params.dtype)
    rest = int(input_params.dtype == paddle.int32)
    values, number = out["row_top_k"], out["position"]
    plan.step(lambda: paddle.assign((values + rest * (number < 0).astype("int32")).astype(result.dtype), result))
    return result


@adaptor("gpu", "xpu")
def top_p_candidates(
    plan: Plan, probs: Tensor, top_p: Tensor, batch_id_per_token_output: Tensor, candidates_len: int, max_seq_len: int
) -> list[Tensor]:
    """Scores, ids and lengths of the most probable tokens of every row; 0 after the last that top_p allows."""
    rows = probs.shape[0]
    scores, ids = (plan.empty([rows, candidates_len], dtype) for dtype in ("float32", "int64"))
    lens = plan.empty([rows], "int32")
    plan.run(
        "top_p_candidates",
        probs=plan.contiguous(probs),
        **plan.given("top_p"),
        batch_id_per_token_output=plan.first(rows, batch_id_per_token_output),
        **{"candidate_scores": scores, "candidate_ids": ids, "candidate_lens": lens},
    )
    column = paddle.arange(candidates_len, dtype="int32")

    def clear_tails() -> None:  # as FastDeploy's, where the verifier's window looks for a second candidate
        beyond = column >= lens.unsqueeze(1)
        for out in (scores, ids):
            out.masked_fill_(beyond, 0)

    plan.step(clear_tails)
    return [scores, ids, lens]


@adaptor(
    "gpu",
    arguments="token_ids_all prompt_lens logits penalty_scores frequency_scores presence_scores temperatures "
    "bad_tokens bad_tokens_len? cur_len min_len eos_token_id seq_lens_this_time batch_id_per_token_output "
    "cu_seqlens_q_output max_seq_len:int",
    returns="logits",
)
def speculate_get_token_penalty_multi_scores(
    plan: Plan,
    token_ids_all: Tensor,
    logits: Tensor,
    temperatures: Tensor,
    bad_tokens: Tensor,
    bad_tokens_len: Tensor | None,
    seq_lens_this_time: Tensor,
    batch_id_per_token_output: Tensor,
    cu_seqlens_q_output: Tensor,
) -> None:
    """Penalties, forbidden tokens and temperature, in place on the logits."""
    slots, used, rows = token_ids_all.shape[0], seq_lens_this_time.shape[0], logits.shape[0]
    row_slots = plan.first(rows, batch_id_per_token_output)
    plan.within("batch_id_per_token_output", row_slots, slots)
    plan.run(
        "apply_penalties",
        **plan.given("logits", "token_ids_all", "prompt_lens", step_idx="cur_len"),
        **plan.given(repetition="penalty_scores", frequency="frequency_scores", presence="presence_scores"),
        **plan.given(end_tokens="eos_token_id", min_dec_len="min_len"),
        bad_tokens=_bad_tokens(plan, slots, bad_tokens, bad_tokens_len),
        draft_tokens=plan.constant(-1, [slots, WIDEST_STEP], "int64"),  # no row counts drafts as text
        cu_seqlens_q_output=plan.first(used + 1, cu_seqlens_q_output),
        batch_id_per_token_output=row_slots,
    )
    scaled, of_row, divisors = plan.alias(logits), plan.alias(plan.flat(row_slots)), plan.alias(plan.flat(temperatures))
    plan.step(
        lambda: scaled.divide_(
            divisors.index_select(paddle.clip(of_row, 0, slots - 1)).astype(scaled.dtype).unsqueeze(1)
        )
    )


def _bad_tokens(plan: Plan, slots: int, tokens: Tensor, lens: Tensor | None) -> Tensor:
    """A row for every slot; what stands after a slot's own length is left over from another request."""
    if lens is None and tokens.ndim == 2 and tokens.shape[0] == slots:
        return tokens
    given, width = plan.alias(tokens), tokens.shape[-1]
    listed = plan.scratch([slots, width], "int64")
    if lens is None:
        plan.step(lambda: paddle.assign(given.reshape([-1, width]).expand([slots, width]), listed))
        return listed
    counts, column, none = plan.alias(lens), paddle.arange(width), paddle.full([], -1, "int64")
    plan.step(lambda: paddle.assign(paddle.where(column < counts.reshape([-1, 1]), given, none), listed))
    return listed


@adaptor(
    "xpu",
    name="speculate_get_token_penalty_multi_scores",
    arguments="pre_ids logits penalty_scores frequency_scores presence_scores temperatures bad_tokens cur_len "
    "min_len eos_token_id seq_lens_this_time batch_id_per_token_output cu_seqlens_q_output max_seq_len:int",
    returns="logits",
)
def _speculate_penalties_xpu(plan: Plan, pre_ids: Tensor) -> None:
    """As on GPUs, with a history of generated tokens alone."""
    args = list(plan.given(*plan.names).values())
    no_prompt = plan.constant(0, pre_ids.shape[:1], "int64")
    speculate_get_token_penalty_multi_scores.plan(plan, pre_ids, no_prompt, *args[1:7], None, *args[7:])


@adaptor(
    "xpu",
    arguments="pre_ids logits penalty_scores frequency_scores presence_scores temperatures bad_tokens cur_len "
    "min_len eos_token_id",
    returns="logits",
)
def get_token_penalty_multi_scores(plan: Plan, pre_ids: Tensor, logits: Tensor) -> None:
    """As for speculative decoding, with one row of logits a slot."""
    args, slots = list(plan.given(*plan.names).values()), logits.shape[0]
    row_slots, offsets = (plan.hold(paddle.arange(n, dtype="int32")) for n in (slots, slots + 1))
    one, no_prompt = plan.constant(1, [slots], "int32"), plan.constant(0, pre_ids.shape[:1], "int64")
    batch = (one, row_slots, offsets, pre_ids.shape[1])
    speculate_get_token_penalty_multi_scores.plan(plan, pre_ids, no_prompt, *args[1:7], None, *args[7:], *batch)
