"""Time drafts of DFlash and DFlash 2 with random weights, captured: the pass, and all that draws its drafts greedily.

usage: python3 benchmarks/draft_passes.py OUT.json

Needs an idle CUDA GPU, PyTorch and Triton; without a GPU it only runs everything once. The target is its embedding and
head alone. The least of many medians counts, since other processes may use the GPU too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import specdec_hal as sd  # noqa: E402
from benchmarks.gpu_model import captured, microseconds  # noqa: E402
from benchmarks.record import write  # noqa: E402
from specdec_hal.models.dflash import DFlashConfig, dflash_shapes  # noqa: E402
from specdec_hal.models.draft_pass import BlockPass, kernels_of  # noqa: E402
from specdec_hal.models.drafter import Blocks, DrafterWeights, Mask  # noqa: E402
from specdec_hal.ops import Purpose  # noqa: E402
from specdec_hal.plugin.model import DeviceBatch  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE, CONTEXT, BUCKET = torch.device("cuda:0" if GPU else "cpu"), 500, 1024
SIZES: dict[str, dict[str, Any]] = {
    "tiny-py-lm": {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 224, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 3, "block_size": 6,
                   "selector_rank": 64},
    "Qwen3-4B": {"vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 5, "block_size": 8,
                 "selector_rank": 256},
}  # fmt: skip
Row = dict[str, Any]


def config(name: str, second: bool) -> DFlashConfig:
    """Sizes of a drafter for this target."""
    sizes = dict(SIZES[name])
    rank, layers = sizes.pop("selector_rank"), sizes["num_hidden_layers"]
    more = {"selector_rank": rank, "selector_top_k": 16, "conv_kernel_size": 2, "conv_group_size": 16}
    return DFlashConfig(
        **sizes, max_position_embeddings=4096, rope_theta=1e4, rms_norm_eps=1e-6, tie_word_embeddings=False,
        eos_token_ids=(), num_nextn_predict_layers=0, sample_from_anchor=False, markov_rank=0,
        markov_head_type="vanilla", mask_token_id=5, draft_vocab_size=sizes["vocab_size"],
        taps=tuple(range(1, layers + 1)), numbering="", masks=(Mask(causal=False),) * layers,
        **(more if second else {}),
    )  # fmt: skip


def tensor(shape: tuple[int, ...]) -> Any:
    """Weights that keep activations near 1."""
    made = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
    return made.fill_(1) if len(shape) == 1 else made.normal_(std=shape[-1] ** -0.5)


def target(name: str) -> Any:
    """What a pass takes of a target."""
    sizes = SimpleNamespace(**SIZES[name])
    table, make = tensor((sizes.vocab_size, sizes.hidden_size)), kernels_of(DEVICE)
    launcher = make and make(torch.bfloat16)

    def logits(hidden: Any, out: Any, count: Any = None) -> None:
        if launcher is None:
            out.copy_(hidden @ table.T)
        else:
            launcher.linear(hidden, table, out, None)

    has = SimpleNamespace(device_lengths=True, hidden_dtype="bfloat16")
    return SimpleNamespace(
        capabilities=has, config=sizes, device=DEVICE, embed=lambda ids: table[ids], compute_logits_device=logits
    )


def batch(slots: int, rows: int, context: int) -> DeviceBatch:
    """`rows` tokens of each slot after `context`, in blocks of 64."""
    width = BUCKET // 64

    def ints(values: Any, dtype: Any = torch.int32) -> Any:
        return torch.as_tensor(np.asarray(values), dtype=dtype, device=DEVICE)

    return DeviceBatch(
        token_ids=ints(np.arange(slots * rows)[:, None], torch.int64),
        batch_id_per_token=ints(np.repeat(np.arange(slots), rows)), cu_seqlens_q=ints(np.arange(slots + 1) * rows),
        seq_lens_decoder=ints(np.full(slots, context)),
        block_tables=ints(np.arange(slots * width).reshape(slots, width)), max_seq_len=BUCKET, max_query_len=rows,
    )  # fmt: skip


def timed(run: Callable[[], Any]) -> float:
    """Microseconds of a captured run."""
    with torch.inference_mode():
        run()
        if not GPU:
            return 0.0
        replay = captured(run).replay
        return min(microseconds(replay) for _ in range(8))


def drawn(backend: Any, block: BlockPass, slots: int, drafts: int, vocabulary: int) -> Callable[[], None]:
    """All drafts, greedily, of logits that the pass has kept."""

    def params(rows: int) -> dict[str, Any]:
        given = {"row_temperature": 0.0, "row_top_p": 1.0, "row_top_k": 0, "row_min_p": 0.0, "row_seed": 0,
                 "position": CONTEXT}  # fmt: skip
        kinds = {"row_top_k": torch.int32, "row_seed": torch.int64, "position": torch.int64}
        return {
            name: torch.full((rows,), value, dtype=kinds.get(name, torch.float32), device=DEVICE)
            for name, value in given.items()
        }

    if block.path is not None:
        rows = slots * drafts
        given = {
            name: x if name.endswith("_codes") else x[:slots].reshape(-1, *x.shape[2:])
            for name, x in vars(block.path).items()
        }
        ends = torch.arange(0, rows + 1, drafts, dtype=torch.int32, device=DEVICE)
        tokens = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
        call = backend.bind("select_draft_path", **given, **params(rows), cu_seqlens_q_output=ends, path_tokens=tokens,
                            probs=None, purpose=Purpose.SAMPLE)  # fmt: skip
        return lambda: call(torch.cuda.current_stream().cuda_stream if GPU else 0)
    logits = torch.zeros((slots, vocabulary), device=DEVICE)
    one = backend.bind("sample_target", logits, target_tokens=torch.zeros(slots, dtype=torch.int64, device=DEVICE),
                       purpose=Purpose.SAMPLE, **params(slots))  # fmt: skip

    def run() -> None:
        for number in range(drafts):
            block.draft_logits(number, None, logits, logits)
            one(torch.cuda.current_stream().cuda_stream if GPU else 0)

    return run


VARIANTS = ((4, 512, 2, 3), (4, 512, 4, 4), (4, 512, 8, 3), (8, 512, 4, 3), (4, 256, 4, 5), (4, 1024, 8, 2))


def sweep(block: Any, run: Any, slots: int, own: Any) -> None:
    """Of a day: passes with other tiles, and the kernels that choose candidates."""
    from dataclasses import replace

    from specdec_hal.models.triton_kernels import launcher as launches

    if block.path is None or block._launcher is None:
        return
    launch, logits = block._launcher, block._ahead[:slots]
    kept, line = launch.tiles, []
    for n, k, warps, stages in VARIANTS:
        launch.tiles = replace(kept, around=replace(kept.around, n=n, k=k, warps=warps, stages=stages))
        line.append(f"{n},{k},{warps},{stages}: {timed(run):.1f}")
    launch.tiles = kept
    print("; ".join(line), flush=True)


def main() -> None:
    """Both targets, for one request and eight."""
    backend: Any = sd.load(ROOT / f"configs/{'cuda' if GPU else 'cpu'}.yaml").backend
    found: list[Row] = []
    for name in SIZES if GPU else ("tiny-py-lm",):
        model = target(name)
        for second in (False, True):
            own = config(name, second)
            shapes: Any = dflash_shapes(own)[0]
            weights: Any = DrafterWeights({key: tensor(shape) for key, shape in shapes.items()}, None)
            block = BlockPass(model, own, weights, Blocks(8, BUCKET, (8 * BUCKET // 64, 64)), own.drafts)
            for slots in (1, 8):
                count = own.block_size
                step, masked = batch(slots, count, CONTEXT), batch(slots, count, CONTEXT + count)
                out = torch.empty((slots * count, block.width), dtype=torch.bfloat16, device=DEVICE)
                features = {tap: tensor((slots * count, own.hidden_size)) for tap in own.taps}
                draw = drawn(backend, block, slots, own.drafts, own.vocab_size)

                def run(block: Any = block, step: Any = step, masked: Any = masked, out: Any = out,
                        features: Any = features) -> None:  # fmt: skip
                    block.forward_block_device(step, block.fuse(features), out, masked, None)

                def whole(run: Any = run, draw: Any = draw) -> None:
                    run()
                    draw()

                sweep(block, run, slots, own)
                row: Row = {"target": name, "method": "dflash2" if second else "dflash", "requests": slots}
                found.append(row | {"pass_us": timed(run), "draft_us": timed(whole)})
                print(found[-1], flush=True)
                write(found, Path(sys.argv[1]))
            del block


if __name__ == "__main__":
    main()
