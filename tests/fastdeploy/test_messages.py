"""Messages to FastDeploy's token processor, over real queues, against a reader written from the layout alone."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import ArgumentError, ConfigError, FrameError, QueueError
from specdec_hal_fastdeploy import messages
from specdec_hal_fastdeploy import output as ops
from specdec_hal_fastdeploy.found import packs_columns
from specdec_hal_fastdeploy.sysv import MessageQueue, queue_key
from tests.fastdeploy.batches import tensor, tensors

MOST = int(Path("/proc/sys/kernel/msgmax").read_text())
"""Bytes of a message that this system takes."""


@pytest.fixture(autouse=True)
def number(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A queue of this test's own, gone after it."""
    number = 0x40000 + os.getpid() % 0x10000
    monkeypatch.setenv(ops.QUEUE_VARIABLE, str(number))
    yield number
    for path in (ops.PLAIN_PATH, ops.SCORED_PATH):
        MessageQueue(queue_key(path, number)).remove()
    ops.queue.cache_clear()


def received(path: str, number: int) -> bytes:
    """The oldest message of FastDeploy's queue of that number, by its key and the system's calls."""
    status = os.stat(path)
    key = ((status.st_dev & 0xF) << 28) | ((status.st_ino & 0xFF) << 20) | (number & 0xFFFFF)
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.msgget(ctypes.c_int(key if key < 1 << 31 else key - (1 << 32)), 0)
    assert queue >= 0, os.strerror(ctypes.get_errno())
    memory = ctypes.create_string_buffer(8 + 530448)
    size = libc.msgrcv(queue, memory, ctypes.c_size_t(530448), ctypes.c_long(0), ctypes.c_int(0o4000))
    assert size >= 0, os.strerror(ctypes.get_errno())
    assert struct.unpack_from("<q", memory) == (1,)
    return memory.raw[8 : 8 + size] + bytes(530448 - size)


def read_plain(data: bytes) -> tuple[int, list[int], list[list[int]]]:
    """Stop flag, counts, and tokens by slot."""
    stop, slots = struct.unpack_from("<2i", data)
    counts = list(struct.unpack_from(f"<{slots}i", data, 8))
    tokens = [struct.unpack_from(f"<{max(n, 0)}i", data, 8 + 1024 + 24 * b) for b, n in enumerate(counts)]
    return stop, counts, [list(t) for t in tokens]


def read_scored(data: bytes) -> tuple[int, int, list[int], list[list[tuple[Any, ...]]]]:
    """Stop flag, kind, counts, and (ids, scores, rank) of each token by slot."""
    stop, meta, slots = struct.unpack_from("<3i", data)
    columns = meta >> 8
    counts = list(struct.unpack_from(f"<{slots}i", data, 12))
    rows = []
    for b, n in enumerate(counts):
        at = 12 + 2048 + 1032 * b
        rows.append([
            (
                struct.unpack_from(f"<{columns}i", data, at + 84 * j),
                struct.unpack_from(f"<{columns}f", data, at + 504 + 84 * j),
                struct.unpack_from("<i", data, at + 1008 + 4 * j)[0],
            )
            for j in range(n)
        ])  # fmt: skip
    return stop, meta & 0xFF, counts, rows


