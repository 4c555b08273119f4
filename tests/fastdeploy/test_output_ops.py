"""Ops on emitted tokens by example, and those without a kernel in `kernels_tokens` against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError, ConfigError
from specdec_hal_fastdeploy import found
from tests.fastdeploy.batches import Batch, equal, tensor, tensors, values

ROUNDS = range(15)


class Emitted(Batch):
    """A batch after verification: tokens and counts of this step."""

    def __init__(self, rng: Any, **sizes: int) -> None:
        super().__init__(rng, **sizes)
        running = (self.slt > 0) & ~self.stop
        self.counts = np.where(running, rng.integers(0, self.width + 1, self.slots), 0).astype(np.int32)
        self.emitted = rng.integers(0, self.vocabulary, (self.slots, self.width))
        self.emitted[np.arange(self.width) >= self.counts[:, None]] = -1


def columns(*arrays: Any) -> list[Any]:
    """Per-slot tensors as runners shape them, [N, 1]."""
    return [tensor(array.reshape(-1, 1)) for array in arrays]


def limited(
    gpu: Any, tokens: list[int], *, think: int, reply: int, step: int = 0, inject: Any = (), begins: int = 0,
    ends: Any = (5,), decodes: bool = False,
) -> list[Any]:  # fmt: skip
    """Tokens, count, status and max_reply_lens of one request that thinks; the end of thought is 7."""
    row, count = tensors(np.array([tokens]), np.array([len(tokens)], np.int32))
    limits, status = tensors(np.array([think], np.int32), np.array([reply], np.int32)), tensor(np.zeros(1, np.int32))
    status.fill_(begins)
    others = tensors(np.zeros(1, bool), np.array(ends), np.array(inject, np.int64))
    gpu.speculate_limit_thinking_content_length(
        row, *limits, tensor(np.array([step])), status, count, *others, 7, decodes
    )
    return [row.tolist()[0], count.item(), status.item(), limits[1].item()]


def test_limits_of_thinking_by_example(gpu: Any) -> None:
    # thought ends by itself: the answer may be two tokens longer
    assert limited(gpu, [1, 7, 2], think=9, reply=5) == [[1, 7, 2], 3, 3, 7]
    # without inject tokens, the token at the limit stands
    assert limited(gpu, [1, 2, 3], think=2, reply=-1) == [[1, 2, 3], 3, 1, -1]
    # at equality alone: a limit that is past ends nothing
    assert limited(gpu, [1, 2], think=3, reply=-1, step=3, inject=[8, 7]) == [[8, 2], 1, 2, -1]
    assert limited(gpu, [1, 2], think=3, reply=-1, step=4, inject=[8, 7]) == [[1, 2], 2, 0, -1]
    # what follows a replaced token stays, uncounted
    assert limited(gpu, [1, 2, 3, 4], think=1, reply=-1, inject=[8]) == [[1, 8, 3, 4], 2, 2, -1]


STOPS = [
    # emitted, columns 1.. of the text before them, step_idx, least, stopped, wanted, count
    ([10, 20, 30, 40], [], 4, 0, False, [10, 20, 30, 2], 4),
    ([50, 60, 70, 80], [7, 20, 30], 7, 0, False, [2, 60, 70, 80], 1),
    ([30, 60, 70, 80], [20], 5, 2, False, [30, 2, 70, 80], 2),
    ([30, 60, 70, 80], [20], 5, 3, False, [30, 60, 70, 80], 4),
    ([10, 20, 30, 40], [], 4, 0, True, [10, 20, 30, 40], 4),
]


@pytest.mark.parametrize(("emitted", "older", "steps", "least", "stopped", "wanted", "count"), STOPS)
def test_stop_sequences_of_release_2_6(
    xpu: Any, emitted: list[int], older: list[int], steps: int, least: int, stopped: bool, wanted: list[int], count: int
) -> None:
    """step_idx counts the emitted tokens, and the text is that of generated tokens, whose first column is empty."""
    text = np.full((1, 16), -1)
    text[0, 1 : 1 + len(older)] = older
    state = (text, np.array([[steps]]), np.array([stopped]), np.array([9], np.int32), np.array([[[20, 30]]]))
    more = tensors(*state, np.array([[2]], np.int32), np.array([2, 3]))
    for args in ([tensor(np.array([[least]]))], []) if least == 0 else ([tensor(np.array([[least]]))],):
        given = tensors(np.array([emitted]), np.array([4], np.int32))
        result = xpu.speculate_set_stop_value_multi_seqs(*given, *more, *args)
        assert [id(tensor) for tensor in result] == list(map(id, given))
        equal(given[0], [wanted])
        equal(given[1], [count])


@pytest.mark.parametrize(
    ("setting", "installed", "newest"),
    [("release/2.6", "", True), ("development", "2.6.1", False), ("auto", "2.6.1", True), ("auto", "2.6.0", True),
     ("auto", "2.6.0.dev0", False), ("auto", "2.7.0", False), ("auto", "", False)],
)  # fmt: skip
def test_the_constraint_reads_where_its_version_writes(
    gpu: Any, xpu: Any, tmp_path: Path, monkeypatch: Any, setting: str, installed: str, newest: bool
) -> None:
    """release/2.6 has the newest token in column prompt_lens + step_idx, the development branch one before it."""
    if installed:
        (tmp_path / "fastdeploy").mkdir()
        (tmp_path / "fastdeploy/__init__.py").write_text("")
        info = tmp_path / f"fastdeploy_gpu-{installed}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fastdeploy-gpu\nVersion: {installed}\n")
        (info / "top_level.txt").write_text("fastdeploy\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(found.VERSION_VARIABLE, setting)
    found.is_release_2_6.cache_clear()
    text = np.array([[0, 0, 4, 3, 4, 4, -1, -1]])  # after a prompt of two: newline, end of thought, two newlines
    for served, step in ((gpu, 3 if newest else 4), (xpu, 4)):
        for steps, wanted in ((step, 2), (step - 1, 1)):
            logits, status = tensor(np.zeros((1, 8), np.float32)), tensor(np.zeros(1, np.int32))
            state = tensors(text, np.array([2]), np.zeros(1, bool), np.ones(1, np.int32), np.zeros(1, np.int32))
            rows = tensors(np.zeros(1, np.int32), np.array([0, 1], np.int32), np.ones(1, bool))
            allowed = tensor(np.array([5]))
            served.reasoning_phase_token_constraint(
                logits, *state, tensor(np.array([[steps]])), allowed, status, *rows, 3, 4
            )
            equal(status, [wanted])
            assert (values(logits)[0, 0] < 0) == (wanted == 2)
    begins = tensors(np.zeros((1, 8), np.float32), text, np.array([2]), np.zeros(1, bool), *[np.ones(1, np.int32)] * 2)
    status = tensor(np.zeros(1, np.int32))
    gpu.reasoning_phase_token_constraint(
        *begins, *tensors(np.zeros(1, np.int64), np.array([5])), status,
        *tensors(np.zeros(1, np.int32), np.array([0, 1], np.int32), np.zeros(1, bool)), 3, 4,
    )  # fmt: skip
    equal(status, [2])  # it does not think
    found.is_release_2_6.cache_clear()


def test_no_other_version_is_named(gpu: Any, rng: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv(found.VERSION_VARIABLE, "2.5")
    found.is_release_2_6.cache_clear()
    with pytest.raises(ConfigError, match=r"FASTDEPLOY_VERSION: expected auto, release/2\.6 or development"):
        found.is_release_2_6()


def test_limits_of_answers_by_example(gpu: Any) -> None:
    """len(inject) + 2 + n after n tokens of the answer."""
    answers: dict[str, Any] = {"think": -1, "begins": 2, "ends": (2, 3)}
    assert limited(gpu, [501, 502, 503], reply=1, **answers) == [[501, 2, 503], 2, 3, 1]
    assert limited(gpu, [501, 502, 503], reply=9, **answers) == [[501, 502, 503], 3, 5, 9]
    # at the limit, another end token becomes the first one
    assert limited(gpu, [501, 3, 503], reply=1, **answers) == [[501, 2, 503], 2, 3, 1]
    assert limited(gpu, [501, 3, 503], reply=2, **answers) == [[501, 3, 2], 3, 4, 2]
    # after a text of three
    assert limited(gpu, [501, 502], think=0, reply=9, inject=[8, 9, 7], begins=4) == [[501, 502], 2, 7, 9]


def test_a_decode_node_goes_on_with_the_second_token_of_the_text(gpu: Any) -> None:
    """Whose first one the prefill node has emitted."""
    text: dict[str, Any] = {"reply": -1, "inject": [8, 9, 7], "decodes": True}
    assert limited(gpu, [501, 502], think=0, **text) == [[9, 502], 1, 3, -1]
    assert limited(gpu, [501, 502], think=0, begins=3, **text) == [[7, 502], 1, 4, -1]
    assert limited(gpu, [501, 502], think=1, **text) == [[501, 8], 2, 2, -1]


@pytest.mark.parametrize(
    ("emitted", "older", "least", "wanted", "count"),
    [
        ([10, 20, 30, 40], [], 0, [10, 20, 30, 2], 4),  # the sequence stays, and the end token follows it
        ([10, 20, 30, -1], [], 0, [10, 20, 30, -1], 3),  # its last token is the newest: the next round
        ([50, 60, 70, 80], [20, 30], 0, [2, 60, 70, 80], 1),  # that round; what is cut off stays
        ([30, 60, 70, 80], [20], 2, [30, 2, 70, 80], 2),
        ([30, 60, 70, 80], [20], 3, [30, 60, 70, 80], 4),  # too early
        ([20, 30, 20, 30], [], 0, [20, 30, 2, 30], 3),  # the first one
        ([20, 30, 20, 30], [20, 30], 5, [20, 30, 20, 30], 4),
    ],
)
def test_a_stop_sequence_by_example(
    gpu: Any, emitted: list[int], older: list[int], least: int, wanted: list[int], count: int
) -> None:
    history = np.full((1, 16), -1)
    history[0, 3 : 3 + len(older)] = older
    tokens, counts = tensors(np.array([emitted]), np.array([sum(t >= 0 for t in emitted)], np.int32))
    state = tensors(np.array([[3]]), np.array([[len(older)]]), np.array([False]), np.array([9], np.int32))
    stops = tensors(np.array([[[20, 30]]]), np.array([[2]], np.int32), np.array([2]), np.array([least]))
    gpu.speculate_set_stop_value_multi_seqs(tokens, counts, tensor(history), *state, *stops)
    equal(tokens, [wanted])
    equal(counts, [count])


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_set_value_by_flags_and_idx(layer: Any, rng: Any, platform: str) -> None:
    op = layer.ADAPTORS[platform]["speculate_set_value_by_flags_and_idx"]
    for _ in ROUNDS:
        b = Emitted(rng)
        step = rng.integers(-1, 70, b.slots)
        prompts = b.prompt if platform == "gpu" else np.zeros_like(b.prompt)
        history = tensor(b.text)
        heads = [history, tensor(prompts)] if platform == "gpu" else [history]
        op(*heads, *tensors(b.emitted, b.counts, b.stop, b.slt, b.enc, b.dec, step))
        for slot in np.flatnonzero(~b.stop & ((b.enc > 0) | (b.dec > 0)) & (step >= 0)):
            for back in range(b.counts[slot]):
                column = prompts[slot] + step[slot] - back
                if prompts[slot] <= column < b.text.shape[1]:
                    b.text[slot, column] = b.emitted[slot, b.counts[slot] - 1 - back]
        equal(history, b.text)


def get_logits(out: Any, logits: Any, first: Any, slt: Any, enc: Any) -> Any:
    """The number of the slots' rows of `logits`, and of `out`, which gets them."""
    source = target = 0
    counts = []
    for b in range(len(slt)):
        rows, more = (1, 1) if enc[b] != 0 else (int(slt[b]), 0)
        out[target : target + more] = first[b]
        out[target + more : target + more + rows] = logits[source : source + rows]
        source, target = source + rows, target + more + rows
        counts.append((rows, rows + more))
    return np.array(counts, np.int32).reshape(-1, 2).T


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_rows_and_tokens_of_a_draft_model(layer: Any, rng: Any, platform: str) -> None:
    ops = layer.ADAPTORS[platform]
    for _ in ROUNDS:
        b = Emitted(rng)
        slots, width = b.slots, 6
        rows = sum(1 if e else int(t) for t, e in zip(b.slt, b.enc, strict=True))
        logits, first = (rng.normal(size=(n, width)).astype(np.float32) for n in (rows + 1, slots))
        wanted = np.full((rows + slots + 2, width), -1, np.float32)
        own, both = get_logits(wanted, logits, first, b.slt, b.enc)
        extra = 1 if platform == "gpu" else 0  # on XPU there is no place for the total
        out, *counts = tensors(np.full_like(wanted, -1), *np.zeros((2, slots), np.int32))
        offsets = tensors(*np.zeros((2, slots + extra), np.int32))
        lens = tensors(b.slt, b.enc)
        for _ in range(2):
            ops["speculate_get_logits"](out, *counts, *offsets, *tensors(logits, first), *lens)
        equal(out, wanted)
        sums = [np.concatenate([[0], np.cumsum(n)])[: slots + extra] for n in (own, both)]
        for given, numbers in zip([*counts, *offsets], [own, both, *sums], strict=True):
            equal(given, numbers)

        ids, drawn = np.full(len(wanted), -1), rng.integers(0, 99, rows + 1)
        get_logits(ids[:, None], drawn[:, None], b.emitted[:, :1], b.slt, b.enc)
        given = tensor(np.full(len(wanted), -1))
        ops["speculate_insert_first_token"](given, tensor(b.emitted), tensor(drawn.reshape(-1, 1)), *offsets, *lens)
        equal(given, ids)


def test_errors_speak_of_fastdeploys_arguments(gpu: Any, rng: Any) -> None:
    b = Emitted(rng, slots=3)
    with pytest.raises(ArgumentError, match=r"speculate_clear_accept_nums.*'seq_lens_decoder'.*int32.*int64"):
        gpu.speculate_clear_accept_nums(*tensors(b.counts, b.dec.astype(np.int64)))
    with pytest.raises(ArgumentError, match=r"speculate_clear_accept_nums.*2 arguments.*3"):
        gpu.speculate_clear_accept_nums(*tensors(b.counts, b.dec, b.enc))
    with pytest.raises(ArgumentError, match=r"think_end_id.*int"):
        gpu.speculate_limit_thinking_content_length(*tensors(*[b.counts] * 9), 7.5, False)
