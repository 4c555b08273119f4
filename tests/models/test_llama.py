"""The decoder against an independent one, and against itself in all the ways a runner may call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.llama_oracle import oracle

pytestmark = pytest.mark.usefixtures("framework")


def close(got: npt.NDArray[np.float32], expected: npt.NDArray[Any]) -> bool:
    """To 1e-4 of the logits' own size, which for a trained model is the absolute 1e-4 that is asked for or less."""
    return bool(np.abs(got - expected).max() <= 1e-4 * max(1.0, np.abs(expected).std()))


@pytest.mark.parametrize("length", [1, 2, 150, 330])
def test_logits_are_those_of_an_independent_model(driver: Any, checkpoint: Path, length: int) -> None:
    tokens = driver.tokens(length)
    assert close(driver.whole(tokens), oracle(checkpoint, tokens))


def test_ragged_mixed_batch_is_its_requests_alone(driver: Any) -> None:
    """Prefill, multi-token and plain decode steps together, in any order of slots."""
    texts = [driver.tokens(n, seed=n) for n in (150, 37, 90)]
    alone = [driver.whole(text) for text in texts]
    for slot, (text, done) in enumerate(zip(texts, (131, 36, 40), strict=True)):
        driver.step((slot, 0, text[:done]))
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        starts = {0: 131, 1: 36, 2: 40}
        results = driver.step(*((slot, starts[slot], texts[slot][starts[slot] :]) for slot in order))
        for slot, result in zip(order, results, strict=True):
            np.testing.assert_array_equal(result, alone[slot][starts[slot] :])


LONG = 300
plain_logits: dict[str, npt.NDArray[np.float32]] = {}


def plain(driver: Any) -> npt.NDArray[np.float32]:
    """Logits of driver.tokens(LONG), one token a step."""
    framework = driver.framework
    if framework not in plain_logits:
        plain_logits[framework] = driver.whole(driver.tokens(LONG), 1)
    return plain_logits[framework]


@settings(max_examples=30)
@given(data=st.data())
def test_rejected_drafts_leave_no_trace(embedded_driver: Any, data: st.DataObject) -> None:
    """Steps of accepted and rejected drafts, the latter overwritten later, beside another slot that does anything."""
    driver = embedded_driver
    tokens, other = driver.tokens(LONG), driver.tokens(LONG, seed=9)
    slot, neighbour = data.draw(st.sampled_from([(0, 2), (2, 0), (1, 0)]))
    first = data.draw(st.integers(1, LONG - 60))
    end = first + data.draw(st.integers(1, 60))
    steps = [driver.step((slot, 0, tokens[:first]))[0]]
    position = first
    while position < end:
        right, wrong = data.draw(st.integers(1, min(12, end - position))), data.draw(st.integers(0, 6))
        drafts = np.concatenate([tokens[position : position + right], driver.tokens(wrong, seed=position)])
        parts = [(slot, position, drafts)]
        if beside := data.draw(st.integers(0, 9)):
            parts.insert(data.draw(st.integers(0, 1)), (neighbour, position, other[position : position + beside]))
        results = dict(zip((part[0] for part in parts), driver.step(*parts), strict=True))
        steps.append(results[slot][:right])
        position += right
    np.testing.assert_array_equal(np.concatenate(steps), plain(driver)[:end])


@settings(max_examples=30)
@given(data=st.data())
def test_bits_do_not_depend_on_the_sizes_of_steps(embedded_driver: Any, data: st.DataObject) -> None:
    """A text cut at random: one logit row for each token, whatever came in the same step."""
    driver = embedded_driver
    tokens = driver.tokens(LONG)
    position, rows = 0, []
    while position < LONG:
        length = data.draw(st.one_of(st.integers(1, 16), st.integers(17, 200)))
        rows.append(driver.step((0, position, tokens[position : position + length]))[0])
        position += length
    np.testing.assert_array_equal(np.concatenate(rows), plain(driver))


def test_hidden_states_may_come_in_any_form(driver: Any) -> None:
    from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

    tokens = driver.tokens(20)
    hidden = driver.model.forward(ForwardBatch(tokens, [Segment(0, 0, 20, 0)]))[FINAL_NORM]
    expected = driver.model.compute_logits(hidden).numpy()
    array = np.array(hidden.numpy())
    for form in (array, np.from_dlpack(hidden), array.astype(np.float64), np.repeat(array, 2, 0)[::2]):
        np.testing.assert_array_equal(driver.model.compute_logits(form).numpy(), expected)
    for rows in (0, 1, 3, 7):
        np.testing.assert_array_equal(driver.model.compute_logits(array[:rows]).numpy(), expected[:rows])
    many = driver.model.compute_logits(np.tile(array, (20, 1))).numpy()
    np.testing.assert_array_equal(many, np.tile(expected, (20, 1)))
    with pytest.raises(ValueError, match=r"compute_logits .*'hidden': expected \[R, \d+\], got \[1, 3\]"):
        driver.model.compute_logits(array[:1, :3])


