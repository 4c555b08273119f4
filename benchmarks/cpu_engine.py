"""The engine on a CPU beside an older commit and `transformers`, each in processes of its own, in turns.

``python benchmarks/cpu_engine.py --before FOLDER --out benchmarks/results/NAME.json``. FOLDER is a clone of the older
commit with an environment in `.venv`; without it only this commit and `transformers` are timed. Greedy, the four
example prompts: one after the other for 1 request at once, together for 4, four times with different ends for 16.
Tokens per second of the fastest of REPEATS rounds, prefill included; loading and one round to warm up are not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROMPTS = ("edit_function", "completion", "prose", "unique")
REPEATS = 3


def texts(count: int) -> list[str]:
    """So many prompts, and at least one of each: those that come again end earlier."""
    known = [(ROOT / f"examples/prompts/{name}.txt").read_text().removesuffix("\n") for name in PROMPTS]
    return [known[i % 4][: len(known[i % 4]) - 7 * (i // 4)] for i in range(max(count, len(known)))]


def ours(requests: int, drafts: int, new_tokens: int, framework: str) -> Any:
    """A function that decodes a group of prompts, by the package that is in the working directory."""
    from specdec_hal import load
    from specdec_hal.runner import ModelRunner, Request, SamplingParams

    keys = [f"model.framework={framework}", f"runner.max_num_seqs={requests}"]
    runtime = load(
        "configs/reference.yaml", [*keys, *([f"speculative.num_speculative_tokens={drafts}"] if drafts else [])]
    )
    runtime = runtime if drafts else runtime.naive()
    older = getattr(ModelRunner, "from_config", None)  # commits in which load() gave a configuration
    runner: Any = runtime.runner() if older is None else older(runtime)
    assert runner.tokenizer is not None
    encode, params = runner.tokenizer.encode, SamplingParams(max_new_tokens=new_tokens)

    def decode(group: list[str]) -> list[list[int]]:
        for name, text in enumerate(group):
            runner.add_request(Request(str(name), encode(text), params))
        outputs = runner.run()
        return [list(outputs[str(name)].token_ids) for name in range(len(group))]

    return decode


def transformers(requests: int, drafts: int, new_tokens: int, framework: str) -> Any:
    """The same by `generate`, on all cores; drafts by its prompt look-up."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ROOT / "models/tiny-py-lm"
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)  # its end token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    more = {"prompt_lookup_num_tokens": drafts} if drafts else {}

    def decode(group: list[str]) -> list[list[int]]:
        inputs = tokenizer(group, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            out = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False, **more)
        return [[t for t in row if t != tokenizer.pad_token_id] for row in out[:, inputs.input_ids.shape[1] :].tolist()]

    return decode


def child(engine: str, requests: int, drafts: int, new_tokens: int, framework: str) -> None:
    """One process: print what it measured."""
    decode = (transformers if engine == "transformers" else ours)(requests, drafts, new_tokens, framework)
    prompts = texts(requests)
    groups = [prompts] if requests > 1 else [[text] for text in prompts]
    best = [float("inf")] * len(groups)
    tokens: list[list[int]] = []
    for turn in range(REPEATS + 1):
        tokens = []
        for at, group in enumerate(groups):
            start = time.perf_counter()
            tokens += decode(group)
            if turn:
                best[at] = min(best[at], time.perf_counter() - start)
    print(json.dumps({"tokens_per_s": sum(map(len, tokens)) / sum(best), "tokens": tokens}))


def measure(place: Path, python: str, arguments: list[str]) -> Any:
    """A process in `place`."""
    environment = {**os.environ, "PYTHONPATH": str(place), "GLOG_minloglevel": "3"}
    command = [python, str(Path(__file__).resolve()), "--child", *arguments]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--framework", default="paddle", choices=("paddle", "torch"))
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each kind; the fastest counts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        engine, requests, drafts, new_tokens, framework = args.child
        child(engine, int(requests), int(drafts), int(new_tokens), framework)
        return
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from record import write

    engines = {"this commit": (ROOT, sys.executable), "transformers": (ROOT, sys.executable)}
    if args.before is not None:
        engines["before"] = (args.before.resolve(), str(args.before.resolve() / ".venv/bin/python"))
    rows = []
    for requests in (1, 4, 16):
        for drafts in (0, 8):
            found: dict[str, Any] = {}
            for _ in range(args.rounds):
                for name, (place, python) in engines.items():
                    if name == "transformers" and drafts and requests > 1:
                        continue  # its assisted decoding takes one request
                    kind = "transformers" if name == "transformers" else "ours"
                    values = [kind, str(requests), str(drafts), str(args.new_tokens), args.framework]
                    result = measure(place, python, values)
                    if name not in found or result["tokens_per_s"] > found[name]["tokens_per_s"]:
                        found[name] = result
            row = {"requests": requests, "drafts": drafts}
            row |= {name: round(result["tokens_per_s"], 1) for name, result in found.items()}
            row["equal_tokens"] = len({json.dumps(found[n]["tokens"]) for n in found if n != "transformers"}) == 1
            print(json.dumps(row), flush=True)
            rows.append(row)
    write({"framework": args.framework, "new_tokens": args.new_tokens, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
