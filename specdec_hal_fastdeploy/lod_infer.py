"""XPU's ops on batches with all prompts first, which its runners describe by offsets (LoD) on device and host."""

from __future__ import annotations

import math

import numpy as np
import paddle
from numpy.typing import NDArray

from specdec_hal.ops import TokenOrder
from specdec_hal_fastdeploy.adaptor import Plan, Tensor, adaptor, older, refused

I32 = NDArray[np.int32]


def _lod(which: str) -> str:
    """The arguments that describe a batch, on device and host."""
    lists = f"encoder_seq_lod decoder_seq_lod encoder_batch_{which} decoder_batch_{which}"
    return f"{lists} {lists.replace(' ', '_cpu ')}_cpu len_info_cpu"


def _offsets(lens: I32) -> I32:
    return np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)


class _Slots:
    """The slots that a LoD describes: on the host, where FastDeploy reads it too."""

    def __init__(self, plan: Plan, which: str, count: int = 0) -> None:
        names = ("encoder_seq_lod", "decoder_seq_lod", f"encoder_batch_{which}", f"decoder_batch_{which}", "len_info")
        given = [plan.given(f"{name}_cpu")[f"{name}_cpu"].numpy().reshape(-1) for name in names]
        enc_lod, dec_lod, enc_slots, dec_slots, (prompts, texts, *_) = given
        enc_slots, dec_slots = enc_slots[:prompts], dec_slots[:texts]
        if count <= 0:
            count = int(max([-1, *enc_slots, *dec_slots])) + 1
        self.enc, self.lens = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self.enc[enc_slots] = self.lens[enc_slots] = np.diff(enc_lod[: prompts + 1])
        self.lens[dec_slots] = np.diff(dec_lod[: texts + 1])
        self.cu_q = _offsets(self.lens)

    def operands(self) -> dict[str, Tensor]:
        """In our ops' form."""
        named = {"cu_seqlens_q": self.cu_q, "seq_lens_this_time": self.lens, "seq_lens_encoder": self.enc}
        return {name: paddle.to_tensor(array) for name, array in named.items()}


def _permuted(plan: Plan, op: str, x: Tensor, slots: _Slots) -> Tensor:
    out = plan.empty(x.shape, x.dtype)
    if x.shape[0]:
        plan.run(op, x=plan.contiguous(x), **slots.operands(), out=out, token_order=TokenOrder.PREFILL_FIRST)
    return out


@adaptor("xpu", arguments=f"x {_lod('idx')} output_padding_offset?=None max_input_length:int=-1")
def adjust_batch(plan: Plan, x: Tensor, output_padding_offset: Tensor | None = None) -> Tensor:
    """Rows in slot order, prompts moved before all others."""
    if output_padding_offset is not None:
        plan.refuse("output_padding_offset is gone from FastDeploy's own op; pass None")
    return _permuted(plan, "adjust_batch", x, _Slots(plan, "idx"))


@older(adjust_batch, arguments=f"x cum_offsets {_lod('idx')} output_padding_offset? max_input_length:int")
def _adjust_batch_13(plan: Plan) -> Tensor:
    """Before PR #7180, with cum_offsets, which nothing needs."""
    return adjust_batch.plan(plan)


@adaptor("xpu", arguments=f"x cum_offsets? {_lod('map')}")
def recover_batch_sequence(plan: Plan, x: Tensor) -> Tensor:
    """The inverse of `adjust_batch`; cum_offsets are not needed."""
    return _permuted(plan, "recover_batch", x, _Slots(plan, "map"))


@older(recover_batch_sequence, arguments=f"x {_lod('map')}")
def _recover_batch_sequence_10(plan: Plan, x: Tensor) -> Tensor:
    """Without cum_offsets."""
    return _permuted(plan, "recover_batch", x, _Slots(plan, "map"))


@adaptor("xpu", arguments=f"x {_lod('map')} is_speculative:bool max_bsz:int")
def gather_next_token(plan: Plan, x: Tensor, is_speculative: bool, max_bsz: int) -> Tensor:
    """The rows of an adjusted batch that predict a token, in slot order: packed, or one for each of max_bsz slots."""
    return _predicting_rows(plan, x, is_speculative, max_bsz)


@older(gather_next_token, arguments=f"x {_lod('map')} output_padding_offset? max_bsz:int")
def _gather_next_token_12(plan: Plan, x: Tensor, output_padding_offset: Tensor | None, max_bsz: int) -> Tensor:
    """Of release/2.6, where an offset means drafts."""
    return _predicting_rows(plan, x, output_padding_offset is not None, max_bsz)


@older(gather_next_token, arguments=f"x cum_offsets {_lod('map')} output_padding_offset? max_input_length:int")
def _gather_next_token_13(plan: Plan, x: Tensor, cum_offsets: Tensor, output_padding_offset: Tensor | None) -> Tensor:
    """Before PR #7180, where an offset means drafts and cum_offsets has an entry a slot."""
    return _predicting_rows(plan, x, output_padding_offset is not None, cum_offsets.shape[0])


def _predicting_rows(plan: Plan, x: Tensor, is_speculative: bool, max_bsz: int) -> Tensor:
    slots = _Slots(plan, "map", max_bsz)
    rows = np.where(slots.enc > 0, 1, slots.lens)
    row_slots = np.repeat(np.arange(len(rows), dtype=np.int32), rows if is_speculative else 0)
    out = plan.empty([len(row_slots) if is_speculative else len(rows), x.shape[1]], x.dtype)
    if x.shape[0]:
        plan.run(
            "gather_next_token",
            x=plan.contiguous(x),
            **slots.operands(),
            cu_seqlens_q_output=paddle.to_tensor(_offsets(rows)),
            batch_id_per_token_output=paddle.to_tensor(row_slots),
            out=out,
            is_speculative=is_speculative,
            token_order=TokenOrder.PREFILL_FIRST,
        )
    return out