class Step:
    """A runner's data to send: 5 slots, one inside its prompt, one preempted."""

    def __init__(self, rng: Any, columns: int = 1) -> None:
        self.num = np.array([2, 1, 0, 3, 6], np.int32)
        self.decoder, self.prompts = np.array([9, 3, 8, 5, 7], np.int32), np.array([9, 4, 8, 5, 1])
        self.preempted = np.array([0, 0, 0, 1, 0], np.int32)
        self.tokens = rng.integers(0, 1 << 20, (5, 6))
        self.starts = np.concatenate([[0], np.cumsum(self.num)]).astype(np.int32)
        rows = int(self.starts[-1]) + 4  # rows after the last token, as callers have them
        self.ids = rng.integers(0, 1 << 20, (rows, columns))
        self.scores = rng.normal(size=(rows, columns)).astype(np.float32)
        self.ranks = rng.integers(1, 99, rows)
        self.counts = [2, 0, 0, -9, 6]

    @property
    def state(self) -> list[Any]:
        return tensors(np.array([True]), self.decoder, self.prompts, self.preempted)

    @property
    def scored(self) -> list[Any]:
        return [
            *tensors(self.tokens, self.ids, self.scores, self.ranks, self.num, self.starts), *self.state,
        ]  # fmt: skip

    def rows(self, b: int) -> list[tuple[Any, ...]]:
        """(ids, scores, rank) of slot b's tokens."""
        rows = [self.starts[b] + j for j in range(max(self.counts[b], 0))]
        return [
            ((self.tokens[b, j], *self.ids[r, 1:]), tuple(self.scores[r]), self.ranks[r]) for j, r in enumerate(rows)
        ]


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_accepted_tokens(layer: Any, rng: Any, number: int, platform: str) -> None:
    step = Step(rng)
    op = layer.ADAPTORS[platform]["speculate_save_output"]
    arguments = [*tensors(step.tokens, step.num), *step.state]
    for _ in range(2):  # the second call is a kept plan
        op(*arguments, 0, False, False)
    op(*arguments, 1, False, False)  # another rank says nothing
    for _ in range(2):
        stop, counts, tokens = read_plain(received("./", number))
        assert (stop, counts) == (1, step.counts)
        assert tokens == [step.tokens[b, : max(n, 0)].tolist() for b, n in enumerate(step.counts)]
    with pytest.raises(AssertionError):
        received("./", number)


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
@pytest.mark.parametrize(("skips", "counts"), [(False, [2, 0, 0, 2]), (True, [2, 0, 0, 0])])
def test_first_tokens_of_a_prefill_node(layer: Any, number: int, platform: str, skips: bool, counts: list[int]) -> None:
    """Of slots that have just ended their prompt: the last one is inside it by its lengths."""
    op = layer.ADAPTORS[platform]["mtp_save_first_token"]
    tokens = np.array([[11, 12, 13], [21, 22, 23], [31, 32, 33], [41, 42, 43]])
    decoder, prompts, steps = np.array([9, 9, 9, 3], np.int32), np.array([9, 9, 9, 4]), np.array([1, 0, 2, 1])
    column = [array.reshape(-1, 1) for array in (decoder, prompts, steps)]
    for runs, shaped in ((True, [decoder, prompts, steps]), (False, column)):
        given = tensors(tokens, np.array([runs]), *shaped)
        for _ in range(2):
            assert op(*given, 0, False, skips) is None
            wanted = [[11, 12], [], [], [41, 42][: counts[3]]]
            assert read_plain(received("./", number)) == (1 if runs else -1, counts, wanted)
        op(*given, 1, False, skips)  # another rank says nothing
        op(*given, 1, True, skips)
        assert read_plain(received("./", number))[1] == counts
    with pytest.raises(AssertionError):
        received("./", number)
    with pytest.raises(ArgumentError, match=r"mtp_save_first_token.*'x'.*2 or more"):
        op(*tensors(tokens[:, :1], np.array([True]), decoder, prompts, steps), 0, False, skips)


def test_messages_with_scores_of_an_xpu(xpu: Any, rng: Any, number: int) -> None:
    step = Step(rng, 2)
    xpu.speculate_save_output_topk(*step.scored, 3, 0, False)
    buffers = tensors(np.zeros((512 * 126 + 515, 1), np.int64), np.zeros((512 * 126, 1), np.float32),
                      np.zeros(512 * 6, np.int64))  # fmt: skip
    assert xpu.speculate_get_output_topk(*buffers, 20, 0, False)[0] is buffers[0]
    assert buffers[0][3:8, 0].tolist() == step.counts


def test_a_queue_by_its_number(layer: Any, rng: Any, number: int) -> None:
    step = Step(rng)
    arguments = [*tensors(step.tokens, step.num), *step.state]
    layer.ADAPTORS["xpu"]["speculate_save_output_dynamic"](*arguments, 0, number, False, False)
    assert read_plain(received("./", number))[1] == step.counts


@pytest.mark.parametrize("columns", [1, 2, 21])
@pytest.mark.parametrize("kind", [3, 4])
def test_tokens_with_scores(gpu: Any, rng: Any, number: int, columns: int, kind: int) -> None:
    step = Step(rng, columns)
    gpu.speculate_save_output_topk(*step.scored, kind, 0, False)
    stop, flag, counts, rows = read_scored(received("/dev/shm", number))
    assert (stop, flag, counts) == (1, kind, step.counts)
    assert rows == [step.rows(b) for b in range(5)]


