"""Chat templates: the default, those of checkpoints, and messages that a template refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import nodes

from specdec_hal.errors import CheckpointError, RequestError
from specdec_hal.models.chat import ChatTemplate, load_chat_template

ROOT = Path(__file__).parents[2]
MESSAGES = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "Hi"}]
CHATML = """{% for message in messages %}
<|{{ message.role }}|>{{ message.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def checkpoint(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_checkpoint_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_chat_template(checkpoint(tmp_path)) is None
    assert load_chat_template(checkpoint(tmp_path, {"eos_token": "</s>"})) is None


def test_the_embedded_model_continues_the_lines_of_all_messages() -> None:
    assert load_chat_template(ROOT / "models/tiny-py-lm").render(MESSAGES) == "Be <brief>.\nHi"


def test_templates_by_name(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    named = [{"name": "tool_use", "template": "tools: {{ tools[0].function.name }}"}, {"name": "x", "template": "x"}]
    template = load_chat_template(
        checkpoint(tmp_path, {"chat_template": [*named, {"name": "default", "template": "d"}]})
    )
    assert template.render(MESSAGES) == "d" and template.render(MESSAGES, tools=tools) == "tools: f"
    (tmp_path / "chat_template.jinja").write_text("{{ tools }} file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("file with tools")
    template = load_chat_template(tmp_path)
    assert template.render(MESSAGES) == "None file" and template.render(MESSAGES, tools=tools) == "file with tools"
    with pytest.raises(RequestError, match="expected a chat template named 'default', got 'tool_use', 'x'"):
        ChatTemplate({one["name"]: one["template"] for one in named}).render(MESSAGES)
    assert ChatTemplate({"x": "alone"}).render(MESSAGES) == "alone"


def test_a_developer_is_the_system_where_a_template_does_not_know_one() -> None:
    messages = [{"role": "developer", "content": "Be brief."}]
    assert ChatTemplate("{{ messages[0].role }}").render(messages) == "system"
    assert ChatTemplate("{% if false %}developer{% endif %}{{ messages[0].role }}").render(messages) == "developer"
    assert messages[0]["role"] == "developer"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 9 ** 9 }}",
        "{% if 9 ** 9 > 1 %}{% endif %}",
        "{% set a = 9 ** 9 %}",
        "{% for a in [9 ** 9] %}{% endfor %}",
        "{{ a[9 ** 9] ~ (9 ** 9 is odd) }}",
        "{{ 'a' | center(10) }}",
        "{% generation %}{{ [9 ** 9] | list }}{% endgeneration %}",
    ],
)
def test_constants_are_not_evaluated_before_rendering(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering has limits, compiling has none: larger exponents and widths took hours or all memory."""
    evaluated = []
    for kind in (nodes.BinExpr, nodes.Filter):
        monkeypatch.setattr(kind, "as_const", lambda node, context=None: evaluated.append(node))
    ChatTemplate(source)
    assert not evaluated


def test_autoescape_is_refused() -> None:
    """Jinja evaluates its argument while compiling."""
    with pytest.raises(CheckpointError, match="expected no autoescape"):
        ChatTemplate("{% autoescape 9 > 1 %}{% endautoescape %}")


PUBLISHED = {
    "chatml with a default system message": """{% for message in messages %}{% if loop.first and messages[0]['role'] \
!= 'system' %}{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + \
'\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}\
{{ '<|im_start|>assistant\n' }}{% endif %}""".replace("\\\n", ""),
    "generation marks, loop controls and a namespace": """{{ bos_token }}
{%- set ns = namespace(seen=0) -%}
{% for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif -%}
    {%- set ns.seen = ns.seen + 1 -%}
    {% if message.role == 'assistant' %}
    {% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
    {% else %}[{{ ns.seen }}] {{ message.content | trim }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}""",
    "tools as JSON": """{% if tools %}{% for tool in tools %}
{{ tool | tojson(indent=2) }}{{ tool | tojson(ensure_ascii=False) }}
{{ tool | tojson(sort_keys=True, separators=(',', ':')) }}
{% endfor %}{% endif %}{% for m in messages %}{{ m | tojson }}{% endfor %}""",
    "keywords of the template": """{% if enable_thinking is defined and not enable_thinking %}no thinking{% endif %}
{{ documents[0].title if documents else 'no documents' }}{% for m in messages %}{{ m.role }}{% break %}{% endfor %}""",
    "a date": "{{ strftime_now('%Y') | length }}{{ messages[-1].content.split(' ')[-1] }}",
}
CHATS = {
    "one question": [{"role": "user", "content": " Größe? <b>'\"&</b> "}],
    "several turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "and 3 + 3?\n"},
    ],
}
OPTIONS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False, "enable_thinking": False, "documents": [{"title": "Ünï", "text": "x"}]},
    {"add_generation_prompt": True, "tools": [{"type": "function", "function": {"name": "größe", "parameters": {}}}]},
    {"add_generation_prompt": False, "continue_final_message": True},
]


