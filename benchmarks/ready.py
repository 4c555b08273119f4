"""Time from the start of a process until it is ready and to its first token, with empty and full caches.

``python benchmarks/ready.py --out FILE``: each time in a new process, with caches in a folder of their own: Triton's,
CUDA's, and Python's of compiled modules. `caches`: "none" are filled, as on a new machine; "python" has that of Python,
which `pip install` fills; "all" are. `late`: compilations and captures that the first requests still waited for.

Parts: `embedded`, `LLM` of the embedded model under configs/cuda.yaml; `qwen3`, of Qwen3-0.6B's shape with random
weights in bfloat16; `serve`, ``specdec-hal serve`` of the embedded model until /ready, and then requests with what load
generators add to theirs. Its stages: `process_s`, until the engine's process begins to load; `load_s`, imports of the
framework, weights and the KV cache; `compile_s`, Triton's kernels; `plans_s`, what binds, launches and captures steps.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs/cuda.yaml"
STATES = {"embedded": ("none", "python", "all"), "serve": ("none", "python", "all"), "qwen3": ("python", "all")}
EMPTY = {"none": ("triton", "cuda", "python"), "python": ("triton", "cuda"), "all": ()}
CHOICE = {"structured_outputs": {"choice": ["return a + b", "pass"]}}
ADDED: list[dict[str, Any]] = [
    {"ignore_eos": True}, {"ignore_eos": True, "min_tokens": 32}, {"n": 4, "temperature": 0.8}, {"logprobs": 0},
    {"presence_penalty": 0.5, "repetition_penalty": 1.1}, {"logprobs": 3, "frequency_penalty": 0.5}, {"logprobs": 20},
    {"stop_token_ids": [7]}, CHOICE, {**CHOICE, "logprobs": 5, "presence_penalty": 0.5},
]  # fmt: skip
"""Keys of load generators' requests."""
QWEN3 = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
    "rope_theta": 1e6, "tie_word_embeddings": True, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip


def child(start: float, model: str | None) -> None:
    """In the process that is measured; `start`: when it was started."""
    import specdec_hal as sd
    from specdec_hal.engine.llm import warm_up

    imported = time.time() - start
    dtype = "float32" if model is None else "bfloat16"
    llm = sd.LLM(model, str(CONFIG), framework="transformers", dtype=dtype, warm_up=False)
    loaded = time.time() - start
    warm_up(llm.runner)
    ready = time.time() - start
    params = sd.SamplingParams(max_new_tokens=16)
    first = time.perf_counter()
    llm.generate(["def add(a, b):\n    return"], params)
    first = time.perf_counter() - first
    again = time.perf_counter()
    llm.generate(["def sub(a, b):\n    return"], params)
    again = time.perf_counter() - again
    long = time.perf_counter()
    llm.generate(["x = 1\n" * 300] + ["y = 2\n"] * 7, params)
    summary = llm.runner.summary()
    figures = {"imported_s": imported, "loaded_s": loaded, "ready_s": ready}
    figures |= {"first_request_s": first, "second_request_s": again}
    figures |= {"eight_with_a_long_prompt_s": time.perf_counter() - long, "late": summary["late"]}
    print(json.dumps(figures))


def make(folder: Path) -> None:
    """A model of Qwen3-0.6B's shape, with the embedded model's tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = transformers.Qwen3Config(**QWEN3, dtype="bfloat16")
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    shutil.copy(ROOT / "models/tiny-py-lm/tokenizer.json", folder)


def own(*arguments: str) -> subprocess.CompletedProcess[str]:
    """This script in another process."""
    done = subprocess.run([sys.executable, __file__, *arguments], text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done


def stages(log: str, began: float) -> dict[str, float]:
    """Seconds of each stage of a start at `began`, from a server's log as JSON."""
    entries = [json.loads(line) for line in log.splitlines()]
    at = next(at for at, entry in enumerate(entries) if entry["message"] == "serving")
    warmed = next(entry for entry in entries[at:] if entry["message"].startswith("warmed up"))
    times = (datetime.fromisoformat(entry["time"].replace("Z", "+00:00")) for entry in (entries[at], warmed))
    loaded, ready = (time.timestamp() for time in times)
    texts, load_s = " ".join(entry["message"] for entry in entries[at:]), entries[at]["load_s"]
    compile_s = sum(map(float, re.findall(r"compiled \d+ kernels in (.*?) s", texts)))
    found = {"process_s": loaded - load_s - began, "load_s": load_s, "compile_s": compile_s}
    return {**found, "steps": int(warmed["message"].split()[2]), "plans_s": ready - loaded - compile_s}


