"""Ten turns of a chat, each with all that came before in its prompt, with the prefix cache and without.

``python benchmarks/chat_turns.py --out FILE``: the embedded model and a Llama of 1.2 B random parameters on a GPU,
plain and with n-gram drafts. `alone`: a request with only the last turn's new tokens as its prompt, a lower bound.
Tokens must not depend on the cache.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gpu_model import MODELS, TINY
from record import write
from tensor_parallel import random_weights

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.models.checkpoint import read_config
from specdec_hal.models.llama_cuda import LlamaCuda, load
from specdec_hal.runner import Request, SamplingParams, build_runner

TURNS, PASSES = 10, 5
"""The first two passes compile and capture."""


def chat(runner: Any, said: list[list[int]], new_tokens: int) -> tuple[list[float], list[int]]:
    """Seconds of each turn, and the whole text."""
    text, seconds = list[int](), []
    for number, words in enumerate(said):
        text += words
        start = time.perf_counter()
        runner.add_request(Request(str(number), list(text), SamplingParams(max_new_tokens=new_tokens, temperature=0)))
        text += runner.run()[str(number)].token_ids
        seconds.append(time.perf_counter() - start)
    return seconds, text


def measure(model: Any, backend: Any, k: int, turn: int, new_tokens: int) -> dict[str, Any]:
    """Medians of the passes."""
    rng = np.random.default_rng(0)
    said = [rng.integers(1, model.config.vocab_size, turn).tolist() for _ in range(TURNS)]
    times, texts = dict[str, list[list[float]]](), {}
    for name, cached, words in (("cached", True, said), ("whole", False, said), ("alone", False, said[-1:])):
        settings = parse({
            "runner": {
                "max_num_seqs": 2,
                "max_model_len": TURNS * (turn + new_tokens),
                "prefill_chunk": 512,
                "enable_prefix_caching": cached,
            },
            "speculative": {"method": "ngram" if k else "naive", "num_speculative_tokens": k},
        })  # fmt: skip
        runner = build_runner(settings, backend, model)
        for number in range(PASSES):
            runner.forget()  # what is cached, too
            seconds, texts[name] = chat(runner, words, new_tokens)
            if number >= 2:
                times.setdefault(name, []).append(seconds)
        runner.close()
    if texts["cached"] != texts["whole"]:
        raise SystemExit("tokens with the prefix cache differ")
    last = {name: 1e3 * median(seconds[-1] for seconds in found) for name, found in times.items()}
    row = {"drafts": k, "new_tokens_of_a_turn": [turn, new_tokens], "last_turn_ms": last}
    return {
        **row,
        "cached_over_alone": last["cached"] / last["alone"],
        "whole_over_alone": last["whole"] / last["alone"],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    backend = sd.get_backend("cuda")
    models = {
        "embedded": lambda: load(TINY, read_config(TINY), device="cuda", dtype="bfloat16"),
        "1.2B": lambda: LlamaCuda(MODELS["1.2B"], random_weights(MODELS["1.2B"], "cuda", "bfloat16", None)),
    }
    rows = []
    for name, make in models.items():
        model = make()
        for k in (0, 5):
            turn, new_tokens = (150, 32) if name == "embedded" else (300, 32)
            rows.append({"model": name, **measure(model, backend, k, turn, new_tokens)})
            print(json.dumps(rows[-1]), flush=True)
        write(rows, given.out)


if __name__ == "__main__":
    main()
