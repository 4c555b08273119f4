"""Ten turns of a chat, each with all that came before in its prompt, with the prefix cache and without, in turns.

``python benchmarks/chat_turns.py --out FILE``: the embedded model and a Llama of 1.2 B random parameters on a GPU,
plain and with n-gram drafts. `alone`: a request with only the last turn's new tokens as its prompt, a lower bound.
Tokens must not depend on the cache. Other texts accept other drafts, so `cached_over_alone` compares times of a step
(`steps`: those of the last turn, including its chunks of prompt).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from gpu_model import MODELS, ROOT, adapter, of_transformers
from record import write

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.models import load_model
from specdec_hal.runner import Request, SamplingParams, build_runner

TINY = ROOT / "models/tiny-py-lm"
TURNS, PASSES = 10, 9
"""The first two passes compile and capture."""


def chat(runner: Any, said: list[list[int]], new_tokens: int) -> tuple[float, int, list[int]]:
    """Seconds and steps of the last turn, and the whole text."""
    text, start, before = list[int](), 0.0, 0
    for number, words in enumerate(said):
        text += words
        start, before = time.perf_counter(), runner.metrics.steps
        runner.add_request(Request(str(number), list(text), SamplingParams(max_new_tokens=new_tokens, temperature=0)))
        text += runner.run()[str(number)].token_ids
    return time.perf_counter() - start, runner.metrics.steps - before, text


def measure(make: Callable[[], Any], backend: Any, k: int, turn: int, new_tokens: int) -> dict[str, Any]:
    """Medians of the passes; `make`: a model, which has one KV cache, for each runner."""
    models, runners = list[Any](), dict[str, Any]()
    for name in ("cached", "whole", "alone"):
        settings = parse({
            "runner": {
                "max_num_seqs": 2,
                "max_model_len": TURNS * (turn + new_tokens),
                "prefill_chunk": 512,
                "enable_prefix_caching": name == "cached",
            },
            "speculative": {"method": "ngram" if k else "naive", "num_speculative_tokens": k},
        })  # fmt: skip
        models.append(make())
        runners[name] = build_runner(settings, backend, models[-1])
    rng = np.random.default_rng(0)
    said = [rng.integers(1, models[0].config.vocab_size, turn).tolist() for _ in range(TURNS)]
    times, steps, texts = {name: list[float]() for name in runners}, dict[str, int](), dict[str, list[int]]()
    for number in range(PASSES):
        for name, runner in runners.items():
            runner.forget()  # what is cached, too
            words = said[-1:] if name == "alone" else said
            seconds, steps[name], texts[name] = chat(runner, words, new_tokens)
            if number >= 2:
                times[name].append(seconds)
    for runner in runners.values():
        runner.close()
    if texts["cached"] != texts["whole"]:
        raise SystemExit("tokens with the prefix cache differ")
    last = {name: 1e3 * median(seconds) for name, seconds in times.items()}
    each = {name: last[name] / steps[name] for name in last}
    row = {"drafts": k, "new_tokens_of_a_turn": [turn, new_tokens], "last_turn_ms": last, "steps": steps}
    return {
        **row,
        "cached_over_alone": each["cached"] / each["alone"],
        "cached_over_whole": last["cached"] / last["whole"],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    backend = sd.get_backend("cuda")

    def large() -> Any:
        torch.manual_seed(0)  # the same weights for each runner
        return adapter(of_transformers(MODELS["1.2B"]()))

    models: dict[str, Callable[[], Any]] = {
        "embedded": lambda: load_model(TINY, "transformers", device="cuda", dtype="bfloat16"),
        "1.2B": large,
    }
    rows = []
    for name, make in models.items():
        for k in (0, 5):
            turn, new_tokens = (150, 32) if name == "embedded" else (300, 32)
            rows.append({"model": name, **measure(make, backend, k, turn, new_tokens)})
            print(json.dumps(rows[-1]), flush=True)
        write(rows, given.out)


if __name__ == "__main__":
    main()
