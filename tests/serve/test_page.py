"""The page at /: it stands alone, and what its script reads is what the server sends."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from specdec_hal.serve.app import PAGE
from tests.serve.conftest import Running, serving

TEXT = PAGE.read_text()
SCRIPT = re.findall(r"<script>\n(.*)</script>", TEXT, re.S)[0]


def test_it_needs_no_key_and_loads_nothing() -> None:
    with serving("sesame") as running:
        answer = httpx.get(running.url)
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.text == TEXT
    assert not re.findall(r"https?:|\bsrc=|@import|<link", TEXT)


def test_every_element_of_the_script_exists() -> None:
    asked = set(re.findall(r'\bat\("(\w+)"\)', SCRIPT))
    assert len(asked) > 10 and asked <= set(re.findall(r'\bid="(\w+)"', TEXT))


def test_every_metric_of_the_script_exists(running: Running) -> None:
    running.post({"prompt": [3, 5], "max_tokens": 5})
    shown = set(re.findall(r'"(vllm:\w+)"', SCRIPT))
    assert len(shown) > 5 and shown <= set(re.findall(r"^([\w:]+)\{", running.http.get("/metrics").text, re.M))


# What a browser has and Node.js has not; the script then runs as it is.
BROWSER = """
const nodes = {};
function node() {
  return { value: "", textContent: "", style: {}, children: [], listeners: {},
    append(...more) { this.children.push(...more); }, replaceChildren(...all) { this.children = all; },
    addEventListener(name, call) { this.listeners[name] = call; } };
}
globalThis.document = { getElementById: (id) => (nodes[id] ??= node()),
  createElement: (tag) => Object.assign(node(), { tag }) };
Object.assign(document.getElementById("rates"), { clientWidth: 400, clientHeight: 160 });
Object.assign(document.getElementById("lengths"), { clientWidth: 400, clientHeight: 160 });
const ask = globalThis.fetch;
globalThis.fetch = (path, options) => ask(new URL(path, process.argv[2] + "/"), options);
"""
USE = """
(async () => {
  const wait = (done) => new Promise((go) => { const t = setInterval(() => done() && (clearInterval(t), go()), 10); });
  await wait(() => nodes.model?.textContent);
  Object.assign(document.getElementById("prompt"), { value: "dfgfgfg" });
  Object.assign(document.getElementById("tokens"), { value: "40" });
  nodes.form.listeners.submit({ preventDefault() {} });
  await wait(() => nodes.usage?.textContent);
  await wait(() => Number(nodes.generated?.textContent) > 0);
  const texts = nodes.text.children.map((child) => [child.tag, child.textContent]);
  const bars = nodes.positions.children.length, charts = nodes.rates.innerHTML + nodes.lengths.innerHTML;
  console.log(JSON.stringify({ model: nodes.model.textContent, usage: nodes.usage.textContent, texts, bars, charts }));
  process.exit(0);
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_the_script_against_a_server(running: Running, tmp_path: Path) -> None:
    (tmp_path / "page.js").write_text(BROWSER + SCRIPT.replace('"use strict";', "") + USE)
    command = ["node", str(tmp_path / "page.js"), running.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    body = {"prompt": "dfgfgfg", "max_tokens": 40, "return_spans": True}
    answer = running.post(body).json()
    usage = answer["usage"]
    assert shown["model"] == "letters on reference, drafts: ngram" and shown["bars"] == 3
    counts = f"{usage['accepted_tokens']} of {usage['drafted_tokens']} drafted tokens accepted"
    assert shown["usage"] == f"{usage['completion_tokens']} tokens, {counts}" and usage["accepted_tokens"] > 0
    assert shown["texts"] == [["mark" if flag else "span", piece] for piece, flag in answer["choices"][0]["spans"]]
    assert re.search(r'class="series" d="M[\d.]+ [\d.]+h0', shown["charts"]) and "NaN" not in shown["charts"]
