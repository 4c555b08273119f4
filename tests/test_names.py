"""Names that were given up do not come back: tests/names.txt has them with the new ones."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("specdec_hal", "backends", "kernels_*", "tests", "docs", "examples", "tools", "README.md")
OWN = ("tests/names.txt", "tests/test_names.py", "tests/test_prose.py", "tools/prose.py")
LINE = re.compile(r"(?P<old>\S+) -> (?P<new>\S+)(?: : (?P<where>.+))?")
ENTRIES = [line for line in (ROOT / "tests/names.txt").read_text().splitlines() if not line.startswith("#")]


def pattern_of(old: str) -> str:
    """What finds a name: as a whole, or with ~ also its word inside of names, in snake or in camel case."""
    if not old.startswith("~"):
        return rf"(?<![A-Za-z0-9_]){old}(?![A-Za-z0-9_])"
    word = old[1:]
    return rf"((?<![A-Za-z]){word}|{word[0].upper()}{word[1:]}|{word.upper()})(?![a-z])"


def sources() -> dict[str, str]:
    """The lines of every file that has one of the names, by path."""
    olds = "|".join(pattern_of(entry.partition(" ->")[0]) for entry in ENTRIES)
    command = ["git", "grep", "-nIP", olds, "--", *SOURCES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        pytest.skip(f"git grep: {done.stderr.strip()}")
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        path, _, text = line.partition(":")
        if path not in OWN:
            found[path] = found.get(path, "") + text + "\n"
    return found


def test_old_names_are_gone() -> None:
    lines, found = sources(), []
    for entry in ENTRIES:
        line = LINE.fullmatch(entry)
        assert line, f"expected: old -> new : where; got {entry}"
        globs = (line["where"] or "*").split()
        within, without = [one for one in globs if one[0] != "!"], [one[1:] for one in globs if one[0] == "!"]
        old = re.compile(pattern_of(line["old"]))
        found += [
            f"{path}:{text}: {line['old']} is called {line['new']} now"
            for path, texts in lines.items()
            if any(fnmatch(path, glob) for glob in within) and not any(fnmatch(path, glob) for glob in without)
            for text in texts.splitlines()
            if old.search(text)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("old", "text", "found"),
    [
        ("judge", "judge(x)", True),
        ("judge", "TokenJudge judge_of", False),
        ("~judge", "TokenJudge", True),
        ("~judge", "judge_of", True),
        ("~judge", "_judge2", True),
        ("~judge", "JUDGE_OF", True),
        ("~judge", "JudgeByToken", True),
        ("~judge", "prejudge judgement", False),
    ],
)
def test_a_word_is_found_inside_of_names(old: str, text: str, found: bool) -> None:
    assert bool(re.search(pattern_of(old), text)) == found
