"""Accepted rows, hidden rows, and XPU's batches, against FastDeploy's semantics in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from specdec_hal.errors import ArgumentError
from tests.fastdeploy.batches import Batch, equal, tensor, tensors, values
from tests.fastdeploy.kernels_rows import prefix_sums

ROUNDS = range(10)


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_target_logits_of_older_versions(layer: Any, rng: Any, platform: str) -> None:
    """As the op that has replaced it, from offsets that the caller made; XPU's have no total."""
    op, extra = layer.ADAPTORS[platform]["speculate_get_target_logits"], int(platform == "gpu")
    for _ in ROUNDS:
        b = Batch(rng)
        num = np.array([rng.integers(0, rows + 1) for rows in b.rows_per_slot], np.int32)
        logits = rng.normal(size=(max(b.rows, 1), 7)).astype(np.float32)
        target = np.full((b.slots * b.width, 7), -3, np.float32)
        targets, sources = prefix_sums(num), b.cu_out
        given = tensors(target, logits, targets[: b.slots + extra], sources[: b.slots + extra], b.slt, b.enc, num)
        for _ in range(2):
            op(*given)
            for slot, count in enumerate(num):
                target[targets[slot] : targets[slot] + count] = logits[sources[slot] : sources[slot] + count]
            equal(given[0], target)


def test_a_prompts_row_is_one_whatever_its_count(gpu: Any) -> None:
    logits = np.arange(6, dtype=np.float32).reshape(3, 2)
    target = tensor(np.full((5, 2), -1, np.float32))
    lens, enc, num = (np.array(v, np.int32) for v in ([4, 2], [4, 0], [3, 2]))
    offsets = tensors(np.array([0, 3, 5], np.int32), np.array([0, 1, 3], np.int32))
    gpu.speculate_get_target_logits(target, tensor(logits), *offsets, *tensors(lens, enc, num))
    equal(target, [[0, 1], [-1, -1], [-1, -1], [2, 3], [4, 5]])


def test_offsets_of_accepted_tokens(gpu: Any, rng: Any) -> None:
    """Of the slots in use; the total follows, and what is after it stays."""
    for bsz in (0, 1, 5, 9):
        num = rng.integers(-1, 6, 9).astype(np.int32)
        offsets, counts = tensors(np.full(12, 77, np.int32), num.reshape(-1, 1))
        for _ in range(2):
            gpu.speculate_compute_cu_batch_offset(offsets, counts, bsz)
            equal(offsets, [*prefix_sums(np.maximum(num, 0)[:bsz]), *[77] * (11 - bsz)])
            counts.fill_(2)
            num[:] = 2
    with pytest.raises(ArgumentError, match=r"speculate_compute_cu_batch_offset.*real_bsz.*10 of \[12\] and \[9\]"):
        gpu.speculate_compute_cu_batch_offset(offsets, counts, 10)


MADE = (
    "encoder_batch_map", "decoder_batch_map", "encoder_batch_idx", "decoder_batch_idx", "encoder_seq_lod",
    "decoder_seq_lod", "encoder_kv_lod", "prefix_len", "decoder_context_len", "decoder_context_len_cache",
)  # fmt: skip


def infer_param(xpu: Any, enc: Any, dec: Any, lens: Any) -> dict[str, Any]:
    """What get_infer_param fills in, device tensors and host ones, by name."""
    n = len(lens)
    sizes = {name: n + name.endswith("lod") for name in MADE}
    made = {name: paddle.full([size], -7, "int32") for name, size in sizes.items()}
    host = {f"{name}_cpu": paddle.full([size], -7, "int32") for name, size in sizes.items()}
    prefix, info = paddle.zeros([n, 4], "int32"), paddle.full([7], -7, "int32")
    tables = paddle.arange(n * 4, dtype="int32").reshape([n, 4])
    slots = [tensor(a.astype(np.int32)) for a in (enc, dec, lens)]
    addresses = [t.data_ptr() for t in (*made.values(), *host.values())]
    out = xpu.get_infer_param(*slots, tables, *made.values(), prefix, *host.values(), info, 64, 5)
    assert addresses == [t.data_ptr() for t in (*made.values(), *host.values())], "written in place"
    assert [t.shape for t in out] == [[int(enc.sum())], [n * 6]]
    filled = {"prefix_block_tables": prefix, "len_info_cpu": info}
    return {**made, **host, **filled, **dict(zip(("slots_enc", "slots_dec"), out, strict=True))}


ENC = np.array([100, 0, 0, 0, 120, 140, 0])
DEC = np.array([0, 5, 0, 25, 64, 0, 128])
LENS = np.array([100, 2, 0, 1, 120, 140, 3])


