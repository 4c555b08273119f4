"""Code in the README and in the docs runs, and prints what its comments say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/own_decode_loop.md",
    "docs/engines.md",
    "docs/writing_a_backend.md",
    "docs/adding_a_proposer.md",
    "docs/adding_a_model.md",
    "docs/engine.md",
)


def code_of(page: str) -> str:
    return "".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S))


def test_the_example_of_the_readme_is_short() -> None:
    assert sum(bool(line) for line in code_of("README.md").splitlines()) <= 10


@pytest.mark.parametrize("page", PAGES)
def test_python_code(page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order, as one program; each `print(...)  # text: remark` prints that text."""
    if "models/" in code_of(page):
        pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    monkeypatch.chdir(ROOT)
    code = code_of(page)
    exec(compile(code, page, "exec", dont_inherit=True), {"__name__": page})
    comments = re.findall(r"^ *print\(.*\) +# (.*)$", code, re.M)
    assert comments
    for line, comment in zip(capsys.readouterr().out.splitlines(), comments, strict=True):
        assert comment == line or comment.startswith(f"{line}: ")
