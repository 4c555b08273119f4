"""Time a step of decoders with recurrent layers, with random weights, by what is kept of states.

usage: python3 benchmarks/recurrent_models.py [--out OUT.json] [--models A,B] [--slots 1,8] [--drafts 0,3] [--tiny]
       [--peer] [--prompts 512,2048]

On an idle GPU steps are captured, in the shapes of Qwen3.5-4B and Nemotron-H-4B, in bfloat16. All requests decode 1 + K
tokens after 500 others. The next step keeps half of the drafts, so checkpoints move as they do in use.
The floor is the time of reading weights, one state per request, and keys and values. `--peer`: a token of the
library's own `generate` too, with the kernels of fla-core if that is installed. `--prompts`: instead of steps, one
request's prompts of these lengths, each in one step. `--tiny`: tiny shapes on the CPU, to try the script.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import gpu_model as gpu  # noqa: E402
from record import write  # noqa: E402

from specdec_hal.errors import SpecDecError  # noqa: E402
from specdec_hal.ops import Storage  # noqa: E402
from specdec_hal.plugin.model import FINAL_NORM  # noqa: E402
from tests.support.paged import Paged  # noqa: E402

CONTEXT, BUCKET, CYCLE = 500, 1024, 64
SLOTS, DRAFTS = (1, 8, 64, 256), (0, 3, 7)
Row = dict[str, Any]


def qwen35(**changes: Any) -> Any:
    """Qwen3.5-4B: 24 layers of a gated delta rule, 8 of attention."""
    from transformers import Qwen3_5TextConfig

    sizes = {
        "vocab_size": 248320, "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
        "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "tie_word_embeddings": True,
    }  # fmt: skip
    return Qwen3_5TextConfig(**{**sizes, **changes})


def nemotron_h(**changes: Any) -> Any:
    """Nemotron-H-4B: 21 layers of Mamba-2, 4 of attention, 17 of MLPs."""
    from transformers import NemotronHConfig

    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M*-M-M-"
    kinds = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
    sizes = {
        "vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192, "mamba_num_heads": 112,
        "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
        "layers_block_type": [kinds[one] for one in pattern], "num_hidden_layers": len(pattern),
    }  # fmt: skip
    return NemotronHConfig(**{**sizes, **changes})


MODELS: dict[str, Callable[..., Any]] = {"Qwen3.5-4B": qwen35, "Nemotron-H-4B": nemotron_h}
TINY: dict[str, Row] = {
    "Qwen3.5-4B": {
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
    "Nemotron-H-4B": {
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2,
        "ssm_state_size": 8, "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    },
}  # fmt: skip


def step(model: Any, slots: int, k: int, storage: Storage) -> Callable[[], None]:
    """A step of `slots` requests that decode 1 + K tokens; each run continues where the last one's texts are."""
    model.allocate_states(slots, k, storage=storage)
    config, rows = model.config, slots * (k + 1)
    paged = Paged(model, slots, CONTEXT + CYCLE + k + 1, block_size=64)
    for layer in model.pool_layers():
        layer.normal_()
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (slots, k + 1))
    batch = paged.batch({slot: (CONTEXT, ids[slot]) for slot in range(slots)}, max_seq_len=BUCKET)
    positions = batch.seq_lens_decoder
    hidden = torch.empty((rows, config.hidden_size), dtype=model.dtype, device=gpu.DEVICE)
    logits = torch.empty((rows, config.vocab_size), device=gpu.DEVICE)

    def run() -> None:
        model.forward_device(batch, {FINAL_NORM: hidden})
        model.compute_logits_device(hidden, logits)
        positions.copy_(CONTEXT + (positions - CONTEXT + 1 + k // 2) % CYCLE)

    return run


def prompt(model: Any, length: int) -> Callable[[], None]:
    """A step of a request's first `length` tokens."""
    model.allocate_states(1, 0)
    batch = Paged(model, 1, length, block_size=64).batch({0: (0, np.arange(length) % model.config.vocab_size)})
    hidden = torch.empty((length, model.config.hidden_size), dtype=model.dtype, device=gpu.DEVICE)
    return partial(model.forward_device, batch, {FINAL_NORM: hidden})


def prompts_of(name: str, config: Any, lengths: list[int], peer: bool) -> Iterator[Row]:
    """Prompts of a model, and the library's own."""

    def row(length: int, run: Callable[[], None], **known: Any) -> Row:
        traced = gpu.kernels(run, 2) if gpu.DEVICE == "cuda" else {}
        return {"model": name, "prompt": length, **known, **traced}

    whole = gpu.of_transformers(config)
    for length in lengths if peer else ():
        ids = torch.arange(length, device=gpu.DEVICE)[None] % config.vocab_size

        def library(ids: Any = ids) -> None:
            whole(ids, use_cache=True, logits_to_keep=1)
            if gpu.DEVICE == "cuda":
                torch.cuda.synchronize()

        try:
            yield row(length, library, storage="library", step_us=1e6 * seconds(library, 3))
        except torch.OutOfMemoryError:
            yield {"model": name, "prompt": length, "storage": "library", "skipped": "out of memory"}
    model = gpu.adapter(whole)
    with model.compiling():
        for length in lengths:
            prompt(model, length)()
    for length in lengths:
        (run := prompt(model, length))()
        if gpu.DEVICE == "cuda":
            run = gpu.captured(run).replay
        yield row(length, run, step_us=gpu.microseconds(run, 4) if gpu.DEVICE == "cuda" else 1e6 * seconds(run))


def seconds(run: Callable[[], None], repeats: int = 8) -> float:
    """Median of the time of a call, on the host."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measured(run: Callable[[], None]) -> float:
    """Microseconds of a step: captured, on a GPU."""
    if gpu.DEVICE == "cpu":
        return 1e6 * seconds(run)
    return gpu.microseconds(gpu.captured(run).replay, CYCLE)


def peer_us(model: Any, slots: int, tokens: int = 24) -> float:
    """Microseconds of a token of the library's `generate` over `slots` texts."""
    ids = torch.ones((slots, CONTEXT), dtype=torch.int64, device=gpu.DEVICE)

    def generate(new: int) -> None:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
                       do_sample=False, pad_token_id=0)  # fmt: skip
        if gpu.DEVICE == "cuda":
            torch.cuda.synchronize()

    few, many = (seconds(partial(generate, new), 3) for new in (2, 2 + tokens))
    return 1e6 * (many - few) / tokens


def free_bytes() -> float:
    """Memory of the GPU that is free."""
    if gpu.DEVICE == "cpu":
        return float("inf")
    torch.cuda.empty_cache()
    return float(torch.cuda.mem_get_info()[0])


def rows_of(name: str, config: Any, slots_of: list[int], drafts_of: list[int], peer: bool) -> Iterator[Row]:
    """All cases of a model."""
    whole = gpu.of_transformers(config)
    read = sum(weight.nbytes for weight in whole.parameters())
    if not config.tie_word_embeddings:
        read -= whole.get_input_embeddings().weight.nbytes
    for slots in slots_of if peer else ():
        try:
            yield {"model": name, "slots": slots, "K": 0, "storage": "generate", "step_us": peer_us(whole, slots)}
        except torch.OutOfMemoryError:
            yield {"model": name, "slots": slots, "K": 0, "storage": "generate", "skipped": "out of memory"}
    model = gpu.adapter(whole)
    kv, state = model.bytes_per_block(1), model.bytes_per_prefix
    bandwidth = gpu.bandwidth() if gpu.DEVICE == "cuda" else 1e10
    cases = [(slots, k, storage) for k in drafts_of for slots in slots_of for storage in Storage]
    with model.compiling():  # only collects kernels, which are compiled in parallel
        for slots, k, storage in cases:
            if slots == slots_of[0] or k == drafts_of[0]:
                step(model, min(slots, 8), k, storage)()
    for slots, k, storage in cases:
        per_slot, moved = model.bytes_per_slot(k, storage), read + slots * (state + kv * CONTEXT)
        row = {"model": name, "slots": slots, "K": k, "storage": storage.name.lower(), "bytes_per_slot": per_slot}
        row |= {"states_per_slot": per_slot / state, "read_bytes": moved, "floor_us": 1e6 * moved / bandwidth}
        model.allocate_states(1, 0)
        model.allocate_blocks(1, 64)
        need, free = slots * (per_slot + kv * (CONTEXT + 2 * CYCLE)) + (2 << 30), free_bytes()
        if need > free:
            yield {**row, "skipped": f"needs {need / 2**30:.0f} GiB, {free / 2**30:.0f} are free"}
            continue
        try:
            row["step_us"] = measured(step(model, slots, k, storage))
        except (SpecDecError, torch.OutOfMemoryError) as error:
            yield {**row, "skipped": str(error)}
            continue
        yield {**row, "share_of_floor": row["floor_us"] / row["step_us"]}


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Run the cases, the document last."""

    def numbers(text: str) -> list[int]:
        return [int(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--slots", type=numbers, default=list(SLOTS))
    parser.add_argument("--drafts", type=numbers, default=list(DRAFTS))
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--prompts", type=numbers, default=[])
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        gpu.DEVICE = "cpu"
    figures: dict[str, Any] = {"context": CONTEXT, "fla-core": installed("fla-core"), "rows": []}
    if gpu.DEVICE == "cuda":
        figures["read_bytes_per_s"] = gpu.bandwidth()
    for name in given.models.split(","):
        config = MODELS[name](**(TINY[name] if given.tiny else {}))
        if given.prompts:
            rows = prompts_of(name, config, given.prompts, given.peer)
        else:
            rows = rows_of(name, config, given.slots, given.drafts, given.peer)
        for row in rows:
            print(json.dumps(row), file=sys.stderr, flush=True)
            figures["rows"].append(row)
            if given.out is not None:  # a run that is cut off leaves what it has
                write(figures, given.out)
        free_bytes()
    write(figures, given.out)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
