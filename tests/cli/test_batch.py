"""The command `batch` in one process: the same bytes however it is divided, interrupted, or hurt."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdec_hal.batch.blocks import Block, OutputFolder, lines_of, scan
from specdec_hal.cli import INTERNAL
from specdec_hal.config.files import Lock
from tests.support.batch import Capture, Model, batch, rows_of

PROMPTS = [
    {"id": "first", "prompt": "a", "params": {"max_new_tokens": 5}},
    {"prompt_token_ids": [ord("c")], "params": {"max_new_tokens": 3, "logprobs": 1}},
    {"prompt": "xa", "params": {"temperature": 3.0, "max_new_tokens": 30}},
    {"prompt": "xa", "params": {"temperature": 3.0, "max_new_tokens": 30}},
    {"prompt": "xa", "params": {"temperature": 3.0, "max_new_tokens": 30, "seed": 2}},
    {"prompt": "b", "params": {"stop": ["fg"], "num_speculative_tokens": 0}},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, PROMPTS)) + "\n")
    return path


class Killed(BaseException):
    """Stands for the end of a process. The command reports it and gives INTERNAL."""


def test_answers(model: Model, prompts: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert batch(model().ngram, prompts, out, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rows"], document["rows_decoded_now"]) == (6, 6)
    assert [counts["rows"] for counts in document["replicas"].values()] == [6]
    rows = rows_of(out)
    assert [row["row"] for row in rows] == list(range(6))
    assert (rows[0]["id"], rows[0]["text"], rows[0]["finish_reason"]) == ("first", "bcdef", "length")
    assert rows[1]["text"] == "def" and [entry["rank"] for entry in rows[1]["logprobs"]] == [1, 1, 1]
    assert rows[2]["text"] != rows[3]["text"], "equal prompts have seeds of their own"
    assert rows[2]["text"] == rows[4]["text"], "unless they name one: row 2 had the seed 2"
    assert (rows[5]["text"], rows[5]["finish_reason"], rows[5]["drafted_tokens"]) == ("cde", "stop", 0)
    assert [path.name for path in out.iterdir() if path.name != "manifest.json"] == ["results.jsonl"]


def test_the_division_does_not_matter(model: Model, prompts: Path, tmp_path: Path) -> None:
    options = model().ngram
    for size in (1, 2, 4, 256):
        assert batch(options, prompts, tmp_path / str(size), "--block-size", str(size)) == 0
    answers = {(tmp_path / str(size) / "results.jsonl").read_bytes() for size in (1, 2, 4, 256)}
    assert len(answers) == 1


def test_bad_rows_are_answered_with_errors(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    bad = [
        b"not json", b"[" * 100_000, b'{"id": "mine", "prompt": ""}', b'{"prompt": "a", "prompt_token_ids": [1]}',
        b'{"prompt": "a", "temperature": 1}', b'{"prompt": "a", "params": {"temperature": -1}}',
        b'{"prompt_token_ids": [999]}', b'{"prompt": "\xff"}', b'{"id": "\\ud800", "prompt": "a"}',
        b'{"prompt": "a\\udfff"}', b'{"prompt": "a", "params": {"stop": ["\\ud800", 3]}}',
        b'{"prompt": "a", "\\ud800": 1}', b'{"prompt_token_ids": [18446744073709551616]}',
        b'{"prompt_token_ids": [-1]}', b'{"prompt": "a", "params": {"seed": 1e400}}',
    ]  # fmt: skip
    path.write_bytes(b"\n".join([*bad, b"", b'{"prompt": "a", "params": {"max_new_tokens": 2}}']))
    assert batch(model().naive, path, tmp_path / "out", "--block-size", "3") == 1
    *failed, good = rows_of(tmp_path / "out")
    assert [row["finish_reason"] for row in failed] == ["error"] * len(bad)
    assert all(row["error"] and row["text"] == "" for row in failed)
    assert failed[2]["id"] == "mine"
    assert "expected either prompt or prompt_token_ids" in failed[3]["error"]
    assert "sampling parameter temperature" in failed[5]["error"]
    assert (good["row"], good["text"], good["error"]) == (len(bad), "bc", None)


def test_what_is_done_is_not_done_again(
    model: Model, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    options, out = model().ngram, tmp_path / "out"
    assert batch(options, prompts, tmp_path / "whole", "--block-size", "2") == 0
    note = OutputFolder.note_attempt
    seen: list[int] = []

    def interrupted(folder: OutputFolder, block: Block, row: int | None = None) -> None:
        note(folder, block, row)
        seen.append(block.number)
        if seen == [0, 1]:
            raise Killed

    monkeypatch.setattr(OutputFolder, "note_attempt", interrupted)
    assert batch(options, prompts, out, "--block-size", "2") == INTERNAL
    assert not (out / "results.jsonl").exists()
    capsys.readouterr()
    assert batch(options, prompts, out, "--block-size", "2", "--json") == 0
    assert seen == [0, 1, 1, 2]
    assert json.loads(capsys.readouterr().out)["rows_decoded_now"] == 4
    assert (out / "results.jsonl").read_bytes() == (tmp_path / "whole" / "results.jsonl").read_bytes()
    assert batch(options, prompts, out, "--block-size", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows_decoded_now"] == 0


def test_a_row_that_kills_its_process_is_found(
    model: Model, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, out = model().ngram, tmp_path / "out"
    assert batch(options, prompts, tmp_path / "whole") == 0
    note = OutputFolder.note_attempt

    def dies(folder: OutputFolder, block: Block, row: int | None = None) -> None:
        note(folder, block, row)
        if block.number == 0 if row is None else row == 3:
            raise Killed

    monkeypatch.setattr(OutputFolder, "note_attempt", dies)
    deaths = 0
    for _ in range(10):
        status = batch(options, prompts, out, "--block-size", "4", "--max-crashes", "2")
        if status != INTERNAL:
            break
        deaths += 1
    assert (status, deaths) == (1, 4)  # two with all rows of the block, two with the row alone
    expected = rows_of(tmp_path / "whole")
    rows = rows_of(out)
    assert rows[3]["error"] == "2 processes died while they decoded this row"
    assert rows[:3] + rows[4:] == expected[:3] + expected[4:]


def test_a_line_that_its_process_could_not_end(model: Model, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = model().ngram
    assert batch(options, prompts, tmp_path / "whole") == 0
    (out / "blocks").mkdir(parents=True)
    (out / "manifest.json").write_bytes((tmp_path / "whole" / "manifest.json").read_bytes())
    notes = ['{"attempt":null}'] * 3 + ['{"attempt":0}', '{"answer":{"row":0,"id"']
    (out / "blocks" / "00000000.partial").write_text("\n".join(notes))
    assert batch(options, prompts, out) == 0
    assert (out / "results.jsonl").read_bytes() == (tmp_path / "whole" / "results.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("changed", "what"),
    [("sampling.seed=1", "config"), ("sampling.max_new_tokens=9", "config"), (None, "input_sha256")],
)
def test_a_folder_of_another_batch(
    model: Model, prompts: Path, tmp_path: Path, capsys: Capture, changed: str | None, what: str
) -> None:
    options, out = model().ngram, tmp_path / "out"
    assert batch(options, prompts, out) == 0
    before = (out / "results.jsonl").read_bytes()
    if changed is None:
        prompts.write_text('{"prompt": "a"}\n')
    assert batch(options, prompts, out, *(("--set", changed) if changed else ())) == 2
    assert f"batch with another {what}; choose another folder" in capsys.readouterr().err
    assert (out / "results.jsonl").read_bytes() == before


def test_the_method_auto_drafts_without_adapting(model: Model, prompts: Path, tmp_path: Path) -> None:
    """Its lengths would depend on the time of steps, and with them the counts of a row."""
    rows = {}
    for name, options in (("auto", model().auto), ("ngram", model().ngram)):
        assert batch(options, prompts, tmp_path / name) == 0
        rows[name] = (tmp_path / name / "results.jsonl").read_bytes()
    assert rows["auto"] == rows["ngram"] and sum(row["num_drafts"] for row in rows_of(tmp_path / "auto")) > 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("speculative.adaptive=true", "speculative.adaptive: expected false for a batch"),
        ("runner.queue_timeout_s=1", "runner.queue_timeout_s: expected null for a batch"),
        ("runner.max_num_batched_tokens=64", "runner.max_num_batched_tokens: expected null for a batch"),
        ("runner.mixed_step_ratio=1.5", "runner.mixed_step_ratio: expected null for a batch"),
        ("speculative.method=suffix", "speculative.suffix.max_cached_requests: expected 0 for a batch"),
    ],
)
def test_settings_that_tie_answers_together(
    model: Model, prompts: Path, tmp_path: Path, capsys: Capture, setting: str, message: str
) -> None:
    assert batch(model().ngram, prompts, tmp_path / "out", "--set", setting) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bad_options(model: Model, prompts: Path, tmp_path: Path, capsys: Capture) -> None:
    options = model().ngram
    assert batch(options, prompts, tmp_path / "out", "--replicas", "2") == 2
    assert "one process holds one engine; add --ray" in capsys.readouterr().err
    assert batch(options, tmp_path / "gone", tmp_path / "out") == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "other").touch()
    assert batch(options, prompts, tmp_path / "full") == 2
    assert "expected an empty folder" in capsys.readouterr().err


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    size=st.integers(1, 5),
)
def test_blocks_hold_every_row_once(lines: list[bytes], size: int, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))
    found = scan(path, size)
    rows = [row for block in found.blocks for row in lines_of(path, block)]
    assert rows == list(enumerate(line for line in lines if line.strip()))
    assert found.rows == len(rows) and [block.number for block in found.blocks] == list(range(len(found.blocks)))
    assert all(len(lines_of(path, block)) == size for block in found.blocks[:-1])


# ---- what stood in the way of a whole run


@pytest.mark.parametrize("name", ["finish", "note_attempt", "manifest", "results"])
def test_a_full_disk(
    model: Model, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str
) -> None:
    """Status 74, as for any result that cannot be written, and the same command goes on."""
    full = {
        "finish": "00000000.jsonl",
        "note_attempt": "00000000.partial",
        "manifest": "manifest",
        "results": "results",
    }[name]

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    expected, out = tmp_path / "expected", tmp_path / "out"
    options = model().ngram
    assert batch(options, prompts, expected) == 0
    with monkeypatch.context() as patched:
        if name == "note_attempt":
            patched.setattr("specdec_hal.batch.blocks.encode", lambda row: full_disk(0))
        else:
            real = os.fsync
            patched.setattr(
                "specdec_hal.config.files.os.fsync",
                lambda fd: full_disk(fd) if full in Path(os.readlink(f"/proc/self/fd/{fd}")).name else real(fd),
            )
        assert batch(options, prompts, out) == 74
    shown = capsys.readouterr().err
    assert "No space left on device" in shown and str(out) in shown and "report" not in shown
    assert not list(out.rglob("*.tmp")) and not list(out.rglob("*.lock"))
    assert batch(options, prompts, out) == 0
    assert (out / "results.jsonl").read_bytes() == (expected / "results.jsonl").read_bytes()


def test_two_runs_on_one_folder(model: Model, prompts: Path, tmp_path: Path, capsys: Capture) -> None:
    """Two of three ended with status 70."""
    out, options = tmp_path / "out", model().ngram
    assert batch(options, prompts, out) == 0
    before = (out / "results.jsonl").read_bytes()
    (out / "results.jsonl").unlink()
    held = Lock(out / "manifest.json.lock")
    assert batch(options, prompts, out) == 2
    assert f"process {os.getpid()} on {socket.gethostname()} uses it" in capsys.readouterr().err
    held.close()
    draft = out / "manifest.json.host.12.tmp"
    draft.write_text("of a process that was killed")
    assert batch(options, prompts, out) == 0 and not draft.exists()
    assert batch(options, prompts, out) == 0
    assert {path.name for path in out.iterdir()} == {"manifest.json", "results.jsonl"}
    assert (out / "results.jsonl").read_bytes() == before
