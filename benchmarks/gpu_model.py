"""Check and time the decoders for CUDA GPUs on an idle GPU: exactness, bits, graphs, kernel times, tiles.

usage: python3 benchmarks/gpu_model.py OUT.json [PART...]

Parts: check, bits, steps, models, decoders, generate, compiled, mixed, attention, products. "decoders" are models of
`transformers` with random weights, "generate" and "compiled" the library's own loop over them.

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
from dataclasses import replace
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from specdec_hal.models.checkpoint import LlamaConfig, read_config  # noqa: E402
from specdec_hal.models.llama_cuda import LlamaCuda  # noqa: E402
from specdec_hal.models.triton_kernels.launcher import Heads, Launcher  # noqa: E402
from specdec_hal.models.triton_kernels.tiles import AttentionTile, ProductTile, tiles_of  # noqa: E402
from specdec_hal.models.weights import expected_shapes, load_weights  # noqa: E402
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch  # noqa: E402
from tests.support.llama_oracle import oracle  # noqa: E402
from tests.support.paged import Paged  # noqa: E402

TINY = ROOT / "models/tiny-py-lm"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COMPILE_ONLY = "COMPILE" in os.environ
# Processes that compile a part's kernels: of its cases the i-th of n takes each n-th.
SHARDS = {"check": 6, "bits": 3, "steps": 4, "mixed": 8, "models": 12, "attention": 16, "products": 16, "decoders": 15}
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


def timed(run: Callable[[], None]) -> float:
    """Microseconds of `run` within a graph that holds it 20 times."""
    run()

    def twenty() -> None:
        for _ in range(20):
            run()

    return microseconds(captured(twenty).replay, 3) / 20


def kernels(replay: Callable[[], None], steps: int = 5) -> dict[str, Any]:
    """Sum of kernel times, launches, and time by kernel name, of one replay."""
    if COMPILE_ONLY:
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            replay()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spent: Counter[str] = Counter()
    for event in events:
        spent[event.name] += event.time_range.end - event.time_range.start
    return {
        "kernel_us": sum(spent.values()) / steps,
        "launches": len(events) / steps,
        "by_kernel": {name[:60]: round(us / steps, 1) for name, us in spent.most_common(12)},
    }


# ---- check and bits


def mixed(model: LlamaCuda, dtype: str, weights: dict[str, np.ndarray]) -> Row:
    """Prefill chunks, decode steps of 1 to 9 tokens, idle slots and padding together, against float64."""
    generator = np.random.default_rng(1)
    paged = Paged(model, slots=6, length=700, block_size=16)
    texts = [generator.integers(0, 4096, 640) for _ in range(6)]
    done, got = [0] * 6, [[] for _ in range(6)]
    turn = 0
    while min(done) < 640:
        parts = {}
        for slot in range(6):
            count = int(generator.choice([0, 1, 9, 3, 64, 150], p=[0.1, 0.2, 0.2, 0.1, 0.2, 0.2]))
            count = min(count, 640 - done[slot])
            if count:
                parts[slot] = (done[slot], texts[slot][done[slot] : done[slot] + count])
        if not parts:
            continue
        for slot, logits in paged.step(parts, padding=turn % 5, max_seq_len=700).items():
            got[slot].append(logits.cpu().numpy())
            done[slot] += len(parts[slot][1])
        turn += 1
        if COMPILE_ONLY and turn > 12:
            return {}
    errors, agree = [], []
    for slot in range(6):
        want, have = oracle(TINY, texts[slot], weights), np.concatenate(got[slot])
        errors.append(float(np.abs(have - want).max() / want.std()))
        agree.append(float((have.argmax(1) == want.argmax(1)).mean()))
    return {"dtype": dtype, "steps": turn, "worst_error_over_std": max(errors), "same_argmax": min(agree)}


def part_check() -> list[Row]:
    """Logits against float64 with the same weights; a captured step against the same step uncaptured."""
    rows = []
    for dtype, pdl_rows in mine(product(DTYPES, (0, None))):
        config = read_config(TINY)
        weights = load_weights(TINY, config, device="cuda:0", dtype=dtype)
        doubles = {name: tensor.double().cpu().numpy() for name, tensor in weights.items()}
        model = LlamaCuda(config, dict(weights), pdl_rows=pdl_rows)
        rows.append({"pdl_rows": pdl_rows, **mixed(model, dtype, doubles)})
        rows.append({"dtype": dtype, "pdl_rows": pdl_rows, "captured_equals_eager": replayed(model)})
    if not COMPILE_ONLY:
        rows.append(transformers_error())
    return rows


def transformers_error() -> Row:
    """How far transformers' float32 logits are from float64, as a measure for ours."""
    from transformers import LlamaForCausalLM

    config = read_config(TINY)
    weights = load_weights(TINY, config, device="cuda:0", dtype="float32")
    doubles = {name: tensor.double().cpu().numpy() for name, tensor in weights.items()}
    model = LlamaForCausalLM.from_pretrained(TINY, dtype=torch.float32).cuda().eval()
    ours = LlamaCuda(config, dict(weights))
    worst = {"transformers": 0.0, "ours": 0.0, "ours against transformers": 0.0}
    for seed in range(4):
        text = np.random.default_rng(seed).integers(0, 4096, 640)
        want = oracle(TINY, text, doubles)
        theirs = model(torch.as_tensor(text[None]).cuda()).logits[0].cpu().numpy()
        mine = Paged(ours, 1, 700).step({0: (0, text)})[0].cpu().numpy()
        for name, a, b in (
            ("transformers", theirs, want),
            ("ours", mine, want),
            ("ours against transformers", mine, theirs),
        ):
            worst[name] = max(worst[name], float(np.abs(a - b).max() / want.std()))
    return {"worst_error_over_std, float32": worst}


