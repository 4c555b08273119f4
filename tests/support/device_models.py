"""Models of `transformers` for GPUs, with Triton's kernels compiled or interpreted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any


def device_model(
    folder: Path | str, device: str, dtype: str = "float32", group: Any = None,
    calls: set[tuple[str, int, int, int | None]] | None = None,
) -> Any:  # fmt: skip
    """As `load` makes it on a GPU; on "cpu" the kernels run in Triton's interpreter, whose bits are not measured.

    `calls` takes the name, rows, columns and count of used rows of each product and sum over ranks.
    """
    import torch

    from specdec_hal.models.mtp import find_module
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder
    from specdec_hal.models.triton_kernels.launcher import Launcher

    class Recording(Launcher):
        def linear(self, x: Any, weight: Any, out: Any, count: Any | None, **more: Any) -> None:
            record("linear", out, count)
            super().linear(x, weight, out, count, **more)

        def sum_norm(self, parts: Any, residual: Any | None, total: Any, count: Any | None, **more: Any) -> None:
            record("sum_norm", total, count)
            super().sum_norm(parts, residual, total, count, **more)

    def record(name: str, out: Any, count: Any | None) -> None:
        assert calls is not None
        calls.add((name, *out.shape, None if count is None else int(count)))

    decoder = load_decoder(folder, device, dtype, group)
    return DeviceTransformers(
        decoder,
        make_launcher=partial(Launcher if calls is None else Recording, torch.device(device)),
        batch_invariant=None if device != "cpu" else False,
        module=find_module(Path(folder), decoder.model.config),
        group=group,
    )
