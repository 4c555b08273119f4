"""The page at / in a real browser: Playwright drives Debian's Chromium, without a screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from specdec_hal.models.chat import ChatTemplate
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
    playwright.expect(page.locator("#failure")).to_have_text(re.compile("outside the vocabulary"))


def test_the_key_is_asked_for(page: Any) -> None:
    with serving("sesame") as running:
        page.goto(running.url)
        playwright.expect(page.locator("#status")).to_have_text(re.compile("API key"))
        fill(page, key="sesame", prompt="ab", tokens="5")
        press(page, "Generate")
        playwright.expect(page.locator("#usage")).to_have_text(re.compile("drafted tokens accepted"))
        playwright.expect(page.locator("#status")).to_have_text("")


LETTERS = ChatTemplate("{{ messages | map(attribute='content') | join }}")
"""A chat's prompt without line ends, which LetterTokenizer does not have."""


def say(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")
    playwright.expect(page.locator("#stop")).to_be_disabled()


def test_a_chat_streams_with_its_accepted_drafts_marked_and_remembers(page: Any) -> None:
    sent = list[Any]()
    page.on("request", lambda request: request.method == "POST" and sent.append(request.post_data_json))
    with serving(template=LETTERS) as running:
        page.goto(running.url)
        page.get_by_label("Chat").check()
        playwright.expect(page.locator("#prompt")).to_be_hidden()
        fill(page, tokens="30")
        say(page, "dfgfgfg")
        playwright.expect(page.locator("#usage")).to_have_text(re.compile("drafted tokens accepted"))
        body = {"messages": [{"role": "user", "content": "dfgfgfg"}], "max_tokens": 30, "return_spans": True}
        choice = running.post(body, "/v1/chat/completions").json()["choices"][0]
        shown = page.eval_on_selector_all(
            "#turns > .assistant > *", "nodes => nodes.map(n => [n.textContent, n.tagName === 'MARK'])"
        )
        assert shown == choice["spans"] and any(flag for _, flag in shown)
        say(page, "ab")
        answer = {"role": "assistant", "content": choice["message"]["content"]}
        assert sent[1]["messages"] == [*body["messages"], answer, {"role": "user", "content": "ab"}]
        page.get_by_role("button", name="New chat").click()
        playwright.expect(page.locator("#turns > *")).to_have_count(0)
        say(page, "cd")
        assert sent[2]["messages"] == [{"role": "user", "content": "cd"}]


def test_a_chat_that_is_stopped_keeps_what_came(page: Any) -> None:
    sent = list[Any]()
    page.on("request", lambda request: request.method == "POST" and sent.append(request.post_data_json))
    with serving(template=LETTERS) as running:
        page.goto(running.url)
        page.get_by_label("Chat").check()
        running.model.gate.clear()
        fill(page, message="ab", tokens="60")
        press(page, "Generate")
        running.until(lambda: len(running.service.live) == 1)
        press(page, "Stop")
        running.until(lambda: not running.service.live)
        running.model.gate.set()
        playwright.expect(page.locator("#stop")).to_be_disabled()
        fill(page, tokens="3")
        say(page, "cd")
        assert [turn["content"] for turn in sent[1]["messages"]] == ["ab", "", "cd"]


def test_a_model_without_a_template_says_so_and_the_message_stays(running: Running, page: Any) -> None:
    running.service.renderer = None
    page.goto(running.url)
    page.get_by_label("Chat").check()
    say(page, "ab")
    playwright.expect(page.locator("#failure")).to_have_text(re.compile("'letters' has no chat template"))
    playwright.expect(page.locator("#turns > *")).to_have_count(0)
    assert page.input_value("#message") == "ab"
    page.get_by_label("Completion").check()
    fill(page, prompt="ab", tokens="5")
    press(page, "Generate")
    playwright.expect(page.locator("#usage")).to_have_text(re.compile("drafted tokens accepted"))
    playwright.expect(page.locator("#failure")).to_have_text("")


def test_the_last_minutes_are_lines_with_gaps_where_nothing_is_known(running: Running, page: Any) -> None:
    page.goto(running.url)
    fill(page, prompt="dfgfgfg", tokens="40")
    press(page, "Generate")
    alone = re.compile(r"^M[\d.]+ [\d.]+h0$")
    playwright.expect(page.locator("#lengths .series")).to_have_attribute("d", alone)
    playwright.expect(page.locator("#lengths .dot")).to_have_attribute("d", alone)  # a line of one point is not seen
    playwright.expect(page.locator("#rates .dot")).to_have_attribute("d", "")
    playwright.expect(page.locator("#rates .series")).to_have_attribute("d", re.compile(r"h0(L[\d.]+ [\d.]+)+$"))
    playwright.expect(page.locator("#rates")).to_contain_text("minutes ago")
    lines = page.evaluate("""() => {
        points.splice(0, points.length, ...[10, null, 20, 40].map((rate, i) => ({ seconds: 60 * i, rate, length: 2 })));
        draw(at("rates"), "rate", 0);
        return document.querySelector("#rates .series").getAttribute("d").replaceAll(/[\\d.]+ [\\d.]+/g, "p");
    }""")
    assert lines == "Mph0Mph0Lp", "the second minute is missing"
    heights = re.findall(r" ([\d.]+)", page.get_attribute("#rates .series", "d"))
    assert float(heights[0]) > float(heights[1]) > float(heights[2]), "more is higher"


BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}
LUMINANCES = """(names) => names.map((name) => {
    const style = getComputedStyle(document.querySelector(name));
    const luminance = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const bare = style.backgroundColor === "rgba(0, 0, 0, 0)";
    const under = bare ? getComputedStyle(document.body).backgroundColor : style.backgroundColor;
    return [style.color, under].map(luminance);
})"""


@pytest.mark.parametrize("scheme", BACKGROUNDS)
def test_both_schemes_can_be_read(running: Running, page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(running.url)
    assert page.eval_on_selector("body", "body => getComputedStyle(body).backgroundColor") == BACKGROUNDS[scheme]
    for name, pair in zip(
        names := ["body", "dt", "mark", ".error", "#prompt"], page.evaluate(LUMINANCES, names), strict=True
    ):
        low, high = sorted(pair)
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name}: the contrast that WCAG asks of text"


APART = """() => [...document.querySelectorAll("form .row:not(.tabs) label")].filter((label) => {
    const words = document.createRange();
    words.selectNode(label.firstChild);
    const [text, field] = [words, label.querySelector("input")].map((part) => part.getBoundingClientRect());
    return text.bottom <= field.top || field.right > innerWidth;
}).map((label) => label.textContent)"""
"""The labels whose field is in another line, or beside the screen."""


def test_a_phone_shows_all_of_it(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    with serving(speculative={"method": "ngram", "num_speculative_tokens": 16, "adaptive": False}) as running:
        page.goto(running.url)
        fill(page, prompt="dfgfgfg", tokens="40")
        press(page, "Generate")
        playwright.expect(page.locator("#usage")).to_have_text(re.compile("accepted"))
        playwright.expect(page.locator("#positions > div")).to_have_count(16)
        words = "bars => bars.map(bar => bar.offsetHeight - bar.querySelector('i').offsetHeight)"
        assert max(page.eval_on_selector_all("#positions > div", words)) < 40, "pixels of two lines: no label wraps"
        for tab in ("Completion", "Chat"):
            page.get_by_label(tab).check()
            assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing is beside the screen"
            assert not page.evaluate(APART), "labels are beside their fields"
