"""`specdec-hal audit --model-path`: the model in this process is the plain side of any server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from specdec_hal.cli import main
from specdec_hal.errors import ConfigError
from specdec_hal_conformance.audit.answers import Answers
from specdec_hal_conformance.audit.endpoint import Endpoint
from specdec_hal_conformance.audit.local import Local
from specdec_hal_conformance.audit.run import Audit, Budget, Report
from tests.support.hf_models import write_model

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
Change = Callable[[dict[str, Any]], None]
GREEDY = ("greedy", "together", "logprobs", "forced")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    vocabulary = len(json.loads((ROOT / "models/tiny-py-lm/tokenizer.json").read_text())["model"]["vocab"])
    write_model(made, "Llama", vocab_size=vocabulary)
    shutil.copy(ROOT / "models/tiny-py-lm/tokenizer.json", made)
    (made / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return made


class Server:
    """An honest engine behind HTTP; `change` alters its choices. `chats`: it has no completions."""

    def __init__(self, folder: Path, change: Change = lambda choice: None, chats: bool = False) -> None:
        self.model, self._change, self._chats = Local(folder), change, chats
        self.model.tokenizer.chat_template = "{% for one in messages %}{{ one.content }}\n{% endfor %}"
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        if request.method != "POST" or (self._chats and "chat" not in request.url.path):
            return httpx.Response(404)
        answer = self.model.send("POST", request.url.path, json.loads(request.content))
        for choice in answer["choices"]:
            self._change(choice)
        return httpx.Response(200, json=answer)


def audit(folder: Path, server: Server, *only: str) -> Report:
    drafted = Endpoint("http://server", transport=server.transport)
    plain = Local(folder, drafted)
    plain.tokenizer.chat_template = server.model.tokenizer.chat_template
    return Audit(plain, drafted, Budget(tokens=12, longest=64, samples=32, requests=1), Answers(), only).run()


def faults(report: Report) -> set[str]:
    return {check.name for check in report.checks if check.findings}


def quiet(choice: dict[str, Any]) -> None:
    del choice["logprobs"]


def dropped(choice: dict[str, Any]) -> None:
    quiet(choice)
    choice["text"] = choice["text"][:5] + choice["text"][7:]


def off(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][8:9] = [0.0] * (len(choice["logprobs"]["tokens"]) > 8)


@pytest.mark.parametrize("chats", [False, True])
@pytest.mark.parametrize("change", [lambda choice: None, quiet])
def test_an_honest_server_passes(folder: Path, change: Change, chats: bool) -> None:
    report = audit(folder, Server(folder, change, chats), *GREEDY, "sampled", "usage")
    assert report.status == 0, [check.findings[:1] for check in report.checks]
    checks = {check.name: check for check in report.checks}
    assert checks["forced"].asked > 40 and checks["forced"].compared > 300
    assert {name for name, check in checks.items() if check.skipped} == {"logprobs", "usage"}


@pytest.mark.parametrize(("change", "found"), [(dropped, {"greedy", "together", "forced"}), (off, {"forced"})])
def test_a_fault_is_found(folder: Path, change: Change, found: set[str]) -> None:
    assert faults(audit(folder, Server(folder, change), *GREEDY)) == found


def test_texts_are_scored_by_the_tokens_that_make_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever texts are: characters of several bytes, an end that is not likely, other tokens than the best."""
    monkeypatch.setattr("specdec_hal_conformance.audit.local.MOST_TRIED", 10**6)
    model = Local(folder)
    (answer,) = model.complete("def add", 12, temperature=0)
    scored = model.score("def add", answer, 0.0)
    assert [one.logprob for one in scored] == pytest.approx([one.logprob for one in answer.tokens], abs=1e-4)
    assert "".join(one.text for one in scored) == answer.text
    other = answer._replace(text="\u00e9\U0001f600" + answer.text)
    scored = model.score("def add", other, float("inf"))
    assert len(scored) > 3 and max(scored[0].top.values()) > (scored[0].logprob or 0.0)
    assert len(model.score("def add", other, 0.5)) == 1
    ended = model.score("def add", answer._replace(finish_reason="stop"), 0.5)
    assert len(ended) == len(answer.tokens) + 1 and ended[-1].text == ""
    assert max(ended[-1].top.values()) - (ended[-1].logprob or 0.0) > 0.5


def test_the_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, made = Server(folder), Endpoint.__init__
    monkeypatch.setattr(
        Endpoint,
        "__init__",
        lambda self, url, model, extra, wait: made(self, url, model, extra, wait, server.transport),
    )
    short = ["--drafted", "http://server", "--tokens", "8", "--context", "64", "--check", "greedy", "--json"]
    assert main(["audit", "--model-path", str(folder), *short]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "no draft changed an answer" and document["checks"][0]["equal"] > 20
    assert main(["audit", "--model-path", str(tmp_path), *short]) == 2
    assert "--model-path" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="expected a checkpoint of transformers"):
        Local(tmp_path)
