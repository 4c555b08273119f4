"""FastDeploy's ops that pack tokens and pick rows, in NumPy, from the facts of its documentation and pull requests.

An op takes arrays in the order of FastDeploy's arguments, changes them in place, and returns new ones. Undefined
memory is ANY, or NaN. See `lockstep`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fastdeploy.lockstep import ANY

Array = NDArray[Any]


def undefined(*shape: int, dtype: Any = np.int32) -> Array:
    return np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else ANY, dtype)


def prefix_sums(counts: Any) -> Array:
    """[n + 1], from 0 on."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int32)


def output_rows(tt: Array, enc: Array) -> Array:
    """A prompt, or a part of it, has one row of logits; a text has one a token."""
    return np.where(tt == 0, 0, np.where((tt == 1) | (enc != 0), 1, tt)).astype(np.int32)


def speculate_pre_process(
    cpu_token_num: Any, input_ids: Array, seq_len: Array, draft_tokens: Array, enc: Array, dec: Array
) -> list[Array]:
    total, tt, enc = int(cpu_token_num), seq_len.reshape(-1), enc.reshape(-1)
    slots, width = len(tt), draft_tokens.shape[1]
    ids, owner = undefined(total, dtype=np.int64), undefined(total)
    rows = output_rows(tt, enc[:slots])
    row_owner = undefined(slots * width)
    row_owner[: rows.sum()] = np.repeat(np.arange(slots), rows)
    cu = prefix_sums(tt)
    for b in range(slots):
        source = draft_tokens if width > 0 and enc[b] <= 0 else input_ids
        ids[cu[b] : cu[b + 1]] = source[b, : tt[b]]
        owner[cu[b] : cu[b + 1]] = b
    return [ids, owner, cu, cu.copy(), prefix_sums(rows), row_owner, rows.sum(keepdims=True).astype(np.int32)]


def _padding_offset(
    input_ids: Array, seq_len: Array, enc: Array | None, dec: Array | None, drafts: Array | None, token_num: Any
) -> list[Array]:
    tt = seq_len.reshape(-1)
    slots, total = len(tt), int(token_num)
    ids, owner, cu = undefined(total, dtype=np.int64), undefined(total), prefix_sums(tt)
    for b in range(slots):
        source = drafts if drafts is not None and enc is not None and enc.reshape(-1)[b] <= 0 else input_ids
        ids[cu[b] : cu[b + 1]] = source[b, : tt[b]]
        owner[cu[b] : cu[b + 1]] = b
    cu_k = cu.copy() if dec is None else prefix_sums(tt + dec.reshape(-1)[:slots])
    return [ids, owner, cu, cu_k]


def get_padding_offset(*args: Any) -> list[Array]:
    """By PR #7766 (lengths before drafts), #7727 (drafts before lengths), and the five arguments before and on XPU."""
    input_ids, seq_len, *given, token_num = args
    if len(given) == 2:
        drafts, enc, dec = *given, None
    elif given[2] is None or given[2].dtype == np.int64:
        enc, dec, drafts = given
    else:
        drafts, enc, dec = given
    return _padding_offset(input_ids, seq_len, enc, dec, drafts, token_num)


def rebuild_padding(
    tmp_out: Array, cu_seqlens_q: Array, seq_len: Array, dec: Array, enc: Array,
    batch_id_per_token_output: Array | None, cu_seqlens_q_output: Array | None, first_token_out: Array | None,
    enable_logprob: bool,
) -> Array:  # fmt: skip
    tt, dec, enc, cu = (array.reshape(-1) for array in (seq_len, dec, enc, cu_seqlens_q))
    speculative = batch_id_per_token_output is not None and cu_seqlens_q_output is not None
    owners = batch_id_per_token_output.tolist() if speculative else range(len(tt))  # type: ignore[union-attr]
    out = np.zeros((len(owners), tmp_out.shape[1]), tmp_out.dtype)
    for row, b in enumerate(owners):
        if tt[b] == 0 or (dec[b] == 0 and enc[b] == 0):
            continue
        within = row - cu_seqlens_q_output.reshape(-1)[b] if cu_seqlens_q_output is not None else 0
        source = cu[b] + (enc[b] - 1 if enc[b] > 0 else within)
        out[row] = tmp_out[source]
        if enable_logprob and first_token_out is not None and enc[b] > 0:
            first_token_out[b] = tmp_out[source - 1]
    return out


def eagle_gather_hidden_states(x: Array, cu_seqlens_q: Array, tt: Array, *unused: Array) -> list[Array]:
    tt = tt.reshape(-1)
    out, ends = np.zeros((len(tt), x.shape[1]), x.dtype), np.cumsum(tt)
    kept = ends[tt > 0] - 1
    out[: len(kept)] = x[kept]
    return [out, np.array([len(kept)], np.int32)]


def _fed_rows(tt: Array, enc: Array, accept_num: Array, base_tt: Array) -> list[int]:
    """The target's rows that go to the draft model."""
    rows, start = [], 0
    for b in range(len(tt)):
        count = int(base_tt[b])
        if enc[b] > 0:
            kept = count = int(enc[b])
        else:
            kept = int(accept_num[b]) if tt[b] != 0 and count != 0 else 0
        rows += range(start, start + kept)
        start += count
    return rows


def eagle_get_hidden_states(x: Array, tt: Array, enc: Array, dec: Array, stop: Array, accept_num: Array,
                            base_tt: Array, base_enc: Array, steps: int) -> list[Array]:  # fmt: skip
    rows = _fed_rows(*(array.reshape(-1) for array in (tt, enc, accept_num, base_tt)))
    out = undefined(*x.shape, dtype=x.dtype)
    out[: len(rows)] = x[rows]
    return [out, np.array([len(rows)], np.int32)]


