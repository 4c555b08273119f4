"""The input in blocks of lines, and the output folder: a finished block survives the death of any process.

The folder holds `manifest.json` (everything that answers depend on). Until all blocks are finished it also holds
`blocks/`: `N.jsonl` has the answers of a block, written atomically, and `N.partial` notes on attempts at it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec_hal.batch.rows import Answered, Row, custom_id_of, encode
from specdec_hal.config.files import Lock, open_regular, replacing, sweep
from specdec_hal.errors import BatchError, BatchWriteError
from specdec_hal.text import short


@dataclass(frozen=True)
class Block:
    """A range of input lines. `first_row`: number of the first line that is not blank."""

    number: int
    first_row: int
    offset: int
    size: int


@dataclass(frozen=True)
class Input:
    """A file of prompts, read once: its blocks, rows and digest.

    `openai`: number of the first row that is one of OpenAI's batch lines.
    """

    blocks: list[Block]
    rows: int
    sha256: str
    openai: int | None = None


def scan(path: Path, block_size: int) -> Input:
    """Divide a file into blocks of `block_size` rows. OSError if it cannot be read.

    BatchError for a second row with the same `custom_id`, as in OpenAI's batches: answers are found by it.
    """
    blocks: list[Block] = []
    digest = hashlib.sha256()
    rows = begin = end = 0
    openai: int | None = None
    named: dict[str, int] = {}
    with open_regular(path) as file:
        for line in file:
            digest.update(line)
            end += len(line)
            if not line.strip():
                continue
            name = custom_id_of(line)
            if openai is None and name is not None:
                openai = rows
            if isinstance(name, str) and (first := named.setdefault(name, rows)) != rows:
                raise BatchError(
                    f"{path}: row {rows}: custom_id: expected another one than that of row {first}, got {short(name)} "
                    "again; give each row its own"
                )
            rows += 1
            if rows % block_size == 0:
                blocks.append(Block(len(blocks), rows - block_size, begin, end - begin))
                begin = end
    if rows % block_size:
        blocks.append(Block(len(blocks), rows - rows % block_size, begin, end - begin))
    return Input(blocks, rows, digest.hexdigest(), openai)


def lines_of(path: Path, block: Block) -> list[tuple[int, bytes]]:
    """The rows of a block: number and line."""
    with open_regular(path) as file:
        file.seek(block.offset)
        lines = [line for line in file.read(block.size).split(b"\n") if line.strip()]
    return list(enumerate(lines, block.first_row))


@dataclass
class Notes:
    """Earlier attempts at a block that ended with their process.

    `together`: attempts at all rows in one batch. `alone`: attempts at each row by itself. `rows`: rows that were
    answered alone.
    """

    together: int = 0
    alone: Counter[int] = field(default_factory=Counter)
    rows: dict[int, Answered] = field(default_factory=dict)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into a BatchWriteError."""
    try:
        yield
    except OSError as error:
        raise BatchWriteError(f"{path}: cannot be written: {error.strerror or error}") from error


class OutputFolder:
    """The folder of a batch, shared by the driver and all replicas. BatchWriteError if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blocks = path / "blocks"

    @contextmanager
    def begun(self, manifest: dict[str, Any]) -> Iterator[None]:
        """Create the folder or resume in it, with exclusive access.

        BatchError if another process has it, or if it belongs to a batch with possibly different answers.
        """
        file = self.path / "manifest.json.lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = Lock(file)
        except BlockingIOError as error:
            raise BatchError(
                f"{self.path}: expected a folder of no other run, but {error.strerror}; wait, or choose another folder"
            ) from error
        except OSError as error:
            raise BatchWriteError(f"{self.path}: cannot be written: {error.strerror or error}") from error
        try:
            self._begin(manifest, file)
            with _writing(self.path):
                self._blocks.mkdir(exist_ok=True)
                sweep(self.path)
                sweep(self._blocks)
            yield
        finally:
            with suppress(OSError):  # it has answers
                self._blocks.rmdir()
            lock.close()

    def _begin(self, manifest: dict[str, Any], lock: Path) -> None:
        path = self.path / "manifest.json"
        if not path.exists():
            if any(entry != lock for entry in self.path.iterdir()):
                raise BatchError(f"{self.path}: expected an empty folder or one of an earlier run; choose another")
            with _writing(self.path), replacing(path) as file:
                file.write(json.dumps(manifest, indent=2).encode() + b"\n")
            return
        try:
            before = json.loads(path.read_bytes())
            other = [key for key in manifest if before.get(key) != manifest[key]]
        except (ValueError, AttributeError) as error:
            raise BatchError(f"{path}: expected the manifest of a batch; choose another folder") from error
        if other:
            raise BatchError(
                f"{self.path}: batch with another {' and another '.join(other)}; choose another folder, or "
                "delete it to start again"
            )

    def is_done(self, block: Block) -> bool:
        """Whether the block is finished."""
        return self._of(block, "jsonl").exists()

    def finish(self, block: Block, rows: Iterable[Row]) -> None:
        """Write the answers of a block, all or nothing."""
        with _writing(self.path):
            with replacing(self._of(block, "jsonl")) as file:
                file.writelines(map(encode, rows))
            self._of(block, "partial").unlink(missing_ok=True)

    def answers(self, block: Block) -> Iterator[Row]:
        """The rows of a finished block."""
        with self._of(block, "jsonl").open("rb") as file:
            yield from map(json.loads, file)

    def note_attempt(self, block: Block, row: int | None = None) -> None:
        """Note an attempt at all rows (None) or at one; the note stays if the process dies."""
        self._note(block, {"attempt": row})

    def note_answer(self, block: Block, row: Answered) -> None:
        """Keep the answer of a row that was decoded alone."""
        self._note(block, {"answer": row})

    def notes(self, block: Block) -> Notes:
        """Notes of earlier attempts; an incomplete last line does not count."""
        notes = Notes()
        path = self._of(block, "partial")
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if not line.endswith(b"\n"):
                break
            note = json.loads(line)
            if "answer" in note:
                answered = Answered(*note["answer"])
                notes.rows[answered.number] = answered
            elif note["attempt"] is None:
                notes.together += 1
            else:
                notes.alone[note["attempt"]] += 1
        return notes

    def clear_blocks(self) -> None:
        """Remove the blocks after their answers were merged."""
        shutil.rmtree(self._blocks, ignore_errors=True)

    def _note(self, block: Block, note: dict[str, Any]) -> None:
        with _writing(self.path), self._of(block, "partial").open("ab+") as file:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)  # incomplete: its process died
            file.write(encode(note))

    def _of(self, block: Block, suffix: str) -> Path:
        return self._blocks / f"{block.number:08}.{suffix}"