@pytest.mark.torch
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_prompts_are_those_of_transformers(name: str, chat: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source, tokens = PUBLISHED[name], {"bos_token": "<s>", "eos_token": "</s>"}
    template, shown = ChatTemplate(source, tokens), 0
    for options in OPTIONS:
        try:
            (expected,), _ = render_jinja_template([CHATS[chat]], chat_template=source, **options, **tokens)
        except ValueError:  # this template cannot continue a message
            with pytest.raises(RequestError):
                template.render(CHATS[chat], **options)
            continue
        assert template.render(CHATS[chat], **options) == expected
        shown += 1
    assert shown >= 3


def test_the_final_message_is_continued() -> None:
    template, messages = ChatTemplate(CHATML), [*MESSAGES, {"role": "assistant", "content": "The capital is "}]
    how: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert template.render(messages, **how).endswith("<|assistant|>The capital is ")
    trimming = ChatTemplate("{{ messages[-1].content | trim }}|")
    assert trimming.render(messages, **how) == "The capital is"
    with pytest.raises(RequestError, match="expected add_generation_prompt to be false"):
        template.render(messages, continue_final_message=True)
    with pytest.raises(RequestError, match="expected text in the last message that the template shows"):
        ChatTemplate("{{ messages | length }}").render(messages, **how)
    with pytest.raises(RequestError, match="expected text in the last message"):
        template.render([{"role": "assistant", "content": None}], **how)


SMOLVLM = """<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]\
['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == \
'text' %}{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}""".replace("\\\n", "")
IDEFICS = SMOLVLM.replace("message['role'] | capitalize", "message['role'].capitalize()").replace("<|im_start|>", "")
LLAVA = """{% for message in messages %}{{ message['role'].upper() + ': ' }}{% for content in message['content'] | \
selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}{% endfor %}""".replace("\\\n", "")
EITHER = """{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}\
{% for part in message.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}""".replace("\\\n", "")
MLLAMA = "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}" + (
    "{% endif %}" + EITHER
)
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (SMOLVLM, "Hi", "<|im_start|>User: Hi<end_of_utterance>\nAssistant:"),
        (SMOLVLM, PARTS, "<|im_start|>User: ab<end_of_utterance>\nAssistant:"),
        (SMOLVLM, "", "<|im_start|>User: <end_of_utterance>\nAssistant:"),
        (IDEFICS, "Hi", "User: Hi<end_of_utterance>\nAssistant:"),
        (IDEFICS, PARTS, "User: ab<end_of_utterance>\nAssistant:"),
        (LLAVA, "Hi", "USER: Hi "),
        (LLAVA, PARTS, "USER: a b "),
        (CHATML, "Hi", "<|user|>Hi\n<|assistant|>"),
        (CHATML, PARTS, "<|user|>a\nb\n<|assistant|>"),
        ("{{ messages[0].content | tojson }}", PARTS, r'"a\nb"'),
        (EITHER, "Hi", "Hi"),
        (EITHER, PARTS, "<a><b>"),
        ("{% if messages | length > 1 %}{{ messages[1].content }}{% endif %}", PARTS, ""),
    ],
)
def test_content_has_the_form_that_the_template_shows(source: str, content: Any, expected: str) -> None:
    """SmolVLM and LLaVA showed no message of text."""
    assert ChatTemplate(source).render([{"role": "user", "content": content}]) == expected


def test_the_form_may_depend_on_the_role() -> None:
    messages = [{"role": "system", "content": PARTS}, {"role": "user", "content": PARTS}]
    assert ChatTemplate(MLLAMA).render(messages) == "a\nb<a><b>"
    assert messages[0]["content"] == PARTS


@pytest.mark.parametrize("content", ["The capital is ", [{"type": "text", "text": "The capital is "}]])
def test_a_final_message_of_parts_is_continued(content: Any) -> None:
    messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": content}]
    for source, start in ((SMOLVLM, "Assistant: "), (CHATML, "<|assistant|>")):
        text = ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True)
        assert text.endswith(f"{start}The capital is ")


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
    with pytest.raises(CheckpointError, match="expected a JSON object, got list"):
        load_chat_template(tmp_path)


def test_a_tokenizer_config_with_many_added_tokens(tmp_path: Path) -> None:
    """Gemma 3's has 1.2 MB."""
    added = {str(i): {"content": "x" * 200} for i in range(8000)}
    settings = {"chat_template": "{{ eos_token }}", "eos_token": "<e>", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    template = load_chat_template(tmp_path)
    assert template is not None and template.render([]) == "<e>"
