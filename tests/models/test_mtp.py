"""The multi-token-prediction module of every implementation, against an independent one and against itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specdec_hal.errors import ArgumentError
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ForwardBatch, Segment
from tests.support.llama_oracle import oracle

Array = npt.NDArray[np.float32]


@pytest.fixture
def text(driver: Any) -> tuple[Any, Any, Array]:
    """A module, tokens, and the hidden states of all but the last."""
    if not driver.model.capabilities.mtp_modules:
        pytest.skip("this checkpoint has no MTP module")
    tokens = driver.tokens(150, seed=3)
    hidden = driver.model.forward(ForwardBatch(tokens[:-1], [Segment(0, 0, 149, 0)]))[FINAL_NORM]
    return driver.model.mtp_module(), tokens, np.array(hidden.cpu().numpy())


def feed(module: Any, tokens: Any, hidden: Array, *parts: tuple[int, int, int]) -> list[Array]:
    """Logits of stretches [start, stop) of the text, each in a slot, all in one batch."""
    segments, rows = [], []
    for slot, start, stop in parts:
        segments.append(Segment(slot, len(rows), stop - start, start))
        rows.extend(range(start, stop))
    given = module.forward(ForwardBatch(tokens[np.array(rows) + 1], segments), hidden[rows])
    logits = np.array(module.compute_logits(given).cpu().numpy())
    return [logits[s.start : s.start + s.length] for s in segments]


def test_logits_are_those_of_an_independent_module(text: Any, checkpoint: Path) -> None:
    module, tokens, hidden = text
    expected = oracle(checkpoint, tokens, mtp=True)
    (got,) = feed(module, tokens, hidden, (0, 0, 149))
    assert np.abs(got - expected).max() <= 1e-4 * max(1.0, np.abs(expected).std())


def test_chunks_slots_and_rejected_rows_keep_the_bits(text: Any) -> None:
    module, tokens, hidden = text
    (whole,) = feed(module, tokens, hidden, (0, 0, 149))
    # What stands after is overwritten, whatever it was: the drafts of a step before.
    feed(module, tokens[::-1].copy(), hidden[::-1].copy(), (1, 0, 149))
    first, other = feed(module, tokens, hidden, (1, 0, 11), (2, 0, 100))
    np.testing.assert_array_equal(first, whole[:11])
    np.testing.assert_array_equal(other, whole[:100])
    for start, stop in ((11, 12), (12, 17), (17, 149)):
        np.testing.assert_array_equal(feed(module, tokens, hidden, (1, start, stop))[0], whole[start:stop])


def test_the_model_keeps_its_own_cache(text: Any, driver: Any) -> None:
    module, tokens, hidden = text
    before = driver.step((0, 149, tokens[149:]))[0]
    feed(module, tokens, hidden, (0, 0, 149))
    np.testing.assert_array_equal(driver.step((0, 149, tokens[149:]))[0], before)


def test_hidden_states_of_another_number_are_refused(text: Any) -> None:
    module, tokens, hidden = text
    with pytest.raises(ArgumentError, match=r"argument 'hidden'.*expected \[3, "):
        module.forward(ForwardBatch(tokens[:3], [Segment(0, 0, 3, 0)]), hidden[:2])


@pytest.mark.torch
@pytest.mark.parametrize("chunk", [12, 5])
def test_on_the_device(make_checkpoint: Callable[..., Path], triton_device: str, chunk: int) -> None:
    """Two slots, one of them after the other, over KV blocks in any order, in rows of fixed capacity."""
    torch = pytest.importorskip("torch")
    from tests.support.device_models import device_model

    folder = make_checkpoint()
    model = device_model(folder, triton_device)
    config = model.config
    assert model.capabilities.mtp_modules == 1
    model.allocate_blocks(8, 4, 16)
    module = model.mtp_module()
    tokens = [np.random.default_rng(seed).integers(0, config.vocab_size, 13) for seed in (1, 2)]
    lengths, capacity = (12, 7), 21
    tables = torch.tensor([[3, 0, 5, 7], [1, 6, 2, 4]], dtype=torch.int32, device=triton_device)

    def batch(ids: list[Any], position: int) -> DeviceBatch:
        slots = np.repeat([0, 1], list(map(len, ids)))
        packed = np.zeros((capacity, 1), np.int64)
        packed[: len(slots), 0] = np.concatenate(ids)
        per_token = np.full(capacity, -1, np.int32)
        per_token[: len(slots)] = slots
        offsets = np.cumsum([0, *map(len, ids)]).astype(np.int32)
        upload = lambda array: torch.from_numpy(array).to(triton_device)  # noqa: E731
        positions = torch.tensor([position, position], dtype=torch.int32, device=triton_device)
        return DeviceBatch(upload(packed), upload(per_token), upload(offsets), positions, tables, 16, capacity)

    parts: list[list[Array]] = [[], []]
    for start in range(0, max(lengths), chunk):
        cuts = [slice(start, max(min(start + chunk, n), start)) for n in lengths]
        hidden, given = (torch.zeros((capacity, config.hidden_size), device=triton_device) for _ in range(2))
        model.forward_device(batch([t[cut] for t, cut in zip(tokens, cuts, strict=True)], start), {FINAL_NORM: hidden})
        behind = [t[1:][cut] for t, cut in zip(tokens, cuts, strict=True)]
        module.forward_device(batch(behind, start), hidden, given)
        logits = torch.zeros((capacity, config.vocab_size), device=triton_device)
        module.compute_logits_device(given, logits)
        first = len(behind[0])
        parts[0].append(logits[:first].cpu().numpy())
        parts[1].append(logits[first : first + len(behind[1])].cpu().numpy())
    for text, length, rows in zip(tokens, lengths, parts, strict=True):
        expected = oracle(folder, text[: length + 1], mtp=True)
        assert np.abs(np.concatenate(rows) - expected).max() <= 1e-4 * max(1.0, np.abs(expected).std())
