"""After a crash another process continues with the same tokens."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_hal.config.files import Lock
from specdec_hal.errors import JournalError, RequestError
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, journal
from tests.runner import killed
from tests.runner.conftest import make_runner
from tests.support.decoding import BYSTANDER, LINE_BREAK, THINK_END, THINKS_WITH, alone, plain_decoding, scored_prompt
from tests.support.history_model import END

ROOT = Path(__file__).parents[2]


def start(**runner: Any) -> ModelRunner:
    made = make_runner(runner={"max_num_seqs": 2, "prefill_chunk": 4, **runner})
    for n in range(4):
        made.add_request(Request(str(n), [n + 1, 5, 6, 5, 6], killed.params(n)))
    return made


@cache
def unbroken() -> dict[str, RequestOutput]:
    return start().run()


@settings(max_examples=20)
@given(steps=st.integers(0, 60), overlap=st.booleans())
def test_snapshot_and_restore_at_any_step(steps: int, overlap: bool) -> None:
    """Text, log-probabilities, flags, stop strings and order of tokens are those of a run without a break."""
    expected = unbroken()
    first = start(overlap=overlap)
    for _ in range(steps):
        first.step()
    records = json.loads(json.dumps(first.snapshot()))
    second = make_runner(runner={"max_num_seqs": 3})
    second.restore(records)
    streamed: dict[str, tuple[int, ...]] = {}
    while second.has_requests:
        for delta in second.step():
            streamed[delta.request_id] = streamed.get(delta.request_id, ()) + delta.token_ids
    outputs = second.take_finished()
    assert outputs.keys() == expected.keys()
    for name, output in outputs.items():
        assert output.token_ids == expected[name].token_ids == streamed[name]
        assert (output.text, output.finish_reason) == (expected[name].text, expected[name].finish_reason)
        assert [entry.rank for entry in output.logprobs] == [entry.rank for entry in expected[name].logprobs]


def test_every_way_to_end_is_kept() -> None:
    runner = start()
    runner.step()
    runner.cancel("0")
    expected = runner.snapshot()
    again = make_runner()
    again.restore(expected)
    assert again.snapshot() == expected
    assert again.run()["0"].finish_reason == "cancelled"


def test_restoring_is_all_or_nothing() -> None:
    records = start().snapshot()
    for wrong, message in (
        ([*records, records[0]], "request '0' is in the journal twice"),
        ([records[0], {**records[1], "prompt_token_ids": [99]}], "token 99 is outside the vocabulary"),
        ([records[0], {"request_id": "x"}], "record 1: expected a request, got "),
        ([records[0], {**records[1], "params": {"top_q": 1}}], "top_q"),
    ):
        runner = make_runner()
        with pytest.raises((JournalError, RequestError), match=message):
            runner.restore(wrong)
        assert not runner.has_requests
        runner.add_request(BYSTANDER)
        with pytest.raises(RequestError, match="the id is in use"):
            runner.restore([{**records[0], "request_id": "bystander"}])
        assert runner.run() == {"bystander": alone()}


BAD_CONTENTS: list[tuple[dict[str, Any], str]] = [
    ({"token_ids": [99]}, "expected token ids in 0..23, the model's vocabulary, got 99"),
    *(({"token_ids": wrong}, "token_ids") for wrong in ([1 << 64], [-1], [True], ["a"])),
    ({"token_ids": [1] * 99, "accepted_draft": [False] * 99}, "expected at most max_new_tokens"),
    ({"accepted_draft": [True] * 9}, "accepted_draft: expected"),
    ({"accepted_draft": None}, "accepted_draft"),
    ({"logprobs": []}, "logprobs: expected those that params ask for"),
    ({"logprobs": [{"logprob": 0.0, "rank": 1, "top": [[1 << 80, 0.0]]}]}, "top"),
    ({"logprobs": [{"logprob": "0", "rank": 1, "top": []}]}, "logprob"),
    ({"prompt_logprobs": [None, None]}, "prompt_logprobs"),
    ({"drafts": [{"start": 99, "token_ids": [1], "accepted": 0}]}, "drafts: expected a start of at most"),
    ({"drafts": [{"start": 0, "token_ids": [1], "accepted": 2}]}, "no more accepted than drafted"),
    ({"drafts": [{"start": 0, "token_ids": [99], "accepted": 0}]}, "got 99"),
    *(({"counts": wrong}, "counts") for wrong in ([1, 2], [1, 2, -3])),
    *(({"ended": wrong}, "ended") for wrong in (["tired", ""], ["stop"])),
    ({"limit_status": 1 << 40}, "limit_status"),
    ({"prompt_token_ids": [1 << 64]}, "prompt_token_ids"),
    ({"prompt_token_ids": []}, "prompt"),
    ({"request_id": 7}, "request_id"),
    ({"timeout_s": "soon"}, "timeout_s"),
    ({"params": None}, "params"),
    ({"other": 1}, "other"),
]


def test_bad_contents_with_a_valid_checksum(tmp_path: Path) -> None:
    """They were an IndexError or an OverflowError, some of them steps later."""
    first, runner = start(), make_runner()
    for _ in range(6):
        first.step()
    for changes, message in BAD_CONTENTS:
        journal.write(tmp_path / "journal", [{**first.snapshot()[1], **changes}])
        with pytest.raises((JournalError, RequestError), match=re.escape(message)):
            runner.restore(journal.read(tmp_path / "journal"))
        assert not runner.has_requests, changes
    runner.add_request(BYSTANDER)
    assert runner.run() == {"bystander": alone()}


END_OF_THOUGHT = [LINE_BREAK, THINK_END, LINE_BREAK, LINE_BREAK]
BORDERS = {"temperature": 10.0, "logit_bias": {LINE_BREAK: 80.0, THINK_END: 75.0}, "bad_token_ids": [END]}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.7, "thinking": {"max_tokens": 5, "max_reply_tokens": 4}},
    {**BORDERS, "thinking": {"constrain_answer": True, "max_tokens": 4}},
    {"temperature": 1.0, "structured": {"choice": ["bcdefbcdef", "bcdffcbd", "fedcb"]}},
    {"temperature": 0.8, "prompt_logprobs": 2},
]


@pytest.mark.parametrize("steps", range(1, 14, 2))
def test_a_restored_request_goes_on_inside_whatever_it_has_begun(steps: int) -> None:
    """A text that ends thinking, the border of an answer, a word of a grammar, a prompt that is scored in chunks."""
    settings = {"model_settings": {**THINKS_WITH, "think_end_text": END_OF_THOUGHT}}
    asked = [
        Request(str(seed), [9 + seed, 5, 6, 7, 5, 6], SamplingParams(seed=seed, max_new_tokens=20, **KINDS[seed % 4]))
        for seed in range(8)
    ]
    first = make_runner(runner={"max_num_seqs": 4, "prefill_chunk": 5}, **settings)
    for request in asked:
        first.add_request(request)
    for _ in range(steps):
        first.step()
    second = make_runner(runner={"max_num_seqs": 3, "prefill_chunk": 4}, **settings)
    second.restore(json.loads(json.dumps(first.snapshot())))
    outputs = second.run()
    for request in asked:
        prompt, output = list(request.prompt_token_ids), outputs[request.request_id]
        assert list(output.token_ids) == plain_decoding(prompt, request.params, END_OF_THOUGHT).tokens
        assert output.prompt_logprobs == scored_prompt(prompt, request.params.prompt_logprobs)


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([1 << 31, 1 << 63, 1 << 64, -1]), st.floats(),
    st.text(max_size=3),
)  # fmt: skip


@settings(max_examples=60)
@given(data=st.data())
def test_any_contents_with_a_valid_checksum(data: st.DataObject) -> None:
    """They are refused, or decoded to an end."""
    first = start()
    for _ in range(6):
        first.step()
    record = json.loads(json.dumps(first.snapshot()[1]))
    part: Any = record
    while True:
        key = data.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
        if not (isinstance(part[key], (dict, list)) and part[key] and data.draw(st.booleans())):
            break
        part = part[key]
    part[key] = data.draw(st.one_of(LEAVES, st.lists(LEAVES, max_size=3)))
    runner = make_runner()
    try:
        runner.restore([record])
    except (JournalError, RequestError):
        assert not runner.has_requests
        return
    runner.run()


class TestLocks:
    def test_another_process_is_named(self, tmp_path: Path) -> None:
        """Two processes on one journal overwrote and removed each other's."""
        path = tmp_path / "journal"
        code = (
            "import sys; from specdec_hal.runner.journal import Journal; j = Journal(sys.argv[1], None)\n"
            "print('ready', flush=True); input()"
        )
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            with pytest.raises(JournalError, match=rf"journal: .*process {other.pid} on .* uses it; choose another"):
                make_runner(runner={"journal": str(path)})
            other.kill()
        draft = tmp_path / "journal.host.123.tmp"
        draft.write_text("of a process that was killed")
        (tmp_path / "other.host.123.tmp").write_text("of something else")
        runner = start(journal=str(path))
        runner.run()
        assert not draft.exists() and (tmp_path / "other.host.123.tmp").exists()

    def test_a_runner_that_is_gone_holds_none(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        first = journal.Journal(path, None)
        second = journal.Journal(path, None)  # as after a failure, in the same process
        del first
        gc.collect()
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()} on .* uses it"):
            Lock(tmp_path / "journal.lock")
        del second
        gc.collect()
        assert not list(tmp_path.iterdir())

    def test_where_there_can_be_no_lock(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A failing disk does not stop decoding."""
        runner = start(journal=str(tmp_path / "nowhere" / "journal"))
        assert runner.run().keys() == unbroken().keys()
        assert "cannot be locked" in caplog.text and "cannot be written" in caplog.text


class TestFiles:
    @settings(max_examples=30)
    @given(at=st.integers(0, 10_000), change=st.sampled_from(["flip", "cut", "insert", "line"]))
    def test_damage_is_found(self, tmp_path_factory: pytest.TempPathFactory, at: int, change: str) -> None:
        path = tmp_path_factory.mktemp("journal") / "journal"
        journal.write(path, start().snapshot())
        data = path.read_bytes()
        at %= len(data)
        lines = data.splitlines(keepends=True)
        path.write_bytes({
            "flip": data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :],
            "cut": data[:at],
            "insert": data[:at] + b"7" + data[at:],
            "line": b"".join(lines[:-1]),
        }[change])  # fmt: skip
        try:
            found = journal.read(path)
        except JournalError as error:
            assert str(path) in str(error) and len(str(error)) < 500
        else:  # a digit of a checksum's leading zeros, a cut line break
            journal.write(path, found)
            assert path.read_bytes() == data

    def test_what_is_no_journal(self, tmp_path: Path) -> None:
        path = tmp_path / "journal"
        with pytest.raises(JournalError, match="cannot be read: No such file"):
            journal.read(path)
        for text in ("", "{}\n", "[" * 100_000, '{"record":{},"crc32":1}\n', "\x00\n"):
            path.write_text(text)
            with pytest.raises(JournalError):
                journal.read(path)

    def test_one_without_an_interval_takes_a_fiftieth_of_the_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, written = [100.0], list[float]()
        monkeypatch.setattr("specdec_hal.runner.journal.time.monotonic", lambda: now[0])
        file = journal.Journal(tmp_path / "journal", None)

        def snapshot() -> list[journal.Record]:
            written.append(now[0])
            now[0] += 2.0
            return []

        for _ in range(400):
            file.step(snapshot)
            now[0] += 1.0
        assert written == [100.0, 200.0, 300.0, 400.0, 500.0]
        assert journal.read(file.path) == []

    def test_a_full_disk_stops_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        runner = start(journal=str(tmp_path / "journal"), journal_interval=1)

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        assert runner.run().keys() == set("0123")
        assert caplog.text.count("cannot be written") == 1
        assert runner.summary()["journal_failures"] > 5
        assert [file.name for file in tmp_path.iterdir()] == ["journal.lock"]


def decode(folder: Path, kill_after: float | None) -> bool:
    """One process; False if it was killed before its end."""
    command = [sys.executable, "-m", "tests.runner.killed", str(folder / "journal"), str(folder / "out.json")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
    return process.returncode == 0


def survive(folder: Path, kills: int, seed: int) -> None:
    """Kill processes at random moments, this many times; the outputs must be those of an undisturbed run."""
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    assert decode(undisturbed, None)
    expected = (undisturbed / "out.json").read_text()
    moments, died, run = random.Random(seed), 0, 0
    while died < kills:
        run += 1
        place = folder / str(run)
        place.mkdir()
        while died < kills and not decode(place, moments.uniform(0, 0.25)):
            died += 1
        if not (place / "out.json").exists():
            assert decode(place, None)
        assert (place / "out.json").read_text() == expected, f"seed {seed}, run {run}"


def test_killed_processes(tmp_path: Path) -> None:
    survive(tmp_path, 5, seed=1)


@pytest.mark.slow
def test_many_killed_processes(tmp_path: Path) -> None:
    """`make soak` asks for 200."""
    survive(tmp_path, int(os.environ.get("SOAK_KILLS", "12")), seed=random.randrange(1 << 30))