def replayed(model: LlamaCuda) -> bool:
    """Five different batches through one captured step, their tensors written in place; bits of the uncaptured one."""
    generator = np.random.default_rng(2)
    paged = Paged(model, slots=8, length=600)
    texts = generator.integers(0, 4096, (8, 512))
    for first in range(0, 512, 128):
        paged.step({slot: (first, texts[slot, first : first + 128]) for slot in range(8)})
    options = {"max_seq_len": 600, "max_query_len": 9}

    def batch(seed: int) -> DeviceBatch:
        g = np.random.default_rng(seed)
        parts = {
            slot: (int(g.integers(1, 512)), g.integers(0, 4096, g.integers(1, 10)))
            for slot in range(8)
            if g.random() < 0.8
        }
        short = paged.batch(parts, **options)
        return paged.batch(parts, padding=72 - len(short.token_ids), **options)

    static = batch(0)
    hidden = torch.zeros((72, model.config.hidden_size), dtype=model.dtype, device="cuda")
    logits = torch.zeros((72, model.config.vocab_size), device="cuda")

    def run() -> None:
        model.forward_device(static, {FINAL_NORM: hidden})
        model.compute_logits_device(hidden, logits, static.cu_seqlens_q[-1:])

    run()
    graph = captured(run)
    for seed in range(1, 6):
        fresh = batch(seed)
        for name in ("token_ids", "batch_id_per_token", "cu_seqlens_q", "seq_lens_decoder"):
            getattr(static, name).copy_(getattr(fresh, name))
        results = []
        for execute in (graph.replay, run, graph.replay):
            hidden.fill_(float("nan"))
            logits.fill_(float("nan"))
            execute()
            results.append((hidden.clone(), logits.clone()))
        rows = int(fresh.cu_seqlens_q[-1])
        for other in results[1:]:
            if not all(torch.equal(a[:rows], b[:rows]) for a, b in zip(results[0], other, strict=True)):
                return False
        if not results[0][1][:rows].isfinite().all():
            return False
    return True


def part_bits() -> list[Row]:
    """One text in every division: all logits must have the bits of the undivided text."""
    rows = []
    for dtype in mine(DTYPES):
        config = read_config(TINY)
        weights = load_weights(TINY, config, device="cuda:0", dtype=dtype)
        model = LlamaCuda(config, dict(weights))
        tokens, others = np.random.default_rng(3).integers(0, 4096, (2, 700))
        paged = Paged(model, slots=5, length=3000, block_size=16)
        whole = paged.step({2: (0, tokens)})[2]
        row: Row = {"dtype": dtype}

        for chunk in (1, 2, 9, 16, 17, 32, 100, 256):
            until = 200 if chunk < 9 else 700
            row[f"chunks of {chunk}"] = difference(
                whole,
                (paged.step({1: (p, tokens[p : p + chunk][: until - p])})[1] for p in range(0, until, chunk)),
            )
        row["max_seq_len 3000"] = difference(
            whole, (paged.step({1: (p, tokens[p : p + 9])}, max_seq_len=3000)[1] for p in range(0, 700, 9))
        )
        row["beside others"] = difference(
            whole,
            (
                paged.step({1: (p, tokens[p : p + 9]), 0: (0, others[:300]), 4: (0, others[: 1 + p])}, padding=7)[1]
                for p in range(0, 180, 9)
            ),
        )
        rows.append(row)
        rows.append({"dtype": dtype, "products": product_bits(DTYPES[dtype])})
    return rows


