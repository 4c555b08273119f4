"""Pages of the site that are rendered from code and from recorded results; `mkdocs build` runs this (gen-files)."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mkdocs_gen_files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]
os.environ["COLUMNS"] = "100"  # of the help of commands

import specdec_hal  # noqa: E402
from specdec_hal import cli  # noqa: E402
from specdec_hal.bench.document import is_comparison, read_document  # noqa: E402
from specdec_hal.bench.plot import plot  # noqa: E402
from specdec_hal.bench.plot_methods import plot_methods  # noqa: E402
from specdec_hal.config.sections import config_class  # noqa: E402
from specdec_hal.conformance import matrix  # noqa: E402
from specdec_hal.conformance.contract_page import render_contracts  # noqa: E402
from specdec_hal.errors import ConfigError  # noqa: E402
from specdec_hal.plugin.registry import or_default  # noqa: E402
from specdec_hal.runner import Counts  # noqa: E402
from specdec_hal.runner.metrics import Load, Metrics  # noqa: E402
from specdec_hal.serve.metrics import ServerMetrics  # noqa: E402
from tests.xpu_sim.sim import dialect_table  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
INCLUDED = {"README.md": "index.md", "CONTRIBUTING.md": "extend/contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository that are pages too."""


def write(path: str, text: str) -> None:
    """A page."""
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(head), *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def included(path: str) -> str:
    """A file of the repository's root, with links as they are from its page."""
    folder = Path("docs", INCLUDED[path]).parent

    def link(found: re.Match[str]) -> str:
        target = found[1]
        return f"]({os.path.relpath(Path('docs', INCLUDED[target]) if target in INCLUDED else target, folder)}"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)", link, (ROOT / path).read_text())


def contract() -> str:
    """The contract of the ops, with an anchor at the first place of each rule."""
    seen = set[str]()

    def rule(found: re.Match[str]) -> str:
        anchor = "" if found[1] in seen else f' id="{found[1]}"'
        seen.add(found[1])
        return f"<code{anchor}>#{found[1]}</code>"

    return re.sub(r"\[#([\w-]+)\]", rule, render_contracts())


def api() -> str:
    """The public names, by the modules that have them; mkdocstrings renders their docstrings."""
    parts = ["# Python API\n\nEvery name is one of `specdec_hal`, as in `specdec_hal.LLM`.\n"]
    parts += [f"::: specdec_hal.{specdec_hal._HOME[name]}.{name}\n" for name in specdec_hal.__all__]
    return "\n".join(parts)


def command_line() -> str:
    """The help of every command."""
    parser = cli._parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = [f"# Command line\n\n```text\n{parser.format_help()}```\n"]
    for name, command in commands.choices.items():
        parts.append(f"## specdec-hal {name}\n\n```text\n{command.format_help()}```\n")
    return "\n".join(parts)


def configuration() -> str:
    """Every key of a configuration by section: type, range, default."""
    schema = config_class(or_default(None)).model_json_schema(mode="serialization")
    head = (
        "# Configuration\n\nEvery key by section, from the schema that checks it. On the command line "
        "`--set section.key=value` overrides one.\n"
    )
    return "\n".join([head, *_section("", schema, schema["$defs"])])