def _infer_lists(enc: I32, dec: I32, lens: I32) -> dict[str, I32]:
    """What `get_infer_param` writes, by the names of its tensors."""
    prompts = np.flatnonzero(enc > 0)
    texts = np.flatnonzero((enc <= 0) & (dec > 0) & (lens > 0))
    compact = np.cumsum(np.isin(np.arange(len(enc)), [*prompts, *texts])) - 1
    return {
        "encoder_batch_map": prompts,
        "decoder_batch_map": texts,
        "encoder_batch_idx": compact[prompts],
        "decoder_batch_idx": compact[texts],
        "encoder_seq_lod": _offsets(enc[prompts]),
        "decoder_seq_lod": _offsets(lens[texts]),
        "encoder_kv_lod": _offsets(enc[prompts] + dec[prompts]),
        "prefix_len": dec[prompts],
        "decoder_context_len": dec[texts] + lens[texts],
        "decoder_context_len_cache": dec[texts],
    }


def _fill(tensor: Tensor, values: I32, rest: int = 0) -> None:
    """Write values to the beginning of a tensor, and `rest` after them."""
    whole = np.full(math.prod(tensor.shape), rest, np.int32)
    whole[: len(values)] = values.reshape(-1)[: len(whole)]
    paddle.assign(paddle.to_tensor(whole.reshape(tensor.shape), place=tensor.place), tensor)


class _Cache:
    """The KV blocks of slots: `tables` [B, blocks of a slot], -1 where there is none."""

    def __init__(self, tables: Tensor, block_size: int) -> None:
        self.tables, self.size, self.place = tables.numpy(), block_size, tables.place

    def blocks(self, longest: int) -> int:
        """How many hold this number of tokens."""
        return -(-longest // self.size)

    def prefixes(self, slots: I32, count: int) -> I32:
        """The first `count` blocks of each slot."""
        out = np.full((len(slots), count), -1, np.int32)
        out[:, : self.tables.shape[1]] = self.tables[slots, :count]
        return out.reshape(-1)

    def cache_rows(self, slots: I32, starts: I32, counts: I32, size: int) -> Tensor:
        """Where each of the slots' next tokens goes, packed into [size]; -1 where there is no block, and after."""
        out, owners = np.full(size, -1, np.int32), np.repeat(slots, counts)
        inside = np.arange(len(owners)) - np.repeat(_offsets(counts)[:-1], counts)
        column, rest = np.divmod(np.repeat(starts, counts) + inside, self.size)
        last = self.tables.shape[1] - 1
        blocks = np.where(column <= last, self.tables[owners, np.minimum(column, last)], -1)
        cache_rows = np.where(blocks >= 0, blocks * self.size + rest, -1)[:size]
        out[: len(cache_rows)] = cache_rows
        return paddle.to_tensor(out, place=self.place)


@adaptor(
    "xpu",
    arguments="seq_lens_encoder seq_lens_decoder seq_lens_this_time block_tables encoder_batch_map "
    "decoder_batch_map encoder_batch_idx decoder_batch_idx encoder_seq_lod decoder_seq_lod encoder_kv_lod prefix_len "
    "decoder_context_len decoder_context_len_cache prefix_block_tables encoder_batch_map_cpu decoder_batch_map_cpu "
    "encoder_batch_idx_cpu decoder_batch_idx_cpu encoder_seq_lod_cpu decoder_seq_lod_cpu encoder_kv_lod_cpu "
    "prefix_len_cpu decoder_context_len_cpu decoder_context_len_cache_cpu len_info_cpu block_size:int "
    "num_speculative_tokens:int",
)
def get_infer_param(
    plan: Plan,
    block_tables: Tensor,
    prefix_block_tables: Tensor,
    len_info_cpu: Tensor,
    block_size: int,
    num_speculative_tokens: int,
) -> list[Tensor]:
    """Which slots feed prompts and which go on, into the given tensors; where the KV cache takes their tokens."""
    given = plan.given(*plan.names)
    enc, dec, lens = (given[name].numpy().reshape(-1) for name in plan.names[:3])
    lists = _infer_lists(enc[: len(lens)], dec[: len(lens)], lens)
    for name, array in lists.items():
        rest = int(array[-1]) if name == "decoder_seq_lod" else 0  # graphs replay with all slots
        for held in (given[name], given[f"{name}_cpu"]):
            _fill(held, array, rest)
    prompts, texts = lists["encoder_batch_map"], lists["decoder_batch_map"]
    cache, longest = _Cache(block_tables, block_size), int((enc + dec)[prompts].max(initial=0))
    blocks = cache.blocks(longest) if lists["prefix_len"].any() else -1
    if blocks > 0:
        _fill(prefix_block_tables, cache.prefixes(prompts, blocks), -1)
    total, contexts = int(enc[prompts].sum()), lists["decoder_context_len"]
    info = [len(prompts), len(texts), total, enc[prompts].max(initial=0), longest, blocks, contexts.max(initial=0)]
    _fill(len_info_cpu, np.array(info, np.int32))
    most = len(lens) * (1 + num_speculative_tokens)
    return [
        cache.cache_rows(prompts, dec[prompts], enc[prompts], total),
        cache.cache_rows(texts, dec[texts], lens[texts], most),
    ]


refused(
    get_infer_param,
    "seq_lens_encoder seq_lens_decoder seq_lens_this_time block_tables block_size:int",
    "5 arguments are those of release/2.6, whose results this layer does not know; FastDeploy's compiled op has them",
)