def difference(whole: torch.Tensor, pieces: Iterator[torch.Tensor]) -> str | float:
    """ "equal", or by how much the pieces differ from the beginning of the whole."""
    got = torch.cat(list(pieces))
    want = whole[: len(got)]
    return "equal" if torch.equal(got, want) else float((got - want).abs().max())


def product_bits(dtype: torch.dtype) -> dict[str, Any]:
    """Tiles of products whose bits differ from those of the first one of their class (none should)."""
    torch.manual_seed(0)
    launcher = Launcher(torch.device("cuda"), dtype, 0)
    x, weight = (torch.randn(300, 2048, device="cuda").to(dtype), torch.randn(512, 2048, device="cuda").to(dtype))
    first: dict[tuple[Any, ...], torch.Tensor] = {}
    differing: dict[str, Any] = {}
    ways = ((False, False), (True, False), (True, True))
    for m, n, k, warps, way in product((16, 32, 64, 128), (32, 64, 128, 256), (32, 64), (4, 8), ways):
        if m * n > 4096 and (dtype == torch.float32 or warps == 4):
            continue
        launcher.tiles = replace(launcher.tiles, products=(ProductTile(m, n, k, warps, 3, *way),), large=())
        name = f"{m}x{n}x{k}/{warps}{' described' * way[0]}{' swapped' * way[1]}"
        out = torch.empty(300, 512, device="cuda")
        try:
            launcher.linear(x, weight, out, None)
        except Exception as error:
            differing[name] = repr(error)[:80]
            continue
        want = first.setdefault((k, way[1]) if dtype == torch.float32 else (), out)
        if not torch.equal(want, out):
            differing[name] = float((want - out).abs().max())
    return differing


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


def decode_step(model: Any, slots: int, k: int, context: int, bucket: int, label: str) -> Row:
    """A captured step of slots that all decode K+1 tokens after `context` others."""
    graph = captured(prepared(model, slots, k, context, bucket))
    return {"label": label, "slots": slots, "K": k, "bucket": bucket, "step_us": microseconds(graph.replay)}


def both(make: Callable[[bool], LlamaCuda], *arguments: Any) -> Row:
    """With and without programmatic dependent launch; kernels by name without."""
    row = decode_step(make(True), *arguments)
    if COMPILE_ONLY:
        decode_step(make(False), *arguments)
        return row
    plain = make(False)
    row["step_us_without_pdl"] = decode_step(plain, *arguments)["step_us"]
    row |= profiled(plain, *arguments)
    print(json.dumps(row), flush=True)
    return row


def profiled(model: LlamaCuda, slots: int, k: int, context: int, bucket: int, label: str) -> dict[str, Any]:
    """Kernel times of the step that `decode_step` measures."""
    return kernels(captured(prepared(model, slots, k, context, bucket)).replay)


def of_weights(config: LlamaConfig, weights: dict[str, torch.Tensor], pdl: bool) -> LlamaCuda:
    """A model that shares its weights with others."""
    return LlamaCuda(config, dict(weights), pdl_rows=None if pdl else 0)


def part_steps() -> list[Row]:
    """The embedded model at 1, 8 and 64 slots, plain and with K = 8; and one prefill of 2,000 tokens."""
    rows = []
    cases = [("float32", None), ("bfloat16", None)]
    cases += [(dtype, case) for case in product((1, 8, 64), (0, 8)) for dtype in ("float32", "bfloat16")]
    for dtype, case in mine(cases):
        config = read_config(TINY)
        weights = load_weights(TINY, config, device="cuda:0", dtype=dtype)
        if case is None:
            rows.append(prefill(LlamaCuda(config, weights), 1024, dtype))
        else:
            rows.append(both(partial(of_weights, config, weights), *case, 500, 1024, dtype))
    return rows


