"""Mutated configurations are read, or refused with a ConfigError in bounds."""

from __future__ import annotations

import random
from pathlib import Path

from specdec_hal.config import load, parse
from specdec_hal.errors import ConfigError
from specdec_hal.text import MESSAGE_LIMIT
from tests.support.bounded import bounded
from tests.support.fuzz import fuzz

CONFIGS = Path(__file__).parents[2] / "configs"
GOOD = [path.read_text() for path in sorted(CONFIGS.glob("*.yaml"))]
PIECES = [
    *"[]{}:,-?&*!|>'\"%@`#~=\n\t \\",
    *("&a", "*a", "<<: *a", "&a [*a, *a]", "!!bool", "!!int", "!!float", "!!binary", "!!set", "!!omap", "!!null", "!x"),
    *("---\n", "...\n", "%YAML 1.1\n", "0x" + "f" * 200, "9" * 5000, "1" + ":59" * 50, "1e999", ".nan", "-.inf"),
    *(
        '"\\0"',
        '"\\ud800"',
        '"\\x41"',
        "\0",
        "\x7f",
        "\ufeff",
        "\u2028",
        "é",
        "\U0001f600",
        "2026-02-30",
        "null",
        "yes",
    ),
    *("backend", "options", "model", "path: ~x/y", "runner", "sampling", "stop: [", "seed", "[" * 70, "{a: " * 70),
]


def mutated(random: random.Random) -> str:
    text = random.choice(GOOD)
    for _ in range(random.randint(1, 6)):
        at, end = sorted(random.choices(range(len(text) + 1), k=2))
        kind = random.randrange(4)
        if kind == 0:
            text = text[:at] + random.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[min(end, at + 20) :]
        elif kind == 2:
            text = text[:at] + text[at : at + 40] * random.randint(2, 5) + text[at:]
        else:
            text = text[:at] + random.choice(PIECES) * random.randint(1, 30) + text[end:]
    return text


def test_files(tmp_path: Path) -> None:
    def check(text: str) -> str:
        (tmp_path / "c.yaml").write_bytes(text.encode("utf-8"))
        try:
            with bounded():
                load(tmp_path / "c.yaml")
        except ConfigError as error:
            assert len(str(error).encode()) <= MESSAGE_LIMIT
            return "refused"
        return "read"

    ends = fuzz(mutated, check)
    assert set(ends) == {"read", "refused"}


def test_overrides() -> None:
    keys = [
        "backend.options", "backend.options.a.b", "sampling.stop", "sampling", "model.path", "speculative", "",
        "a\ud800",
    ]  # fmt: skip

    def override(random: random.Random) -> str:
        value = "".join(random.choices(PIECES, k=random.randint(0, 6)))
        return f"{random.choice(keys)}={value}"

    def check(text: str) -> str:
        try:
            with bounded():
                parse({}, [text])
        except ConfigError as error:
            assert len(str(error).encode()) <= MESSAGE_LIMIT
            return "refused"
        return "read"

    ends = fuzz(override, check)
    assert set(ends) == {"read", "refused"}
