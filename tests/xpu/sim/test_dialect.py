"""The list of the dialect's names (builtins/dialect.txt) against the headers, and against the kernels that use them."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
from pathlib import Path

import pytest

from specdec_hal.cli import main
from specdec_hal_xpu.builtins import KINDS, builtins, expand, sources
from specdec_hal_xpu.cc import Build, build, toolchain
from tests.xpu.program import BUILTIN_FILES, MODES_ASAN_SLOW, SOURCES
from tests.xpu.sim import dialect_table, test_vectors

ROOT = Path(__file__).parents[3]
WORD = re.compile(r"(?:xpu_std::|std::)?[A-Za-z_]\w*(?:\.w\b)?")


def read_list() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for line in (SOURCES / "builtins" / "dialect.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            kind, words = line.split(":", 1)
            names.setdefault(kind, []).extend(name for word in words.split() for name in expand(word))
    return names


NAMES = read_list()


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def expanded(path: Path) -> str:
    """A source as the compiler sees it, without what its includes bring."""
    command = ["g++", "-std=gnu++17", "-E", f"-I{toolchain().include}", "-x", "c++", str(path)]
    own, lines = False, []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("# "):
            own = f'"{path}"' in line
        elif own:
            lines.append(line)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def used() -> set[str]:
    """Names in the unit kernels: as written, since qualifiers are macros, and expanded, since tests use macros too."""
    texts = [text for path in BUILTIN_FILES for text in (without_comments(path.read_text()), expanded(path))]
    return set(WORD.findall("\n".join([*texts, test_vectors.text("fast")])))


@pytest.mark.parametrize("kind", [kind for kind in NAMES if kind != "headers"])
def test_every_name_has_a_unit_kernel(used, kind):
    assert set(NAMES[kind]) - used == set()


def test_headers():
    folder = toolchain().include / "xpu" / "kernel"
    assert {path.name for path in folder.iterdir()} == set(NAMES["headers"])


def declared() -> set[str]:
    """The names that stand in the dialect's headers at the outermost level."""
    folder = toolchain().include / "xpu_sim" / "kernel"
    command = ["g++", "-std=gnu++17", "-E", f"-I{toolchain().include}", "-x", "c++", str(folder / "partition.h")]
    own, depth, found = False, 0, set()
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("# "):
            own = f'"{folder}/' in line
            continue
        if not own:
            continue
        for part in re.findall(r'"(?:[^"\\]|\\.)*"|(?:\w+::)*[A-Za-z_]\w*|\S', line):
            if part in ("{", "("):
                depth += 1
            elif part in ("}", ")"):
                depth -= 1
            elif depth == 0:
                found.add(part)
    return found


def test_no_name_is_missing_from_the_list():
    """A builtin that is added to the headers goes into the list too, and so gets a unit kernel."""
    looks_public = re.compile(
        r"(?:[a-z]+2[a-z]+(?:_ASYNC)?|mfence\w*|sync_\w+|(?:vv|sv)[a-z]+_\w+|v[a-z0-9]+_\w+|vfix2float|\w+x\d+_t|"
        r"round(?:up|down)\w*|primitive_\w+|partition\w*|\w+Ptr|b?float16|\w+_atomic|atomic\w+|\w+_mix|c\w+_(?:id|num))",
        re.IGNORECASE,
    )
    listed = {name for names in NAMES.values() for name in names}
    public = {name for name in declared() if looks_public.fullmatch(name)}
    assert len(public) > 100
    assert public - listed == set()


def test_each_qualifier_is_on_the_page():
    named = set(re.findall(r"`(.*?)`", dialect_table.QUALIFIERS.read_text()))
    assert set(NAMES["qualifiers"]) - named == set()


def guessed() -> list[str]:
    """The names that the table of docs/extend/kunlun.md says are guessed, as patterns."""
    page = (ROOT / "docs" / "extend" / "kunlun.md").read_text()
    section = page[page.index("## Guessed") :].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for word in re.findall(r"`(.*?)`", row) for name in expand(word)]


def test_each_builtin_has_a_source_and_each_guess_is_on_the_page():
    every = builtins()
    assert {one.source.kind for one in every} == set(KINDS)
    assert {bool(source.where) for source, _ in sources() if source.kind in ("header", "kernel")} == {True}
    named = {one.source_name for one in every}
    for source, words in sources():
        stale = [word for word in words for name in expand(word) if not fits(name, named)]
        assert source.kind == "guess" or stale == [], stale
    patterns = guessed()
    guesses = {one.source_name for one in every if one.source.kind == "guess"}
    assert [name for name in sorted(guesses) if not any(fnmatch.fnmatchcase(name, p) for p in patterns)] == []
    assert [pattern for pattern in patterns if not fits(pattern, guesses)] == []


def test_the_page_is_that_of_the_headers():
    page = ROOT / "docs" / "reference" / "xpu_builtins.md"
    assert page.read_text() == dialect_table.render(builtins()), "run python -m tests.xpu.sim.dialect_table"


def test_the_command_prints_builtins_with_their_sources(capsys):
    assert main(["xpu", "builtins", "reduce_SUM"]) == 0
    line = "primitive_reduce_sum(const T* x, float* y, long long n)  public header (cluster_primitive.h)\n"
    assert capsys.readouterr().out == line
    assert main(["xpu", "builtins"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == len({str(one) for one in builtins()}) > 900
    assert re.search(r"^vvsub_float32x16_mh\(.*\)  public kernels \(FastDeploy\)$", out, re.MULTILINE)
    assert re.search(r"^core_id\(\) +programming guide$", out, re.MULTILINE)
    assert main(["xpu", "builtins", "vvsub_float32x16", "--json"]) == 0
    assert [one["status"] for one in json.loads(capsys.readouterr().out)["builtins"]] == ["guess", "guess", "kernel"]
    assert main(["xpu", "builtins", "primitive_cats"]) == 2
    assert "found none; did you mean 'primitive_cast'?" in capsys.readouterr().err


def fits(pattern: str, names: set[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


@pytest.mark.parametrize("mode", MODES_ASAN_SLOW)
def test_each_builtin_compiles(tmp_path, mode):
    """Every entry of the page, called with what it declares. Templates are called by the unit kernels."""
    calls = [one.call(number) for number, one in enumerate(builtins()) if not one.template]
    assert len(calls) > 800
    source = tmp_path / "entries.xpu"
    source.write_text('#include "xpu/kernel/cluster.h"\n' + "\n".join(calls) + "\n")
    flags = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    what = Build(sources=(source,), output=tmp_path / "entries.o", mode=mode, compile_only=True, flags=flags)
    assert build(what)[0] == 0