def prefill(model: LlamaCuda, length: int, label: str) -> Row:
    """One chunk of a prompt in a bucket of its size."""
    config = model.config
    paged = Paged(model, 1, length, block_size=64)
    batch = paged.batch({0: (0, np.random.default_rng(0).integers(0, config.vocab_size, length))})
    hidden = torch.empty((length, config.hidden_size), dtype=model.dtype, device="cuda")
    model.forward_device(batch, {FINAL_NORM: hidden})
    graph = captured(lambda: model.forward_device(batch, {FINAL_NORM: hidden}))
    return {
        "label": label,
        "prefill": length,
        "step_us": microseconds(graph.replay, 5),
        **kernels(graph.replay, 2),
    }


def llama(hidden: int, intermediate: int, layers: int, heads: int, head_dim: int, *, tied: bool) -> LlamaConfig:
    """The shapes of a Llama 3."""
    return LlamaConfig(
        vocab_size=128256, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=head_dim, max_position_embeddings=131072,
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=tied,
    )  # fmt: skip


MODELS = {
    "1.2B": llama(2048, 8192, 16, 32, 64, tied=True),
    "3.2B": llama(3072, 8192, 28, 24, 128, tied=True),
    "8B": llama(4096, 14336, 32, 32, 128, tied=False),
}
BANDWIDTH = 3.0e12
"""Bytes a second that a copy of an H100 moves: the floor of a step is its weights and its KV cache at this rate."""


def random_weights(config: LlamaConfig) -> dict[str, torch.Tensor]:
    """A checkpoint's, in bfloat16."""
    return {
        key: torch.ones(shape, dtype=torch.bfloat16, device=DEVICE)
        if len(shape) == 1
        else torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(std=shape[-1] ** -0.5)
        for key, shape in expected_shapes(config).items()
    }


def part_models() -> list[Row]:
    """Steps after 500 tokens, and a prompt of 2,048 tokens, with random weights in bfloat16."""
    rows = []
    cases = list(product((1, 8, 16, 64), (0, 5)))
    for name, config in MODELS.items():
        used = replace(config, num_hidden_layers=2) if COMPILE_ONLY else config
        chosen = list(mine(cases))
        weights = random_weights(used)
        read = sum(weight.nbytes for weight in weights.values())
        if not config.tie_word_embeddings:
            read -= weights["model.embed_tokens.weight"].nbytes
        model = LlamaCuda(used, weights)
        for slots, k in chosen:
            row = decode_step(model, slots, k, 500, 1024, name)
            kv = slots * 500 * 2 * 2 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
            row["floor_us"] = 1e6 * (read + kv) / BANDWIDTH
            row["share_of_floor"] = row["floor_us"] / max(row["step_us"], 1e-9)
            print(json.dumps(row), flush=True)
            rows.append(row)
        if (1, 0) in chosen:
            rows.append(prefill(model, 2048, name))
            print(json.dumps(rows[-1]), flush=True)
        del model, weights
        torch.cuda.empty_cache()
    return rows


def part_mixed() -> list[Row]:
    """A chunk of a prompt, after 1,500 tokens of it, beside 63 decoding slots."""
    rows = []
    config = read_config(TINY)
    for dtype, chunk in mine(product(("float32", "bfloat16"), (1, 128, 256, 512))):
        model = LlamaCuda(config, load_weights(TINY, config, device="cuda:0", dtype=dtype))
        paged = Paged(model, 64, 2047, block_size=64)
        for layer in model.pool_layers():
            layer.normal_()
        tokens = np.random.default_rng(0).integers(0, config.vocab_size, chunk)
        parts = {slot: (500, tokens[:1]) for slot in range(63)} | {63: (1500, tokens)}
        batch = paged.batch(parts, max_seq_len=2047)
        hidden = torch.empty((len(batch.token_ids), config.hidden_size), dtype=model.dtype, device="cuda")
        run = partial(model.forward_device, batch, {FINAL_NORM: hidden})
        run()
        rows.append({"label": dtype, "chunk": chunk, "step_us": microseconds(captured(run).replay)})
    return rows


# ---- decoders of transformers

OWN_PREFIX = "own "
OWN = OWN_PREFIX + "Llama-3.2-1B"
"""Our class, beside the adapter."""


