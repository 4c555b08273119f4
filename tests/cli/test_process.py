"""What surrounds a command, each in a real process: streams that fail, odd settings, errors of the program itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_hal import __version__
from specdec_hal.plugin import parts

ROOT = Path(__file__).parents[2]
COMMAND = f"{sys.executable} -m specdec_hal.cli"
ENVIRON = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "COLUMNS")}


def shell(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A line for bash in which `%` stands for the command; its status is that of the first program of a pipe."""
    return subprocess.run(
        ["bash", "-c", f"{line.replace('%', COMMAND)}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True,
        errors="backslashreplace", cwd=ROOT, env={**ENVIRON, **environ}, check=False,
    )  # fmt: skip


def broken(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command whose run() is `code`."""
    program = (
        "import sys, types; from specdec_hal.cli import COMMANDS, main\n"
        f"def run(args, output):\n    {code}\n"
        "COMMANDS['fake'] = types.SimpleNamespace(HELP='', __doc__='', add_arguments=lambda parser: None, run=run)\n"
        "sys.exit(main(['fake', '--json']))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env={**ENVIRON, **environ},
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "stdout", "problem"),
    [("backends --json", "> /dev/full", "No space left on device"), ("--help", ">&-", "it is closed")],
)
def test_stdout_that_cannot_be_written(command: str, stdout: str, problem: str) -> None:
    done = shell(f"% {command} {stdout}")
    assert done.stderr == f"specdec-hal: stdout: cannot be written: {problem}\n"
    assert done.returncode == 74


@pytest.mark.parametrize("command", ["backends --json", "--help"])
def test_reader_that_goes_away(command: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "specdec_hal.cli", *command.split()], stdout=closed, stderr=subprocess.PIPE,
            text=True, cwd=ROOT, env=ENVIRON, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


def test_stderr_that_cannot_be_written() -> None:
    assert shell("% explain nope 2> /dev/full").returncode == 2
    assert shell("% explain nope 2>&-").returncode == 2
    done = shell("% backends --json 2>&-")
    assert done.returncode == 0 and done.stdout.startswith("{")


def test_stdin_that_is_closed() -> None:
    done = shell("% generate <&-")
    assert (done.returncode, done.stderr) == (2, "specdec-hal: --prompt-file -: cannot be read: stdin is closed\n")


def test_columns() -> None:
    expected = shell("% backends").stdout
    for columns in ("0", "99999999999", "x"):
        done = shell("% backends", COLUMNS=columns)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", expected), columns


def test_prompt_with_an_invalid_byte() -> None:
    done = shell("% generate --prompt $'a\\xff'")
    assert done.stderr == "specdec-hal: --prompt: expected UTF-8 text, got the byte 0xFF in 'a\\udcff'\n"
    assert done.returncode == 2


def test_endless_prompt() -> None:
    done = shell("% generate --prompt-file /dev/zero")
    assert done.returncode == 2
    assert re.fullmatch(r"specdec-hal: --prompt-file /dev/zero: expected at most \d+ bytes, .*\n", done.stderr)


@pytest.mark.parametrize("option", ["bench --out", "bench --lock", "conformance --backend reference --junit"])
def test_output_files_are_refused_before_the_work(option: str, tmp_path: Path) -> None:
    name = option.split()[-1]
    missing = name in ("--out", "--junit")
    done = shell(f"% {option} {tmp_path / 'missing' / 'x' if missing else tmp_path}")
    assert done.returncode == 2 and done.stdout == ""
    problem = "there is no folder " if missing else "is a folder; name a file"
    assert done.stderr.count("\n") == 1 and f"argument {name}: " in done.stderr and problem in done.stderr


def test_output_file_that_cannot_be_written() -> None:
    done = shell("% conformance --backend reference --op ngram_index_reset --jobs 1 --junit /dev/full")
    assert done.returncode == 74
    assert done.stderr.splitlines()[-1] == "specdec-hal: /dev/full: cannot be written: No space left on device"


def test_characters_that_stdout_lacks() -> None:
    done = broken("print('\\ud800 \u00e9', file=output.stdout); return 0", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "\\ud800 \\xe9\n")


class TestInternalErrors:
    @pytest.mark.parametrize(
        ("code", "what"),
        [
            ("1 / 0", "ZeroDivisionError: division by zero"),
            ("raise type('Panic', (BaseException,), {})('3')", "Panic: 3"),
            ("raise ValueError('line\\n' * 10**6)", "ValueError: line line "),
        ],
    )
    def test_report(self, code: str, what: str, tmp_path: Path) -> None:
        done = broken(code, TMPDIR=str(tmp_path))
        assert done.returncode == 70 and done.stdout == ""
        (report,) = tmp_path.iterdir()
        assert done.stderr.startswith(f"specdec-hal: internal error: {what}")
        assert done.stderr.endswith(f"; please send the report {report}\n")
        assert done.stderr.count("\n") == 1 and len(done.stderr) < 1000
        text = report.read_text()
        assert text.startswith("command: 'specdec-hal' 'fake' '--json'\n")
        assert "Traceback (most recent call last)" in text and "in run" in text and "numpy " in text
        assert report.stat().st_mode & 0o777 == 0o600

    def test_report_that_cannot_be_written(self) -> None:
        done = broken("import tempfile; tempfile.tempdir = '/nowhere'; 1 / 0")
        assert done.returncode == 70
        assert done.stderr == (
            "specdec-hal: internal error: ZeroDivisionError: division by zero; no report could be written "
            "(No such file or directory)\n"
        )


def test_processes_import_no_file_of_the_working_directory(tmp_path: Path) -> None:
    """Such as the sources of another version of this package."""
    for name in ("random.py", "specdec_hal.py"):
        (tmp_path / name).write_text("raise SystemExit('a file of the working directory')")
    words = parts.command("specdec_hal.cli", "--version")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"specdec-hal {__version__}\n", "")
    assert not [path for path in Path(parts.__file__).parents[1].rglob("*.py") if '"-m"' in path.read_text()]
