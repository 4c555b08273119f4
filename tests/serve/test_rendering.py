"""A chat template is a foreign program: it must not block or end the server."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from specdec_hal.engine import rendering
from specdec_hal.engine.rendering import Renderer
from specdec_hal.errors import CheckpointError, RequestError
from specdec_hal.models.chat import ChatTemplate
from specdec_hal.serve import service
from tests.serve.conftest import Running, serving
from tests.support.processes import descendants

CHAT = "/v1/chat/completions"

MESSAGES = [{"role": "user", "content": "Grüße 😀"}, {"role": "assistant", "content": "🎉"}]
PLAIN = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }}"
LOOP = "{% for n in range(99999) %}"
FOREVER = LOOP * 3 + "{% endfor %}" * 3
FATAL = {
    "loop": FOREVER,
    "calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "power": "{% set n = messages | length %}{{ (9 + n) ** (99999999 + n) }}",
}
LARGE = {
    "width": "{{ messages[0].content | center(10 ** 10 + messages | length) }}",
    "doubling": "{% set ns = namespace(t='x') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "output": LOOP + "{{ messages[0].content * 1000 }}{% endfor %}",
    "list": "{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
}


def render(renderer: Renderer, **arguments: Any) -> str:
    return asyncio.run(renderer.render({"messages": [{"role": "user", "content": "a"}], **arguments}))


@pytest.fixture(scope="module")
def plain() -> Iterator[Renderer]:
    yield Renderer(ChatTemplate(PLAIN, {"bos_token": "<s>"}), 60)


def test_the_same_text_as_in_this_process(plain: Renderer) -> None:
    template = ChatTemplate(PLAIN, {"bos_token": "<s>"})
    for arguments in (
        {"messages": MESSAGES},
        {"messages": MESSAGES[1:], "tools": [{"big": 1 << 80, "é": [None, 1.5, "\u2028"]}], "other": {"a": [1]}},
    ):
        assert render(plain, **arguments) == template.render(**arguments)  # type: ignore[arg-type]


def test_refusals_are_those_of_this_process() -> None:
    renderer = Renderer(ChatTemplate("{{ raise_exception('alternate ' + messages[0].role) }}"), 60)
    for _ in range(2):
        with pytest.raises(RequestError, match="the chat template refuses them: alternate user"):
            render(renderer)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RequestError, match="JSON can hold"):
        render(renderer, tools=deep)


@pytest.mark.parametrize("name", FATAL)
def test_a_loop_is_ended(name: str) -> None:
    renderer = Renderer(ChatTemplate("{% if bad %}" + FATAL[name] + "{% endif %}fine"), 1.0)
    assert render(renderer) == "fine"
    start = time.monotonic()
    with pytest.raises(RequestError, match="rendering the chat template has taken more than 1 s"):
        render(renderer, bad=True)
    assert time.monotonic() - start < 30
    assert render(renderer) == "fine"


def test_a_killed_process_is_the_servers_failure() -> None:
    with serving(template=ChatTemplate("{% if messages[0].content == 'b' %}" + FOREVER + "{% endif %}a")) as running:

        def chat(content: str) -> Any:
            return running.post({"messages": [{"role": "user", "content": content}], "max_tokens": 1}, CHAT)

        def kill() -> None:
            assert running.service.renderer is not None
            worker = running.service.renderer.worker
            running.until(lambda: not worker.idle)
            os.kill(descendants(os.getpid(), rendering.__name__)[-1], signal.SIGKILL)

        assert chat("a").status_code == 200
        with ThreadPoolExecutor(1) as thread:
            looping = thread.submit(chat, "b")
            kill()
            answer = looping.result()
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert "rendering the chat template has failed: its process was ended by SIGKILL" in answer.text
        assert chat("a").status_code == 200


@pytest.mark.parametrize("name", LARGE)
def test_what_takes_too_much_memory(name: str) -> None:
    renderer = Renderer(ChatTemplate("{% if bad %}" + LARGE[name] + "{% endif %}fine"), 60)
    with pytest.raises(RequestError, match=r"fails on them: |at most 16777216 characters|refuses them"):
        render(renderer, bad=True)
    assert render(renderer) == "fine"


@pytest.mark.parametrize(
    "source", ["{% if a %}" * 3000 + "{% endif %}" * 3000, "{{ " + "(" * 5000 + ")" * 5000 + " }}"]
)
def test_deep_nesting_is_no_template(source: str) -> None:
    """It ended in a crash report."""
    with pytest.raises(CheckpointError, match="chat template: expected a Jinja template, got "):
        ChatTemplate(source)


def test_a_template_that_loops_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It blocked the server forever."""
    monkeypatch.setattr(service, "Renderer", lambda template: Renderer(template, 2.0))
    with serving(template=ChatTemplate("{% if messages[0].content == 'b' %}" + FOREVER + "{% endif %}a")) as running:
        asyncio.run(_while_it_loops(running))


async def _while_it_loops(running: Running) -> None:
    def chat(content: str) -> Any:
        return running.http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        )

    looping = asyncio.create_task(asyncio.to_thread(chat, "b"))
    turns = 0
    while not looping.done():
        assert (await asyncio.to_thread(running.http.get, "/health")).status_code == 200
        turns += not looping.done()
        await asyncio.sleep(0.05)
    assert looping.result().status_code == 400 and "more than 2 s" in looping.result().text
    assert turns >= 5
    assert chat("a").status_code == 200