def decoder_configs() -> dict[str, Any]:
    """The shapes of published models, without rotary scaling. Sums of layers, experts and windows are theirs."""
    from transformers import Gemma3TextConfig, GptOssConfig, LlamaConfig, Qwen3Config

    qwen = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
    return {
        "Llama-3.2-1B": LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
        ),
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


def adapter(model: Any) -> Any:
    """The model over our KV cache."""
    from specdec_hal.models.paged import launchers
    from specdec_hal.models.transformers.decoder import Decoder
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.plugin.model import ModelConfig

    text = model.config
    known = ModelConfig(
        vocab_size=text.vocab_size, hidden_size=text.hidden_size, max_position_embeddings=text.max_position_embeddings
    )  # fmt: skip
    make_launcher = launchers(torch.device(DEVICE)) if DEVICE == "cuda" else None
    # The kernels are the same if bits are measured, which would compile more of them.
    return DeviceTransformers(Decoder(model, known), make_launcher=make_launcher, batch_invariant=False)


class Floor:
    """How long reading takes what a step reads, at BANDWIDTH. `model`: as the library makes it."""

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
        return 1e6 * (read + slots * sum(seen) * 4 * config.num_key_value_heads * config.head_dim) / BANDWIDTH


def part_decoders() -> list[Row]:
    """Steps after 500 tokens by the adapter, and by our class where there is one; kernels of some steps."""
    rows: list[Row] = []
    cases = list(product((OWN, *decoder_configs()), (1, 8, 64), (0, 5)))
    for name, group in groupby(mine(cases), lambda case: case[0]):
        try:
            rows += decoder_steps(name, [(slots, k) for _, slots, k in group])
        except Exception as error:  # the others' figures count without these
            traceback.print_exc()
            rows.append({"label": name, "failed": repr(error)})
        torch.cuda.empty_cache()
    return rows


def decoder_steps(name: str, cases: list[tuple[int, int]]) -> list[Row]:
    """Those of one model, by slots and K."""
    rows: list[Row] = []
    config = decoder_configs()[name.removeprefix(OWN_PREFIX)]
    if COMPILE_ONLY:
        config.num_hidden_layers = 6 if "Gemma" in name else 2
    model = of_transformers(config)
    floor = Floor(model)
    if name == OWN:
        own = replace(MODELS["1.2B"], num_hidden_layers=config.num_hidden_layers)
        ours = LlamaCuda(own, random_weights(own))
    else:
        ours = adapter(model)
    for slots, k in cases:
        row = decode_step(ours, slots, k, 500, 1024, name)
        row["floor_us"] = floor.us(slots, k, 500)
        row["share_of_floor"] = row["floor_us"] / max(row["step_us"], 1e-9)
        if (slots, k) in ((1, 0), (8, 5)):
            row |= kernels(captured(prepared(ours, slots, k, 500, 1024)).replay)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def generate_us(model: Any, slots: int, **options: Any) -> float:
    """Microseconds a token of `generate` with a static cache, after 500 tokens: the difference of two lengths."""
    ids = torch.randint(3, model.config.vocab_size, (slots, 500), device=DEVICE)

    def seconds(count: int) -> float:
        begin = time.perf_counter()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False,
            pad_token_id=0, cache_implementation="static", **options,
        )  # fmt: skip
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds(24)
    return 1e6 * (seconds(24) - seconds(8)) / 16


def part_generate(names: Iterable[str] = (), **options: Any) -> list[Row]:
    """The library's own loop, as it is."""
    rows: list[Row] = []
    for name in names or decoder_configs():
        model = of_transformers(decoder_configs()[name])
        for slots in (1, 8):
            us = generate_us(model, slots, **(options or {"disable_compile": True}))
            rows.append({"label": name, "slots": slots, "K": 0, "generate_us": us, **options})
            print(json.dumps(rows[-1]), flush=True)
        del model
        torch.cuda.empty_cache()
    return rows


def part_compiled() -> list[Row]:
    """The library's own loop, compiled, which takes minutes for large models."""
    return part_generate(["Qwen3-0.6B"], disable_compile=False)


# ---- sweeps


