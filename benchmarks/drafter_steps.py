"""Time trained drafters beside a 3.2 B target with random weights, captured, and decode with the embedded model's head.

usage: python3 benchmarks/drafter_steps.py OUT.json [passes|engine|embedded]

Needs an idle CUDA GPU, PyTorch and Triton. Random weights accept almost nothing: the 3.2 B target only shows the cost
of a step, and so the break-even tokens per step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import specdec_hal as sd  # noqa: E402
from benchmarks.gpu_model import MODELS, Row, captured, microseconds  # noqa: E402
from benchmarks.record import write  # noqa: E402
from specdec_hal.backends.cuda.backend import CudaBackend  # noqa: E402
from specdec_hal.backends.cuda.options import Options  # noqa: E402
from specdec_hal.config import parse  # noqa: E402
from specdec_hal.models.dflash import DFlashConfig, dflash_shapes  # noqa: E402
from specdec_hal.models.draft_pass import BlockPass, HeadPass  # noqa: E402
from specdec_hal.models.drafter import Blocks, DrafterWeights, Eagle3Config, eagle3_shapes  # noqa: E402
from specdec_hal.models.llama_cuda import LlamaCuda  # noqa: E402
from specdec_hal.models.weights import expected_shapes  # noqa: E402
from specdec_hal.plugin.hookspecs import ProposerSpec, hookimpl  # noqa: E402
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch  # noqa: E402
from specdec_hal.plugin.proposer import ProposerContext  # noqa: E402
from specdec_hal.plugin.registry import BUILTINS, Registry  # noqa: E402
from specdec_hal.proposers.trained_chain import TrainedChain, blocks_of  # noqa: E402
from specdec_hal.runner import Request, SamplingParams, build_runner  # noqa: E402

TARGET = replace(MODELS["3.2B"], num_nextn_predict_layers=1, max_position_embeddings=4096)
CONTEXT, BUCKET, DRAFT_VOCABULARY = 500, 1024, 32000


def random(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Weights that keep activations near 1."""
    return {
        name: torch.ones(shape, dtype=torch.bfloat16, device="cuda")
        if len(shape) == 1
        else torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(std=shape[-1] ** -0.5)
        for name, shape in shapes.items()
    }


def target() -> LlamaCuda:
    """The 3.2 B model, and an MTP module."""
    shapes, own = expected_shapes(TARGET), expected_shapes(TARGET, mtp=False)
    modules = random({name: shape for name, shape in shapes.items() if name not in own})
    return LlamaCuda(TARGET, random(own), load_mtp=lambda: dict(modules))


def eagle3() -> tuple[Eagle3Config, DrafterWeights]:
    """A head with 32,000 tokens of its own."""
    config = Eagle3Config(
        **{**_sizes(), "num_hidden_layers": 1}, draft_vocab_size=DRAFT_VOCABULARY, feature_size=TARGET.hidden_size,
        taps=(2, 14, 25), numbering="", norm_before_residual=False, norm_before_fc=False, fc_norm=False,
        norm_output=False, mask_token_id=None,
    )  # fmt: skip
    return config, _weights(eagle3_shapes(config)[0])


def dflash(layers: int, vocabulary: int) -> tuple[DFlashConfig, DrafterWeights]:
    """A drafter of blocks of 8; `vocabulary`: its own head's, or all of the target's for the target's head."""
    taps = tuple(round(1 + i * (TARGET.num_hidden_layers - 4) / max(layers - 1, 1)) + 1 for i in range(layers))
    config = DFlashConfig(
        **{**_sizes(), "num_hidden_layers": layers}, draft_vocab_size=vocabulary, taps=taps, numbering="",
        block_size=8, mask_token_id=5, sample_from_anchor=False, markov_rank=0, markov_head_type="vanilla",
        confidence=False, confidence_with_markov=False,
    )  # fmt: skip
    return config, _weights(dflash_shapes(config)[0])


def _sizes() -> dict[str, Any]:
    return {field.name: getattr(TARGET, field.name) for field in fields(TARGET)} | {"num_nextn_predict_layers": 0}


def _weights(shapes: dict[str, tuple[int, ...]]) -> DrafterWeights:
    tensors: Any = random({name: shape for name, shape in shapes.items() if name != "d2t"})
    return DrafterWeights(tensors, np.arange(DRAFT_VOCABULARY) * 4 if "d2t" in shapes else None)


# ---- passes


