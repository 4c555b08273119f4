"""Drafts of this project inside engines, beside the engines' own, in turns in one run.

``python benchmarks/engines.py transformers --out benchmarks/results/cpu-engines-transformers.json``, and ``vllm`` in an
environment that holds vLLM (`make engine-test` makes one: build/engine-venv), and ``llama.cpp``. Tokens per second over
a set of prompts, one request at a time and four together; greedy, and every token compared with the engine's plain
decoding. ``--sets HumanEval --at-a-time 4`` measures one of these alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import engine_inputs
from record import write
from serving_load import family

from specdec_hal.bench.timing import Figures

K, LONGEST, SHORTEST = 8, 4, 2  # drafts on every side, and the n-grams that the engines' own look-ups take
Tokens = list[list[int]]
Decode = Callable[[Tokens], Tokens]
"""Continues a batch of prompts, greedily, by the run's number of tokens."""
Opened = tuple[Any, dict[str, Decode], dict[str, str], Callable[[str], object]]
"""A tokenizer, ways of decoding, what to record of them, and what to do, untimed, before one has its turn."""
LLAMA_CPP = "llama.cpp"
PLAIN, THEIRS, OURS = "plain", "theirs", "ours"


@contextmanager
def transformers(path: Path, new_tokens: int, threads: int) -> Iterator[Opened]:
    """`generate` plain, with prompt look-up (one request only), and with this project's."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from specdec_hal.compat.transformers import generate

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # all requests are equally long
    how = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}

    def decode(prompts: Tokens, **more: Any) -> Tokens:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out: Tokens = model.generate(ids, attention_mask=mask, **how, **more)[:, width:].tolist()
        return out

    yield (
        AutoTokenizer.from_pretrained(path),
        {
            PLAIN: decode,
            THEIRS: lambda p: decode(p, prompt_lookup_num_tokens=K, max_matching_ngram_size=LONGEST),
            OURS: lambda p: decode(p, custom_generate=generate, num_speculative_tokens=K),
        },
        {THEIRS: "prompt look-up", "transformers": importlib.metadata.version("transformers")},
        lambda name: None,
    )


@contextmanager
def vllm(path: Path, new_tokens: int, threads: int, suffix: bool) -> Iterator[Opened]:
    """vLLM plain, with its n-gram look-up, and with this project's proposers: an engine each, one of which runs.

    The other engines' processes are suspended to free the cores. Prompts repeat in every turn, so drafting from earlier
    requests is off. vLLM needs Intel's OpenMP in LD_PRELOAD.
    """
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    from transformers import PreTrainedTokenizerFast
    from vllm import LLM, SamplingParams

    theirs = {"method": "ngram", "prompt_lookup_max": LONGEST, "prompt_lookup_min": SHORTEST}
    ours = {"method": "custom_class", "model": "specdec_hal.compat.vllm.NgramProposer"}
    ours_suffix = {"method": "custom_class", "model": "specdec_hal.compat.vllm.SuffixProposer"}
    no_memory = {"specdec_hal": {"max_cached_requests": 0, "max_depth": 16, "max_factor": 3.0}}
    engines, processes = dict[str, Any](), dict[str, list[int]]()
    methods: dict[str, dict[str, Any] | None] = {PLAIN: None, THEIRS: theirs, OURS: ours}
    if suffix:
        methods["ours, suffix"] = ours_suffix
    for name, method in methods.items():
        before = set(family(os.getpid()))
        engines[name] = LLM(
            str(path),
            dtype="float32",
            max_model_len=2048,
            max_num_seqs=4,
            gpu_memory_utilization=0.15,  # of the machine's memory, in the CPU build
            enable_prefix_caching=False,
            hf_overrides=no_memory if method is ours_suffix else {},
            speculative_config=None if method is None else {**method, "num_speculative_tokens": K},
        )
        processes[name] = [pid for pid in family(os.getpid()) if pid not in before]
    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)

    def signal_all(names: Iterable[str], what: signal.Signals) -> None:
        for pid in (pid for name in names for pid in processes[name]):
            os.kill(pid, what)

    def ready(name: str) -> None:
        signal_all(engines.keys() - {name}, signal.SIGSTOP)
        signal_all([name], signal.SIGCONT)
        # A process that was stopped may sleep for seconds before it sees the first request.
        engines[name].generate([{"prompt_token_ids": [1]}], SamplingParams(max_tokens=2), use_tqdm=False)

    def decoder(name: str) -> Decode:
        def decode(prompts: Tokens) -> Tokens:
            requests = [{"prompt_token_ids": prompt} for prompt in prompts]
            done = engines[name].generate(requests, sampling, use_tqdm=False)
            return [list(out.outputs[0].token_ids) for out in done]

        return decode

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    decoders = {name: decoder(name) for name in engines}
    try:
        preloaded = [Path(file).name for file in os.environ.get("LD_PRELOAD", "").split(":") if file]
        about = {"vllm": importlib.metadata.version("vllm-cpu"), "preloaded": " ".join(preloaded) or "nothing"}
        yield tokenizer, decoders, {THEIRS: "vLLM's n-gram", **about}, ready
    finally:
        signal_all(engines, signal.SIGCONT)
        for engine in engines.values():
            engine.llm_engine.engine_core.shutdown()


@contextmanager
def llama_cpp(path: Path, new_tokens: int, threads: int) -> Iterator[Opened]:
    """llama.cpp in a loop of one token a pass, and this project's runner over it, without drafts and with them."""
    import numpy as np

    import specdec_hal as sd
    from specdec_hal.config import load
    from specdec_hal.models import load_model, load_tokenizer
    from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

    tokenizer = load_tokenizer(path)
    bare = load_model(path, threads=threads, batch_invariant=False)
    bare.allocate(1, 2048)

    def loop(prompts: Tokens) -> Tokens:
        outputs = []
        for prompt in prompts:
            text, fed, at = list(prompt), list(prompt), 0
            while len(text) < len(prompt) + new_tokens:
                segment = Segment(0, 0, len(fed), at, outputs=1)
                tickets = bare.forward(ForwardBatch(np.array(fed), [segment]))[FINAL_NORM]
                at += len(fed)
                fed = [int(bare.compute_logits(tickets[-1:])[0].argmax())]
                text += fed
            outputs.append(text[len(prompt) :])
        return outputs

    # Nothing is kept of earlier requests, since the prompts come again in every turn.
    settings = ["speculative.suffix.max_cached_requests=0", "runner.max_model_len=2048"]
    configuration = "configs/llama_cpp.yaml"

    def run(*more: str) -> Decode:
        config = load(engine_inputs.ROOT / configuration, [*settings, *more])
        model = load_model(path, threads=threads)
        model.config = replace(model.config, eos_token_ids=())  # all requests are equally long
        runner = sd.build_runner(config, sd.get_backend(config.backend.name), model, tokenizer)

        def decode(prompts: Tokens) -> Tokens:
            for at, prompt in enumerate(prompts):
                params = sd.SamplingParams(max_new_tokens=new_tokens)
                runner.add_request(sd.Request(str(at), prompt, params))
            outputs = runner.run()
            return [list(outputs[str(at)].token_ids) for at in range(len(prompts))]

        return decode

    yield (
        lambda text: {"input_ids": tokenizer.encode(text)},
        {
            PLAIN: loop,
            "plain in the runner": run("speculative.method=naive"),
            OURS: run(),
        },
        {"xllamacpp": importlib.metadata.version("xllamacpp"), "configuration": " ".join([configuration, *settings])},
        lambda name: None,
    )


