"""Code in the README and in the docs runs, and prints what its comments say."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
from dataclasses import is_dataclass
from pathlib import Path

import pytest
import yaml

import specdec_hal as sd
from specdec_hal.cli import make_parser
from specdec_hal.config import parse
from specdec_hal.plugin.registry import Registry
from tests.support.architectures import PAGE, recorded, with_table

ROOT = Path(__file__).parents[1]
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
ELSEWHERE = "docs/extend/xpu_emulator.md"
"""Its files are run by tests/wheel/test_wheel.py."""


def code_of(page: str) -> str:
    return "".join(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S))


PAGES = [page for page in ("README.md", *DOCS) if code_of(page) and page != ELSEWHERE]


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


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and text of each block."""
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```$", (ROOT / page).read_text(), re.S | re.M)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *DOCS])
def test_commands_and_settings_are_those_of_the_program(page: str) -> None:
    registry = Registry()
    for language, text in blocks_of(page):
        if language == "yaml":
            parse(yaml.safe_load(text), registry=registry)
        joined = text.replace("\\\n", " ")
        commands = re.findall(r"^(?:\$ )?specdec-hal +(.*?)(?: +#.*)?$", joined, re.M)
        for command in commands if language != "python" else ():
            words = shlex.split(command.partition(" | ")[0].partition(" > ")[0].rstrip("&"))
            try:
                make_parser().parse_args(words)
            except SystemExit as ended:
                pytest.fail(f"{page}: specdec-hal {command}: exit status {ended.code}")


LINKED = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PLACES = (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("[a-z]*/**/README.md")))
LINKED += [path for path in PLACES if not path.startswith("build/")]
"""Pages that `make site` does not check, as it does those of docs/."""


def section(page: str, title: str) -> str:
    return (ROOT / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def links(text: str) -> list[str]:
    """The files that a page links to, relative to its folder."""
    return re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text)


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_to_files(page: str) -> None:
    targets = links((ROOT / page).read_text())
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_the_picture_of_a_step_names_files() -> None:
    picture = section("docs/learn/architecture.md", "A decode step").split("```")[1]
    paths = re.findall(r"\b(?:\w+/)*\w+(?:\.py|/)(?=[,\s])", picture)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / "specdec_hal" / path).exists()] == []


def test_a_look_up_takes_at_most_two_files() -> None:
    """Names stand before the files that hold them."""
    rows = re.findall(r"^\| .*\? \| .* \| (.*) \|$", section("docs/learn/architecture.md", "Ten look-ups"), re.M)
    assert len(rows) == 10
    for row in rows:
        assert 1 <= len(links(row)) <= 2
        for part in row.split(";"):
            names, files = re.findall(r"`([\w.]+)`", part), links(part)
            assert names and files
            for file in files:
                code = (ROOT / "docs/learn" / file).read_text()
                missing = [name for name in names for word in name.split(".") if not re.search(rf"\b{word}\b", code)]
                assert not missing, f"{file} has no {missing}"


@pytest.mark.parametrize("name", sd.__all__)
def test_public_names_are_documented(name: str) -> None:
    """Classes with their public members and what their constructors take, and functions."""
    public = getattr(sd, name)
    if not inspect.isclass(public):
        assert not callable(public) or public.__doc__
        return
    text, init = vars(public).get("__doc__") or "", vars(public).get("__init__")
    assert text and not text.startswith(f"{name}("), "only what dataclasses write"
    if inspect.isfunction(init) and not is_dataclass(public):
        words = set(re.findall(r"\w+", f"{text} {init.__doc__}"))
        assert set(inspect.signature(init).parameters) - words <= {"self"}
    members = {key: getattr(value, "fget", value) for key, value in vars(public).items() if not key.startswith("_")}
    functions = {key: getattr(value, "__func__", value) for key, value in members.items()}
    assert not [key for key, value in functions.items() if inspect.isfunction(value) and not value.__doc__]


def test_the_table_of_architectures_is_that_of_the_record() -> None:
    page = PAGE.read_text()
    assert with_table(page, recorded()) == page, "run tools/architectures.py --write"


RECORDS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
SHOWN = [*DOCS, "tools/site_plots.py", "tools/site_tables.py", "tools/home_picture.py"]
"""What links to records, or draws them."""


@pytest.fixture(scope="module")
def history() -> list[str]:
    """Every commit; none without a repository."""
    if not (ROOT / ".git").exists():
        return []
    return subprocess.run(
        ["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_records_are_of_the_release_before_or_newer_and_in_use(path: Path, history: list[str]) -> None:
    record, name = json.loads(path.read_text()), path.stem
    assert record["command"] and record["machine"]
    drawn = name.startswith("h200-") and "rows" in record  # by tools/site_pages.py
    assert drawn or any(re.search(rf"\b{name}\b", (ROOT / page).read_text()) for page in SHOWN), "on no page"
    assert not re.search(r"/tmp|/home|/root|\.\./", record["command"]), "cannot run elsewhere"
    assert not re.search(r'"/\w+/', path.read_text()), "names a folder of the machine"
    commits = re.findall(r"\b[0-9a-f]{7,40}\b", record["commit"])
    assert commits and all(not history or any(one.startswith(c) for one in history) for c in commits)
    releases = re.findall(r"^## .*\((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert name.startswith("soak-") or record["date"][:10] >= releases[:2][-1]