def batch(slots: int, rows: int, context: int = CONTEXT) -> DeviceBatch:
    """`rows` tokens of each slot after `context`, in blocks of 64."""
    width = BUCKET // 64

    def ints(values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype, device="cuda")

    return DeviceBatch(
        token_ids=ints(np.arange(slots * rows)[:, None] % TARGET.vocab_size, torch.int64),
        batch_id_per_token=ints(np.repeat(np.arange(slots), rows)),
        cu_seqlens_q=ints(np.arange(slots + 1) * rows),
        seq_lens_decoder=ints(np.full(slots, context)),
        block_tables=ints(np.arange(slots * width).reshape(slots, width)),
        max_seq_len=BUCKET,
        max_query_len=rows,
    )


def timed(run: Callable[[], None]) -> float:
    """Microseconds of a captured run."""
    with torch.inference_mode():
        run()
        return microseconds(captured(run).replay)


def rows(count: int, width: int = TARGET.hidden_size) -> torch.Tensor:
    """Hidden states."""
    return torch.randn((count, width), device="cuda").to(torch.bfloat16)


def logits(count: int, width: int = TARGET.vocab_size) -> torch.Tensor:
    """Room for them."""
    return torch.empty((count, width), device="cuda")


def of_target(model: LlamaCuda, slots: int, drafts: int) -> float:
    """A step that verifies so many drafts."""
    step, hidden, out = batch(slots, 1 + drafts), rows(slots * (1 + drafts)), logits(slots * (1 + drafts))

    def run() -> None:
        model.forward_device(step, {FINAL_NORM: hidden})
        model.compute_logits_device(hidden, out)

    return timed(run)


def of_head(head: HeadPass, slots: int, drafts: int) -> dict[str, float]:
    """The first draft, after the most rows that a step can accept, and a further one."""
    found = {}
    for name, count in (("first draft", 1 + drafts), ("further draft", 1)):
        step, hidden, out = batch(slots, count), rows(slots * count), logits(slots, DRAFT_VOCABULARY)
        given, features = torch.empty_like(hidden), {tap: rows(slots * count) for tap in head.config.taps}

        def run(step: Any = step, hidden: Any = hidden, out: Any = out, given: Any = given, features: Any = features,
                first: bool = count > 1) -> None:  # fmt: skip
            head.forward_device(step, head.fuse(features) if first else hidden, given)
            head.compute_logits_device(given[:slots], out)

        found[name] = timed(run)
    return found


def of_block(block: BlockPass, slots: int, drafts: int) -> float:
    """All drafts of a step: fused rows of the context, the block, and its logits."""
    count = 1 + drafts
    step, masked = batch(slots, count), batch(slots, count, CONTEXT + count)
    out = torch.empty((slots * count, block.width), dtype=torch.bfloat16, device="cuda")
    features = {tap: rows(slots * count) for tap in block.config.taps}
    return timed(lambda: block.forward_block_device(step, block.fuse(features), out, masked, None))