def test_the_end_of_the_last_request(gpu: Any, rng: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(rng)
    arguments = step.scored
    arguments[6] = tensor(np.array([False]))
    gpu.speculate_save_output_topk(*arguments, 3, 0, False)
    assert read_scored(received("/dev/shm", number))[0] == -1
    monkeypatch.setenv(ops.USER_VARIABLE, "7")
    gpu.speculate_save_output_topk(*arguments, 3, 0, False)
    assert read_scored(received("/dev/shm", number))[0] == -7
    for user in ("2", "-1"):
        monkeypatch.setenv(ops.USER_VARIABLE, user)
        with pytest.raises(ConfigError, match=f"INFERENCE_MSG_ID.*{user}"):
            gpu.speculate_save_output_topk(*arguments, 3, 0, False)


def test_the_receiver_reads_what_is_sent(gpu: Any, rng: Any, number: int) -> None:
    buffers = tensors(
        np.full((512 * 126 + 515, 1), -5), np.full((512 * 126, 1), -5, np.float32), np.full(512 * 6, -5)
    )  # fmt: skip
    gpu.speculate_get_output_topk(*buffers, 20, 0, False)
    assert buffers[0].numpy()[:3, 0].tolist() == [-2, 0, 0]
    for columns in (3, 1):
        step = Step(rng, columns)
        gpu.speculate_save_output_topk(*step.scored, 3, 0, False)
        gpu.speculate_get_output_topk(*buffers, 20, 0, True)
        head, scores, ranks = (buffer.numpy().reshape(-1) for buffer in buffers)
        assert head[:8].tolist() == [1, 3 | columns << 8, 5, *step.counts]
        for b in range(5):
            for j, (ids, values, rank) in enumerate(step.rows(b)):
                at = b * 126 + j * 21
                assert tuple(head[515 + at : 515 + at + columns]) == ids
                assert tuple(scores[at : at + columns]) == values
                assert ranks[b * 6 + j] == rank
        untouched = 515 + 4 * 126 + 5 * 21 + 3  # after the columns of the last token
        assert (head[untouched:] == -5).all()


def test_a_receiver_waits_for_a_message(rng: Any, number: int) -> None:
    queue, got = MessageQueue(queue_key("/dev/shm", number)), []
    memory = np.zeros(1, messages.SCORED)
    waiting = threading.Thread(target=lambda: got.append(queue.receive(memory, wait=True)))
    waiting.start()
    token, one = np.array([[5]]), np.array([1])
    message = messages.ScoredMessage().write(1, 4, one, token, token, np.ones((1, 1), np.float32), one, one - 1)
    queue.send(message)
    waiting.join(30)
    assert got == [12 + 2048 + 1032]
    scored = messages.read_scored(memory, got[0])
    assert (scored.kind, scored.tokens.shape, scored.tokens[0, 0, 0]) == (4, (1, 6, 1), 5)


def test_a_removed_queue_and_a_long_message_are_errors(number: int) -> None:
    queue = MessageQueue(queue_key("/dev/shm", number))
    with pytest.raises(QueueError, match=f"takes no message of {MOST + 1} bytes.*msgmax"):
        queue.send(np.ones(MOST + 9, np.uint8))
    queue.remove()
    for wait in (True, False):
        with pytest.raises(QueueError, match="gives no message"):
            queue.receive(np.zeros(1, messages.SCORED), wait=wait)


@pytest.mark.parametrize(("kind", "columns"), [(2, 1), (5, 1), (259, 1), (3, 0), (3, 22), (3, 1 << 24), (-1, 1)])
def test_what_meta_does_not_hold(kind: int, columns: int) -> None:
    with pytest.raises(FrameError, match="message_flag" if kind not in (3, 4) else "N: expected 1..21"):
        messages.pack_meta(kind, columns)


@pytest.mark.parametrize("meta", [0, 2, 5, 3 | 22 << 8, 5 | 1 << 8, -1, -(1 << 31) | 0x103])
def test_meta_that_nobody_packs(meta: int) -> None:
    with pytest.raises(FrameError):
        messages.unpack_meta(meta)


def test_every_meta_comes_back() -> None:
    for kind in (3, 4):
        for columns in range(1, 22):
            assert messages.unpack_meta(messages.pack_meta(kind, columns)) == (kind, columns)
        assert messages.unpack_meta(kind) == (kind, 21), "of a sender before PR #7883"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda s: setattr(s, "num", s.num + 7), "at most 6 tokens a slot"),
        (lambda s: setattr(s, "starts", s.starts + 90), "rows: expected"),
        (lambda s: setattr(s, "starts", s.starts - 1), "rows: expected"),
        (lambda s: setattr(s, "tokens", s.tokens[:, :5]), "at most 5, the width"),
        (lambda s: setattr(s, "ids", np.zeros((99, 22), int)), "N: expected 1..21"),
    ],
)
def test_what_does_not_fit_is_not_sent(gpu: Any, rng: Any, number: int, change: Any, error: str) -> None:
    step = Step(rng)
    change(step)
    MessageQueue(queue_key("/dev/shm", number))
    with pytest.raises(FrameError, match=error):
        gpu.speculate_save_output_topk(*step.scored, 3, 0, False)
    with pytest.raises(AssertionError):
        received("/dev/shm", number)


