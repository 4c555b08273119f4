"""What each served op of FastDeploy takes and gives: the table that `test_signatures` checks, and arguments for it.

A line: where, name, arguments (tensors but for `:int` and `:bool`; `?`: may be None), what is written in place, and
what comes back: fresh tensors, or arguments by name, which are those written if none is named. Sizes: B slots, T
tokens, R output rows, A rows of packed buffers, K candidates, D the hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_PENALTIES = "penalty_scores frequency_scores presence_scores temperatures bad_tokens"
_ROWS = "seq_lens_this_time batch_id_per_token_output cu_seqlens_q_output"
_CANDIDATES = "candidate_ids? candidate_scores? candidate_lens?"
_VERIFIED = "step_output_ids step_output_len step_input_ids target_tokens?"
_ENDS = "stop_flags seq_lens_encoder seq_lens_this_time end_tokens is_block_step cu_seqlens_q_output reasoning_status"
_POLICY = "max_seq_len:int verify_window:int verify_strategy:int reject_all:bool accept_all:bool"
_STATE = "seq_lens_this_time seq_lens_encoder seq_lens_decoder step_idx"
_SENT = (
    "sampled_token_ids logprob_token_ids logprob_scores logprob_ranks token_num_per_batch cu_batch_token_offset "
    "not_need_stop seq_lens_decoder prompt_lens"
)
_FLAG = "message_flag:int rank_id:int save_each_rank:bool"
_SAVED = "accept_tokens accept_num not_need_stop seq_lens_decoder prompt_lens preempted_idx rank_id:int"
_LOD = "encoder_seq_lod decoder_seq_lod encoder_batch_{0} decoder_batch_{0}"
_LISTS = (
    "encoder_batch_map decoder_batch_map encoder_batch_idx decoder_batch_idx encoder_seq_lod decoder_seq_lod "
    "encoder_kv_lod prefix_len decoder_context_len decoder_context_len_cache"
)


def _host(names: str) -> str:
    return " ".join(f"{name}_cpu" for name in names.split())


def _lod(which: str) -> str:
    names = _LOD.format(which)
    return f"{names} {_host(names)} len_info_cpu"


_LENGTHS = "seq_lens_this_time seq_lens_encoder seq_lens_decoder"
_UPDATED = "seq_lens_encoder seq_lens_decoder has_running_seqs step_input_ids"
_EMITTED = "step_output_ids step_output_len stop_flags seq_lens_this_time is_paused"
_HISTORY = "token_ids_all prompt_lens step_idx end_tokens max_dec_len"
_ADVANCED = "seq_lens_encoder seq_lens_decoder has_running_seqs step_input_ids step_output_ids step_output_len"
_MTP = f"draft_tokens input_ids stop_flags {_STATE} not_need_stop pre_ids accept_tokens accept_num"
_TARGET = "target_model_seq_lens_encoder target_model_seq_lens_decoder target_model_step_idx target_model_stop_flags"
_LIMITS = "next_tokens max_think_lens max_reply_lens step_idx limit_status accept_num stop_flags eos_token_ids"
_HIDDEN = "input seq_lens_this_time seq_lens_encoder seq_lens_decoder stop_flags accept_nums"

TABLE = f"""
gpu,xpu | get_padding_offset | input_ids seq_len seq_lens_encoder seq_lens_decoder draft_tokens? token_num_cpu:int | | i64[T] i32[T] i32[B+1] i32[B+1]
gpu,xpu | get_padding_offset | input_ids seq_len draft_tokens? seq_lens_encoder? cpu_token_num:int | | i64[T] i32[T] i32[B+1] i32[B+1]
gpu,xpu | get_padding_offset | input_ids seq_len token_num:int | | i64[T] i32[B] i32[T] i32[B+1] i32[B+1]
gpu | get_padding_offset | input_ids cum_offsets token_num seq_len | | i64[T] i32[T] i32[B+1] i32[B+1]
xpu | get_padding_offset | input_ids cum_offsets token_num seq_len | | i64[T] i32[B] i32[T] i32[B+1] i32[B+1]
gpu | speculate_get_padding_offset | input_ids draft_tokens cum_offsets token_num seq_len seq_lens_encoder | | i64[T] i32[T] i32[B+1] i32[B+1]
xpu | speculate_get_padding_offset | input_ids draft_tokens cum_offsets token_num seq_len seq_lens_encoder | | i64[T] i32[B] i32[T] i32[B+1] i32[B+1]
gpu,xpu | speculate_pre_process | cpu_token_num:int input_ids seq_len draft_tokens seq_lens_encoder seq_lens_decoder | | i64[T] i32[T] i32[B+1] i32[B+1] i32[B+1] i32[B*S] i32[1]
gpu,xpu | speculate_get_seq_lens_output | {_LENGTHS} | | i32[B]
gpu | rebuild_padding | tmp_out cu_seqlens_q seq_len_this_time seq_lens_decoder seq_lens_encoder batch_id_per_token_output? cu_seqlens_q_output? first_token_out? enable_logprob:bool | first_token_out | f32[R,D]
gpu | build_sampling_params | top_p top_k infer_seed seq_lens_this_time cu_seqlens_q_output token_num_output_cpu:int increment_value:int | infer_seed | f32[R,1] i64[R,1] i64[R,1]
xpu | build_sampling_params | top_p top_k infer_seed seq_lens_this_time seq_lens_encoder token_num_output_cpu:int increment_value:int | infer_seed | f32[R,1] i64[R,1] i64[R,1]
gpu,xpu | build_sampling_params_logprob | input_params token_num_per_batch token_num_output_cpu:int | | f32[R]
gpu,xpu | top_p_candidates | probs top_p batch_id_per_token_output candidates_len:int max_seq_len:int | | f32[R,K] i64[R,K] i32[R]
gpu | speculate_get_token_penalty_multi_scores | token_ids_all prompt_lens logits {_PENALTIES} bad_tokens_len? cur_len min_len eos_token_id {_ROWS} max_seq_len:int | logits |
xpu | speculate_get_token_penalty_multi_scores | pre_ids logits {_PENALTIES} cur_len min_len eos_token_id {_ROWS} max_seq_len:int | logits |
xpu | get_token_penalty_multi_scores | pre_ids logits {_PENALTIES} cur_len min_len eos_token_id | logits |
gpu,xpu | verify_draft_tokens | {_VERIFIED} {_CANDIDATES} topp {_ENDS} max_dec_len step_idx {_POLICY} | step_output_ids step_output_len |
gpu,xpu | verify_draft_tokens | {_VERIFIED} {_CANDIDATES} topp {_ENDS} {_POLICY} | step_output_ids step_output_len |
gpu,xpu | unified_update_model_status | {_UPDATED} {_EMITTED} {_HISTORY} | {_ADVANCED} stop_flags seq_lens_this_time token_ids_all step_idx |
gpu,xpu | unified_update_model_status | {_UPDATED} adaptive_step_input_len {_EMITTED} mask_rollback {_HISTORY} is_naive_mode:bool prefill_one_step_stop:int | {_ADVANCED} stop_flags seq_lens_this_time mask_rollback token_ids_all step_idx |
gpu,xpu | naive_update_model_status | accept_tokens accept_num seq_lens_this_time next_tokens cu_seqlens_q_output | accept_tokens accept_num seq_lens_this_time |
gpu | speculate_set_value_by_flags_and_idx | token_ids_all prompt_lens accept_tokens accept_num stop_flags seq_lens_this_time seq_lens_encoder seq_lens_decoder step_idx | token_ids_all |
xpu | speculate_set_value_by_flags_and_idx | pre_ids_all accept_tokens accept_num stop_flags seq_lens_this_time seq_lens_encoder seq_lens_decoder step_idx | pre_ids_all |
gpu,xpu | speculate_set_stop_value_multi_seqs | accept_tokens accept_num token_ids_all prompt_lens step_idx stop_flags seq_lens stop_seqs stop_seqs_len end_ids min_tokens | accept_tokens accept_num |
gpu,xpu | speculate_set_stop_value_multi_seqs | accept_tokens accept_num pre_ids step_idx stop_flags seq_lens stop_seqs stop_seqs_len end_ids min_tokens | accept_tokens accept_num |
gpu,xpu | speculate_set_stop_value_multi_seqs | accept_tokens accept_num pre_ids step_idx stop_flags seq_lens stop_seqs stop_seqs_len end_ids | accept_tokens accept_num |
gpu,xpu | speculate_limit_thinking_content_length | {_LIMITS} inject_token_ids think_end_id:int splitwise_role_is_decode:bool | next_tokens max_reply_lens limit_status accept_num |
gpu,xpu | reasoning_phase_token_constraint | logits token_ids_all prompt_lens stop_flags seq_lens_this_time seq_lens_encoder step_idx allowed_tokens reasoning_status batch_id_per_token_output cu_seqlens_q_output enable_thinking think_end_id:int line_break_id:int | logits reasoning_status |
gpu,xpu | speculate_clear_accept_nums | accept_num seq_lens_decoder | accept_num |
gpu,xpu | speculate_get_logits | draft_logits next_token_num batch_token_num cu_next_token_offset cu_batch_token_offset logits first_token_logits seq_lens_this_time seq_lens_encoder | draft_logits next_token_num batch_token_num cu_next_token_offset cu_batch_token_offset | draft_logits batch_token_num cu_batch_token_offset
gpu,xpu | speculate_insert_first_token | token_ids accept_tokens next_tokens cu_next_token_offset cu_batch_token_offset seq_lens_this_time seq_lens_encoder | token_ids |
gpu,xpu | speculate_get_accept_tokens_and_logits | token_ids target_logits logits cu_batch_token_offset cu_seqlens_q_output seq_lens_this_time seq_lens_encoder accept_num accept_tokens | token_ids target_logits cu_batch_token_offset |
gpu,xpu | speculate_get_target_logits | target_logits logits cu_batch_token_offset ori_cu_batch_token_offset seq_lens_this_time seq_lens_encoder accept_num | target_logits |
gpu | speculate_compute_cu_batch_offset | cu_batch_token_offset accept_num real_bsz:int | cu_batch_token_offset |
gpu | ngram_match | token_ids_all prompt_lens step_idx draft_token_num draft_tokens {_LENGTHS} max_dec_len max_ngram_size:int max_draft_tokens:int pad_to_max:bool | draft_tokens seq_lens_this_time |
gpu | ngram_match | input_ids input_ids_len token_ids_all prompt_lens step_idx draft_token_num draft_tokens {_LENGTHS} max_dec_len max_ngram_size:int max_draft_tokens:int | draft_tokens seq_lens_this_time |
gpu | ngram_match | input_ids input_ids_len pre_ids step_idx draft_token_num draft_tokens {_LENGTHS} max_dec_len max_ngram_size:int max_draft_tokens:int | draft_tokens seq_lens_this_time |
gpu | hybrid_mtp_ngram | token_ids_all prompt_lens pre_ids step_idx draft_token_num draft_tokens seq_lens_this_time seq_lens_decoder max_dec_len max_ngram_size:int min_ngram_size:int max_draft_tokens:int pad_to_max:bool | draft_tokens seq_lens_this_time |
gpu | hybird_mtp_ngram | input_ids input_ids_len pre_ids step_idx draft_token_num draft_tokens seq_lens_this_time seq_lens_decoder max_dec_len max_ngram_size:int min_ngram_size:int max_draft_tokens:int | draft_tokens seq_lens_this_time |
gpu,xpu | draft_model_preprocess | {_MTP} {_TARGET} max_dec_len target_model_draft_tokens num_model_step:int is_splitwise_prefill:bool | draft_tokens input_ids stop_flags {_STATE} not_need_stop pre_ids target_model_draft_tokens |
gpu,xpu | draft_model_update | inter_next_tokens draft_tokens pre_ids {_STATE} cu_seqlens_q_output stop_flags not_need_stop max_dec_len end_ids base_model_draft_tokens max_seq_len:int substep:int | draft_tokens pre_ids {_STATE} not_need_stop base_model_draft_tokens |
gpu,xpu | draft_model_postprocess | base_model_draft_tokens base_model_seq_lens_this_time base_model_seq_lens_encoder base_model_stop_flags | base_model_seq_lens_this_time |
gpu | eagle_gather_hidden_states | input cu_seqlens_q seq_lens_this_time seq_lens_decoder seq_lens_encoder batch_id_per_token_output? cu_seqlens_q_output? real_output_token_num? | | f32[B,D] i32[1]
gpu | eagle_get_hidden_states | {_HIDDEN} base_model_seq_lens_this_time base_model_seq_lens_encoder actual_draft_token_num:int | | f32[T,D] i32[1]
xpu | eagle_get_hidden_states | {_HIDDEN} base_model_seq_lens_this_time base_model_seq_lens_encoder actual_draft_token_num:int | | f32[T,D]
gpu | eagle_get_self_hidden_states | input last_seq_lens_this_time seq_lens_this_time seq_lens_encoder | | f32[B,D] i32[1]
xpu | eagle_get_self_hidden_states | input last_seq_lens_this_time seq_lens_this_time step_idx | | f32[2,D]
gpu,xpu | speculate_save_output | {_SAVED} save_each_rank:bool skip_prefill:bool | |
xpu | speculate_save_output_dynamic | {_SAVED} msg_queue_id:int save_each_rank:bool skip_prefill:bool | |
gpu,xpu | speculate_save_output_topk | {_SENT} preempted_idx {_FLAG} | |
gpu,xpu | speculate_save_output_topk | {_SENT} {_FLAG} | |
gpu,xpu | mtp_save_first_token | x not_need_stop seq_lens_decoder prompt_lens step_idx rank_id:int save_each_rank:bool skip_chunk_prefill:bool | |
gpu | mtp_save_first_token_with_topk | {_SENT} preempted_idx {_FLAG} | |
gpu,xpu | speculate_get_output_topk | output_tokens output_scores output_ranks real_k:int rank_id:int wait_flag:bool | output_tokens output_scores output_ranks |
xpu | get_infer_param | seq_lens_encoder seq_lens_decoder seq_lens_this_time block_tables {_LISTS} prefix_block_tables {_host(_LISTS)} len_info_cpu block_size:int num_speculative_tokens:int | {_LISTS} prefix_block_tables {_host(_LISTS)} len_info_cpu | i32[3] i32[B*S]
xpu | adjust_batch | x {_lod("idx")} output_padding_offset? max_input_length:int | | f32[T,D]
xpu | adjust_batch | x cum_offsets {_lod("idx")} output_padding_offset? max_input_length:int | | f32[T,D]
xpu | recover_batch_sequence | x cum_offsets? {_lod("map")} | | f32[T,D]
xpu | recover_batch_sequence | x {_lod("map")} | | f32[T,D]
xpu | gather_next_token | x {_lod("map")} is_speculative:bool max_bsz:int | | f32[R,D]
xpu | gather_next_token | x {_lod("map")} output_padding_offset? max_bsz:int | | f32[B,D]
xpu | gather_next_token | x cum_offsets {_lod("map")} output_padding_offset? max_input_length:int | | f32[B,D]
"""  # noqa: E501

SIZES = {"B": 3, "S": 4, "T": 5, "R": 3, "K": 2, "D": 2}


@dataclass(frozen=True)
class Argument:
    """One of an op's, as a call hands it over."""

    name: str
    kind: str
    optional: bool


