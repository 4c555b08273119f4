"""Cost of calls through FastDeploy's names compared with ours, on Paddle CPU tensors.

``python benchmarks/fastdeploy_layer.py [backend]`` prints, in microseconds and best of many runs: `bound`, a launch of
our plan; `again`, what the layer adds to that for the same tensors; `bind`, our checked call of new tensors; `first`,
what the layer adds to that.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

import specdec_hal.compat.fastdeploy as layer
from specdec_hal.compat.fastdeploy import adaptor, gpu
from specdec_hal.compat.fastdeploy.plan import Plan

SLOTS, WIDTH, LENGTH, VOCABULARY = 8, 6, 64, 128


def arguments() -> dict[str, tuple[Any, ...]]:
    """A call of each op that works in place, for slots that decode."""
    rng = np.random.default_rng(0)
    n, rows = SLOTS, SLOTS * WIDTH

    def ints(shape: tuple[int, ...], dtype: str, value: int | None = None) -> Any:
        array = rng.integers(0, 9, shape) if value is None else np.full(shape, value)
        return paddle.to_tensor(array.astype(dtype))

    def flags() -> Any:
        return paddle.zeros([n], "bool")

    i64, i32 = "int64", "int32"
    offsets = paddle.arange(0, rows + 1, WIDTH, dtype=i32)
    ids = (ints((n, WIDTH), i64), ints((n,), i32, 1), ints((n, WIDTH), i64))
    top_p = paddle.ones([n])
    verify = (
        *ids, ints((rows,), i64), None, None, None, top_p, flags(), ints((n,), i32, 0), ints((n,), i32, WIDTH),
        ints((2,), i64, 99), flags(), offsets, ints((n,), i32, 0), ints((n,), i64, 99), ints((n,), i64, 1),
        LENGTH, 2, 1, False, False,
    )  # fmt: skip
    update = (
        ints((n,), i32, 0), ints((n,), i32, 0), paddle.zeros([1], "bool"), *reversed(ids[::2]), ids[1], flags(),
        ints((n,), i32, 1), flags(), ints((n, LENGTH), i64), ints((n,), i64, 4), ints((n,), i64, 0),
        ints((2,), i64, 99), ints((n,), i64, 1 << 60),
    )  # fmt: skip
    ngram = (
        ints((n, LENGTH), i64), ints((n,), i64, 20), ints((n,), i64, 20), ints((n,), i32, 5), ids[2],
        ints((n,), i32, 1), ints((n,), i32, 0), ints((n,), i32, 9), ints((n,), i64, 99), 3, 5,
    )  # fmt: skip
    return {"verify_draft_tokens": verify, "unified_update_model_status": update, "ngram_match": ngram}


def best(run: Callable[[], Any], count: int, repeats: int = 15) -> float:
    """Microseconds a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count)
    return min(times) * 1e6


def main(backend: str = "xpu_sim") -> None:
    """Print a table."""
    layer.use_backend(backend)
    ours = adaptor._backend
    assert ours is not None
    calls: list[tuple[str, dict[str, Any]]] = []
    run = Plan.run
    Plan.run = lambda self, op, /, **given: (calls.append((op, given)), run(self, op, **given))[1]  # type: ignore[method-assign, func-returns-value]
    print(f"{'op':<30}{'bound':>8}{'again':>8}{'bind':>8}{'first':>8}")
    gc.disable()
    for name, args in arguments().items():
        served = getattr(gpu, name)
        calls.clear()
        served(*args)
        ((op, given),) = calls
        bound = ours.bind(op, **given)
        launch, bind = best(bound, 500, 60), best(lambda op=op, given=given: ours.bind(op, **given)(), 3, 2000)

        def first(served: Any = served, args: Any = args) -> None:
            served.forget()
            served(*args)

        again, rebound = best(lambda served=served, args=args: served(*args), 500, 60), best(first, 3, 2000)
        print(f"{name:<30}{launch:8.2f}{again - launch:8.2f}{bind:8.2f}{rebound - bind:8.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
