"""The HTTP server under load, beside the engine alone and vLLM: throughput, time to first token, time between tokens.

``python benchmarks/serving.py --out benchmarks/results/serving-cpu.json``. All servers stay up and are loaded in turns,
so that figures of one round share the machine's state. `--vllm` names an environment with vLLM's CPU build
(`make engine-test` makes build/engine-venv); where it is missing the document says so.

- `load`: 1, 4 and 16 clients (`--load-clients`) that ask one request after the other, plainly and with n-gram drafts.
- `output_path`: 8 requests at once in the engine alone (without text or frames), in one process with HTTP, and in two
processes or more, for each of ``--http-workers``; answers have uneven lengths. On a GPU ``--together 64 --clients 128
  --turns 36 --client-processes 8 --http-workers 1 auto``, ``--kinds plain ngram`` without and with drafts, and
  ``--large`` for a model that a GPU has to work for.
- `gpus`: one server on a GPU, a server on each of two, which share the clients as replicas would, and one server over
  two ranks (`--large --load-clients 1 8 64 --client-processes 8`; on a machine without GPUs the embedded model).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import record
from serving_load import ROOT, Answer, Clients, closed_loop, parts, processor_s, server

CLIENTS = (1, 4, 16)
SETTLE_S = 1.5
"""Between loads: vLLM's processes poll for a second after their last message, on cores that the next server needs."""
TOGETHER = 8
METHODS = {"plain": "speculative.method=naive", "ngram": "speculative.num_speculative_tokens=5"}
METHOD_KEYS = {None: [], "plain": [METHODS["plain"]], "ngram": []}
"""Of `output_path`; None and "ngram": as configs/serve.yaml has it."""
PARTS = ("load", "output_path", "gpus")
PROMPTS = ("edit_function", "completion", "prose", "unique")
NAIVE = ("--set", "speculative.method=naive")
NGRAM = '{"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'


def example_texts() -> list[str]:
    """The example prompts."""
    return [(ROOT / f"examples/prompts/{name}.txt").read_text().removesuffix("\n") for name in PROMPTS]


def bodies(count: int, new_tokens: int, **more: Any) -> list[dict[str, Any]]:
    """Greedy requests over the example prompts, in turns."""
    texts = example_texts()
    whole = {"max_tokens": new_tokens, "temperature": 0, "return_token_ids": True, **more}
    return [{"prompt": texts[at % len(texts)], **whole} for at in range(count)]


def uneven(count: int, new_tokens: int) -> list[dict[str, Any]]:
    """As `bodies`, but for so many tokens on average, from half to one and a half times as many.

    If all requests ended in the same step, the engine alone could also prefill the next prompts in one step, unlike a
    server.
    """
    lengths = np.random.default_rng(0).integers(new_tokens // 2, 3 * new_tokens // 2, count, endpoint=True)
    return [{**body, "max_tokens": int(most)} for body, most in zip(bodies(count, new_tokens), lengths, strict=True)]


def spread(values: list[float]) -> dict[str, float]:
    """Median, and what one in a hundred exceeds, in ms."""
    return {"p50_ms": 1e3 * float(np.percentile(values, 50)), "p99_ms": 1e3 * float(np.percentile(values, 99))}


class Measured:
    """Rounds of one kind of load on one server."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.answers: list[Answer] = []

    def add(self, answers: list[Answer], seconds: float) -> None:
        """One round."""
        broken = [answer for answer in answers if not answer.ok]
        assert not broken, f"{len(broken)} requests failed, the first with {broken[0].status} {broken[0].error}"
        self.rates.append(sum(sum(answer.tokens) for answer in answers) / seconds)
        self.answers += answers

    def figures(self) -> dict[str, Any]:
        """For the document."""
        return {
            "tokens_per_second": statistics.median(self.rates),
            "rounds": [round(rate, 1) for rate in self.rates],
            "time_to_first_token": spread([answer.times[0] for answer in self.answers]),
            "inter_token_latency": spread([gap for answer in self.answers for gap in answer.gaps]),
        }


def loaded(urls: dict[str, str], clients: int, wanted: dict[str, list[dict[str, Any]]], rounds: int) -> dict[str, Any]:
    """Each kind of load on its server, in turns; `wanted`: requests by kind, `urls`: the server of each kind."""
    measured = {kind: Measured() for kind in wanted}
    for at in range(rounds + 1):
        for kind, requests in wanted.items():
            time.sleep(SETTLE_S)
            answers, seconds = asyncio.run(closed_loop(urls[kind], requests, clients))
            if at:  # the first warms up
                measured[kind].add(answers, seconds)
    return {kind: one.figures() for kind, one in measured.items()}


# ---- the engine alone


@contextmanager
def large_model() -> Iterator[Path]:
    """A checkpoint of 1 B random parameters, with the embedded model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True,
        bos_token_id=4094, eos_token_id=4095,
    )  # fmt: skip
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        with torch.device("cuda"):
            LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
        torch.cuda.empty_cache()
        shutil.copy(ROOT / "models/tiny-py-lm/tokenizer.json", folder)
        yield Path(folder)


