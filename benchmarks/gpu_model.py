"""Time decoders of `transformers` on an idle GPU: steps and kernels. Tests on a GPU check their results.

usage: python3 benchmarks/gpu_model.py OUT.json [PART...]

Parts, all with random weights: models (Llamas of three sizes), decoders (several families), shares (those and Qwen3
with one request, and with 8 requests of 5 drafts). In bfloat16 and FP8: fp8 (the Llama of 8 B parameters), experts
(8 layers of Qwen3-30B-A3B).

Needs PyTorch with CUDA, Triton, NumPy and safetensors. Many processes compile the kernels first; then the
parts run one after the other, with what Triton's cache holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from record import write  # noqa: E402

from specdec_hal.plugin.model import FINAL_NORM  # noqa: E402
from tests.support.paged import Paged  # noqa: E402

COMPILE_ONLY = "COMPILE" in os.environ
# Processes that compile a part's kernels: of its cases the i-th of n takes each n-th.
SHARDS = {"models": 12, "decoders": 15, "shares": 5, "fp8": 12, "experts": 9}
DEVICE = "cuda"
Row = dict[str, Any]


def mine(cases: Iterable[Any]) -> Iterator[Any]:
    """This process's cases: all, unless it compiles."""
    index, count = map(int, os.environ.get("COMPILE", "0/1").split("/"))
    return (case for i, case in enumerate(cases) if i % count == index)


# ---- measuring


def captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of `run`, which has been run before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    torch.cuda.synchronize()
    return graph


def microseconds(replay: Callable[[], None], repeats: int = 30) -> float:
    """Median over three runs of the time of one replay among `repeats`."""
    if COMPILE_ONLY:
        return 0.0
    times = []
    for _ in range(4):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / repeats)
    return float(np.median(times[1:]))


def kernels(replay: Callable[[], None], steps: int = 5) -> dict[str, Any]:
    """Sum of kernel times and launches of one replay, and by each kernel's name after those of the two before it, the
    time from the end of the kernel before to its own: launches overlap."""
    if COMPILE_ONLY:
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            replay()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.end)
    names = [event.name.removeprefix("void ")[:30] for event in events]
    spent: Counter[str] = Counter()
    for i in range(2, len(events)):
        spent[", ".join(names[i - 2 : i + 1])] += events[i].time_range.end - events[i - 1].time_range.end
    return {
        "kernel_us": sum(event.time_range.end - event.time_range.start for event in events) / steps,
        "launches": len(events) / steps,
        "by_kernel": {name: round(us / steps, 1) for name, us in spent.most_common(12)},
    }


# ---- steps


def prepared(model: Any, slots: int, k: int, context: int, bucket: int) -> Callable[[], None]:
    """A step of slots that all decode K+1 tokens after `context` others."""
    config, rows = model.config, slots * (k + 1)
    generator = np.random.default_rng(0)
    paged = Paged(model, slots, context + k + 1, block_size=64)
    for layer in model.pool_layers():
        layer.normal_()
    parts = {slot: (context, generator.integers(0, config.vocab_size, k + 1)) for slot in range(slots)}
    batch = paged.batch(parts, max_seq_len=bucket)
    hidden = torch.empty((rows, config.hidden_size), dtype=model.dtype, device=DEVICE)
    logits = torch.empty((rows, config.vocab_size), device=DEVICE)

    def run() -> None:
        model.forward_device(batch, {FINAL_NORM: hidden})
        model.compute_logits_device(hidden, logits)

    return run


def steps(
    name: str,
    config: Any,
    cases: list[tuple[int, int]],
    traced: tuple[tuple[int, int], ...] = (),
    prompt: int = 0,
    quantization: str = "none",
) -> Iterator[Row]:
    """Captured steps of slots that all decode K+1 tokens after 500 others, by slots and K, with random weights.

    `traced`: of these also the kernels. `prompt`: after the step of one slot, one of so many tokens of a prompt.
    `quantization`: as the key of that name.
    """
    whole = of_transformers(config)
    if quantization != "none":
        from specdec_hal.models.transformers.fp8 import DYNAMIC, Plan

        Plan(Path(name), {}, (128, 128), quantization == DYNAMIC).finish(whole, DEVICE)
    floor, model = Floor(whole), adapter(whole)
    for slots, k in cases:
        graph = captured(prepared(model, slots, k, 500, 1024))
        row = {"label": name, "slots": slots, "K": k, "bucket": 1024, "step_us": microseconds(graph.replay)}
        row["floor_us"] = floor.us(slots, k, 500)
        row["share_of_floor"] = row["floor_us"] / max(row["step_us"], 1e-9)
        if (slots, k) in traced:
            row |= kernels(graph.replay)
        del graph
        yield row
    if prompt and (1, 0) in cases:
        yield prefill(model, prompt, name)


