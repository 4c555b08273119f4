"""tools/prose.py finds long sentences and unwanted words where people read, and not in code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import prose

LONG = " ".join(["Word"] * 41)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Short. {LONG}.", ["41 words"]),
        (f"{LONG[:-5]}. `{LONG}` is code.", []),
        ("It starts anew.", ["'anew'"]),
        ("A [link](anew.md) and `anew`.", []),
    ],
)
def test_problems(text: str, found: list[str]) -> None:
    assert [problem.partition(":")[0] for problem in prose.problems(text)] == found


def test_paragraphs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\none\ntwo\n\n```\ncode\n```\n- item\n  goes on\n- next\n\n| a | b |\n")
    assert list(prose.paragraphs(page)) == [
        (3, "one two"), (9, "item goes on".join(["- ", ""])), (11, "- next"), (13, "| a"), (13, "b |"),
    ]  # fmt: skip
    module = tmp_path / "module.py"
    module.write_text('"""Says this.\n\n    code\n\n>>> 1\n1\n"""\n# not this\n')
    assert [text for _, text in prose.paragraphs(module)] == ["Says this."]


def test_comments_of_cpp(tmp_path: Path) -> None:
    source = tmp_path / "source.h"
    source.write_text(
        "// Says one thing\n// in two lines.\n//\n//   TABLE   of names\nint a = 1'000;  // of its own\n"
        'int b;  // and this\nconst char* url = "http://x";  /* Says\n   more. */\nchar quote = \'"\';  // quoted\n'
    )
    assert list(prose.paragraphs(source)) == [
        (1, "Says one thing in two lines."), (5, "- of its own"), (6, "- and this"), (7, "- Says more."),
        (9, "- quoted"),
    ]  # fmt: skip
