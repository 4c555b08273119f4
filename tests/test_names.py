"""Words that no name has any more, as a whole or inside of it: `judge` in TokenJudge, judge_of, _judge2."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("specdec_hal", "backends", "kernels_*", "tests", "docs", "examples", "tools", "README.md")
OWN = (":!tests/test_names.py", ":!tests/test_prose.py", ":!tools/prose.py")
GONE = {"judg(e[sd]?|ing)": "verifier, verified", "spoilt": "overflowed", "rubbish": "uninitialised", "anew": "again"}


def pattern_of(word: str) -> str:
    """What finds a word in snake and in camel case."""
    return rf"((?<![A-Za-z])(?i:{word})|{word[0].upper()}{word[1:]})(?![a-z])"


@pytest.mark.parametrize(("word", "instead"), GONE.items())
def test_words_that_are_gone(word: str, instead: str) -> None:
    command = ["git", "grep", "-nIP", pattern_of(word), "--", *SOURCES, *OWN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        pytest.skip(f"git grep: {done.stderr.strip()}")
    assert not done.stdout, f"write {instead}:\n{done.stdout}"


@pytest.mark.parametrize("name", ["TokenJudge", "judge_of", "_judge2", "JUDGE_OF", "JudgeByToken"])
def test_a_word_is_found_inside_of_names(name: str) -> None:
    assert re.search(pattern_of("judge"), name)
    assert not re.search(pattern_of("judge"), "prejudge judgement")