def passes(model: LlamaCuda) -> list[Row]:
    """Each pass beside a step of the target that verifies its drafts."""
    found: list[Row] = []
    model.allocate_blocks(8 * BUCKET // 64, 64, BUCKET)
    blocks = Blocks(8, BUCKET, (8 * BUCKET // 64, 64))
    head = HeadPass(model, *eagle3(), blocks, 5)
    for slots in (1, 8):
        step = of_target(model, slots, 5)
        row: Row = {"target": "3.2B", "requests": slots, "target, K 0": of_target(model, slots, 0), "target, K 5": step}
        for name, time_us in of_head(head, slots, 5).items():
            row |= {f"eagle3, {name}": time_us, f"eagle3, {name}, share": time_us / step}
        found.append(row)
        print(row, flush=True)
    for layers, vocabulary in ((5, TARGET.vocab_size), (5, DRAFT_VOCABULARY), (3, DRAFT_VOCABULARY)):
        block = BlockPass(model, *dflash(layers, vocabulary), blocks, 7)
        for slots in (1, 8):
            step, time_us = of_target(model, slots, 7), of_block(block, slots, 7)
            name = f"dflash, {layers} layers, head of {vocabulary}"
            found.append(
                {"target": "3.2B", "requests": slots, "target, K 7": step, name: time_us, "share": time_us / step}
            )
            print(found[-1], flush=True)
        del block
        torch.cuda.empty_cache()
    return found


# ---- the engine


def registry(make: Callable[[ProposerContext], Any]) -> Registry:
    """The built-in plug-ins, and `trained`."""
    found = Registry(builtins=BUILTINS, entry_points=(), environ={})
    found.register(SimpleNamespace(specdec_proposers=hookimpl(lambda: ProposerSpec("trained", make))), "trained")
    return found


def engine(model: LlamaCuda) -> list[Row]:
    """Steps of the whole engine, greedy, after prompts of 100 tokens."""

    def head(context: ProposerContext) -> Any:
        return TrainedChain(context, HeadPass(context.model, *eagle3(), blocks_of(context), 5), 5)

    def block(context: ProposerContext) -> Any:
        made = TrainedChain(context, BlockPass(context.model, *dflash(5, DRAFT_VOCABULARY), blocks_of(context), 7), 7)
        made.draft_positions = 8
        return made

    found: list[Row] = []
    methods: dict[str, tuple[dict[str, Any], Registry | None]] = {
        "plain": ({"method": "naive"}, None),
        "ngram, K 5": ({"method": "ngram", "num_speculative_tokens": 5}, None),
        "mtp, K 5": ({"method": "mtp", "num_speculative_tokens": 5}, None),
        "eagle3, K 5": ({"method": "trained", "num_speculative_tokens": 5}, registry(head)),
        "dflash, K 7": ({"method": "trained", "num_speculative_tokens": 7}, registry(block)),
    }
    for name, (speculative, plugins) in methods.items():
        sizes = {"max_num_seqs": 8, "max_model_len": 1024, "num_kv_blocks": 8 * 16, "block_size": 64}
        config = parse({"speculative": {**speculative, "adaptive": False}, "runner": sizes}, registry=plugins)
        runner = build_runner(config, CudaBackend(Options()), model, registry=plugins)
        for requests in (1, 8):
            for _ in range(2):
                before, begin = runner.summary()["steps"], time.perf_counter()
                for number in range(requests):
                    prompt = np.random.default_rng(number).integers(0, TARGET.vocab_size, 100).tolist()
                    runner.add_request(Request(str(number), prompt, SamplingParams(max_new_tokens=150)))
                outputs = runner.run()
                spent, steps = time.perf_counter() - begin, runner.summary()["steps"] - before
            tokens = sum(len(output.token_ids) for output in outputs.values())
            counted = runner.summary()
            found.append({
                "target": "3.2B", "method": name, "requests": requests, "ms a step": 1e3 * spent / steps,
                "tokens a step and request": tokens / requests / steps, "graphs": counted["graphs"],
                "graph_failures": counted["graph_failures"],
            })  # fmt: skip
            print(found[-1], flush=True)
        runner.close()
        del runner
        torch.cuda.empty_cache()
    return found


def embedded() -> list[Row]:
    """The embedded model with its own head, greedy and at temperature 0.8, on the example prompts."""
    found: list[Row] = []
    methods = {
        "plain": ["speculative.method=naive", "speculative.num_speculative_tokens=0"],
        "ngram": ["speculative.method=ngram"],
        "mtp": ["speculative.method=mtp"],
        "eagle3": ["speculative.method=eagle3", f"speculative.path={ROOT / 'models/tiny-py-lm-eagle3'}"],
    }
    texts = [path.read_text().rstrip("\n") for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]
    plain: dict[Any, Any] = {}
    model = None
    for name, keys in methods.items():
        keys = ["model.framework=torch", "speculative.num_speculative_tokens=5", "speculative.adaptive=false", *keys]
        runner = sd.load(ROOT / "configs/cuda.yaml", keys).runner(**({} if model is None else {"model": model}))
        model = runner.model
        for requests in (1, 8):
            for temperature in (0.0, 0.8):
                for _ in range(2):
                    before, begin = runner.summary()["steps"], time.perf_counter()
                    for number in range(requests):
                        params = SamplingParams(max_new_tokens=200, temperature=temperature, seed=number)
                        ids = runner.tokenizer.encode(texts[number % len(texts)])
                        runner.add_request(Request(str(number), ids, params))
                    outputs = runner.run()
                    spent, steps = time.perf_counter() - begin, runner.summary()["steps"] - before
                tokens = {key: output.token_ids for key, output in outputs.items()}
                same = plain.setdefault((requests, temperature), tokens) == tokens
                count = sum(map(len, tokens.values()))
                found.append({
                    "target": "tiny-py-lm", "method": name, "requests": requests, "temperature": temperature,
                    "tokens a second": count / spent, "ms a step": 1e3 * spent / steps,
                    "drafted": sum(o.drafted for o in outputs.values()),
                    "accepted": sum(o.accepted for o in outputs.values()), "tokens as plain": same,
                })  # fmt: skip
                print(found[-1], flush=True)
        runner.close()
    return found


def main() -> None:
    """Write all figures, or those of one part, even if a part fails."""
    found: list[Row] = []
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    model = target()
    parts = {"passes": lambda: passes(model), "engine": lambda: engine(model), "embedded": embedded}
    for name in wanted or parts:
        found += parts[name]()
        write(found, out)


if __name__ == "__main__":
    main()