@dataclass(frozen=True)
class Signature:
    """A line of the table."""

    platform: str
    op: str
    arguments: tuple[Argument, ...]
    writes: frozenset[str]
    gives: tuple[str, ...]
    """Fresh tensors."""
    returns: tuple[str, ...]
    """Arguments that come back, in this order."""

    def __str__(self) -> str:
        return f"{self.platform}.{self.op}/{len(self.arguments)}"


def _argument(text: str) -> Argument:
    name, _, kind = text.rstrip("?").partition(":")
    return Argument(name, kind or "T", text.endswith("?"))


def signatures() -> list[Signature]:
    """The table's lines, one a platform."""
    found = []
    for line in filter(None, TABLE.splitlines()):
        platforms, op, arguments, writes, gives = (part.strip() for part in line.split("|"))
        taken = tuple(map(_argument, arguments.split()))
        for platform in platforms.split(","):
            fresh = tuple(one for one in gives.split() if "[" in one)
            written = [argument.name for argument in taken if argument.name in writes.split()]
            returns = () if fresh else tuple(gives.split() or written)
            found.append(Signature(platform, op, taken, frozenset(writes.split()), fresh, returns))
    return found


def _ints(dtype: str, *values: Any) -> Any:
    return np.array(values, dtype)


def arguments(signature: Signature) -> dict[str, Any]:
    """For slots that feed a prompt of 3 tokens, decode with 1 draft, and are free; None for what need not be there."""
    rng = np.random.default_rng(5)
    fed, prompts, cached = _ints("int32", 3, 2, 0), _ints("int32", 3, 0, 0), _ints("int32", 0, 9, 0)
    flags, stopped = np.zeros(3, bool), np.array([False, False, True])
    zeros, ones = np.zeros(3, np.int64), np.ones(3, np.int64)
    texts, tokens = rng.integers(0, 6, (3, 16)), rng.integers(0, 6, (3, 4))
    steps, rows = _ints("int64", 0, 5, 0), _ints("int32", 0, 1, 3, 3)
    hidden, logits = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 2), (3, 8)))
    packed, counts = np.zeros((6, 8), np.float32), _ints("int32", 1, 2, 0)
    lists = {name: np.full(3 + name.endswith("lod"), -7, np.int32) for name in _LISTS.split()}
    if signature.op != "get_infer_param":
        lists |= {"encoder_seq_lod": _ints("int32", 0, 3), "decoder_seq_lod": _ints("int32", 0, 2)}
        for which in ("map", "idx"):
            lists |= {f"encoder_batch_{which}": _ints("int32", 0), f"decoder_batch_{which}": _ints("int32", 1)}
    lists |= {f"{name}_cpu": array for name, array in lists.items()}
    values: dict[str, Any] = {
        **dict.fromkeys(("seq_lens_this_time", "seq_len", "seq_len_this_time", "last_seq_lens_this_time"), fed),
        **dict.fromkeys(("base_model_seq_lens_this_time", "adaptive_step_input_len", "mask_rollback"), fed),
        **dict.fromkeys(("seq_lens_encoder", "base_model_seq_lens_encoder"), prompts),
        **dict.fromkeys(("seq_lens_decoder", "seq_lens"), cached),
        **dict.fromkeys(("accept_num", "step_output_len", "accept_nums", "token_num_per_batch"), counts),
        **dict.fromkeys(("next_token_num", "batch_token_num", "limit_status", "preempted_idx"), 0 * counts),
        **dict.fromkeys(("reasoning_status", "target_model_seq_lens_encoder"), 0 * counts),
        **dict.fromkeys(("max_think_lens", "max_reply_lens", "draft_token_num"), 0 * counts + 4),
        **dict.fromkeys(("draft_tokens", "step_input_ids", "accept_tokens", "step_output_ids"), tokens),
        **dict.fromkeys(("base_model_draft_tokens", "target_model_draft_tokens", "sampled_token_ids"), tokens),
        **dict.fromkeys(("token_ids_all", "pre_ids", "pre_ids_all"), texts),
        **dict.fromkeys(("step_idx", "cur_len"), steps),
        **dict.fromkeys(("min_len", "min_tokens"), zeros),
        **dict.fromkeys(("prompt_lens", "input_ids_len", "top_k", "infer_seed", "bad_tokens_len"), 2 * ones),
        **dict.fromkeys(("stop_flags", "base_model_stop_flags", "target_model_stop_flags"), stopped),
        **dict.fromkeys(("is_block_step", "is_paused", "enable_thinking"), flags),
        **dict.fromkeys(("end_tokens", "end_ids", "eos_token_id", "eos_token_ids"), _ints("int64", 7)),
        **dict.fromkeys(("penalty_scores", "frequency_scores", "presence_scores"), np.ones(3, np.float32)),
        **dict.fromkeys(("top_p", "topp", "temperatures", "input_params"), np.full(3, 0.5, np.float32)),
        **dict.fromkeys(("cu_batch_token_offset", "cu_next_token_offset", "ori_cu_batch_token_offset"), rows),
        **dict.fromkeys(("has_running_seqs", "not_need_stop"), np.zeros(1, bool)),
        **dict.fromkeys(("tmp_out", "input", "x"), hidden),
        **dict.fromkeys(("logits", "first_token_logits"), logits),
        **dict.fromkeys(("target_logits", "draft_logits"), packed),
        **dict.fromkeys(("target_tokens", "inter_next_tokens", "next_tokens"), _ints("int64", 1, 2, 3)),
        "max_dec_len": 99 * ones, "target_model_step_idx": _ints("int64", 1, 7, 0),
        "target_model_seq_lens_decoder": _ints("int32", 3, 11, 0), "token_ids": np.zeros(6, np.int64),
        "input_ids": texts[:, :6], "cum_offsets": np.cumsum(6 - fed).astype(np.int32), "token_num": _ints("int64", 5),
        "cu_seqlens_q": _ints("int32", 0, 3, 5, 5), "cu_seqlens_q_output": rows,
        "batch_id_per_token_output": _ints("int32", 0, 1, 1), "real_output_token_num": _ints("int32", 3),
        "probs": np.full((3, 8), 0.125, np.float32), "bad_tokens": tokens[:, :2], "stop_seqs": tokens[:, None, :2],
        "stop_seqs_len": np.full((3, 1), 2, np.int32), "inject_token_ids": _ints("int64", 4),
        "allowed_tokens": _ints("int64", 1, 2), "first_token_out": np.zeros((3, 2), np.float32),
        "logprob_token_ids": tokens[:, :2], "logprob_scores": logits[:, :2], "logprob_ranks": ones,
        "output_tokens": np.zeros((512 * 126 + 515, 1), np.int64), "output_ranks": np.zeros(512 * 6, np.int64),
        "output_scores": np.zeros((512 * 126, 1), np.float32),
        "block_tables": np.arange(6, dtype=np.int32).reshape(3, 2), "prefix_block_tables": np.zeros((3, 2), np.int32),
        **lists, "len_info_cpu": _ints("int32", 1, 1, 3, 3, 3, -1, 11),
        "token_num_cpu": 5, "cpu_token_num": 5, "token_num_output_cpu": 3, "increment_value": 16, "candidates_len": 2,
        "max_seq_len": 64, "verify_window": 2, "verify_strategy": 1, "prefill_one_step_stop": 3, "think_end_id": 6,
        "line_break_id": 5, "max_ngram_size": 3, "min_ngram_size": 1, "max_draft_tokens": 3, "num_model_step": 1,
        "substep": 0, "actual_draft_token_num": 1, "message_flag": 3, "rank_id": 1, "real_k": 20, "block_size": 8,
        "num_speculative_tokens": 3, "max_input_length": -1, "max_bsz": 3, "msg_queue_id": 1, "real_bsz": 3,
        "is_speculative": True,
    }  # fmt: skip
    values |= _of_its_own(signature, fed, tokens)
    for argument in signature.arguments:
        values.setdefault(argument.name, False if argument.kind == "bool" else None)
    if signature.op == "get_padding_offset" and len(signature.arguments) == 3:
        values["token_num"] = 5
    return {argument.name: values[argument.name] for argument in signature.arguments}


