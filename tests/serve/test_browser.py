"""The page at / in a real browser: Playwright drives Debian's Chromium, without a screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Running, serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=60_000)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails the test with what its console says."""
    opened, complaints = browser.new_page(), list[str]()
    opened.set_default_timeout(WAIT_MS)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert not complaints


def fill(page: Any, **values: str) -> None:
    for name, value in values.items():
        page.fill(f"#{name}", value)


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name).click()


def test_a_text_streams_with_its_accepted_drafts_marked(running: Running, page: Any) -> None:
    page.goto(running.url)
    expect = playwright.expect
    expect(page.locator("#model")).to_have_text("letters on reference, drafts: ngram")
    fill(page, prompt="dfgfgfg", tokens="40")
    press(page, "Generate")
    expect(page.locator("#usage")).to_have_text(re.compile("accepted"), timeout=WAIT_MS)
    answer = running.post({"prompt": "dfgfgfg", "max_tokens": 40, "return_spans": True}).json()
    usage, spans = answer["usage"], answer["choices"][0]["spans"]
    shown = page.eval_on_selector_all("#text > *", "nodes => nodes.map(n => [n.textContent, n.tagName === 'MARK'])")
    assert shown == spans and any(flag for _, flag in spans)
    counts = f"{usage['accepted_tokens']} of {usage['drafted_tokens']} drafted tokens accepted"
    assert page.inner_text("#usage") == f"{usage['completion_tokens']} tokens, {counts}"
    marked = page.eval_on_selector("#text > mark", "node => getComputedStyle(node).backgroundColor")
    assert marked == "rgb(201, 239, 214)", "a reader sees which"
    expect(page.locator("#positions > div")).to_have_count(3)
    expect(page.locator("#generated")).to_have_text(str(2 * usage["completion_tokens"]), timeout=WAIT_MS)


def test_stop_ends_the_generation_and_errors_are_shown(running: Running, page: Any) -> None:
    page.goto(running.url)
    running.model.gate.clear()
    fill(page, prompt="ab", tokens="60")
    press(page, "Generate")
    running.until(lambda: len(running.service.live) == 1)
    playwright.expect(page.locator("#running")).to_have_text("1")
    press(page, "Stop")
    running.until(lambda: not running.service.live)
    running.model.gate.set()
    fill(page, prompt="{", tokens="5")
    press(page, "Generate")
    playwright.expect(page.locator("#usage")).to_have_text(re.compile("outside the vocabulary"))


def test_the_key_is_asked_for(page: Any) -> None:
    with serving("sesame") as running:
        page.goto(running.url)
        playwright.expect(page.locator("#status")).to_have_text(re.compile("API key"))
        fill(page, key="sesame", prompt="ab", tokens="5")
        press(page, "Generate")
        playwright.expect(page.locator("#usage")).to_have_text(re.compile("drafted tokens accepted"))
        playwright.expect(page.locator("#status")).to_have_text("")


def test_nothing_is_loaded_from_elsewhere(running: Running, page: Any, tmp_path: Path) -> None:
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(running.url)
    playwright.expect(page.locator("#model")).to_have_text(re.compile("letters"))
    assert asked and all(url.startswith(running.url) for url in asked)