def eagle_get_hidden_states_xpu(x: Array, *args: Any) -> Array:
    """Slots with a prompt first, in input and output."""
    *slots, steps = args
    enc, base_enc = slots[1].reshape(-1), slots[6].reshape(-1)
    used = slots[0].size
    order = sorted(range(used), key=lambda b: enc[b] <= 0 and base_enc[b] <= 0)
    out, count = eagle_get_hidden_states(x, *(array.reshape(-1)[order] for array in slots), steps)
    return out[: int(count[0])]  # type: ignore[no-any-return]


def eagle_get_self_hidden_states_xpu(x: Array, last_tt: Array, tt: Array, step_idx: Array) -> Array:
    rows, start = [], 0
    for last, now, step in zip(last_tt.reshape(-1), tt.reshape(-1), step_idx.reshape(-1), strict=False):
        count = min(int(last), 1) if step == 1 else int(last)
        if now > 0:
            rows.append(start + count - 1)
        start += count
    return x[rows]


# ---- XPU: prompts first


def infer_lists(enc: Array, dec: Array, tt: Array) -> dict[str, Array]:
    """What `get_infer_param` writes, valid entries alone."""
    prompts = [b for b in range(len(tt)) if enc[b] > 0]
    texts = [b for b in range(len(tt)) if enc[b] <= 0 and dec[b] > 0 and tt[b] > 0]
    compact = {b: i for i, b in enumerate(sorted([*prompts, *texts]))}
    lists: dict[str, Any] = {
        "encoder_batch_map": prompts, "decoder_batch_map": texts, "encoder_batch_idx": [compact[b] for b in prompts],
        "decoder_batch_idx": [compact[b] for b in texts], "encoder_seq_lod": prefix_sums(enc[prompts]),
        "decoder_seq_lod": np.pad(prefix_sums(tt[texts]), (0, len(tt) - len(texts)), "edge"),
        "encoder_kv_lod": prefix_sums(enc[prompts] + dec[prompts]), "prefix_len": dec[prompts],
        "decoder_context_len": dec[texts] + tt[texts], "decoder_context_len_cache": dec[texts],
    }  # fmt: skip
    return {name: np.asarray(values, np.int32) for name, values in lists.items()}


INFER_LISTS = (
    "encoder_batch_map", "decoder_batch_map", "encoder_batch_idx", "decoder_batch_idx", "encoder_seq_lod",
    "decoder_seq_lod", "encoder_kv_lod", "prefix_len", "decoder_context_len", "decoder_context_len_cache",
)  # fmt: skip


def get_infer_param(enc: Array, dec: Array, tt: Array, block_tables: Array, *rest: Any) -> list[Array]:
    *given, block_size, drafts = rest
    on_device, prefix_block_tables, on_host, len_info = given[:10], given[10], given[11:21], given[21]
    tt = tt.reshape(-1)
    enc, dec = enc.reshape(-1)[: len(tt)], dec.reshape(-1)[: len(tt)]
    for name, array, copy in zip(INFER_LISTS, on_device, on_host, strict=True):
        values = infer_lists(enc, dec, tt)[name]
        for held in (array, copy):
            held[:] = ANY
            held[: len(values)] = values
    prefix_block_tables[:] = ANY
    prompts, texts = enc > 0, (enc <= 0) & (dec > 0) & (tt > 0)
    longest_kv = int((enc + dec)[prompts].max(initial=0))
    blocks = -(-longest_kv // block_size) if dec[prompts].any() else -1
    len_info[:] = [prompts.sum(), texts.sum(), enc[prompts].sum(), enc[prompts].max(initial=0), longest_kv, blocks, ANY]
    return [undefined(int(enc[prompts].sum())), undefined(len(tt) * (1 + drafts))]


def _lens(enc_lod: Array, dec_lod: Array, enc_slots: Array, dec_slots: Array, len_info: Array) -> list[Any]:
    """(slot, is a prompt, its first row when prompts are first, rows) in ascending slots."""
    prompts, texts, total = (int(n) for n in len_info[:3])
    first = [(int(enc_slots[k]), True, int(enc_lod[k]), int(enc_lod[k + 1] - enc_lod[k])) for k in range(prompts)]
    then = [(int(dec_slots[k]), False, total + int(dec_lod[k]), int(dec_lod[k + 1] - dec_lod[k])) for k in range(texts)]
    return sorted(first + then)


def _order(*batch: Array) -> list[int]:
    """For each row in slot order, where it is when prompts are first."""
    return [row for _, _, start, count in _lens(*batch) for row in range(start, start + count)]


def adjust_batch(x: Array, *batch: Any) -> Array:
    out = np.empty_like(x)
    if len(x):
        out[_order(*batch[4:9])] = x
    return out


def recover_batch_sequence(x: Array, *batch: Array) -> Array:
    return x[_order(*batch[-5:])] if len(x) else x.copy()


def gather_next_token(x: Array, *batch: Any) -> Array:
    *lods, is_speculative, max_bsz = batch
    slots = _lens(*lods[4:9])
    if is_speculative:
        rows = []
        for _, is_prompt, start, count in slots:
            rows += [start + count - 1] if is_prompt else range(start, start + count)
        return x[rows]
    out = undefined(max_bsz, x.shape[1], dtype=x.dtype)
    for b, _, start, count in slots:
        out[b] = x[start + count - 1]
    return out
