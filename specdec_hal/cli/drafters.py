"""Check that a trained drafter is loaded the way it was trained.

`drafters check PATH` loads the EAGLE-3 head or DFlash drafter in PATH beside the configured target, which generates
some hundred tokens. It compares drafts with the target's tokens: as configured, with taps one layer lower and higher,
and with the options of an EAGLE-3 head inverted. Exit status 1 if one of these is clearly better.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.output import Output, add_config_arguments, read_runtime
from specdec_hal.cli.tables import Rows

if TYPE_CHECKING:
    from specdec_hal.proposers.calibration import Variant

HELP = "check a trained drafter against its target"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Action, path and configuration."""
    parser.add_argument("action", choices=("check",), help="what to do")
    parser.add_argument("path", metavar="PATH", help="the drafter's folder")
    add_config_arguments(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the agreement of the drafter and its variants."""
    from specdec_hal.models.drafter import drafter_kind
    from specdec_hal.proposers.calibration import DEPTH, better

    check = _blocks if drafter_kind(args.path) in ("dflash", "dspark") else _chain
    drafter, found = check(args)
    best = better(found)
    if output.json:
        shown: list[dict[str, Any]] = [
            {"changes": one.changes, "agreement": one.agreement, "sigmas": one.sigmas} for one in found
        ]
        hint = best and best.key
        output.document({"taps": drafter.taps, "numbering": drafter.numbering, "variants": shown, "hint": hint})
        return int(best is not None)
    output.console.print(f"taps {', '.join(map(str, drafter.taps))}: {drafter.numbering}", soft_wrap=True)
    rows = Rows("Agreement with the target", ("variant", *(f"draft {i + 1}" for i in range(DEPTH)), "sigmas"))
    for one in found:
        rows.add_row(one.key or "as configured", *(f"{share:.3f}" for share in one.agreement), f"{one.sigmas:+.1f}")
    rows.print(output.console)
    if best is not None:
        output.console.print(f"better: set {best.key}", soft_wrap=True)
    return int(best is not None)


def _chain(args: argparse.Namespace) -> tuple[Any, list[Variant]]:
    """An EAGLE-3 head, and what its variants agree on."""
    from specdec_hal.cli.decoding import load
    from specdec_hal.models.drafter import Blocks
    from specdec_hal.models.eagle3 import eagle3_head
    from specdec_hal.proposers.calibration import LENGTH, TEXTS, calibrate
    from specdec_hal.proposers.eagle3 import head_config

    args.overrides = [*args.overrides, "speculative.method=eagle3", f"speculative.eagle3.path={args.path}"]
    runtime = read_runtime(args)
    config = runtime.config
    model, tokenizer = load(runtime)
    path, head = head_config(config, config.speculative.settings, model)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    length = max(map(len, prompts)) + LENGTH
    model.allocate(1, length)
    return head, calibrate(model, eagle3_head(model, head, path, Blocks(1, length)), prompts)


def _blocks(args: argparse.Namespace) -> tuple[Any, list[Variant]]:
    """A DFlash drafter, and how many drafts of each variant the target accepts after the same parts of its texts."""
    import numpy as np

    from specdec_hal.cli.decoding import load
    from specdec_hal.models.drafter import target_of
    from specdec_hal.proposers.calibration import DEPTH, LENGTH, STRIDE, TEXTS, Variant, shifted, sigmas
    from specdec_hal.proposers.dflash import drafter_config
    from specdec_hal.runner import Request, SamplingParams

    args.overrides = [*args.overrides, "speculative.method=dflash", f"speculative.dflash.path={args.path}"]
    args.overrides += ["speculative.adaptive=false", "speculative.dflash.min_confidence=0"]
    args.overrides.append(f"speculative.num_speculative_tokens={DEPTH}")
    configured = read_runtime(args)
    model, tokenizer = load(configured)
    drafter, scores, found = drafter_config(configured.config, model), list[Any](), list[Variant]()
    ends, parts = sorted(model.config.eos_token_ids), list[list[int]]()
    for taps in shifted(drafter.taps, target_of(model, "dflash").num_hidden_layers):
        args.overrides.append(f"speculative.dflash.layers={list(taps)}")
        runner = read_runtime(args).runner(model=model, tokenizer=tokenizer)
        if not parts:
            for number, text in enumerate(TEXTS):
                params = SamplingParams(max_new_tokens=LENGTH, temperature=1.0, seed=number, bad_token_ids=ends)
                runner.add_request(Request(str(number), tokenizer.encode(text), params))
            for name, output in runner.run().items():
                prompt = tokenizer.encode(TEXTS[int(name)])
                whole = [*prompt, *output.token_ids]
                parts += [whole[:at] for at in range(len(prompt), len(whole), STRIDE)]
        for number, part in enumerate(parts):
            params = SamplingParams(max_new_tokens=DEPTH + 2, temperature=0, bad_token_ids=ends, return_drafts=True)
            runner.add_request(Request(str(number), part, params))
        outputs = runner.run()
        accepted = [outputs[str(number)].drafts[0].accepted for number in range(len(parts))]
        scores.append(np.arange(DEPTH) < np.array(accepted)[:, None])
        changes = {} if taps == drafter.taps else {"layers": list(taps)}
        agreement = tuple(scores[-1].mean(0).tolist())
        found.append(Variant(changes, agreement, sigmas(scores[-1], scores[0]), "dflash"))
    return drafter, found
