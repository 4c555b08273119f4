"""Keys and passwords stay out of crash reports, error lines and logs."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec_hal import cli
from specdec_hal.cli import secrets
from specdec_hal.errors import SpecDecError

KEY = "open sesame 1001"


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    factory = logging.getLogRecordFactory()
    importlib.reload(secrets)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    logging.setLogRecordFactory(factory)


def crash(monkeypatch: pytest.MonkeyPatch, error: BaseException, *arguments: str) -> None:
    def run(args: object, output: object) -> int:
        raise error

    monkeypatch.setattr(cli.serve, "run", run)
    assert cli.main(["serve", *arguments]) in (cli.INTERNAL, cli.BAD_INPUT)


@pytest.mark.parametrize(
    "arguments", [("--api-key", KEY), (f"--api-key={KEY}",), ("--port=1", "--api-key", KEY, "--json")]
)
def test_crash_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """They held the API key in clear."""
    crash(monkeypatch, RuntimeError(f"Namespace(api_key={KEY!r})"), *arguments)
    shown = capsys.readouterr().err
    (report,) = tmp_path.glob("specdec-hal-*.txt")
    text = report.read_text()
    assert KEY not in text + shown
    assert re.search(r"command: .*--api-key.*<redacted>", text) and "Namespace(api_key='<redacted>')" in text


def test_a_short_key_is_not_looked_for_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crash(monkeypatch, RuntimeError("a key"), "--api-key", "e")
    (report,) = tmp_path.glob("specdec-hal-*.txt")
    assert "'--api-key' '<redacted>'" in report.read_text() and "RuntimeError: a key" in report.read_text()


def test_secrets_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("SPECDEC_HAL_API_KEY", KEY)
    monkeypatch.setenv("MONKEYS", "many monkeys")  # no secret
    crash(monkeypatch, SpecDecError(f"hf_abcdefgh, {KEY}, ray://user:pass@host, many monkeys"))
    assert capsys.readouterr().err == "specdec-hal: <redacted>, <redacted>, ray://<redacted>@host, many monkeys\n"


def test_logs(caplog: pytest.LogCaptureFixture) -> None:
    secrets.learn(["serve", "--api-key", KEY], {})
    log = logging.getLogger("specdec_hal")
    try:
        raise ValueError(KEY)
    except ValueError:
        log.exception("%s is wrong", KEY)
    log.warning("%d of %s", 3, KEY)
    log.error("as it is: 100 %")
    assert KEY not in caplog.text
    assert caplog.messages == ["<redacted> is wrong", "3 of <redacted>", "as it is: 100 %"]
    assert "ValueError: <redacted>" in caplog.text