def prefill(model: Any, length: int, label: str) -> Row:
    """One chunk of a prompt in a bucket of its size."""
    config = model.config
    paged = Paged(model, 1, length, block_size=64)
    batch = paged.batch({0: (0, np.random.default_rng(0).integers(0, config.vocab_size, length))})
    hidden = torch.empty((length, config.hidden_size), dtype=model.dtype, device=DEVICE)
    model.forward_device(batch, {FINAL_NORM: hidden})
    graph = captured(lambda: model.forward_device(batch, {FINAL_NORM: hidden}))
    return {
        "label": label,
        "prefill": length,
        "step_us": microseconds(graph.replay, 5),
        **kernels(graph.replay, 2),
    }


def llama(hidden: int, intermediate: int, layers: int, heads: int, head_dim: int, *, tied: bool) -> Any:
    """The shapes of a Llama 3."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=128256, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=head_dim, max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, rms_norm_eps=1e-5, tie_word_embeddings=tied,
    )  # fmt: skip


MODELS: dict[str, Callable[[], Any]] = {
    "1.2B": partial(llama, 2048, 8192, 16, 32, 64, tied=True),
    "3.2B": partial(llama, 3072, 8192, 28, 24, 128, tied=True),
    "8B": partial(llama, 4096, 14336, 32, 32, 128, tied=False),
}


@cache
def bandwidth() -> float:
    """Bytes a second that this GPU reads: the best of several sums of 2 GB."""
    if COMPILE_ONLY:
        return 1.0
    numbers, total = torch.ones(1 << 29, device=DEVICE), torch.empty((), device=DEVICE)
    read = captured(partial(torch.sum, numbers, 0, out=total))
    return float(numbers.nbytes / (1e-6 * min(microseconds(read.replay, 3) for _ in range(5))))


def part_models() -> list[Row]:
    """Steps after 500 tokens, and a prompt of 2,048 tokens, with random weights in bfloat16."""
    rows = []
    cases = list(product((1, 8, 16, 64), (0, 5)))
    for name, make in MODELS.items():
        config = make()
        if COMPILE_ONLY:
            config.num_hidden_layers = 2
        for row in steps(name, config, list(mine(cases)), prompt=2048):
            print(json.dumps(row), flush=True)
            rows.append(row)
        torch.cuda.empty_cache()
    return rows


def part_fp8() -> list[Row]:
    """Steps after 500 tokens and a prompt of 2,048, in bfloat16, with weights in FP8, and also activations."""
    return in_fp8("8B", MODELS["8B"], ((1, 0), (8, 5), (64, 0), (64, 5)), 2048)


def part_experts() -> list[Row]:
    """The same of a mixture of experts, without a prompt."""
    from transformers import Qwen3MoeConfig

    make = partial(
        Qwen3MoeConfig, vocab_size=151936, hidden_size=2048, moe_intermediate_size=768, num_hidden_layers=8,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
        norm_topk_prob=True,
    )  # fmt: skip
    return in_fp8("Qwen3-30B-A3B", make, ((1, 0), (8, 5), (64, 0)), 0)


def in_fp8(name: str, make: Callable[[], Any], sizes: tuple[tuple[int, int], ...], prompt: int) -> list[Row]:
    """Steps of a model with each `model.quantization`, and kernels of the first and the last."""
    rows, traced = [], (sizes[0], sizes[-1])
    cases = product(("none", "fp8", "fp8_dynamic"), sizes)
    for kind, group in groupby(mine(cases), lambda case: case[0]):
        config = make()
        if COMPILE_ONLY:
            config.num_hidden_layers = 2
        for row in steps(name, config, [case for _, case in group], traced, prompt, quantization=kind):
            rows.append({**row, "quantization": kind})
            print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    return rows


# ---- decoders of transformers


def decoder_configs() -> dict[str, Any]:
    """The shapes of published models, without rotary scaling. Sums of layers, experts and windows are theirs."""
    from transformers import Gemma3TextConfig, GptOssConfig, Qwen3Config

    qwen = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
    return {
        "Llama-3.2-1B": MODELS["1.2B"](),
        "Qwen3-0.6B": Qwen3Config(
            hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, **qwen
        ),
        "Qwen3-4B": Qwen3Config(
            hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32, **qwen
        ),
        "Gemma3-1B": Gemma3TextConfig(
            vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
            num_key_value_heads=1, head_dim=256, sliding_window=512,
        ),
        "gpt-oss-20b": GptOssConfig(
            num_hidden_layers=24, num_local_experts=32, rope_parameters={"rope_type": "default", "rope_theta": 150000.0}
        ),
    }  # fmt: skip


def of_transformers(config: Any) -> Any:
    """A model with random weights in bfloat16."""
    from transformers import AutoModelForCausalLM

    if kinds := getattr(config, "layer_types", None):
        config.layer_types = kinds[: config.num_hidden_layers]
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def adapter(model: Any, group: Any = None) -> Any:
    """The model over our KV cache; of `group`, this rank's part."""
    from specdec_hal.models.paged import launchers
    from specdec_hal.models.transformers.decoder import Decoder
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.plugin.model import ModelConfig

    text = model.config
    known = ModelConfig(
        vocab_size=text.vocab_size, hidden_size=text.hidden_size, max_position_embeddings=text.max_position_embeddings
    )  # fmt: skip
    if group is not None:
        from specdec_hal.models.transformers.tensor_parallel import divide

        divide(model, group)
    make_launcher = launchers(torch.device(DEVICE)) if DEVICE == "cuda" else None
    # The kernels are the same if bits are measured, which would compile more of them.
    return DeviceTransformers(Decoder(model, known), make_launcher=make_launcher, batch_invariant=False, group=group)