def compare(
    decoders: dict[str, Decode], ready: Callable[[str], object], batches: list[Tokens], repeat: int
) -> dict[str, Any]:
    """Every way of decoding over all batches, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    outputs: dict[str, list[Tokens]] = {}
    for turn in range(repeat + 1):  # the first warms up
        for name, decode in decoders.items():
            ready(name)
            start = time.perf_counter()
            outputs[name] = [decode(batch) for batch in batches]
            if turn:
                seconds[name].append(time.perf_counter() - start)
    rows = {name: [tokens for batch in batches_ for tokens in batch] for name, batches_ in outputs.items()}
    count = sum(map(len, rows[PLAIN]))
    figures: dict[str, Any] = {
        name: {
            "tokens_per_second": round(count / median(times), 1),
            "seconds": {key: round(value, 3) for key, value in asdict(Figures.of(times)).items()},
            "requests_with_plain_tokens": sum(a == b for a, b in zip(rows[name], rows[PLAIN], strict=True)),
        }
        for name, times in seconds.items()
    }
    for name in decoders.keys() - {OURS}:
        pairs = zip(seconds[name], seconds[OURS], strict=True)
        figures[f"ours against {name}"] = round(median(other / mine for other, mine in pairs), 3)
    return {"requests": len(rows[PLAIN]), "tokens": count, **figures}


def run(engine: str, path: Path, new_tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    """One engine with one model: sets of prompts, alone and in batches."""
    ways = {"transformers": transformers, "vllm": partial(vllm, suffix=args.suffix), LLAMA_CPP: llama_cpp}
    opened = ways[engine](path, new_tokens, args.threads)
    figures: dict[str, Any] = {}
    with opened as (tokenizer, decoders, about, ready):
        for group, texts in engine_inputs.prompts().items():
            if group not in args.sets:
                continue
            prompts = [tokenizer(text)["input_ids"] for text in texts[: args.prompts]]
            for size in args.at_a_time:
                batches = [prompts[at : at + size] for at in range(0, len(prompts), size)]
                # The assisted decoding of transformers knows no batches.
                able = {
                    n: d for n, d in decoders.items() if not (engine == "transformers" and size > 1 and n == THEIRS)
                }
                figures[f"{group}, {size} at a time"] = compare(able, ready, batches, args.repeat)
                print(group, size, {k: v for k, v in figures[f"{group}, {size} at a time"].items() if "against" in k})
    return {**about, "new_tokens": new_tokens, **figures}


def main() -> None:
    """One engine, all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["transformers", "vllm", LLAMA_CPP])
    parser.add_argument("--models", nargs="+", help="of tiny-py-lm and SmolLM2-135M-Instruct; both without it")
    parser.add_argument("--new-tokens", type=int, nargs=2, default=[256, 96], help="for the one and for the other")
    parser.add_argument("--sets", nargs="+", choices=engine_inputs.SETS, default=engine_inputs.SETS)
    parser.add_argument("--at-a-time", nargs="+", type=int, choices=[1, 4], help="requests; both without it")
    parser.add_argument("--suffix", action="store_true", help="vLLM: suffix decoding, too, in an engine more")
    parser.add_argument("--prompts", type=int, help="of each set; all without it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    able = [1] if args.engine == LLAMA_CPP else [1, 4]  # the plain loop over llama.cpp has one request
    if not set(args.at_a_time or able) <= set(able):
        parser.error(f"{args.engine} is measured with {able} requests at a time")
    if args.suffix and args.engine != "vllm":
        parser.error("--suffix is for vllm")
    args.at_a_time = args.at_a_time or able
    found = engine_inputs.gguf_files() if args.engine == LLAMA_CPP else engine_inputs.models()
    models = zip(found.items(), args.new_tokens, strict=True)
    wanted = [(name, path, tokens) for (name, path), tokens in models if not args.models or name in args.models]
    figures = {name: run(args.engine, path, tokens, args) for name, path, tokens in wanted}
    write({"threads": args.threads, "drafts": K, "their n-grams": [LONGEST, SHORTEST], **figures}, args.out)


if __name__ == "__main__":
    main()
