"""The trained drafters in models/, beside the embedded model on the example prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import specdec_hal as sd
from specdec_hal.runner import ModelRunner, SamplingParams
from tests.support.decoding import outputs_of

ROOT = Path(__file__).parents[2]


def acceptance_of(
    name: str, config: str, keys: list[str], *, tokens: int, temperatures: Sequence[float]
) -> list[float]:
    """Acceptance by position of three drafts, whose tokens are those of plain decoding. One temperature a prompt."""
    keys = [*keys, "speculative.method=auto", f"speculative.path={ROOT / 'models' / name}"]
    keys += ["speculative.num_speculative_tokens=3", "speculative.adaptive=false"]
    runtime = sd.load(ROOT / "configs" / config, keys)
    runner = runtime.runner()
    texts = [path.read_text().rstrip("\n") for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]

    def run(runner: ModelRunner) -> list[tuple[int, ...]]:
        asked = [
            (runner.tokenizer.encode(text), SamplingParams(max_new_tokens=tokens, temperature=temperature, seed=number))
            for number, (text, temperature) in enumerate(zip(texts, temperatures, strict=True))
        ]
        return [output.token_ids for output in outputs_of(runner, *asked)]

    drafted = run(runner)
    assert drafted == run(runtime.naive().runner(model=runner.model, tokenizer=runner.tokenizer))
    shares: list[float] = runner.summary()["acceptance_by_position"]
    return shares