def model_keys(folder: Path | None) -> list[str]:
    """What sets another model than the embedded one, on a GPU."""
    if folder is None:
        return []
    keys = [f"model.path={folder}", "model.framework=transformers", "model.dtype=bfloat16", "runner.max_model_len=2048"]
    return [*keys, "backend.name=cuda"]


def engine_alone(new_tokens: int, together: int, turns: int, model: Path | None, kind: str | None) -> None:
    """A process that decodes as many requests whenever it gets a line, and prints tokens per second."""
    import specdec_hal as sd
    from specdec_hal.runner import Request, SamplingParams, build_runner

    slots = [f"runner.max_num_seqs={together}", f"runner.max_waiting_requests={turns * together}"]
    runtime = sd.load(ROOT / "configs/serve.yaml", [*slots, *model_keys(model), *METHOD_KEYS[kind]])
    tokenizer = runtime.load_tokenizer()
    runner = build_runner(runtime.config, runtime.backend, runtime.load_model(), registry=runtime.registry)
    asked = [
        (tokenizer.encode(body["prompt"]), SamplingParams(max_new_tokens=body["max_tokens"]))
        for body in uneven(turns * together, new_tokens)
    ]
    for _ in sys.stdin:
        start = time.perf_counter()
        for at, (prompt, params) in enumerate(asked):
            runner.add_request(Request(str(at), prompt, params))
        tokens = sum(len(output.token_ids) for output in runner.run().values())
        print(tokens / (time.perf_counter() - start), flush=True)