def test_empty_batch(driver: Any) -> None:
    from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch

    hidden = driver.model.forward(ForwardBatch(np.zeros(0, np.int64), []))[FINAL_NORM]
    assert tuple(hidden.shape) == (0, driver.model.config.hidden_size)
    assert driver.model.compute_logits(hidden).shape[0] == 0


def test_refused_batch_writes_nothing(driver: Any) -> None:
    from specdec_hal.plugin.model import ForwardBatch, Segment

    tokens = driver.tokens(21)
    expected = driver.whole(tokens)[20:]
    driver.step((0, 0, tokens[:20]))
    bad = ForwardBatch(np.array([3, 3, 3, -1]), [Segment(0, 0, 3, 5), Segment(1, 3, 1, 0)])
    with pytest.raises(ValueError, match="got -1 at 3"):
        driver.model.forward(bad)
    np.testing.assert_array_equal(driver.step((0, 20, tokens[20:]))[0], expected)


def test_cache_is_needed_and_can_be_replaced(make_checkpoint: Callable[..., Path], framework: str) -> None:
    from specdec_hal.models import load_model
    from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

    model: Any = load_model(make_checkpoint(), framework)
    batch = ForwardBatch(np.array([5, 6]), [Segment(0, 0, 2, 0)])
    with pytest.raises(ValueError, match=r"got none; call allocate\(\) first"):
        model.forward(batch)
    for slots, length, name in ((0, 5, "max_num_seqs"), (5, 0, "max_model_len")):
        with pytest.raises(ValueError, match=f"'{name}': expected an integer >= 1, got 0"):
            model.allocate(slots, length)
    results = []
    for length in (2, 300, 700):  # also beyond max_position_embeddings: headroom for rejected drafts
        model.allocate(1, length)
        results.append(model.compute_logits(model.forward(batch)[FINAL_NORM]).numpy())
        late = model.forward(ForwardBatch(np.array([7]), [Segment(0, 0, 1, length - 1)]))[FINAL_NORM].numpy()
        assert np.isfinite(late).all()
        with pytest.raises(ValueError, match=f"expected positions in 0..{length - 1}"):
            model.forward(ForwardBatch(np.array([7]), [Segment(0, 0, 1, length)]))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


def test_every_layer_can_be_tapped(driver: Any, make_driver: Any, tmp_path: Path) -> None:
    """Layer i's hidden state, normed, is the output of the same model cut after layer i; whatever the chunks are."""
    from safetensors.numpy import load_file, save_file

    from specdec_hal.models.checkpoint import read_config
    from specdec_hal.models.weights import expected_shapes
    from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

    model, tokens = driver.model, driver.tokens(40)
    config = read_config(driver.path)
    layers = tuple(range(config.num_hidden_layers))
    assert set(model.capabilities.hidden_layers) == {FINAL_NORM, *layers}
    assert model.capabilities.stable_row_counts is None

    def states(wanted: tuple[int, ...], chunk: int) -> dict[int, Any]:
        parts = []
        for start in range(0, len(tokens), chunk):
            ids = tokens[start : start + chunk]
            found = model.forward(ForwardBatch(ids, [Segment(0, 0, len(ids), start)], wanted))
            assert set(found) == {FINAL_NORM, *wanted}
            parts.append({layer: np.array(hidden.numpy()) for layer, hidden in found.items()})
        return {layer: np.concatenate([part[layer] for part in parts]) for layer in parts[0]}

    whole = states(layers, 40)
    np.testing.assert_array_equal(states(layers[:1], 7)[0], whole[0])
    np.testing.assert_array_equal(states((), 40)[FINAL_NORM], whole[FINAL_NORM])
    raw, weights = json.loads((driver.path / "config.json").read_text()), load_file(driver.path / "model.safetensors")
    for layer in layers:
        cut = tmp_path / str(layer)
        cut.mkdir()
        shorter = {**raw, "num_hidden_layers": layer + 1, "num_nextn_predict_layers": 0}
        (cut / "config.json").write_text(json.dumps(shorter))
        save_file({name: weights[name] for name in expected_shapes(read_config(cut))}, cut / "model.safetensors")
        one = make_driver(cut, driver.framework, slots=1, length=40).model
        expected = one.forward(ForwardBatch(tokens, [Segment(0, 0, 40, 0)]))[FINAL_NORM].numpy()
        hidden = whole[layer].astype(np.float64)
        scale = np.sqrt((hidden**2).mean(-1, keepdims=True) + config.rms_norm_eps)
        gain = weights["model.norm.weight"].astype(np.float64)
        np.testing.assert_allclose(hidden / scale * gain, expected, rtol=0, atol=1e-4)


def test_a_layer_that_is_not_there_is_refused(driver: Any) -> None:
    from specdec_hal.plugin.model import ForwardBatch, Segment

    batch = ForwardBatch(driver.tokens(2), [Segment(0, 0, 2, 0)], (0, 99))
    with pytest.raises(ValueError, match=r"forward .*'hidden_layers': expected layers among -1, 0, .*, got 99"):
        driver.model.forward(batch)