class Floor:
    """How long reading takes what a step reads, at :func:`bandwidth`. `model`: as the library makes it."""

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.weights = sum(weight.nbytes for weight in model.parameters())
        if not self.config.tie_word_embeddings:
            self.weights -= model.get_input_embeddings().weight.nbytes
        self.experts = sum(weight.nbytes for name, weight in model.named_parameters() if ".experts." in name)

    def us(self, slots: int, k: int, context: int) -> float:
        """Weights, experts as often as uniform choices hit them, and the KV cache."""
        config, read = self.config, float(self.weights)
        if self.experts:
            read -= self.experts * (1 - config.num_experts_per_tok / config.num_local_experts) ** (slots * (k + 1))
        seen = [
            min(context, config.sliding_window) if kind == "sliding_attention" else context
            for kind in (getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers)
        ]
        return 1e6 * (read + slots * sum(seen) * 4 * config.num_key_value_heads * config.head_dim) / bandwidth()


def part_decoders() -> list[Row]:
    """Steps after 500 tokens; kernels of some steps."""
    rows: list[Row] = []
    cases = list(product(decoder_configs(), (1, 8, 64), (0, 5)))
    for name, group in groupby(mine(cases), lambda case: case[0]):
        config = decoder_configs()[name]
        if COMPILE_ONLY:
            config.num_hidden_layers = 6 if "Gemma" in name else 2
        try:
            for row in steps(name, config, [(slots, k) for _, slots, k in group], traced=((1, 0), (8, 5))):
                print(json.dumps(row), flush=True)
                rows.append(row)
        except Exception as error:  # the others' figures count without these
            traceback.print_exc()
            rows.append({"label": name, "failed": repr(error)})
        torch.cuda.empty_cache()
    return rows


def part_shares() -> list[Row]:
    """Steps of one request, and of 8 with 5 drafts each, of the Llamas and of two sizes of Qwen3."""
    rows = []
    decoders = {name: config for name, config in decoder_configs().items() if name.startswith("Qwen3")}
    for name, config in mine(({name: make() for name, make in MODELS.items()} | decoders).items()):
        if COMPILE_ONLY:
            config.num_hidden_layers = 2
        for row in steps(name, config, [(1, 0), (8, 5)]):
            print(json.dumps(row), flush=True)
            rows.append(row)
        torch.cuda.empty_cache()
    return rows


PARTS = {name: globals()[f"part_{name}"] for name in SHARDS}


def main() -> None:
    """Compile everything, then run the parts."""
    out, *names = sys.argv[1:]
    names = names or list(PARTS)
    if COMPILE_ONLY:
        PARTS[names[0]]()
        return
    begin = time.perf_counter()
    workers = {
        f"{name} {i}": subprocess.Popen(
            [sys.executable, __file__, out, name], env={**os.environ, "COMPILE": f"{i}/{SHARDS[name]}"}
        )
        for name in names
        for i in range(SHARDS.get(name, 0))
    }
    codes = {name: worker.wait() for name, worker in workers.items()}
    results: dict[str, Any] = {
        "compile_s": time.perf_counter() - begin,
        "compile_failed": [n for n in codes if codes[n]],
    }
    print(json.dumps(results), flush=True)
    results["read_bytes_per_s"] = bandwidth()
    for name in names:
        start = time.perf_counter()
        try:
            results[name] = PARTS[name]()
        except Exception as error:
            traceback.print_exc()
            results[name] = [{"failed": repr(error)}]
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        write(results, Path(out))


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        main()
