"""List the backends: which can run here, and why others cannot."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from specdec_hal.cli.output import Output
from specdec_hal.cli.tables import Rows
from specdec_hal.errors import SpecDecError
from specdec_hal.plugin import registry
from specdec_hal.plugin.registry import BackendInfo

HELP = "list backends and plug-ins"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing besides the common options."""


def run(args: argparse.Namespace, output: Output) -> int:
    """Print every known backend, then the plug-ins that could not be loaded."""
    infos = registry.backends()
    chosen, why_none = _choice()
    failed = [plugin for plugin in registry.plugins() if plugin.error]
    if output.json:
        output.document(
            {
                "backends": [asdict(info) for info in infos],
                "auto": chosen,
                "plugin_errors": [
                    {"name": plugin.name, "source": plugin.source, "target": plugin.target, "error": plugin.error}
                    for plugin in failed
                ],
            }
        )
        return 0
    rows = Rows("Backends", ("name", "available", "priority", "api", "plug-in", ""), spare=(3, 4, 2))
    for info in infos:
        rows.add_row(
            info.name,
            "yes" if info.available else "no",
            _number(info.priority),
            _number(info.api_version),
            info.plugin,
            _remark(info),
        )
    rows.print(output.console)
    output.console.print(f"auto: {chosen or why_none}", soft_wrap=True)
    for plugin in failed:
        output.console.print(f"error: {plugin.error}", style="red", soft_wrap=True)
    return 0


def _choice() -> tuple[str | None, str]:
    """The choice of ``auto`` here, or why there is none."""
    try:
        return registry.choose(), ""
    except SpecDecError as error:
        return None, str(error)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _remark(info: BackendInfo) -> str:
    if info.available:
        return info.description
    return "; ".join(part for part in (info.reason, info.hint) if part)
