"""`specdec-hal serve` as a process: without arguments it serves the embedded model, and it ends what it has begun."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import specdec_hal.serve
from specdec_hal.cli import main
from specdec_hal.engine import LLM
from specdec_hal.runner import SamplingParams
from tests.support.command import KEY, serve

ROOT = Path(__file__).parents[2]
PROMPT = "def add(a, b):\n"


@pytest.mark.parametrize("how", [(), pytest.param(("--no-split",), marks=pytest.mark.slow)], ids=["two", "one"])
def test_the_embedded_model_and_a_graceful_end(how: tuple[str, ...]) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    params = SamplingParams(max_new_tokens=150, temperature=0.8, seed=11)
    (output,) = LLM(config=ROOT / "configs/serve.yaml").generate(PROMPT, params, progress=False)
    with serve(*how) as (process, client):
        (model,) = client.models.list()
        assert model.id == "tiny-py-lm"
        chunks = client.completions.create(
            model=model.id, prompt=PROMPT, max_tokens=150, temperature=0.8, seed=11, stream=True
        )
        first = next(chunks).choices[0].text
        process.send_signal(signal.SIGTERM)
        assert first + "".join(chunk.choices[0].text for chunk in chunks) == output.text
        ends(process)


def test_what_does_not_end_in_time_is_ended() -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    with serve("--no-split", "--set", "serve.drain_timeout_s=0") as (process, client):
        long = {"model": "tiny-py-lm", "prompt": PROMPT, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
        chunks = client.completions.create(**long, stream=True)
        next(chunks)
        process.send_signal(signal.SIGTERM)
        *_, last = chunks
        assert last.choices[0].finish_reason == "abort"
        ends(process)


def ends(process: subprocess.Popen[str]) -> None:
    assert process.wait(60) == 0
    assert process.stderr is not None
    logged = process.stderr.read()
    assert "Traceback" not in logged
    loading, served, *between, ended = re.findall(r"INFO (loading|serving|request|shutting down|ended) ?(.*)", logged)
    assert (loading[0], served[0]) == ("loading", "serving")
    assert "model=tiny-py-lm" in served[1] and "max_model_len=2048" in served[1]
    assert ("shutting down", "requests=1") in between and ended == ("ended", "")
    assert "POST path=/v1/completions status=200" in logged and KEY not in logged


def test_an_address_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"--set:serve.port: cannot listen on 127.0.0.1:{port}: Address already in use" in error


@pytest.mark.parametrize("how", [(), pytest.param(("--no-split",), marks=pytest.mark.slow)], ids=["two", "one"])
def test_a_checkpoint_without_weights_and_tokenizer(how: tuple[str, ...], tmp_path: Path) -> None:
    """One line, although each process misses a file."""
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    shutil.copy(ROOT / "models/tiny-py-lm/config.json", tmp_path)
    command = [sys.executable, "-m", "specdec_hal.cli", "serve", "--port", "0", "--model", str(tmp_path), *how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    loading, line = done.stderr.splitlines()
    assert loading.endswith(f"INFO loading model={tmp_path}")
    assert line.startswith(f"specdec-hal: {tmp_path}/model.safetensors: expected a file, got none")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--api-key", ""], "--api-key: expected a key, got an empty one"),
        (["--port", "70000"], "serve.port: expected an integer"),
        (["--tool-call-parser", "qwen3_coder"], "serve.tool_call_parser: expected one of hermes, llama3_json, mistral"),
        (["--reasoning-parser", "x"], "serve.reasoning_parser: expected one of deepseek_r1, mistral, qwen3"),
        (["--allowed-origins", ""], "serve.allowed_origins"),
        (["--host", "no.such.host.invalid"], "serve.host: cannot listen on"),
        (["--chat-template", "/dev/null/none"], "/dev/null/none: cannot be read"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(specdec_hal, "serve", specdec_hal.serve)  # imported again below, and put back after
    for name in [name for name in sys.modules if name.startswith("specdec_hal.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve"]) == 2
    assert "serve: fastapi is not installed; pip install 'specdec-hal[serve]'" in capsys.readouterr().err


SUPERVISE = """
import sys
from specdec_hal.serve.split.supervisor import Supervisor
Supervisor.run = lambda self: self._end() or print(*sys.modules) or 0
from specdec_hal.cli import main
sys.exit(main(["serve", "--port", "0"]))
"""


def test_the_supervisor_imports_little() -> None:
    """The engine's process, whose start takes longest, waits for that."""
    done = subprocess.run([sys.executable, "-c", SUPERVISE], capture_output=True, text=True, check=True)
    assert not {"fastapi", "uvicorn", "torch", "specdec_hal.runner"} & set(done.stdout.split())
