"""The README's code example runs and prints what its comment says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_code_example(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"<!-- tested by .*? -->\n```python\n(.*?)```", README, re.S)
    assert len(code.strip().splitlines()) <= 12
    exec(compile(code, "README.md", "exec"), {})
    expected = re.search(r"print\(.*?\) +# (\[.*?\])", code)
    assert expected is not None
    assert capsys.readouterr().out.strip() == expected[1]
