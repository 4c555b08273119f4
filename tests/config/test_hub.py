"""Checkpoints by name: `huggingface_hub` fetches them from a hub of the test's own, and reads its cache."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.config import hub

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (pip install huggingface_hub)")
COMMITS = {"main": "a" * 40, "v2": "b" * 40}
ENV_NOTHING = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
PROGRAM = """
import sys, json, specdec_hal.config as config
from specdec_hal.errors import ConfigError
try:
    found = config.parse(json.loads(sys.argv[1]), sys.argv[2:])
    print(json.dumps([str(found.model_path), found.served_name]))
except ConfigError as error:
    print(json.dumps(str(error)))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """One repository, org/tiny, whose config.json says which revision it is of."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self._answer(True)

    def do_HEAD(self) -> None:
        self._answer(False)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, whole: bool) -> None:
        self.asked.append(self.path)
        parts = self.path.partition("?")[0].strip("/").split("/")
        commit = name = ""
        if parts[:3] == ["api", "models", "org"] and parts[3] == "tiny":
            revision = parts[5] if len(parts) > 5 else "main"
            commit = COMMITS.get(revision, revision if revision in COMMITS.values() else "")
            files = [{"rfilename": file} for file in ("config.json", "model.safetensors", "pytorch_model.bin")]
            text = json.dumps({"id": "org/tiny", "sha": commit, "siblings": files}).encode()
            if "tree" in parts:
                text = json.dumps(
                    [{"type": "file", "path": one["rfilename"], "size": 9, "oid": "c"} for one in files]
                ).encode()
        elif parts[:3] == ["org", "tiny", "resolve"]:
            commit, name = COMMITS.get(parts[3], parts[3]), parts[4]
            text = json.dumps({"file": name, "commit": commit}).encode()
        self.send_response(200 if commit else 404)
        if not commit:
            text = b'{"error": "not here"}'
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if commit:
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha1(text).hexdigest()}"')
        self.end_headers()
        if whole:
            self.wfile.write(text)


@pytest.fixture
def endpoint() -> Iterator[str]:
    Hub.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def read(home: Path, data: dict[str, Any], *overrides: str, **env: str) -> Any:
    """The model's path and name in a process of its own, since the library reads its environment when imported."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(data), *overrides]
    environment = {**os.environ, **ENV_NOTHING, "HF_HOME": str(home), **env}
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_fetched_once_then_found(endpoint: str, tmp_path: Path) -> None:
    named = {"model": {"path": "org/tiny"}}
    missing = read(tmp_path, named, HF_ENDPOINT=endpoint)
    assert missing.endswith("not in its cache: hf download org/tiny, or --download (model.download)") and not Hub.asked
    found = read(tmp_path, named, "model.download=true", HF_ENDPOINT=endpoint)
    assert isinstance(found, list), (found, Hub.asked)
    folder, served = found
    assert served == "org/tiny" and Path(folder).name == COMMITS["main"] and Path(folder).is_relative_to(tmp_path)
    assert json.loads((Path(folder) / "config.json").read_text())["commit"] == COMMITS["main"]
    assert sorted(file.name for file in Path(folder).iterdir()) == ["config.json", "model.safetensors"]

    Hub.asked.clear()
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        assert read(tmp_path, named, HF_ENDPOINT=endpoint, **env) == [folder, "org/tiny"]
    assert not Hub.asked, "a model in the cache needs no hub"


def test_revisions(endpoint: str, tmp_path: Path) -> None:
    named = {"model": {"path": "org/tiny@v2", "download": True}}
    folder, served = read(tmp_path, named, HF_ENDPOINT=endpoint)
    assert (served, Path(folder).name) == ("org/tiny", COMMITS["v2"])
    named["model"]["download"] = False
    assert read(tmp_path, named, HF_ENDPOINT=endpoint) == [folder, "org/tiny"]
    assert "hf download org/tiny, or" in read(tmp_path, {"model": {"path": "org/tiny"}}, HF_ENDPOINT=endpoint)
    other = read(tmp_path, {"model": {"path": "org/tiny@v3"}}, HF_ENDPOINT=endpoint)
    assert "hf download org/tiny --revision v3, or" in other


def test_failures_are_one_line(endpoint: str, tmp_path: Path) -> None:
    wanted = {"model": {"path": "org/absent", "download": True}}
    for env, why in (({"HF_ENDPOINT": endpoint}, "NotFound"), ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE")):
        message = read(tmp_path, wanted, **env)
        assert (
            message.startswith("configuration:model.path: cannot download org/absent: ")
            and why in message
            and "\n" not in message
        )


def test_a_folder_comes_first(tmp_path: Path) -> None:
    (tmp_path / "org/tiny").mkdir(parents=True)
    assert read(tmp_path, {"model": {"path": "org/tiny", "download": True}}) == [str(tmp_path / "org/tiny"), "tiny"]


def test_other_paths_are_no_names(tmp_path: Path) -> None:
    """A journal in a folder that does not exist yet is not looked up, whatever the cache has."""
    message = read(tmp_path, {"model": {"path": "a/b/c", "download": True}, "runner": {"journal": "org/tiny"}})
    assert message.endswith("give the folder of a checkpoint, or a .gguf file")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/c/hub/models--Qwen--Qwen3-0.6B/snapshots/0123", "Qwen/Qwen3-0.6B"),
        ("/c/models--a--b--c/snapshots/0123", "a/b--c"),
        ("/models/tiny-py-lm", "tiny-py-lm"),
        ("/models/x.gguf", "x"),
    ],
)
def test_names_for_clients(path: str, name: str) -> None:
    assert hub.name_of(path) == name
