"""Pages of the site that are rendered from code and from recorded results; `mkdocs build` runs this (gen-files)."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mkdocs_gen_files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]
os.environ["COLUMNS"] = "100"  # of the help of commands

import specdec_hal  # noqa: E402
from specdec_hal import cli  # noqa: E402
from specdec_hal.config.sections import config_class  # noqa: E402
from specdec_hal.ops.page import render_contracts, table  # noqa: E402
from specdec_hal.plugin.registry import or_default  # noqa: E402
from specdec_hal.runner import Counts  # noqa: E402
from specdec_hal.runner.metrics import Load, Metrics  # noqa: E402
from specdec_hal.serve.metrics import ServerMetrics  # noqa: E402
from specdec_hal_conformance import matrix  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
INCLUDED = {"README.md": "index.md", "CONTRIBUTING.md": "extend/contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository that are pages too."""


def write(path: str, text: str) -> None:
    """A page."""
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)


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
    parser = cli.make_parser()
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
        yield table(("key", "meaning", "values", "default"), rows) + "\n"
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
    engine: Any = SimpleNamespace(backend="", method="", num_speculative_tokens=1, cache={})
    text = ServerMetrics("", engine).render(Counts.of(Metrics(), Load(0, 0, 0, 0), {}, {})).decode()
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    helps = [line.split(maxsplit=3)[2:] for line in text.splitlines() if line.startswith("# HELP")]
    head = (
        "# Metrics\n\n`GET /metrics` of the server, with vLLM's names where vLLM has the same metric and "
        "`specdec_hal:` for the rest. Every metric has the labels `model_name`, `backend` and `method`.\n\n"
    )
    return head + table(("metric", "kind", "meaning"), ((f"`{name}`", kinds[name], *about) for name, *about in helps))


def results() -> str:
    """Every recorded result."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        where = record["machine"].get("gpu") or record["machine"]["cpu"]
        dates = (record["date"][:10], record["commit"][:8])
        rows.append((f"[{path.stem}]({path.name})", f"`{record['command']}`", where, *dates))
        with mkdocs_gen_files.open(f"numbers/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    head = "# Recorded results\n\nEach file has command, commit, machine, versions and figures.\n"
    return head + "\n" + table(("file", "command", "machine", "date", "commit"), rows) + "\n"


_GPU_HEAD = """# Performance on a GPU

Microseconds, medians of 60 replays (15 with `--quick`), of an op inside a CUDA graph: 20 copies for *warm*, one for
*cold*, before which 512 MB are rewritten so that the L2 cache holds nothing of its tensors. The *floor* is what the
bytes that must move take at the copy bandwidth of the same run, plus an empty kernel. Before and after it is timed,
each op's outputs are poisoned and compared with the reference: a wrong kernel gets no figure. *Targets* are what the
project set out to reach; a **bold** figure misses its own. All rows, with minimum and percentiles, are in the JSON
files, the documents of `benchmarks/gpu_bench.sh`.
"""


def gpu() -> str:
    """The rows with a target or a peer of the suites on GPUs."""
    documents = ((path, json.loads(path.read_text())) for path in sorted(RESULTS.glob("h200-*.json")))
    parts = [_suites(path, found) for path, found in documents if "rows" in found]  # others have another form
    return "\n".join([_GPU_HEAD, *parts])


def _suites(path: Path, document: Mapping[str, Any]) -> str:
    """A document: where it was measured, and its rows."""
    machine, floor, host = document["machine"], document["floor"], document["host_us"]
    rows = [row for row in document["rows"] if {None} != {*row["target_us"].values()} or "peers_us" in row]
    head = ("case", *("warm", "floor", "target"), *("cold", "floor", "target"), "others, warm")
    about = (
        f"## {', '.join(dict.fromkeys(row['suite'] for row in document['rows']))}\n\n"
        f"`{document['command']}`: `{path.name}`, {machine['gpu']}, driver {machine['driver']}, commit "
        f"{document['commit'][:10]}. Copies move {floor['copy_gb_per_s']:,.0f} GB/s, read and written; an empty kernel "
        f"takes {floor['empty_kernel_warm_us']:.2f} us warm, {floor['empty_kernel_cold_us']:.2f} cold. On the host a "
        f"bound call takes {host['bound']['median']:.1f} us, a bare launch {host['launch']['median']:.1f}, an unbound "
        f"call {host['unbound']['median']:.1f}.\n\n"
    )
    cells = ((row["label"], *_times(row, "warm"), *_times(row, "cold"), _others(row)) for row in rows)
    return about + table(head, cells) + "\n"


def _others(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {us['warm']:g}" for name, us in row.get("peers_us", {}).items() if us["warm"])


def _times(row: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    """Median, floor and target, warm or cold."""
    median, floor, target = row[f"{name}_us"]["median"], row.get(f"{name}_floor_us"), row["target_us"][name]
    mark = "**" if target is not None and median > target else ""
    return f"{mark}{median:.1f}{mark}", "" if floor is None else f"{floor:.1f}", "" if target is None else f"{target:g}"


for source, page in INCLUDED.items():
    write(page, included(source))
write("reference/api.md", api())
write("reference/cli.md", command_line())
write("reference/configuration.md", configuration())
write("reference/contract.md", contract())
write("reference/metrics.md", metrics())
write("reference/support.md", matrix.render(matrix.read(ROOT / "docs" / "reference" / "support.csv")))
write("numbers/gpu.md", gpu())
write("numbers/results.md", results())
