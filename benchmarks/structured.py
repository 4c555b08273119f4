"""Structured output on a CPU: the cost of a step with grammars, and answers compared with vLLM's CPU build.

``python benchmarks/structured.py --vllm PYTHON --out benchmarks/results/cpu-structured.json``. PYTHON is that of an
environment with vLLM (`make engine-test` makes one: build/engine-venv); it may be left out.

`steps`: 8 requests at once with a JSON schema and without, in turns in one process, plain and drafted: microseconds of
a decode step (a round's median; of all rounds the median), and of CPU time, which depends less on other processes.
`answers`: SmolLM2-135M-Instruct, greedy, 8 prompts at once, three schemas: how many answers are JSON by their schema,
and tokens per second of the fastest of several rounds, prefill included; loading, compiling grammars and one round to
warm up are not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
REQUESTS, STEP_TOKENS, ANSWER_TOKENS = 8, 96, 160
THREADS = len(os.sched_getaffinity(0))
WORD = {"type": "string", "maxLength": 12}


def closed(**keys: Any) -> dict[str, Any]:
    """An object with these keys and no others."""
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


SCHEMAS = {
    "person": closed(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 150}, city=WORD),
    "review": closed(product_name=WORD, verdict={"enum": ["buy", "wait", "avoid"]}, recommended={"type": "boolean"}),
    "order": closed(
        customer=closed(first_name=WORD, last_name=WORD),
        items={
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": closed(article=WORD, sold_out={"type": "boolean"}),
        },
    ),
}
ENDLESS = {"type": "array", "items": SCHEMAS["person"], "minItems": 40}
Decode = Callable[[list[list[int]], Any], list[list[int]]]


def prompts(about: str) -> list[str]:
    """As SmolLM2's template renders them."""
    ask = f"<|im_start|>user\nWrite JSON of {about} {{}}.<|im_end|>\n<|im_start|>assistant\n"
    return [ask.format(number) for number in range(1, REQUESTS + 1)]


def our_runner(path: str, drafts: int) -> Any:
    """Of this commit."""
    from specdec_hal import load

    keys = [f"model.path={path}", "model.framework=torch", f"runner.max_num_seqs={REQUESTS}"]
    runtime = load(ROOT / "configs/reference.yaml", [*keys, f"speculative.num_speculative_tokens={max(drafts, 1)}"])
    return (runtime if drafts else runtime.naive()).runner()


def steps(path: str, drafts: int, rounds: int) -> dict[str, Any]:
    """Decode steps of our engine, without a schema and with one."""
    from specdec_hal.runner import Request, SamplingParams

    runner = our_runner(path, drafts)
    ids = [runner.tokenizer.encode(text) for text in prompts("person")]
    found: dict[str, list[tuple[float, float, float]]] = {"free": [], "schema": []}
    for turn in range(rounds + 1):
        for name, structured in (("free", None), ("schema", {"json_schema": ENDLESS})):
            params = SamplingParams(
                max_new_tokens=STEP_TOKENS, structured=structured, bad_token_ids=sorted(runner.end_tokens)
            )
            for number, prompt in enumerate(ids):
                runner.add_request(Request(str(number), prompt, params))
            wall, processors = list[float](), list[float]()
            while runner.has_requests:
                prefilled, start, used = runner.metrics.total.prefill_slots, time.perf_counter(), time.process_time()
                runner.step()
                if runner.metrics.total.prefill_slots == prefilled and runner.load().running == REQUESTS:
                    wall.append(time.perf_counter() - start)
                    processors.append(time.process_time() - used)
            assert len(runner.take_finished()) == REQUESTS
            if turn:
                found[name].append((median(wall), median(processors), runner.summary()["tokens_per_step"]))
            runner.forget()
    row: dict[str, Any] = {"model": Path(path).name, "drafts": drafts}
    for name, values in found.items():
        row |= {f"{name}_us": round(1e6 * median(one[0] for one in values), 1)}
        row |= {f"{name}_processor_us": round(1e6 * median(one[1] for one in values), 1)}
        row |= {f"{name}_tokens_per_step": round(values[-1][2], 3)}
    both = list(zip(found["schema"], found["free"], strict=True))
    row["ratio"] = round(median(one[0] / other[0] for one, other in both), 3)
    row["processor_ratio"] = round(median(one[1] / other[1] for one, other in both), 3)
    return row


