"""Explain an op (its contract) or a backend (per op: available, or the reason and a hint).

Without a name: the backend chosen by --config and --set, with its fallbacks.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import asdict
from enum import Enum
from typing import Any

from specdec_hal.cli.output import Output, add_config_arguments, read_runtime
from specdec_hal.cli.tables import Rows
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import ConfigError, UnknownBackendError
from specdec_hal.ops import OPS, OpSpec
from specdec_hal.plugin import registry
from specdec_hal.plugin.registry import Explanation
from specdec_hal.tensors.cpu_threads import cores
from specdec_hal.text import did_you_mean

HELP = "explain an op or a backend"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name, or a configuration."""
    parser.add_argument("name", metavar="OP|BACKEND", nargs="?", help="what to explain")
    add_config_arguments(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the explanation."""
    if args.name is not None and (args.config is not None or args.overrides):
        raise ConfigError(f"explain {args.name}: give a name or --config/--set, not both")
    if args.name in OPS:
        _print_op(OPS[args.name], output)
        return 0
    if args.name is None:
        runtime = read_runtime(args)
        config = runtime.config
        explanation = runtime.registry.explain(config.backend.name, fallback=config.fallback.allow)
        facts = {"cores": cores(), "http_workers": config.serve.num_http_workers}
        facts |= {} if config.model.path is None else _explain_model(runtime)
    else:
        explanation, facts = _explain_backend(args.name), {}
    _print_backend(explanation, facts, output)
    return 0


def _explain_model(runtime: Runtime) -> dict[str, Any]:
    """Of the configured model, once loaded: whether it guarantees the same bits in any batch, and what drafts."""
    from specdec_hal.runner.method import methods_of

    with closing(runtime):
        model = runtime.load_model()
        methods = methods_of(runtime.config, runtime.backend, model, runtime.registry)
        return {"batch_invariant": model.capabilities.stable_row_counts is None, "methods": methods}


def _explain_backend(name: str) -> Explanation:
    try:
        return registry.explain(name)
    except UnknownBackendError:
        known = [info.name for info in registry.backends()]
        raise UnknownBackendError(
            f"'{name}' is neither an op nor a backend{did_you_mean(name, [*OPS, *known])}; "
            f"ops: {', '.join(OPS)}; backends: {', '.join(known) or 'none'}"
        ) from None


def _print_op(spec: OpSpec, output: Output) -> None:
    if output.json:
        output.document(_op_document(spec))
        return
    from specdec_hal.ops.page import render_op

    text = render_op(spec)
    if output.console.is_terminal:
        from rich.markdown import Markdown

        output.console.print(Markdown(text))
    else:
        print(text, file=output.stdout)


def _op_document(spec: OpSpec) -> dict[str, Any]:
    return {
        "op": spec.name,
        "section": spec.section,
        "summary": spec.summary,
        "doc": spec.doc,
        "operands": [
            {
                "name": operand.name,
                "role": operand.role.value,
                "dtypes": list(operand.tensor.dtypes),
                "shape": [str(extent) for extent in operand.tensor.shape],
                "optional": operand.optional,
                "when": None if operand.when is None else str(operand.when),
                "doc": operand.tensor.doc,
            }
            for operand in spec.operands
        ],
        "attrs": [
            {
                "name": attr.name,
                "allowed": attr.allowed(),
                "default": attr.default.name if isinstance(attr.default, Enum) else attr.default,
                "doc": attr.doc,
            }
            for attr in spec.attrs
        ],
        "relations": [str(relation) for relation in spec.relations],
    }


def _print_backend(explanation: Explanation, facts: dict[str, Any], output: Output) -> None:
    if output.json:
        ops = [asdict(status) for status in explanation]
        document: dict[str, Any] = {"backend": explanation.backend, "ops": ops}
        output.document({**document, **facts})
        return
    rows = Rows(f"Backend '{explanation.backend}'", ("op", "available", "via", "modes, or what is missing"))
    missing = {(status.available, status.reason, status.hint) for status in explanation}
    alike = len(missing) == 1 and not explanation[0].available  # one reason for all, such as no driver
    for status in explanation[:1] if alike else explanation:
        detail = status.modes if status.available else "; ".join(p for p in (status.reason, status.hint) if p)
        rows.add_row("all" if alike else status.op, "yes" if status.available else "no", status.via, detail)
    rows.print(output.console)
    if facts:
        processes = "1 HTTP process" if facts["http_workers"] == 1 else f"{facts['http_workers']} HTTP processes"
        print(f"serve: {processes}, on a machine of {facts['cores']} cores", file=output.stdout)
    if "methods" in facts:
        how = "do not depend" if facts["batch_invariant"] else "may depend"
        print(f"model: a token's bits {how} on the rest of its step", file=output.stdout)
        first, *others = facts["methods"]
        print(f"drafts: {first}{''.join(f'; {one} while it is faster' for one in others)}", file=output.stdout)
