"""Prove from outside whether an engine's drafts change its answers.

Two servers of one model with the API of OpenAI, with and without speculation, get the same questions: any engine.
--model-path takes transformers in this process for the one without. A
difference of greedy answers is a fault unless rounding explains it, which the plain server's own answers measure.
Samples are compared by their counts. Exit status 0: nothing was found, 1: drafts change answers, 2: no verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec_hal.cli.output import Output, output_file, positive, writing
from specdec_hal.errors import ConfigError

HELP = "prove from outside whether an engine's drafts change its answers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Endpoints, budget, files."""
    parser.add_argument("--plain", metavar="URL", help="the server without speculation")
    parser.add_argument("--drafted", metavar="URL", help="the server with speculation")
    parser.add_argument("--model", metavar="NAME", help="the model's name (default: the first of each server)")
    parser.add_argument(
        "--record", metavar="FILE", type=output_file, help="only ask the plain server, and keep its answers"
    )
    parser.add_argument(
        "--model-path", metavar="FOLDER", type=Path, help="the model itself in transformers, instead of a plain server"
    )
    parser.add_argument("--against", metavar="FILE", type=Path, help="take the plain server's answers from --record")
    parser.add_argument("--resume", metavar="FILE", type=output_file, help="keep answers here, and ask only for others")
    for side in ("plain", "drafted"):
        parser.add_argument(
            f"--{side}-extra-body", metavar="JSON", default="{}", type=_object, help=f"more keys of {side} requests"
        )
    parser.add_argument("--check", metavar="NAME", action="append", help="only this check; may be repeated")
    parser.add_argument("--tokens", type=positive, default=96, help="tokens of a greedy answer (default: 96)")
    parser.add_argument("--context", type=positive, default=2048, help="longest context, in tokens (default: 2048)")
    parser.add_argument("--samples", type=positive, default=192, help="samples of a prompt, per side (default: 192)")
    parser.add_argument("--requests", type=positive, default=8, help="most requests at once (default: 8)")
    parser.add_argument("--minutes", type=float, default=30.0, help="ask nothing more after so long (default: 30)")
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait so long for servers that start"
    )
    parser.add_argument("--html", metavar="FILE", type=output_file, help="write a page with the differing texts")


def run(args: argparse.Namespace, output: Output) -> int:
    """Ask, compare and print the report."""
    from specdec_hal.engine.progress import progress_bar
    from specdec_hal_conformance.audit.answers import Answers
    from specdec_hal_conformance.audit.endpoint import Endpoint
    from specdec_hal_conformance.audit.local import Local
    from specdec_hal_conformance.audit.report import document, page, print_report
    from specdec_hal_conformance.audit.run import CHECKS, Audit, Budget
    from specdec_hal_conformance.audit.verdict import detectable

    only = tuple(args.check or CHECKS)
    if unknown := sorted(set(only) - set(CHECKS)):
        raise ConfigError(f"--check: expected some of {', '.join(CHECKS)}, got {unknown[0]}")
    _check_sides(args)
    answers = Answers(args.record or args.resume, args.against)
    budget = Budget(args.tokens, args.context, args.samples, requests=args.requests, minutes=args.minutes)
    plain, drafted = (
        None if url is None else Endpoint(url, args.model, extra, args.wait)
        for url, extra in ((args.plain, args.plain_extra_body), (args.drafted, args.drafted_extra_body))
    )
    if args.model_path is not None:
        plain = Local(args.model_path, drafted)
    if "sampled" in only:
        print(
            f"{args.samples} samples of a side show a total variation of {detectable(args.samples):.2f} between two "
            "outcomes nine times in ten (--samples)",
            file=sys.stderr,
        )
    updates = list[Callable[..., None]]()
    audit = Audit(plain, drafted, budget, answers, only, lambda: updates[0](advance=1))
    with progress_bar("asking", audit.questions, "answers") as update:
        updates.append(update)
        report = audit.run()
    if args.html is not None:
        with writing(args.html):
            args.html.write_text(page(report))
    if output.json:
        output.document(document(report))
    elif args.record is None:
        print_report(report, output)
    else:
        print(f"recorded {args.record}; go on with --drafted URL --against {args.record}", file=output.stdout)
        return 0
    return report.status


def _check_sides(args: argparse.Namespace) -> None:
    """ConfigError unless the options name both sides, or one to record."""
    plain = [args.plain, args.against, args.model_path]
    if args.record is not None:
        if args.plain is None or any((args.drafted, *plain[1:], args.resume)):
            raise ConfigError("--record: expected --plain, and none of --drafted, --against, --model-path and --resume")
    elif args.drafted is None:
        raise ConfigError("--drafted: expected the URL of the server with speculation")
    elif plain.count(None) != 2:
        raise ConfigError(
            "--plain: expected one of the URL of the server without speculation, --against FILE and --model-path FOLDER"
        )
    elif args.against is not None and not args.against.exists():
        raise ConfigError(f"--against: there is no file {args.against}; make it by --record")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")
    return value
