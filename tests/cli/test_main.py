"""What all commands share: exit status, one-line errors, and that nothing heavy is imported too early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdec_hal import __version__
from specdec_hal.cli import COMMANDS, main
from specdec_hal.errors import UnsupportedError

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdec_hal.cli", *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **environ}, check=False,
    )  # fmt: skip


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A command "fake" whose `run` the test supplies."""
    module = SimpleNamespace(HELP="", __doc__="", add_arguments=lambda parser: None)
    monkeypatch.setitem(COMMANDS, "fake", module)
    return module


def test_bad_input_from_a_real_process() -> None:
    done = run("explain", "referense")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("specdec-hal: 'referense' is neither an op nor a backend; did you mean 'reference'?")
    assert done.stderr.count("\n") == 1


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "specdec_hal", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"specdec-hal {__version__}\n"


def test_every_problem_of_a_configuration_gets_a_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("runner: {max_num_seqs: 0}\nbakend: {}\n")
    done = run("explain", "--config", str(tmp_path / "c.yaml"), "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"specdec-hal: {tmp_path}/c.yaml:runner.max_num_seqs: expected an integer in 1..8192, got 0",
        f"specdec-hal: {tmp_path}/c.yaml:bakend: unknown key; did you mean 'backend'?; "
        "allowed: backend, fallback, shadow, model, runner, engine, speculative, sampling, structured, serve",
    ]


@pytest.mark.parametrize("arguments", [["explian"], ["backends", "--jsn"], ["backends", "--js"], ["explain", "--set"]])
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("specdec-hal")
    assert captured.err.endswith("--help\n")
    assert captured.err.count("\n") == 1


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"specdec-hal {__version__}\n"
    assert main(["--help"]) == 0
    top = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == top
    for name in COMMANDS:
        assert name in top
        assert main([name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_errors_of_this_project(command: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(args: object, output: object) -> int:
        raise UnsupportedError("not on this machine; try another")

    command.run = fail
    assert main(["fake"]) == 2
    assert capsys.readouterr().err == "specdec-hal: not on this machine; try another\n"


def test_interrupt(command: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(args: object, output: object) -> int:
        raise KeyboardInterrupt

    command.run = interrupt
    assert main(["fake"]) == 130
    assert capsys.readouterr().err == "specdec-hal: interrupted\n"


def test_json_keeps_other_prints_off_stdout(command: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def chatty(args: object, output: SimpleNamespace) -> int:
        print("a framework's banner")
        output.document({"a": [1, None]})
        return 0

    command.run = chatty
    assert main(["fake", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": [1, None]}
    assert captured.err == "a framework's banner\n"


HEAVY = ("tvm_ffi", "paddle", "torch", "pydantic", "rich", "numpy", "pluggy", "yaml")


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import specdec_hal", HEAVY),
        ("import specdec_hal; specdec_hal.hookimpl", ("tvm_ffi", "paddle", "torch", "pydantic", "rich")),
        ("from specdec_hal.cli import main; main(['backends', '--json'])", ("tvm_ffi", "paddle", "torch", "rich")),
    ],
)
def test_nothing_heavy_is_imported_early(statement: str, absent: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
