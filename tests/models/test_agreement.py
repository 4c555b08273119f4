"""The two frameworks, and the ways in which each can be set up, against one another."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specdec_hal.models import load_tokenizer
from specdec_hal.models.rows import RowSizes
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

Drivers = Callable[..., Any]
Logits = list[npt.NDArray[np.float32]]
TINY = Path(__file__).parents[2] / "models/tiny-py-lm"


def ragged_steps(driver: Any) -> Logits:
    """Logits of a session of three slots: prefill in parts, drafts, and all of it mixed."""
    texts = [driver.tokens(n, seed=n) for n in (160, 75, 230)]
    results = driver.step((0, 0, texts[0][:150]), (2, 0, texts[2][:70]))
    results += driver.step((2, 70, texts[2][70:140]), (0, 150, texts[0][150:151]), (1, 0, texts[1][:1]))
    results += driver.step((1, 1, texts[1][1:]), (0, 151, texts[0][151:157]), (2, 140, texts[2][140:]))
    results += driver.step((0, 153, texts[0][153:]))
    return results


def assert_close(ours: Logits, theirs: Logits, tolerance: float = 1e-4) -> None:
    """Relative to the logits' size where that is above 1, as it is with random weights."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(b.std())))


@pytest.fixture
def expected(checkpoint: Path, framework: str, drivers: Drivers) -> Logits:
    """The framework's results with its defaults."""
    return ragged_steps(drivers(checkpoint, framework))


@pytest.fixture
def torch_expected(checkpoint: Path, drivers: Drivers) -> Logits:
    return ragged_steps(drivers(checkpoint, "transformers"))


@pytest.mark.torch
def test_frameworks_agree_on_the_embedded_model(make_driver: Drivers) -> None:
    """To an absolute 1e-4, on text that it was trained for."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    ids = load_tokenizer(TINY).encode(inspect.getsource(argparse))[:390]
    ours, theirs = (make_driver(TINY, name).whole(ids, 130) for name in ("paddle", "transformers"))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    shifted = ours[:-1] - ours[:-1].max(-1, keepdims=True)
    surprise = np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(ids) - 1), ids[1:]]
    assert surprise.mean() < 3, "the embedded model does not know its Python"


@pytest.mark.torch
@pytest.mark.parametrize("sizes", [(1,), (4, 8, 64), (3,), (2, 5, 40), (1, 2, 3)])
def test_any_sizes_compute_the_same(
    checkpoint: Path, make_driver: Drivers, expected: Logits, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Whatever row counts a machine's libraries agree on: padding and cutting change no result."""
    host = pytest.importorskip("specdec_hal.models.transformers.host", exc_type=ImportError)
    monkeypatch.setattr(host, "agreeing_sizes", lambda *_: (RowSizes(sizes), RowSizes(sizes)))
    assert_close(ragged_steps(make_driver(checkpoint, "transformers")), expected)


def test_without_bit_stability(checkpoint: Path, framework: str, make_driver: Drivers, expected: Logits) -> None:
    driver = make_driver(checkpoint, framework, batch_invariant=False)
    assert not driver.model.batch_invariant
    assert_close(ragged_steps(driver), expected)


def test_attention_in_paddles_operators(
    checkpoint: Path, make_driver: Drivers, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's variant on a CPU."""
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    from specdec_hal.models.llama_paddle import LlamaPaddle
    from specdec_hal.models.paddle_attention import DeviceAttention

    expected = ragged_steps(drivers(checkpoint, "paddle"))
    made: list[DeviceAttention] = []

    def new_attention(self: Any, layers: int, slots: int, positions: int) -> DeviceAttention:
        sizes = {"layers": layers, "slots": slots, "positions": positions}
        made.append(DeviceAttention(self.config, **sizes, place=paddle.CPUPlace()))
        return made[-1]

    monkeypatch.setattr(LlamaPaddle, "new_attention", new_attention)
    assert_close(ragged_steps(make_driver(checkpoint, "paddle")), expected)
    assert made


def test_paddle_computes_with_one_thread(
    checkpoint: Path, make_driver: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And gives the others back, also after an error."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    from specdec_hal.models import llama_paddle

    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    model = make_driver(checkpoint, "paddle").model
    calls: list[int] = []
    monkeypatch.setattr(llama_paddle, "set_num_threads", calls.append)
    model.forward(ForwardBatch(np.array([5]), [Segment(0, 0, 1, 0)]))
    assert calls == [1, 3]
    with pytest.raises(ValueError, match="compute_logits"):
        model.compute_logits(np.zeros((1, 1)))
    assert calls == [1, 3, 1, 3]


def test_paddle_multiplies_with_the_threads_asked_for(embedded_checkpoint: Path, make_driver: Drivers) -> None:
    """Bits depend on no number of tokens or threads."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    driver = make_driver(embedded_checkpoint, "paddle", threads=2)
    tokens = driver.tokens(40)
    plain = driver.whole(tokens, 1)
    for chunk in (4, 9, 40):
        np.testing.assert_array_equal(driver.whole(tokens, chunk), plain)
    np.testing.assert_array_equal(make_driver(embedded_checkpoint, "paddle", threads=1).whole(tokens, 40), plain)
    with pytest.raises(ValueError, match="'threads': expected an integer >= 1, got 0"):
        make_driver(embedded_checkpoint, "paddle", threads=0)


def test_paddle_on_a_gpu_promises_no_bits(make_driver: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    import paddle

    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle, "CUDAPlace", str)
    with pytest.raises(ValueError, match="'batch_invariant': expected False on a GPU, got True"):
        make_driver(TINY, "paddle", device="gpu:0", batch_invariant=True)
    with pytest.raises(ValueError, match="'threads': expected none on a GPU, got 2"):
        make_driver(TINY, "paddle", device="cuda:0", threads=2)  # as the backend calls it


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.02), ("bfloat16", 0.15)])
def test_torch_in_half_precision(
    checkpoint: Path, make_driver: Drivers, torch_expected: Logits, dtype: str, tolerance: float
) -> None:
    driver = make_driver(checkpoint, "transformers", dtype=dtype)
    assert not driver.model.batch_invariant
    for ours, theirs in zip(ragged_steps(driver), torch_expected, strict=True):
        assert np.sqrt(((ours - theirs) ** 2).mean()) < tolerance * theirs.std()


@pytest.mark.torch
@pytest.mark.gpu
def test_torch_on_a_gpu(checkpoint: Path, make_driver: Drivers, torch_expected: Logits) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA GPU")
    driver = make_driver(checkpoint, "transformers", device="cuda", dtype="float32")
    hidden = driver.model.forward(ForwardBatch(np.array([5]), [Segment(0, 0, 1, 0)]))[FINAL_NORM]
    assert hidden.device.type == "cuda" and driver.model.compute_logits(hidden).device.type == "cuda"
    assert_close(ragged_steps(driver), torch_expected, tolerance=1e-3)