def serve(settings: list[str]) -> dict[str, Any]:
    """Seconds until a server answers /ready with 200, and what was prepared late for requests right after that."""
    from serving_load import closed_loop, server

    began, more = time.time(), [word for setting in settings for word in ("--set", setting)]
    arguments = ("--config", str(CONFIG), "--set", "model.framework=transformers", "--log-format=json", *more)
    with tempfile.TemporaryFile("w+") as log, server(*arguments, stderr=log) as (_, url):
        while True:
            try:
                with urllib.request.urlopen(f"{url}/ready"):
                    ready_s = time.time() - began
                    break
            except urllib.error.HTTPError:
                time.sleep(0.02)
        log.seek(0)
        found = stages(log.read(), began)
        grammars = any(map(importlib.util.find_spec, ("xgrammar", "llguidance")))
        added = [one for one in ADDED if grammars or "structured_outputs" not in one]
        asked = [{"prompt": "def add(a, b):\n" * (1 + at % 40), **added[at % len(added)]} for at in range(120)]
        bodies = [{**body, "max_tokens": 32, "return_token_ids": True} for body in asked]
        answers = asyncio.run(closed_loop(url, bodies, 12))[0]
        assert all(answer.ok for answer in answers), "a request failed"
        with urllib.request.urlopen(f"{url}/metrics") as metrics:
            late = re.findall(r'late_preparations_total{.*kind="(.*?)".*} (.*)', metrics.read().decode())
        first = max(answer.times[0] for answer in answers if answer.times)
        return {
            "ready_s": ready_s, **found, "grammars": grammars, "worst_first_token_s": first,
            "late": {kind: int(float(count)) for kind, count in late},
        }  # fmt: skip


def measure(part: str, folder: str, settings: list[str]) -> dict[str, Any]:
    """One start of a part."""
    if part == "serve":
        return serve(settings)
    model = [f"--model={folder}/model"] if part == "qwen3" else []
    found: dict[str, Any] = json.loads(own("--child", repr(time.time()), *model).stdout.splitlines()[-1])
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", nargs="+", choices=STATES, default=list(STATES))
    parser.add_argument("--caches", nargs="+", choices=EMPTY, default=list(EMPTY))
    parser.add_argument("--set", nargs="+", default=[], dest="settings", metavar="KEY=VALUE", help="of the part serve")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        return child(given.child, given.model)
    if given.make is not None:
        return make(given.make)
    from record import write

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        names = {"TRITON_CACHE_DIR": "triton", "CUDA_CACHE_PATH": "cuda", "PYTHONPYCACHEPREFIX": "python"}
        os.environ.update({name: f"{folder}/{cache}" for name, cache in names.items()})
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for part in given.parts:
            if part == "qwen3":
                own("--make", f"{folder}/model")
            for state in (state for state in STATES[part] if state in given.caches):
                for cache in EMPTY[state]:
                    shutil.rmtree(f"{folder}/{cache}", ignore_errors=True)
                rows.append({"part": part, "caches": state, **measure(part, folder, given.settings)})
                print(json.dumps(rows[-1]), flush=True)
                if given.out is not None:
                    write(rows, given.out)
    if given.out is None:
        write(rows, None)


if __name__ == "__main__":
    main()
