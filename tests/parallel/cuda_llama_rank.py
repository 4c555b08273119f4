"""A rank of the decoder for GPUs: hidden states, logits and drafts of one text, cut in several ways.

Arguments: checkpoint, rank, size, file to meet at, device ("cpu": Triton's interpreter), "nccl" or "gloo", file for
what was computed. All ranks compare what they have; size 0 means the model that nobody has split.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch
from specdec_hal.tensors.group import ProcessGroup
from tests.support.device_models import device_model
from tests.support.interpreted import read_late

CUTS: dict[str, list[int]] = {"whole": [], "chunks": [5, 6]}
LENGTH, BLOCK = 13, 4
CAPACITY = 2 * LENGTH + 3
USED = (7 + 13, 5 + 5, 1 + 1, 1 + 7)
"""Rows of the steps of both texts, in every cut."""


def logits_of(model: Any, ids: Any, cuts: list[int]) -> dict[str, Any]:
    """Of slot 1, beside a shorter text in slot 0; blocks in any order, rows to spare."""
    device, capacity = model.device, CAPACITY
    upload = partial(torch.as_tensor, device=device)
    tables = upload(np.random.default_rng(0).permutation(8).reshape(2, 4).astype(np.int32))
    model.allocate_blocks(8, BLOCK, 16)
    module = model.mtp_module() if model.capabilities.mtp_modules else None
    parts: dict[str, list[Any]] = {"hidden": [], "tap": [], "logits": [], "drafts": []}
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        mine, beside = ids[start:end], ids[start : min(end, 7)][::-1]
        lengths = [len(beside), len(mine)]

        def batch(first: Any, second: Any, start: int = start, lengths: list[int] = lengths) -> DeviceBatch:
            packed = np.zeros((capacity, 1), np.int64)
            packed[: sum(lengths), 0] = np.concatenate([first, second])
            owners = np.full(capacity, -1, np.int32)
            owners[: sum(lengths)] = np.repeat([0, 1], lengths)
            offsets = np.cumsum([0, *lengths]).astype(np.int32)
            positions = upload(np.array([start, start], np.int32))
            return DeviceBatch(upload(packed), upload(owners), upload(offsets), positions, tables, 16, capacity)

        one = batch(beside, mine)
        new = partial(torch.zeros, device=device)
        hidden, tap, given = (new((capacity, model.config.hidden_size), dtype=model.dtype) for _ in range(3))
        logits, drafts = (new((capacity, model.config.vocab_size)) for _ in range(2))
        model.forward_device(one, {FINAL_NORM: hidden, 0: tap})
        model.compute_logits_device(hidden, logits, one.cu_seqlens_q[-1:])
        rows = slice(lengths[0], sum(lengths))
        for name, tensor in (("hidden", hidden), ("tap", tap), ("logits", logits)):
            parts[name].append(tensor[rows].float().cpu().numpy())
        if module is not None:
            module.forward_device(batch(np.roll(beside, -1), np.roll(mine, -1)), hidden, given)
            module.compute_logits_device(given, drafts)
            parts["drafts"].append(drafts[rows].cpu().numpy())
    return {name: np.concatenate(rows) for name, rows in parts.items() if rows}


def check_same(model: Any, got: Any, expected: Any, what: str) -> None:
    """Bit for bit on a GPU; the interpreter multiplies by NumPy, whose order of summation depends on shapes."""
    atol = 2e-3 * np.abs(expected).max() if model.device.type == "cpu" else 0  # float16, as the checkpoint
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=what)


def check_logits_after_logits(model: Any, rank: int, whole: dict[str, Any]) -> None:
    """Without a sum in between, after which all ranks have read the logits before."""
    hidden = torch.from_numpy(whole["hidden"]).to(model.device, model.dtype)
    outs = [torch.full((len(hidden), model.config.vocab_size), float("nan"), device=model.device) for _ in range(4)]
    if model.device.type == "cpu" and rank == 0:
        read_late(0.2)  # longer than a product takes; its last program reads what rank 1 has
    for turn, out in enumerate(outs):
        model.compute_logits_device(hidden * (-1) ** turn, out)
    for turn, out in enumerate(outs):
        got = (out * (-1) ** turn).cpu().numpy()
        check_same(model, got, whole["logits"], f"logits after {turn} others")


def main(folder: str, rank: int, size: int, rendezvous: str, device: str, transport: str, out: str) -> None:
    """Ends with an assertion if ranks, or cuts, differ in a bit."""
    torch.set_num_threads(1)
    if device == "cpu" and rank == 1:
        read_late()
    group = ProcessGroup(rank, size, rendezvous, 120, device, nccl=transport == "nccl") if size else None
    calls: set[Any] = set()
    model = device_model(folder, device, "auto", group, calls)
    ids = np.random.default_rng(3).integers(0, model.config.vocab_size, LENGTH)
    if group is None:
        with open(out, "wb") as file:
            np.savez(file, **logits_of(model, ids, []))
        return
    assert model.capabilities.static_shapes == (device != "cpu" and transport == "nccl")
    found = {name: logits_of(model, ids, cuts) for name, cuts in CUTS.items()}
    check_logits_after_logits(model, rank, found["whole"])
    sums = {
        (name, count) for name, rows, columns, count in calls if (rows, columns) == (CAPACITY, model.config.hidden_size)
    }
    assert sums == set(product(("linear", "sum_norm"), USED)), "unused rows are neither computed nor exchanged"
    for other in group.gather_objects(found):
        for cut, tensors in found.items():
            for name, tensor in tensors.items():
                np.testing.assert_array_equal(other[cut][name], tensor, f"ranks differ: {cut}, {name}")
    for name in ("hidden", "tap", "logits"):
        check_same(model, found["chunks"][name], found["whole"][name], f"cuts differ: {name}")
    if rank == 0:
        with open(out, "wb") as file:
            np.savez(file, **found["whole"])
    group.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