def ours(path: str, drafts: int) -> Decode:
    """Decodes prompts by a schema."""
    from specdec_hal.runner import Request, SamplingParams

    runner = our_runner(path, drafts)

    def decode(group: list[list[int]], schema: Any) -> list[list[int]]:
        params = SamplingParams(max_new_tokens=ANSWER_TOKENS, structured={"json_schema": schema})
        for name, prompt in enumerate(group):
            runner.add_request(Request(str(name), prompt, params))
        outputs = runner.run()
        return [list(outputs[str(name)].token_ids) for name in range(len(group))]

    return decode


def vllm(path: str, drafts: int) -> Decode:
    """The same by vLLM's CPU build with xgrammar; drafts by its n-gram look-up, of the sizes of ours."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{THREADS - 1}")
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    wanted = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    engine = LLM(
        path,
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=REQUESTS,
        gpu_memory_utilization=0.15,  # of the machine's memory, in the CPU build
        enable_prefix_caching=False,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
        speculative_config=wanted if drafts else None,
    )

    def decode(group: list[list[int]], schema: Any) -> list[list[int]]:
        form = StructuredOutputsParams(json=schema)
        params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, structured_outputs=form)
        outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in group], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return decode


def answers(engine: str, path: str, drafts: int, rounds: int) -> dict[str, Any]:
    """What an engine answers, and how fast."""
    from jsonschema import ValidationError, validate
    from tokenizers import Tokenizer

    decode = {"vllm": vllm}.get(engine, ours)(path, drafts)
    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
    row: dict[str, Any] = {"engine": engine, "drafts": drafts}
    for name, schema in SCHEMAS.items():
        group = [tokenizer.encode(text, add_special_tokens=False).ids for text in prompts(f"{name} number")]
        best, valid = float("inf"), 0
        for turn in range(rounds + 1):
            start = time.perf_counter()
            tokens = decode(group, schema)
            best = min(best, time.perf_counter() - start) if turn else best
        for ids in tokens:
            with suppress(ValueError, ValidationError):
                validate(json.loads(tokenizer.decode(ids)), schema)
                valid += 1
        row[name] = {"valid": valid, "of": len(tokens), "tokens": sum(map(len, tokens))}
        row[name] |= {
            "tokens_per_s": round(sum(map(len, tokens)) / best, 1),
            "answers_per_s": round(len(tokens) / best, 2),
        }
    return row


def child(python: str, what: str, *args: Any) -> Any:
    """A process that measures."""
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    environment |= {} if what == "answers" and args[0] == "vllm" else {"PYTHONPATH": str(ROOT)}
    command = [python, str(Path(__file__).resolve()), "--child", json.dumps([what, *args])]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    row = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("steps", "answers"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, *given = json.loads(args.child)
        print(json.dumps({"steps": steps, "answers": answers}[what](*given)), flush=True)
        return
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from engine_inputs import models
    from record import write

    figures: dict[str, Any] = {"requests": REQUESTS, "threads": THREADS, "load_before": os.getloadavg()[0]}
    tiny, smol = map(str, models().values())
    here = str(Path(sys.executable))
    if args.only != "answers":
        figures["steps"] = [
            child(here, "steps", path, drafts, args.rounds) for path in (tiny, smol) for drafts in (0, 4)
        ]
    if args.only != "steps":
        engines = {"this commit": here} | ({"vllm": str(args.vllm.absolute())} if args.vllm else {})
        figures["answers"] = [
            child(python, "answers", engine, smol, drafts, args.rounds)
            for drafts in (0, 4)
            for engine, python in engines.items()
        ]
    write({**figures, "load_after": os.getloadavg()[0]}, args.out)


if __name__ == "__main__":
    main()
