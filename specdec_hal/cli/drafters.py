"""Check that a trained drafter is loaded the way it was trained.

`drafters check PATH` loads the EAGLE-3 head in PATH beside the configured target, which generates some hundred tokens.
It compares the head's drafts with the target's own best tokens: as configured, with taps one layer lower and higher,
and with its options inverted. Exit status 1 if one of these is clearly better.
"""

from __future__ import annotations

import argparse
from typing import Any

from specdec_hal.cli.output import Output, add_config_arguments, read_runtime
from specdec_hal.cli.tables import Rows

HELP = "check a trained drafter against its target"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Action, path and configuration."""
    parser.add_argument("action", choices=("check",), help="what to do")
    parser.add_argument("path", metavar="PATH", help="the drafter's folder")
    add_config_arguments(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the agreement of the head and its variants."""
    from specdec_hal.cli.decoding import load
    from specdec_hal.models.drafter import Blocks
    from specdec_hal.models.eagle3 import eagle3_head
    from specdec_hal.proposers.calibration import DEPTH, LENGTH, TEXTS, better, calibrate
    from specdec_hal.proposers.eagle3 import head_config

    args.overrides = [*args.overrides, "speculative.method=eagle3", f"speculative.eagle3.path={args.path}"]
    runtime = read_runtime(args)
    config = runtime.config
    model, tokenizer = load(runtime)
    path, head = head_config(config, config.speculative.settings, model)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    length = max(map(len, prompts)) + LENGTH
    model.allocate(1, length)
    found = calibrate(model, eagle3_head(model, head, path, Blocks(1, length)), prompts)
    best = better(found)
    if output.json:
        shown: list[dict[str, Any]] = [
            {"changes": one.changes, "agreement": one.agreement, "sigmas": one.sigmas} for one in found
        ]
        output.document({"taps": head.taps, "numbering": head.numbering, "variants": shown, "hint": best and best.key})
        return int(best is not None)
    output.console.print(f"taps {', '.join(map(str, head.taps))}: {head.numbering}", soft_wrap=True)
    rows = Rows("Agreement with the target", ("variant", *(f"draft {i + 1}" for i in range(DEPTH)), "sigmas"))
    for one in found:
        rows.add_row(one.key or "as configured", *(f"{share:.3f}" for share in one.agreement), f"{one.sigmas:+.1f}")
    rows.print(output.console)
    if best is not None:
        output.console.print(f"better: set {best.key}", soft_wrap=True)
    return int(best is not None)