def test_too_many_slots() -> None:
    many = np.zeros(513, np.int32)
    with pytest.raises(FrameError, match="slots: expected at most 512, got 513"):
        messages.sent_counts(many, many, many, many, messages.SCORED_SLOTS)


def test_messages_that_end_too_soon_are_refused(rng: Any) -> None:
    memory = np.zeros(1, messages.SCORED)
    memory["meta"], memory["slots"] = 3 | 1 << 8, 4
    for size in (0, 12 + 2048, 12 + 2048 + 4 * 1032 - 1):
        with pytest.raises(FrameError, match="slots"):
            messages.read_scored(memory, size)
    assert messages.read_scored(memory, 12 + 2048 + 4 * 1032).counts.tolist() == [0] * 4
    for slots, count in ((-1, 0), (513, 0), (4, 7), (4, -3)):
        memory["slots"], memory["counts"][0, 0] = slots, count
        with pytest.raises(FrameError):
            messages.read_scored(memory, 530448)


def test_a_message_longer_than_its_queue_is_an_error(number: int) -> None:
    """The system would wait forever."""
    key = queue_key("/dev/shm", number)
    MessageQueue(key)
    libc, status = ctypes.CDLL(None), ctypes.create_string_buffer(120)
    queue = libc.msgget(key, 0)
    assert libc.msgctl(queue, 2, status) == 0
    struct.pack_into("<Q", status, 88, 100)
    assert libc.msgctl(queue, 1, status) == 0
    with pytest.raises(QueueError, match=r"takes no message of 101 bytes.*kernel\.msgmax=101 kernel\.msgmnb.*ipcrm"):
        MessageQueue(key).send(np.ones(109, np.uint8))


@pytest.mark.parametrize("columns", [1, 2, 21])
@pytest.mark.parametrize("op", ["speculate_save_output_topk", "mtp_save_first_token_with_topk"])
def test_messages_of_all_slots_are_sent_or_name_the_limit(
    gpu: Any, rng: Any, number: int, columns: int, op: str
) -> None:
    """Buffers as FastDeploy's runner has them: of 512 slots, rows for each token that a slot could emit, stale ones."""
    slots, width = 512, 6
    accepted, counts = rng.integers(0, 1 << 20, (slots, width)), np.zeros(slots, np.int32)
    counts[:3] = 1, 2, 1
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = slots * width
    ids, scores = rng.integers(0, 99, (rows, columns)), rng.normal(size=(rows, columns)).astype(np.float32)
    state = tensors(np.array([True]), np.ones(slots, np.int32), np.ones((slots, 1), np.int64))
    arguments = [*tensors(accepted, ids, scores, rng.integers(1, 99, rows), counts, starts), *state]
    arguments += [tensor(np.zeros((slots, 1), np.int32)), 3, 0, False]
    if 12 + 2048 + 1032 * slots > MOST:
        with pytest.raises(QueueError, match=r"takes no message of 530444 bytes.*kernel\.msgmax=530444"):
            getattr(gpu, op)(*arguments)
    else:
        getattr(gpu, op)(*arguments)
        more = int(op.startswith("mtp"))
        assert read_scored(received("/dev/shm", number))[2][:4] == [1 + more, 2 + more, 1 + more, 0]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("columns", [1, 2, 21])
def test_drafts_with_scores(gpu: Any, rng: Any, number: int, columns: int, flat: bool) -> None:
    """As FastDeploy's MTP proposer sends them: 12 arguments, and tokens in the order of the rows."""
    step = Step(rng, columns)
    step.preempted[:] = 0
    step.counts[3] = 3
    arguments = step.scored
    if flat:
        packed = [step.tokens[b, j] for b, n in enumerate(step.num) for j in range(n)]
        arguments[0] = tensor(np.array(packed + [-1] * 4))
    gpu.speculate_save_output_topk(*arguments[:-1], 4, 0, False)
    _, flag, counts, rows = read_scored(received("/dev/shm", number))
    assert (flag, counts) == (4, step.counts)
    assert rows == [step.rows(b) for b in range(5)]


