"""Check that a trained drafter is loaded the way it was trained.

`drafters check PATH` loads the EAGLE-3 head or DFlash drafter in PATH beside the configured target, which generates
some hundred tokens. It compares drafts with the target's best tokens: as configured, with taps one layer lower and
higher, and with the options of an EAGLE-3 head inverted. Exit status 1 if one of these is clearly better. A
multi-token-prediction module and an assistant read the target's last state alone: they have no variants.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.output import Output, add_config_arguments, read_runtime
from specdec_hal.cli.tables import Rows

if TYPE_CHECKING:
    from specdec_hal.engine.runtime import Runtime

HELP = "check a trained drafter against its target"
_ALONE = {"mtp": "a multi-token-prediction module", "assistant": "an assistant of Gemma 4"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Action, path and configuration."""
    parser.add_argument("action", choices=("check",), help="what to do")
    parser.add_argument("path", metavar="PATH", help="the drafter's folder, or its name on a hub")
    add_config_arguments(parser)


def _agreement(runtime: Runtime) -> tuple[float, ...]:
    """Share of steps whose first drafts, each with those before it, are the target's, over its greedy text."""
    from specdec_hal.proposers.calibration import DEPTH, LENGTH, TEXTS
    from specdec_hal.runner import Request, SamplingParams

    runner = runtime.runner()
    assert runner.tokenizer is not None
    for number, text in enumerate(TEXTS):
        params = SamplingParams(max_new_tokens=LENGTH, temperature=0.0, ignore_eos=True)
        runner.add_request(Request(str(number), runner.tokenizer.encode(text), params))
    runner.run()
    return tuple(runner.summary()["acceptance_by_position"][:DEPTH])


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the agreement of the drafter and its variants."""
    from specdec_hal.cli.decoding import load
    from specdec_hal.models.drafter import drafter_kind
    from specdec_hal.proposers.calibration import Variant, better, check
    from specdec_hal.proposers.dflash import load_blocks
    from specdec_hal.proposers.eagle3 import load_head

    args.overrides.append(f"speculative.path={json.dumps(args.path)}")
    kind = drafter_kind(str(read_runtime(args).config.speculative.path))
    blocks, alone = kind in ("dflash", "dspark"), _ALONE.get(kind)
    args.overrides.append(f"speculative.method={'mtp' if alone else 'dflash' if blocks else 'eagle3'}")
    args.overrides += ["speculative.adaptive=false"] if alone else []
    runtime = read_runtime(args)
    if alone is None:
        module, found = check(runtime.config, *load(runtime), load_blocks if blocks else load_head)
        taps, numbering = module.config.taps, module.config.numbering
    else:
        found = [Variant({}, _agreement(runtime), 0.0, "mtp")]
        taps, numbering = (), f"{alone}, which reads the target's last state"
    best = better(found)
    if output.json:
        variants: list[dict[str, Any]] = [
            {"changes": one.changes, "agreement": one.agreement, "sigmas": one.sigmas} for one in found
        ]
        hint = best and best.key
        output.document({"taps": taps, "numbering": numbering, "variants": variants, "hint": hint})
        return int(best is not None)
    output.console.print(f"taps {', '.join(map(str, taps)) or 'none'}: {numbering}", soft_wrap=True)
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
