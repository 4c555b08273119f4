"""Host time of a call on a GPU, and of a bare launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from specdec_hal.bench.timing import Figures, call_cost
from specdec_hal.plugin.backend import Backend
from specdec_hal.tensors.device import Device

_BLOCK = 100


def host_costs(backend: Backend, exports: Any, device: Device) -> dict[str, dict[str, float]]:
    """Microseconds a call, without waiting for the device.

    `launch`: the empty kernel launched from C++, in blocks of 100, one call from Python each. `bound_empty`: the empty
    kernel as a bound plan. `bound`: a bound op of two tensors. `bound_current_stream`: the same, asking the framework
    for its stream. `unbound`: the op checked and launched again each time.
    """
    import torch

    index = int(device.name.partition(":")[2])
    stream = device.stream()
    sizes = {"M": 4, "L": 32, "max_ngram_size": 2, "min_ngram_size": 1}
    layout = backend.workspace("ngram_index_reset", **sizes)["index"]
    table = device.zeros(layout.shape, layout.dtype)
    flags = device.upload(np.zeros(layout.shape[0], np.bool_))
    bound = backend.bind("ngram_index_reset", table, flags)
    blocks = call_cost(partial(exports["launch_empty_times"], index, _BLOCK, stream), torch.cuda.synchronize, 1000)
    scaled = (blocks.median / _BLOCK, blocks.minimum / _BLOCK, blocks.p10 / _BLOCK, blocks.p90 / _BLOCK)
    each = Figures(*scaled, blocks.runs)
    calls: dict[str, Callable[[], object]] = {
        "bound_empty": partial(exports["empty"](index), stream),
        "bound": partial(bound, stream),
        "bound_current_stream": bound,
        "unbound": partial(backend.ngram_index_reset, table, flags),
    }
    costs = {name: call_cost(call, torch.cuda.synchronize) for name, call in calls.items()}
    return {name: figures.rounded() for name, figures in {"launch": each, **costs}.items()}
