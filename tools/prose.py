"""Long sentences and unwanted words in Markdown, docstrings and comments of C++; `make lint` runs it.

A sentence has at most 40 words; code in backticks is one word, and each cell of a table is read by itself.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS = 40
INSTEAD = {
    r"anew": "again",
    r"cures?": "hint",
    r"rubbish": "invalid data",
    r"spoilt": "invalid",
    r"told": "receives, learns",
    r"tells? (?:of|that|what|how)": "shows, says",
    r"behind (?:a|an|the|it|this|that|them|each|every) (?:token|step|draft|prompt|window|end|last|first)\w*": "after",
    r"the one before": "the previous one",
    r"as (?:rarely|seldom) as": "at most every",
    r"(?:was|were) not to be had": "was not available",
    r"nobody knows": "undefined",
    r"whoever": "callers, clients",
    r"somebody|everybody": "a client, all callers",
    r"in the place of": "instead of",
    r"(?:is|are) to be": "must be, should be",
    r"the (?:step|token|launch) before": "the previous ...",
}
LEFT_OUT = ("CHANGELOG.md", "changelog.d/", "models/")
CPP = (".h", ".cc", ".cpp", ".cu", ".cuh", ".xpu")
STRING_OR_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|//[^\n]*|/\*.*?\*/""", re.S)


def main() -> int:
    """Print what is wrong, one line each; 1 if anything is."""
    kinds = [f"*{suffix}" for suffix in (".md", ".py", *CPP)]
    files = subprocess.run(["git", "ls-files", *kinds], capture_output=True, text=True, check=True).stdout.split()
    found = 0
    for name in files:
        if not name.startswith(LEFT_OUT) and Path(name).exists():
            for line, text in paragraphs(Path(name)):
                for problem in problems(text):
                    print(f"{name}:{line}: {problem}")
                    found += 1
    return int(found > 0)


def problems(text: str) -> Iterator[str]:
    """What is wrong with a paragraph."""
    plain = re.sub(r"``?[^`]+``?", "x", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))
    for sentence in re.split(r"(?<=[.!?])[)\"*_]* +(?=[A-Z0-9`\"(\[*_x])", plain):
        if (words := len(sentence.split())) > MOST_WORDS:
            yield f"{words} words: {' '.join(sentence.split()[:9])} ..."
    for word, better in INSTEAD.items():
        if match := re.search(rf"\b{word}\b", plain, re.I):
            yield f"'{match[0]}': write {better}"


def paragraphs(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, list item, and cell of a table: in docstrings of Python and comments of C++."""
    if path.suffix == ".md":
        yield from _blocks(path.read_text(), 1)
        return
    if path.suffix in CPP:
        yield from _blocks(_comments(path.read_text()), 1)
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _blocks(inspect.cleandoc(node.value.value), node.lineno)


def _comments(code: str) -> str:
    """The comments of C++, each on its own line; a comment after code is a paragraph."""
    lines = [""] * (code.count("\n") + 1)
    for found in STRING_OR_COMMENT.finditer(code):
        if found[0].startswith(("//", "/*")):
            first = code.count("\n", 0, found.start())
            after_code = code[code.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
            # After //, text that is indented by more than one blank is code or a table.
            table = found[0].startswith("//   ")
            for number, row in enumerate(found[0].strip("/*").split("\n"), first):
                before = "- " if after_code and number == first else "    " if table else ""
                lines[number] = before + row.strip(" */")
    return "\n".join(lines)


def _blocks(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Paragraphs without code: neither fenced or indented, nor sessions and tables of docstrings."""
    block, start, fenced, code = list[str](), line, False, False
    for number, raw in enumerate([*text.splitlines(), ""], line):
        row = raw.strip()
        fence = row.startswith("```")
        fenced ^= fence
        code = bool(row) and (code or row.startswith((">>>", "====")))
        skipped = fenced or fence or code or raw.startswith("    ") or row.startswith(("#", "<!--"))
        if block and (not row or skipped or row.startswith("|") or re.match(r"(?:[-*]|\d+\.) ", row)):
            yield start, " ".join(block)
            block = []
        if row.startswith("|") and not skipped:
            yield from ((number, cell.strip()) for cell in row.split(" | "))
        elif row and not skipped:
            start = start if block else number
            block.append(row)


if __name__ == "__main__":
    sys.exit(main())
