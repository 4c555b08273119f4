"""Chat templates: the default, those of checkpoints, and messages that a template refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.errors import CheckpointError, RequestError
from specdec_hal.serve.chat import ChatTemplate, load_chat_template

MESSAGES = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "Hi"}]
CHATML = """{% for message in messages %}
<|{{ message.role }}|>{{ message.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def checkpoint(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_the_default_continues_the_lines_of_all_messages(tmp_path: Path) -> None:
    assert load_chat_template(checkpoint(tmp_path)).render(MESSAGES) == "Be <brief>.\nHi"


@pytest.mark.parametrize(
    "template", [CHATML, [{"name": "tools", "template": "no"}, {"name": "default", "template": CHATML}]]
)
@pytest.mark.parametrize("end", ["</s>", {"content": "</s>", "lstrip": False}])
def test_a_checkpoints_own(tmp_path: Path, template: Any, end: Any) -> None:
    folder = checkpoint(tmp_path, {"chat_template": template, "eos_token": end, "bos_token": None})
    wanted = "<|system|>Be <brief>.</s>\n<|user|>Hi</s>\n<|assistant|>"
    assert load_chat_template(folder).render(MESSAGES) == wanted
    (tmp_path / "chat_template.jinja").write_text("{{ messages[1].content | tojson }}{{ eos_token }}")
    assert load_chat_template(folder).render(MESSAGES) == '"Hi"</s>'
    (tmp_path / "mine.jinja").write_text("{{ bos_token }}{{ messages | length }}")
    assert load_chat_template(folder, str(tmp_path / "mine.jinja")).render(MESSAGES) == "2"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages.append(1) }}", "is not safely callable|unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_messages_that_a_template_refuses(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate(source).render(MESSAGES)


def test_files_that_are_no_template(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a Jinja template"):
        ChatTemplate("{% for %}")
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        load_chat_template(tmp_path, str(tmp_path / "missing"))
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="expected JSON"):
        load_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="expected an object"):
        load_chat_template(tmp_path)