def test_where_tokens_go_in_the_cache(xpu: Any) -> None:
    """Two prompts, one of which has 64 tokens cached; blocks of 64, of which slot b has 4 b .. 4 b + 3."""
    made = infer_param(xpu, *(np.array(a) for a in ([100, 0, 0, 0, 140], [0, 5, 0, 25, 64], [100, 2, 0, 1, 140])))
    assert values(made["len_info_cpu"])[:6].tolist() == [2, 2, 240, 140, 204, 4]
    enc, dec = values(made["slots_enc"]), values(made["slots_dec"])
    assert enc[:100].tolist() == list(range(100))
    assert enc[100:].tolist() == [16 * 64 + p for p in range(64, 204)]
    assert dec.tolist() == [4 * 64 + 5, 4 * 64 + 6, 12 * 64 + 25] + [-1] * 27
    equal(made["prefix_block_tables"], [[0, 1, 2, 3], [16, 17, 18, 19], *[[-1] * 4] * 3])


def test_without_a_cached_prefix_there_are_no_blocks_of_it(xpu: Any) -> None:
    made = infer_param(xpu, np.array([100, 0, 0]), np.array([0, 5, 0]), np.array([100, 2, 0]))
    equal(made["len_info_cpu"], [1, 1, 100, 100, 100, -1, 7])
    assert not values(made["prefix_block_tables"]).any(), "as it was"


def test_slots_beyond_their_blocks_have_no_place(xpu: Any) -> None:
    made = infer_param(xpu, np.array([300]), np.array([0]), np.array([300]))
    assert values(made["slots_enc"])[256:].tolist() == [-1] * 44


def lod(made: dict[str, Any], which: str) -> list[Any]:
    names = ("encoder_seq_lod", "decoder_seq_lod", f"encoder_batch_{which}", f"decoder_batch_{which}")
    return [*(made[name] for name in names), *(made[f"{name}_cpu"] for name in names), made["len_info_cpu"]]


def test_rows_of_the_worked_example(xpu: Any) -> None:
    made = infer_param(xpu, ENC, DEC, LENS)
    x = tensor(np.arange(366, dtype=np.float32).reshape(-1, 1))
    adjusted = xpu.adjust_batch(x, *lod(made, "idx"), None, -1)
    equal(adjusted[:, 0], [*range(100), *range(103, 363), 100, 101, 102, 363, 364, 365])
    cum = tensor(np.zeros(7, np.int32))  # of older versions
    equal(xpu.adjust_batch(x, cum, *lod(made, "idx"), None, -1), values(adjusted))
    for before in ([cum], [], [None]):
        equal(xpu.recover_batch_sequence(adjusted, *before, *lod(made, "map")), values(x))
    rows = xpu.gather_next_token(adjusted, *lod(made, "map"), True, -1)
    equal(rows[:, 0], [99, 100, 101, 102, 222, 362, 363, 364, 365])
    offsets = tensor(np.zeros(7, np.int32))  # before PR #7180: one entry a slot, and an offset where there are drafts
    for args in ([offsets, *lod(made, "map"), offsets, 512], [*lod(made, "map"), offsets, 7]):  # and release/2.6
        rows = xpu.gather_next_token(adjusted, *args)
        equal(rows[:, 0], [99, 100, 101, 102, 222, 362, 363, 364, 365])
    one = np.array([100, 1, 0, 1, 120, 140, 1])
    made = infer_param(xpu, ENC, DEC, one)
    adjusted = xpu.adjust_batch(x[:363], *lod(made, "idx"), None, -1)
    none = [*lod(made, "map"), None, 7]
    for args in ([*lod(made, "map"), False, 7], [offsets, *lod(made, "map"), None, 512], none):
        equal(xpu.gather_next_token(adjusted, *args)[:, 0], [99, 100, 0, 101, 221, 361, 362])


def test_infer_params_of_release_2_6_are_fastdeploys_own(xpu: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"get_infer_param .FastDeploy.*5 arguments are those of release/2.6"):
        xpu.get_infer_param(*tensors(ENC, DEC, LENS, np.zeros((7, 2), np.int32)), 64)


def test_an_offset_of_older_versions_is_refused(xpu: Any) -> None:
    made = infer_param(xpu, ENC, DEC, LENS)
    x = tensor(np.zeros((366, 1), np.int64))
    with pytest.raises(NotImplementedError, match=r"adjust_batch .FastDeploy.*output_padding_offset"):
        xpu.adjust_batch(x, *lod(made, "idx"), x, -1)


def test_eagle_get_self_hidden_states(gpu: Any, rng: Any) -> None:
    for _ in ROUNDS:
        n = int(rng.integers(1, 8))
        enc = np.where(rng.random(n) < 0.3, rng.integers(1, 9, n), 0).astype(np.int32)
        last = np.where(enc > 0, enc, rng.integers(0, 5, n)).astype(np.int32)
        now = ((rng.random(n) < 0.8) & (last > 0)).astype(np.int32)
        rows = np.where(enc > 0, 1, last)
        x = rng.integers(-9, 9, (max(int(rows.sum()), 1), 4)).astype(np.float32)
        wanted = x[(np.cumsum(rows) - 1)[now > 0]]
        out, count = gpu.eagle_get_self_hidden_states(tensor(x), *tensors(last, now, enc))
        equal(count, [len(wanted)])
        equal(out[: len(wanted)], wanted)