def _of_its_own(signature: Signature, fed: Any, tokens: Any) -> dict[str, Any]:
    """Where an op has something else under a name."""
    own: dict[str, dict[str, Any]] = {
        "speculate_limit_thinking_content_length": {"next_tokens": tokens},
        "mtp_save_first_token": {"x": tokens},
        "eagle_get_self_hidden_states": {"last_seq_lens_this_time": np.minimum(fed, 2)},
        "eagle_get_hidden_states": {"accept_nums": _ints("int32", 1, 2, 0)},
    }
    return own.get(signature.op, {})


_SLOTS = """
seq_lens_encoder seq_lens_decoder seq_lens_this_time seq_len seq_len_this_time accept_num step_output_len accept_nums
token_num_per_batch prompt_lens step_idx cur_len min_len max_dec_len stop_flags is_block_step is_paused reasoning_status
top_p top_k infer_seed topp penalty_scores frequency_scores presence_scores temperatures bad_tokens_len draft_token_num
input_ids_len limit_status max_think_lens max_reply_lens preempted_idx cu_seqlens_q_output cu_seqlens_q
batch_id_per_token_output end_tokens end_ids eos_token_id eos_token_ids target_tokens next_tokens inter_next_tokens
enable_thinking mask_rollback target_model_step_idx target_model_stop_flags base_model_stop_flags
base_model_seq_lens_this_time base_model_seq_lens_encoder
"""
PER_SLOT = frozenset(_SLOTS.split())
"""What callers also hand over as columns [N, 1]."""

_BUFFERS = """
step_output_ids step_input_ids accept_tokens draft_tokens token_ids_all pre_ids pre_ids_all input_ids bad_tokens
base_model_draft_tokens target_model_draft_tokens target_model_seq_lens_decoder target_model_seq_lens_encoder
first_token_logits first_token_out next_token_num batch_token_num
"""
WHOLE = frozenset(_BUFFERS.split())
"""Other buffers that may be those of all slots."""