def test_flat_tokens_that_end_too_soon_are_not_sent(gpu: Any, rng: Any, number: int) -> None:
    step = Step(rng)
    arguments = step.scored
    arguments[0] = tensor(step.tokens.reshape(-1)[:5])
    with pytest.raises(FrameError, match=r"rows: expected 0\.\.4, got"):
        gpu.speculate_save_output_topk(*arguments, 4, 0, False)


@pytest.mark.parametrize("columns", [1, 3])
def test_the_first_tokens_of_a_prefill_node(gpu: Any, rng: Any, number: int, columns: int) -> None:
    """The target's token with its scores, and the first draft without any."""
    step = Step(rng, columns)
    step.num[:] = [1, 1, 0, 1, 1]
    step.starts = np.concatenate([[0], np.cumsum(step.num)]).astype(np.int32)
    gpu.mtp_save_first_token_with_topk(*step.scored, 3, 0, False)
    _, flag, counts, rows = read_scored(received("/dev/shm", number))
    assert (flag, counts) == (3, [2, 0, 0, -9, 2])
    for b in (0, 4):
        scored = ((step.tokens[b, 0], *step.ids[step.starts[b], 1:]), tuple(step.scores[step.starts[b]]))
        assert rows[b][0] == (*scored, step.ranks[step.starts[b]])
        assert rows[b][1] == ((step.tokens[b, 1], *[-1] * (columns - 1)), (0.0,) * columns, 0)


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("sent", ["packed", "flag"])
@pytest.mark.parametrize("read", ["packed", "flag"])
def test_no_reader_takes_drafts_for_tokens(
    gpu: Any, rng: Any, number: int, monkeypatch: Any, kind: int, sent: str, read: str
) -> None:
    """Whichever kind was sent, the token processor gets what it splits."""
    step = Step(rng, 2)
    buffers = tensors(
        np.full((512 * 126 + 515, 1), -5), np.full((512 * 126, 1), -5, np.float32), np.full(512 * 6, -5)
    )  # fmt: skip
    for setting, op, arguments in (
        (sent, gpu.speculate_save_output_topk, [*step.scored, kind, 0, False]),
        (read, gpu.speculate_get_output_topk, [*buffers, 20, 0, True]),
    ):
        monkeypatch.setenv("SPECDEC_HAL_FASTDEPLOY_META", setting)
        packs_columns.cache_clear()
        op(*arguments)
    packs_columns.cache_clear()
    head = buffers[0].numpy()[:, 0]
    flag, columns = (int(head[1]), 21) if read == "flag" else (int(head[1]) & 0xFF, int(head[1]) >> 8)
    assert flag == kind and columns == (21 if "flag" in (sent, read) else 2)
    wanted = (*step.rows(0)[1][0], *[-1] * 19)[:columns]
    assert tuple(head[515 + 21 : 515 + 21 + columns]) == wanted


@pytest.mark.parametrize(
    ("source", "setting", "packed"),
    [
        ("mtype = int(tokens[1])\nif mtype == 3: pass\n", "", False),
        ("flag = tokens[1] & 0xFF\ncolumns = tokens[1] >> 8\n", "", True),
        ("", "auto", True),
        ("columns = tokens[1] >> 8\n", "flag", False),
        ("mtype = tokens[1]\n", "packed", True),
    ],
)
def test_the_kind_is_that_of_the_installed_token_processor(
    tmp_path: Path, monkeypatch: Any, source: str, setting: str, packed: bool
) -> None:
    if source:
        (tmp_path / "fastdeploy/output").mkdir(parents=True)
        (tmp_path / "fastdeploy/__init__.py").write_text("raise ImportError('is not imported')")
        (tmp_path / "fastdeploy/output/token_processor.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SPECDEC_HAL_FASTDEPLOY_META", setting)
    packs_columns.cache_clear()
    assert packs_columns() == packed
    packs_columns.cache_clear()
    monkeypatch.setenv("SPECDEC_HAL_FASTDEPLOY_META", "both")
    with pytest.raises(ConfigError, match="SPECDEC_HAL_FASTDEPLOY_META: expected auto, packed or flag, got 'both'"):
        packs_columns()