def part_attention() -> list[Row]:
    """Chunks, tiles and warps of attention, float32 (embedded heads) and bfloat16 (those of 1.2 B)."""
    rows = []
    kept = {name: tiles_of(name) for name in ("float32", "bfloat16")}
    cases = []
    for (dtype, heads), slots, tokens in product(
        (("float32", Heads(4, 2, 64)), ("bfloat16", Heads(4, 2, 64)), ("bfloat16", Heads(32, 8, 64))), (1, 64), (1, 9)
    ):
        m = kept[dtype].attend(heads.heads // heads.kv_heads, tokens, 64).m
        for chunk, warps, stages in product((64, 128, 256), (2, 4, 8), (1, 2)):
            if (warps == 2 and m > 16) or (warps == 8 and m == 16) or (stages == 2 and dtype == "float32"):
                continue
            cases.append((dtype, heads, slots, tokens, chunk, AttentionTile(m, warps, stages)))
    for dtype, heads, slots, tokens, chunk, tile in mine(cases):
        launcher = Launcher(torch.device("cuda"), DTYPES[dtype])
        launcher.tiles = replace(kept[dtype], chunk=chunk, attention=(tile,))
        us = attention_us(launcher, DTYPES[dtype], heads, slots, tokens, 500, 1024)
        rows.append(
            {"dtype": dtype, "heads": heads.heads, "slots": slots, "tokens": tokens, "chunk": chunk}
            | {"m": tile.m, "warps": tile.warps, "stages": tile.stages, "us": us}
        )
    if not COMPILE_ONLY:
        report(rows, ("dtype", "heads", "slots", "tokens"), ("chunk", "m", "warps", "stages"))
    return rows


def attention_us(
    launcher: Launcher, dtype: torch.dtype, heads: Heads, slots: int, tokens: int, context: int, bucket: int
) -> float:
    """Microseconds of attention of one layer."""
    width = -(-(context + tokens) // 64)
    pool = torch.randn((slots * width, 2, 64, heads.kv_heads, heads.head_dim), device="cuda").to(dtype)
    q = torch.randn((slots * tokens, heads.heads * heads.head_dim), device="cuda").to(dtype)
    out = torch.empty_like(q)

    def ints(values: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=torch.int32).cuda()

    batch = DeviceBatch(
        q, q, ints(np.arange(slots + 1) * tokens), ints([context] * slots),
        ints(np.random.default_rng(0).permutation(slots * width).reshape(slots, width)), bucket, tokens,
    )  # fmt: skip
    try:
        return timed(lambda: launcher.attention(q, out, pool, batch, heads))
    except Exception as error:
        print("attention", launcher.tiles.attention, repr(error)[:100])
        return float("inf")


def cublas(x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor) -> None:
    """The product by the library."""
    torch.mm(x, weight.T, out=out)


def ours(launcher: Launcher, x: torch.Tensor, out: torch.Tensor, weight: torch.Tensor) -> None:
    """The product by the kernel."""
    launcher.linear(x, weight, out, None)


def product_shapes(config: LlamaConfig) -> list[tuple[int, int]]:
    """Columns and depth of the weights of a layer and of the head."""
    hidden, heads = config.hidden_size, config.num_attention_heads * config.head_dim
    queries = heads + 2 * config.num_key_value_heads * config.head_dim
    layer = [(queries, hidden), (hidden, heads), (2 * config.intermediate_size, hidden)]
    return [*layer, (hidden, config.intermediate_size), (config.vocab_size, hidden)]


def part_products() -> list[Row]:
    """Tiles of the products of both models, beside cuBLAS."""
    rows = []
    shapes = {
        "float32": [(1408, 256), (256, 704)],
        "bfloat16": sorted({shape for config in MODELS.values() for shape in product_shapes(config)}),
    }
    for dtype, all_shapes in shapes.items():
        launcher = Launcher(torch.device("cuda"), DTYPES[dtype], 0)
        kept = launcher.tiles
        for (columns, depth), count in product(all_shapes, (1, 16, 32, 48, 64, 96, 128, 384)):
            x = torch.randn((count, depth), device="cuda").to(DTYPES[dtype])
            # Several weights in turn, so that they come from memory where they would in a model.
            weights = [
                torch.randn((columns, depth), device="cuda").to(DTYPES[dtype])
                for _ in range(1 if COMPILE_ONLY else max(2, 200_000_000 // (columns * depth * x.itemsize)))
            ]
            out = torch.empty(
                (count, columns), device="cuda", dtype=torch.float32 if columns in (4096, 128256) else x.dtype
            )
            if out.dtype == x.dtype:
                us = each(partial(cublas, x, out), weights)
                rows.append({"dtype": dtype, "shape": f"{columns}x{depth}", "rows": count, "tile": "cublas", "us": us})
            for tile in mine(product_variants(dtype, count)):
                launcher.tiles = replace(kept, products=(tile,), large=())
                try:
                    us = each(partial(ours, launcher, x, out), weights)
                except Exception as error:
                    print("product", tile, repr(error)[:100])
                    continue
                name = f"{tile.m}x{tile.n}x{tile.k} w{tile.warps} s{tile.stages}"
                name += " described" * tile.described + " swapped" * tile.swap
                rows.append({"dtype": dtype, "shape": f"{columns}x{depth}", "rows": count, "tile": name, "us": us})
    if not COMPILE_ONLY:
        report(rows, ("dtype", "shape", "rows"), ("tile",))
    return rows


def product_variants(dtype: str, rows: int) -> Iterator[ProductTile]:
    """Tiles worth a try."""
    few = [(16, 32, 64, 4, 3), (16, 64, 64, 4, 3), (16, 16, 64, 4, 3)]
    some = [(16, 32, 64, 4, 3), (32, 32, 64, 4, 3), (32, 64, 64, 4, 3), (64, 64, 64, 4, 3)]
    many = [(32, 64, 64, 4, 3), (64, 64, 64, 4, 3), (64, 64, 64, 4, 3, True), (64, 128, 64, 8, 3, True)]
    if dtype == "bfloat16":
        few = [
            (16, 32, 128, 4, 4),
            (16, 64, 128, 4, 5),
            (16, 64, 128, 4, 5, True, True),
            (16, 128, 128, 4, 4, True, True),
        ]
        some = [(32, 64, 128, 4, 6, True, True), (32, 128, 128, 4, 4, True, True), (64, 32, 128, 4, 4)]
        some += [(64, 64, 128, 4, 3), (64, 64, 128, 4, 6, True), (64, 64, 128, 4, 5, True, True)]
        some += [(64, 128, 128, 4, 4, True), (64, 128, 128, 8, 4, True, True), (128, 64, 128, 8, 4, True, True)]
        some += [(128, 128, 128, 8, 3, True)]
        many = [(64, 128, 64, 4, 3, True), (64, 128, 64, 4, 4, True), (128, 64, 64, 4, 4, True)]
        many += [(128, 128, 64, 8, 5, True), (128, 128, 128, 8, 3, True, True), (128, 256, 64, 8, 4, True)]
        many += [(64, 256, 64, 4, 4, True, True), (256, 128, 64, 8, 4, True, True)]
    for tile in few if rows <= 16 else some if rows <= 128 else many:
        yield ProductTile(*tile)


def each(run: Callable[[Any], Any], weights: list[Any]) -> float:
    """Microseconds of `run` with one of the weights."""

    def all_of_them() -> None:
        for weight in weights:
            run(weight)

    if COMPILE_ONLY:
        run(weights[0])
        torch.cuda.synchronize()
        return 0.0
    all_of_them()
    return microseconds(captured(all_of_them).replay, 10) / len(weights)


def report(rows: list[Row], case: tuple[str, ...], variant: tuple[str, ...]) -> None:
    """The three fastest variants of each case, and cuBLAS."""
    cases: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cases.setdefault(tuple(row[name] for name in case), []).append(row)
    for key, group in cases.items():
        ranked = sorted(group, key=lambda row: row["us"])
        best = [f"{row['us']:.1f} ({' '.join(str(row[n]) for n in variant)})" for row in ranked[:4]]
        best += [f"{row['us']:.1f} cublas" for row in ranked[4:] if row.get("tile") == "cublas"]
        print(*key, "|", "; ".join(best), flush=True)


PARTS = {name: globals()[f"part_{name}"] for name in (*SHARDS, "generate", "compiled")}


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
    results["device"], results["torch"] = torch.cuda.get_device_name(), torch.__version__
    for name in names:
        start = time.perf_counter()
        try:
            results[name] = PARTS[name]()
        except Exception as error:
            traceback.print_exc()
            results[name] = [{"failed": repr(error)}]
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        if name in ("check", "bits", "steps", "mixed"):
            for row in results[name]:
                print("  ", json.dumps(row), flush=True)
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        main()
