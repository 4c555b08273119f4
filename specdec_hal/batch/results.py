"""The answers of all blocks in one file: the same bytes for any division and any replicas."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from specdec_hal.batch.rows import Row, encode
from specdec_hal.config.files import replacing
from specdec_hal.errors import BatchError
from specdec_hal.text import describe

ROWS_PER_GROUP = 10_000


def check_format(kind: str) -> None:
    """BatchError if this installation cannot write `kind`."""
    if kind == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise BatchError("--format parquet needs pyarrow; install it: pip install 'specdec-hal[ray]'") from error


def check_openai(row: int, kind: str) -> None:
    """BatchError if OpenAI's batch lines (the first is `row`) cannot be answered here, or not as `kind`."""
    if kind != "jsonl":
        raise BatchError(
            f"--format {kind}: expected lines of this project's own form, whose answers have columns, got one of "
            f"OpenAI's batch lines in row {row}; use --format jsonl"
        )
    try:
        import specdec_hal.batch.openai_rows  # noqa: F401
    except ImportError as error:
        raise BatchError(
            f"row {row}: OpenAI's batch lines need what the server needs ({describe(error)}); "
            "install it: pip install 'specdec-hal[serve]'"
        ) from error


def write_results(path: Path, rows: Iterator[Row], kind: str) -> None:
    """Write rows in order; the file is replaced atomically."""
    with replacing(path) as file:
        if kind == "parquet":
            _write_parquet(file, rows)
        else:
            file.writelines(map(encode, rows))


def _write_parquet(file: BinaryIO, rows: Iterator[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    top = pa.struct([("token_id", pa.int64()), ("logprob", pa.float64())])
    logprob = pa.struct([("logprob", pa.float64()), ("rank", pa.int64()), ("top", pa.list_(top))])
    schema = pa.schema(
        [
            ("row", pa.int64()),
            ("id", pa.string()),
            ("prompt_tokens", pa.int64()),
            ("seed", pa.int64()),
            ("token_ids", pa.list_(pa.int64())),
            ("text", pa.string()),
            ("finish_reason", pa.string()),
            ("error", pa.string()),
            ("steps", pa.int64()),
            ("num_drafts", pa.int64()),
            ("drafted_tokens", pa.int64()),
            ("accepted_tokens", pa.int64()),
            ("logprobs", pa.list_(logprob)),
            ("prompt_logprobs", pa.list_(logprob)),
        ]
    )
    with pq.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema), row_group_size=ROWS_PER_GROUP)
