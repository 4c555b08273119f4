"""Bodies in a file are answered as the server answers them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdec_hal import models
from specdec_hal.batch.blocks import OutputFolder, scan
from specdec_hal.batch.replica import Replica, dump
from specdec_hal.config import parse
from tests.serve.conftest import MODEL, ROOT, serving
from tests.support.history_model import HistoryModel, LetterTokenizer

TEXT = {"role": "user", "content": "abc"}
SAMPLED = {"temperature": 1.5, "seed": 11, "max_tokens": 9}
BODIES: list[dict[str, Any]] = [
    {"prompt": "abab", "max_tokens": 12, "temperature": 0, "seed": 0},
    {"prompt": ["ab", "cdcd"], "n": 3, **SAMPLED, "logprobs": 2, "echo": True, "model": MODEL},
    {"prompt": [1, 2, 3], **SAMPLED, "return_token_ids": True, "return_drafts": True, "return_spans": True},
    {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1, "seed": 1},
    {"prompt": "abc", "prompt_logprobs": 2, "ignore_eos": True, **SAMPLED, "stop": "d"},
    {"messages": [TEXT], "n": 2, **SAMPLED, "logprobs": True, "top_logprobs": 2},
    {"messages": [TEXT], "max_tokens": 8, "temperature": 0, "seed": 0, "method": "none"},
    {"prompt": "abc", "top_p": 3},
    {"prompt": "abc", "model": "another"},
    {"prompt": "abc", "method": "eagle3"},
    {"messages": [TEXT, {"role": 5}]},
    {"input": "abc", "max_output_tokens": 9, "temperature": 1.5, "seed": 11},
    {"input": [TEXT], "max_output_tokens": 9, "temperature": 0, "top_logprobs": 2, "seed": 0},
    {"input": "abc", "tools": [{"type": "web_search"}]},
    {"messages": [TEXT], "max_tokens": 0},
]


def test_as_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ROOT / "models" / "tiny-py-lm" / "chat_template.jinja"
    sections: dict[str, Any] = {"runner": {"max_num_seqs": 4}}
    config = parse(
        {
            "backend": {"name": "reference"},
            "model": {"path": str(tmp_path)},
            "speculative": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
            "serve": {"served_model_name": MODEL, "chat_template": str(template)},
            **sections,
        }
    )
    monkeypatch.setitem(models.__dict__, "load_model", lambda path, framework="auto", **_: HistoryModel())
    monkeypatch.setitem(models.__dict__, "load_tokenizer", lambda path: LetterTokenizer())
    urls = [
        "/v1/responses" if "input" in body else f"/v1/{'chat/' if 'messages' in body else ''}completions"
        for body in BODIES
    ]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": url, "body": body}
        for number, (url, body) in enumerate(zip(urls, BODIES, strict=True))
    ]
    source = tmp_path / "lines.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (block,), folder = scan(source, 256).blocks, OutputFolder(tmp_path / "out")
    with folder.begun({}):
        Replica(dump(config), str(source), str(folder.path), 3)(block.__dict__)
        rows = list(folder.answers(block))
    with serving(**sections) as running:
        for url, body, row in zip(urls, BODIES, rows, strict=True):
            answer = running.post(body, url)
            expected = answer.json()
            if answer.status_code != 200:
                assert row["response"] is None
                error = expected["error"]
                assert row["error"] == {"code": error["type"], "message": error["message"]}
                continue
            found = row["response"]["body"]
            created = "created_at" if "input" in body else "created"
            assert row["error"] is None and found[created] == 0
            for told in (found, expected):
                del told["id"], told[created]
                for item in told.get("output", ()):
                    del item["id"]
            assert found == expected
    assert sum(row["error"] is not None for row in rows) == 6
