"""Continue every prompt of a file, in this process or on a Ray cluster; finished blocks survive an interruption.

  specdec-hal batch --input prompts.jsonl --output out/ --config configs/reference.yaml --ray --replicas 2

A line of the input is {"prompt": "text"} or {"prompt_token_ids": [1, 2]}, with "id" and "params" (keys of the section
sampling, and num_speculative_tokens), both optional. It may also be one of OpenAI's batch lines ("custom_id", "method",
"url", "body"), which is answered in their form. A row without a seed gets sampling.seed plus its number. The answers
are OUTPUT/results.jsonl, in the order of the input: the same bytes for any --replicas and --block-size, and after any
interruption. Run the same command again to go on. A row that cannot be decoded is answered with an error (status 1).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.decoding import number
from specdec_hal.cli.output import Output, WriteError, add_config_arguments, positive, read_runtime, writing
from specdec_hal.cli.tables import Rows
from specdec_hal.serve.ray_cluster import LOCAL

if TYPE_CHECKING:
    from specdec_hal.batch.blocks import Block

HELP = "continue every prompt of a file, in one process or on a Ray cluster"
_FORMATS = ("jsonl", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Input, output, configuration, and where it runs."""
    add_config_arguments(parser)
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="prompts, one JSON object per line")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the answers")
    parser.add_argument("--format", choices=_FORMATS, default="jsonl", help="of the answers (default: jsonl)")
    parser.add_argument(
        "--block-size", type=positive, default=256, metavar="ROWS", help="rows decoded together (default: 256)"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const=LOCAL,
        metavar="ADDRESS",
        help="run replicas on this Ray cluster, or (without an address) on one of this machine; input, output and "
        "model must be at the same paths on all its machines",
    )
    parser.add_argument("--replicas", type=positive, default=1, metavar="N", help="engines, with --ray (default: 1)")
    parser.add_argument(
        "--cpus-per-replica", type=positive, default=1, metavar="N", help="processors of each (default: 1)"
    )
    parser.add_argument(
        "--max-crashes",
        type=positive,
        default=3,
        metavar="N",
        help="deaths of the process at one row before it is answered with an error (default: 3)",
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Decode the remaining blocks; 1 if rows ended in an error."""
    from specdec_hal.batch.blocks import OutputFolder, scan
    from specdec_hal.batch.replica import dump
    from specdec_hal.batch.results import check_format, check_openai, write_results
    from specdec_hal.errors import BatchError, BatchWriteError

    if args.ray is None and args.replicas > 1:
        raise BatchError(f"--replicas {args.replicas}: one process holds one engine; add --ray")
    check_format(args.format)
    runtime = read_runtime(args)
    config = dump(runtime.config)
    try:
        source = scan(args.input, args.block_size)
    except OSError as error:
        raise BatchError(f"--input {args.input}: cannot be read: {error.strerror or error}") from error
    if source.openai is not None:
        check_openai(source.openai, args.format)
    folder, results = OutputFolder(args.output), args.output / f"results.{args.format}"
    start = time.perf_counter()
    by_replica: dict[str, Counter[str]] = defaultdict(Counter)
    try:
        with folder.begun(_manifest(config, source.sha256, args)):
            if not results.exists():
                left = [block for block in source.blocks if not folder.is_done(block)]
                settings = {
                    "config": config,
                    "source": str(args.input.absolute()),
                    "output": str(args.output.absolute()),
                    "max_crashes": args.max_crashes,
                }
                for done in _answer(left, args, runtime.backend.device == "cuda", settings):
                    by_replica[done.pop("replica")].update({name: done[name] for name in done if name != "block"})
                with writing(results):
                    rows = (row for block in source.blocks for row in folder.answers(block))
                    write_results(results, rows, args.format)
                    folder.clear_blocks()
    except BatchWriteError as error:
        raise WriteError(
            str(args.output), error.__cause__ if isinstance(error.__cause__, OSError) else error
        ) from error
    total: Counter[str] = sum(by_replica.values(), Counter())
    document = {
        "results": str(results),
        "rows": source.rows,
        "rows_decoded_now": total["rows"],
        "seconds": time.perf_counter() - start,
        "replicas": {name: dict(counts) for name, counts in sorted(by_replica.items())},
    }
    if output.json:
        output.document(document)
    else:
        _print(output, document, by_replica)
    return 1 if total["failed"] else 0


def _ratio(part: float, whole: float) -> str:
    return number(part / whole if whole else None)


def _manifest(config: dict[str, Any], sha256: str, args: argparse.Namespace) -> dict[str, Any]:
    """Everything that answers depend on, and the size of blocks."""
    import specdec_hal

    return {
        "version": specdec_hal.__version__,
        "input_sha256": sha256,
        "format": args.format,
        "block_size": args.block_size,
        "config": config,
    }


def _answer(
    blocks: list[Block], args: argparse.Namespace, on_gpu: bool, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    if not blocks:
        return
    if args.ray is not None:
        from specdec_hal.batch import on_ray

        placement = on_ray.Placement(args.ray, args.replicas, args.cpus_per_replica, 1 if on_gpu else 0)
        yield from on_ray.run(blocks, placement, **settings)
        return
    from specdec_hal.batch.replica import Replica

    replica = Replica(**settings)
    for block in blocks:
        yield replica(asdict(block))


def _print(output: Output, document: dict[str, Any], by_replica: dict[str, Counter[str]]) -> None:
    if by_replica:
        from specdec_hal.runner.metrics import acceptance

        columns = ("tokens per decode step", "mean acceptance length", "acceptance rate")
        rows = Rows("Replicas", ("replica", "rows", "errors", "tokens", "tokens/s", *columns), spare=(7, 6, 3))
        for name, counts in sorted(by_replica.items()):
            # The prompt, not a decode step, yields a choice's first token.
            decoded = counts["tokens"] - counts["choices"]
            drafts = acceptance(counts["num_drafts"], counts["drafted_tokens"], counts["accepted_tokens"])
            rows.add_row(
                name,
                *(str(counts[of]) for of in ("rows", "failed", "tokens")),
                _ratio(counts["tokens"], counts["seconds"]),
                _ratio(decoded, counts["steps"]),
                number(drafts["mean_acceptance_length"]),
                number(drafts["acceptance_rate"]),
            )
        rows.print(output.console)
    output.console.print(
        f"{document['rows']} rows in {document['results']}, {document['rows_decoded_now']} of them decoded now in "
        f"{document['seconds']:.1f} s",
        soft_wrap=True,
    )
