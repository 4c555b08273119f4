"""Draws docs/home.svg: a text that the embedded model wrote, its accepted drafts marked, and three recorded figures.

`python tools/home_picture.py` writes the file; tests/test_home_picture.py draws it again and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import specdec_hal as sd

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "home.svg"
PROMPT = ROOT / "examples" / "prompts" / "edit_function.txt"
TOKENS, ABOVE = 74, 3
"""Tokens to write, and lines of the prompt that stay in sight above them."""
WIDTH, LINE, CHAR, LEFT = 660, 20, 7.8, 18
PAPER, CARD, DIM, OWN, DRAFT, BACK = "#14181f", "#1d232d", "#7d8796", "#e8ebf0", "#9be8b8", "#1f4a34"
Span = tuple[str, str]
"""Text and its colour."""


def written() -> tuple[list[Span], int, int]:
    """The end of the prompt and what follows; accepted drafts, steps."""
    llm = sd.LLM(str(ROOT / "models/tiny-py-lm"), str(ROOT / "configs/cpu.yaml"), speculative={"adaptive": False})
    prompt = PROMPT.read_text(encoding="utf-8").rstrip("\n")
    spans = [("\n".join(prompt.split("\n")[-ABOVE:]), DIM)]
    accepted = steps = 0
    for delta in llm.stream(prompt, sd.SamplingParams(max_new_tokens=TOKENS)):
        spans += [(text, DRAFT if drafted else OWN) for text, drafted in delta.spans]
        accepted += sum(delta.accepted_draft)
        steps += 1
    return spans, accepted, steps


def lines(spans: list[Span]) -> list[list[Span]]:
    """Spans by line, without empty lines at the end."""
    found: list[list[Span]] = [[]]
    for text, color in spans:
        first, *more = text.split("\n")
        found[-1].append((first, color))
        found += [[(one, color)] for one in more]
    while not any(text.strip() for text, _ in found[-1]):
        del found[-1]
    return found


def record(name: str) -> Any:
    """A recorded result."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def figures(accepted: int, steps: int) -> Iterator[tuple[str, str]]:
    """What stands large, and what it says."""
    yield f"{accepted} of {TOKENS}", f"tokens of this text are accepted drafts: {steps} steps instead of {TOKENS}"
    case = "sample_target, top-k 20, top-p 0.9, 256 x 151,936 float32, spread 2"
    (row,) = (row for row in record("h200-sampling")["rows"] if row["label"] == case)
    here, other = row["warm_us"]["median"], row["peers_us"]["FlashInfer"]["warm"]
    yield (
        f"{other / here:.1f}x",
        f"FlashInfer on an H200, top-k and top-p of 256 rows: {here:.0f} beside {other:.0f} us",
    )
    rows = record("h200-throughput")["figures"]
    best = {row["run"]: row["tokens_per_s"] for row in rows if (row["requests"], row["dtype"]) == (64, "float32")}
    yield (
        f"{best['drafts'] / best['plain']:.1f}x",
        (f"plain decoding on an H200, 64 requests: {best['drafts']:,.0f} beside {best['plain']:,.0f} tokens/s"),
    )


def draw() -> str:
    """The picture as SVG. It has a background of its own, so that it looks the same in both schemes."""
    spans, accepted, steps = written()
    rows = lines(spans)
    code = 30 + LINE * len(rows)
    height = code + 120 + LEFT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="ui-sans-serif, system-ui, sans-serif">',
        "<title>A text of the embedded model with its accepted drafts marked, and three figures</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{PAPER}"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">',
    ]
    for i, row in enumerate(rows):
        x, y = float(LEFT), 34 + LINE * i
        for text, color in row:
            word = text.strip()
            if word:  # spaces at the ends are neither drawn nor marked
                start, width = x + CHAR * (len(text) - len(text.lstrip())), CHAR * len(word)
                if color == DRAFT:
                    back = f'x="{start - 1:.1f}" y="{y - 14}" width="{width + 2:.1f}" height="{LINE - 2}"'
                    parts.append(f'<rect {back} rx="3" fill="{BACK}"/>')
                place = f'x="{start:.1f}" y="{y}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
                parts.append(f'<text {place} fill="{color}">{escape(word)}</text>')
            x += CHAR * len(text)
    parts.append("</g>")
    legend = (("the prompt", DIM), ("written by the model", OWN), ("accepted drafts", DRAFT))
    for i, (text, color) in enumerate(legend):
        parts.append(
            f'<text x="{WIDTH - LEFT}" y="{34 + 18 * i}" text-anchor="end" font-size="12" fill="{color}">{text}</text>'
        )
    wide = (WIDTH - 2 * LEFT - 2 * 12) / 3
    for i, (large, small) in enumerate(figures(accepted, steps)):
        x, y = LEFT + i * (wide + 12), code
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="120" rx="8" fill="{CARD}"/>')
        parts.append(
            f'<text x="{x + 12:.1f}" y="{y + 38}" font-size="28" font-weight="600" fill="{OWN}">{large}</text>'
        )
        for k, line in enumerate(wrapped(small, 27)):
            parts.append(
                f'<text x="{x + 12:.1f}" y="{y + 62 + 17 * k}" font-size="12.5" fill="#b8c0cc">{escape(line)}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def wrapped(text: str, most: int) -> list[str]:
    """Lines of at most `most` characters."""
    found = [""]
    for word in text.split():
        if len(found[-1]) + len(word) >= most:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
