"""Kernels of a captured pass by their time, and passes with other tiles; a script of one day."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.draft_passes import BUCKET, CONTEXT, DEVICE, SIZES, batch, config, target, tensor  # noqa: E402
from benchmarks.gpu_model import captured  # noqa: E402
from specdec_hal.models.dflash import dflash_shapes  # noqa: E402
from specdec_hal.models.draft_pass import BlockPass  # noqa: E402
from specdec_hal.models.drafter import Blocks, DrafterWeights  # noqa: E402

for name in SIZES:
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

            def run() -> None:
                block.forward_block_device(step, block.fuse(features), out, masked, None)

            with torch.inference_mode():
                run()
                graph = captured(run)
                graph.replay()
                torch.cuda.synchronize()
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
                    for _ in range(10):
                        graph.replay()
                    torch.cuda.synchronize()
            sums: dict[str, list[float]] = defaultdict(list)
            for event in found.events():
                sums[event.name[:60]].append(event.device_time)
            print(f"== {name} second={second} slots={slots}")
            for key, times in sorted(sums.items(), key=lambda item: -sum(item[1]))[:14 if second else 8]:
                print(f"{sum(times) / 10:8.1f} us {len(times) / 10:5.1f} x {key}", flush=True)
        del block