def _section(name: str, schema: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    keys = {key: _resolved(value, known) for key, value in schema["properties"].items()}
    sections = {key: value for key, value in keys.items() if "properties" in value}
    if name:
        about, meanings = _meanings(schema.get("description", ""), set(keys))
        yield f"## `{name}`\n\n{about}\n"
        rows = (
            (f"`{key}`", meanings.get(key, ""), _type(value, known), _default(value))
            for key, value in keys.items()
            if key not in sections
        )
        yield table(("key", "meaning", "values", "default"), rows)
    for key, value in sections.items():
        yield from _section(f"{name}.{key}" if name else key, value, known)


def _meanings(text: str, keys: set[str]) -> tuple[str, dict[str, str]]:
    """A docstring without what it says of single keys (`key`: text), and that by key."""
    names = "|".join(sorted(keys))
    start = re.compile(rf"(?:(?<=[.;,] )|^)`({names})`(?: \([^)`]*\))?: ")
    head, *parts = start.split(" ".join(text.split()))
    found = {key: said.strip(" ;,") for key, said in zip(parts[::2], parts[1::2], strict=True)}
    return head, found


def _default(value: Mapping[str, Any]) -> str:
    empty = {"array": [], "object": {}}.get(str(value.get("type")))
    shown = value.get("default", empty)
    return f"`{json.dumps(shown)}`" if "default" in value or empty is not None else ""


def _resolved(value: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """A value with what it refers to in its place; of "this or null" the former."""
    options = [one for one in value.get("anyOf", ()) if one.get("type") != "null"]
    if len(options) == 1 and "$ref" in options[0]:
        return {**_resolved(options[0], known), "default": value.get("default")}
    return {**known[value["$ref"].rpartition("/")[2]], **value} if "$ref" in value else value


def _type(value: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(_type(one, known) for one in value["anyOf"])
    value = _resolved(value, known)
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    kind = str(value.get("type", "any"))
    if kind == "array":
        return f"list of {_type(value['items'], known)}" if "items" in value else "list"
    signs = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    return ", ".join([kind, *(f"{sign} {value[key]}" for key, sign in signs.items() if key in value)])


def metrics() -> str:
    """What /metrics has, from its own text."""
    engine: Any = SimpleNamespace(backend="", method="", num_speculative_tokens=1)
    text = ServerMetrics("", engine).render(Counts.of(Metrics(), Load(0, 0, 0, 0), {}, {})).decode()
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    helps = [line.split(maxsplit=3)[2:] for line in text.splitlines() if line.startswith("# HELP")]
    head = (
        "# Metrics\n\n`GET /metrics` of the server, with vLLM's names where vLLM has the same metric and "
        "`specdec_hal:` for the rest. Every metric has the labels `model_name`, `backend` and `method`.\n\n"
    )
    return head + table(("metric", "kind", "meaning"), ((f"`{name}`", kinds[name], *about) for name, *about in helps))


def results() -> str:
    """Every recorded result, and a plot of those that `bench --read` can draw."""
    rows, plots = [], []
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        machine = record.get("machine", {})
        where = str(machine.get("gpu") or machine.get("cpu", "") if isinstance(machine, dict) else machine)
        command = f"`{record['command']}`" if record.get("command") else ""
        dates = (str(record.get("date", ""))[:10], str(record.get("commit", ""))[:10])
        rows.append((f"[{path.stem}]({path.name})", command, where, *dates))
        with mkdocs_gen_files.open(f"numbers/{path.name}", "wb") as file:
            file.write(path.read_bytes())
        if _drawn(path):
            plots.append(f"## {path.stem}\n\n{command}\n\n![{path.stem}]({path.stem}.png)\n")
    head = "# Recorded results\n\nEach file has command, commit, machine, versions and figures.\n"
    return "\n".join([head, table(("file", "command", "machine", "date", "commit"), rows), *plots])


def _drawn(path: Path) -> bool:
    try:
        document = read_document(path)
    except ConfigError:
        return False
    if "rows" not in document:
        return False
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        (plot_methods if is_comparison(document) else plot)(document, Path(file.name))
        with mkdocs_gen_files.open(f"numbers/{path.stem}.png", "wb") as target:
            target.write(Path(file.name).read_bytes())
    return True


def gpu() -> str:
    """The tables of the suites on GPUs."""
    files = map(str, sorted(RESULTS.glob("h200-*.json")))
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_summary.py")]
    return subprocess.run([*command, *files], check=True, capture_output=True, text=True).stdout


for source, page in INCLUDED.items():
    write(page, included(source))
write("reference/api.md", api())
write("reference/cli.md", command_line())
write("reference/configuration.md", configuration())
write("reference/contract.md", contract())
write("reference/metrics.md", metrics())
write("reference/support.md", matrix.render(matrix.read(ROOT / "docs" / "reference" / "support.csv")))
write("reference/xpu_builtins.md", dialect_table.render(dialect_table.builtins()))
write("numbers/gpu.md", gpu())
write("numbers/results.md", results())
