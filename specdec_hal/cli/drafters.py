"""Check that a trained drafter is loaded the way it was trained.

`drafters check PATH` loads the EAGLE-3 head or DFlash drafter in PATH beside the configured target, which generates
some hundred tokens. It compares drafts with the target's best tokens: as configured, with taps one layer lower and
higher, and with the options of an EAGLE-3 head inverted. Exit status 1 if one of these is clearly better.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from specdec_hal.cli.output import Output, add_config_arguments, read_runtime
from specdec_hal.cli.tables import Rows

HELP = "check a trained drafter against its target"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Action, path and configuration."""
    parser.add_argument("action", choices=("check",), help="what to do")
    parser.add_argument("path", metavar="PATH", help="the drafter's folder, or its name on a hub")
    add_config_arguments(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the agreement of the drafter and its variants."""
    from specdec_hal.cli.decoding import load
    from specdec_hal.models.drafter import drafter_kind
    from specdec_hal.proposers.calibration import better, check
    from specdec_hal.proposers.dflash import load_blocks
    from specdec_hal.proposers.eagle3 import load_head

    args.overrides.append(f"speculative.path={json.dumps(args.path)}")
    blocks = drafter_kind(str(read_runtime(args).config.speculative.path)) in ("dflash", "dspark")
    args.overrides.append(f"speculative.method={'dflash' if blocks else 'eagle3'}")
    runtime = read_runtime(args)
    module, found = check(runtime.config, *load(runtime), load_blocks if blocks else load_head)
    drafter = module.config
    best = better(found)
    if output.json:
        variants: list[dict[str, Any]] = [
            {"changes": one.changes, "agreement": one.agreement, "sigmas": one.sigmas} for one in found
        ]
        hint = best and best.key
        output.document({"taps": drafter.taps, "numbering": drafter.numbering, "variants": variants, "hint": hint})
        return int(best is not None)
    output.console.print(f"taps {', '.join(map(str, drafter.taps))}: {drafter.numbering}", soft_wrap=True)
    section = f"speculative.{runtime.config.speculative.method}."
    drafts = (f"draft {i + 1}" for i in range(len(found[0].agreement)))
    rows = Rows(f"Agreement with the target, by {section}*", ("variant", *drafts, "sigmas"))
    for one in found:
        rows.add_row(
            one.key.replace(section, "") or "as configured",
            *(f"{share:.3f}" for share in one.agreement),
            f"{one.sigmas:+.1f}",
        )
    rows.print(output.console)
    if best is not None:
        output.console.print(f"better: set {best.key}", soft_wrap=True)
    return int(best is not None)