@contextmanager
def engine_process(new_tokens: int, together: int, turns: int, model: Path | None, kind: str | None) -> Iterator[Any]:
    """A function that has the engine alone decode once: tokens per second."""
    command = [sys.executable, __file__, "--engine-alone", "--new-tokens", str(new_tokens)]
    command += ["--together", str(together), "--turns", str(turns)]
    command += [] if model is None else ["--model", str(model)]
    command += [] if kind is None else ["--kinds", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        sent, got = process.stdin, process.stdout

        def once() -> float:
            sent.write("\n")
            sent.flush()
            return float(got.readline())

        yield once
        process.kill()


def output_path(args: argparse.Namespace, kind: str | None) -> dict[str, Any]:
    """Tokens per second of so many requests at once: the engine, one process, and several, with their times to the
    first token.
    """
    new_tokens, together, turns = args.new_tokens, args.together, args.turns
    clients = args.clients or together
    keys = (f"runner.max_num_seqs={together}", f"runner.max_waiting_requests={2 * clients}",
            f"serve.max_concurrent_requests={2 * clients}", *METHOD_KEYS[kind])  # fmt: skip
    wanted = uneven(turns * together, new_tokens)
    rates: dict[str, list[float]] = {}
    first: dict[str, list[float]] = {}
    busy: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        model = stack.enter_context(large_model()) if args.large else None
        slots = [word for key in (*keys, *model_keys(model)) for word in ("--set", key)]
        asking = stack.enter_context(Clients(args.client_processes))
        engine = stack.enter_context(engine_process(new_tokens, together, turns, model, kind))
        servers = {} if args.split else {"one_process": stack.enter_context(server("--no-split", *slots))}
        for workers in args.http_workers:
            split = ("--split", "--http-workers", workers)
            name = f"split_{workers}" if len(args.http_workers) > 1 else "split"
            servers[name] = stack.enter_context(server(*split, *slots))
        for at in range(args.rounds + 1):
            found = {"engine": engine()}
            for name, (pid, url) in servers.items():
                processes = {part: (one, processor_s(one)) for part, one in parts(pid).items()}
                answers, seconds = asking.closed_loop(wanted, clients, url)
                busy[name] = {part: (processor_s(one) - had) / seconds for part, (one, had) in processes.items()}
                assert all(answer.ok for answer in answers), f"{name}: a request failed"
                found[name] = sum(sum(answer.tokens) for answer in answers) / seconds
                if at:
                    first.setdefault(name, []).extend(answer.times[0] for answer in answers)
            if at:
                for name, rate in found.items():
                    rates.setdefault(name, []).append(rate)
            print(kind, {name: round(rate) for name, rate in found.items()}, busy, file=sys.stderr, flush=True)
    figures: dict[str, Any] = {"requests": together, "clients": clients, "client_processes": args.client_processes}
    figures |= {"http_workers": args.http_workers, "model": "1 B random parameters" if args.large else "embedded"}
    figures |= {name: {"tokens_per_second": statistics.median(r), "rounds": r} for name, r in rates.items()}
    base = figures["engine"]["tokens_per_second"]
    for name in servers:
        overhead = 1 - figures[name]["tokens_per_second"] / base
        figures[name] |= {"overhead": overhead, "time_to_first_token": spread(first[name])}
        figures[name]["busy"] = busy[name]  # processor time over time, in the last round
    return figures


def gpus(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second by clients, of one GPU, two replicas and two ranks, plain and with n-gram drafts, in turns."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")
    first, second = devices.split(",")[:2]
    most = max(args.load_clients)
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        model = stack.enter_context(large_model()) if args.large else None
        keys = [*model_keys(model), f"runner.max_num_seqs={most}", f"runner.max_waiting_requests={2 * most}"]
        keys += ["runner.max_model_len=1024", "runner.queue_timeout_s=null", "model.framework=transformers"]
        keys += [f"serve.http_workers={args.http_workers[0]}"] if args.split else ["serve.split=false"]
        asking = stack.enter_context(Clients(args.client_processes))
        servers: dict[str, list[str]] = {}

        def start(name: str, device: str, *more: str) -> None:
            words = [word for key in (*keys, *more) for word in ("--set", key)]
            url = stack.enter_context(server(*words, environment={"CUDA_VISIBLE_DEVICES": device}))[1]
            servers.setdefault(name, []).append(url)
            began = time.perf_counter()
            asyncio.run(closed_loop(url, bodies(1, 1), 1))  # what it compiles, the next ones find
            print(f"{name}: answers after {time.perf_counter() - began:.1f} s", flush=True)

        for kind in args.kinds or METHODS:
            method = METHODS[kind]
            start(f"{kind}, one GPU", first, method)
            servers[f"{kind}, two replicas"] = servers[f"{kind}, one GPU"].copy()
            start(f"{kind}, two replicas", second, method)
            start(f"{kind}, two ranks", devices, method, "engine.tensor_parallel=2")
        for clients, at in itertools.product(args.load_clients, range(args.rounds + 1)):
            wanted = bodies(max(4, 3 * clients), args.new_tokens)
            for name, urls in servers.items():
                answers, seconds = asking.closed_loop(wanted, clients, *urls)
                assert all(answer.ok for answer in answers), f"{name}: a request failed"
                if at:  # the first warms up
                    rate = sum(sum(answer.tokens) for answer in answers) / seconds
                    figures.setdefault(name, {}).setdefault(str(clients), []).append(round(rate, 1))
                    print(name, clients, round(rate, 1), flush=True)
    return {"tokens_per_second": figures}


# ---- vLLM


@contextmanager
def vllm(folder: Path, checkpoint: Path, *arguments: str) -> Iterator[str]:
    """vLLM's server over a checkpoint; its address."""
    import httpx

    port = 8100 + len(arguments)
    command = [folder / "bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint,
               "--served-model-name", "tiny-py-lm", "--port", str(port), "--dtype", "float32",
               "--max-num-seqs", str(max(CLIENTS)), "--max-model-len", "2048", "--gpu-memory-utilization", "0.2",
               "--no-enable-prefix-caching",  # the same prompts come again and again
               *arguments]  # fmt: skip
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                assert process.poll() is None, "vLLM's server does not start; run its command by hand to see why"
                try:
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(1)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--vllm", type=Path, default=ROOT / "build/engine-venv", metavar="ENVIRONMENT")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:-1], help="these parts")
    parser.add_argument("--load-clients", type=int, nargs="+", default=CLIENTS, metavar="N", help="load, gpus: so many")
    parser.add_argument("--together", type=int, default=TOGETHER, help="output_path: requests at once")
    parser.add_argument("--clients", type=int, help="output_path: more than run at once, so that some always wait")
    parser.add_argument(
        "--http-workers", nargs="+", default=["1"], help="output_path (several), gpus: of split servers"
    )
    parser.add_argument("--split", action="store_true", help="gpus, output_path: only servers of several processes")
    parser.add_argument(
        "--kinds", nargs="+", choices=METHODS, help="gpus (default: both), output_path: without or with drafts"
    )
    parser.add_argument("--turns", type=int, default=3, help="output_path: requests of each client")
    parser.add_argument("--client-processes", type=int, default=1, help="output_path, gpus: that share the clients")
    parser.add_argument("--large", action="store_true", help="output_path, gpus: 1 B random parameters; needs a GPU")
    parser.add_argument("--engine-alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # servers end with it
    if args.engine_alone:
        engine_alone(args.new_tokens, args.together, args.turns, args.model, args.kinds and args.kinds[0])
        return
    figures: dict[str, Any] = {"new_tokens": args.new_tokens}
    if "output_path" in args.only:
        found = figures["output_path"] = {}
        for kind in args.kinds or [None]:
            found[kind] = output_path(args, kind)
            if args.out is not None and kind is not None:
                record.write(figures, args.out)  # in case that time runs out
        figures["output_path"] = found.get(None, found)
    if "gpus" in args.only:
        figures["gpus"] = gpus(args)
    if "load" in args.only:
        figures["load"] = load(args)
    record.write(figures, args.out)


def load(args: argparse.Namespace) -> dict[str, Any]:
    """So many clients, plainly and with drafts, here and in vLLM."""
    slots = ("--set", f"runner.max_num_seqs={max(CLIENTS)}")
    with ExitStack() as stack:
        urls = {
            "ours_plain": stack.enter_context(server(*slots, *NAIVE))[1],
            "ours_ngram": stack.enter_context(server(*slots))[1],
        }
        peer = (args.vllm / "bin/vllm").exists()
        if peer:
            checkpoint = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            drop_mtp = [sys.executable, ROOT / "tools/drop_mtp.py", ROOT / "models/tiny-py-lm", checkpoint]
            subprocess.run(drop_mtp, check=True)  # which vLLM refuses in a Llama
            urls["vllm_plain"] = stack.enter_context(vllm(args.vllm, checkpoint))
            urls["vllm_ngram"] = stack.enter_context(vllm(args.vllm, checkpoint, "--speculative-config", NGRAM))
        found: dict[str, Any] = {
            "vllm": "measured" if peer else "not measured: no vLLM, which `make engine-test` installs"
        }
        for clients in args.load_clients:
            requests = bodies(max(4, 2 * clients), args.new_tokens)
            found[str(clients)] = loaded(urls, clients, dict.fromkeys(urls, requests), args.rounds)
    return found


if __name__ == "__main__":
    main()
