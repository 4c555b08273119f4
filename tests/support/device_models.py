"""Models of `transformers` for GPUs, with Triton's kernels compiled or interpreted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any


def device_model(folder: Path | str, device: str, dtype: str = "float32", group: Any = None) -> Any:
    """As `load` makes it on a GPU; on "cpu" the kernels run in Triton's interpreter, whose bits are not measured."""
    import torch

    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder
    from specdec_hal.models.transformers.mtp import find_module
    from specdec_hal.models.triton_kernels.launcher import Launcher

    decoder = load_decoder(folder, device, dtype, group)
    return DeviceTransformers(
        decoder,
        make_launcher=partial(Launcher, torch.device(device)),
        batch_invariant=None if device != "cpu" else False,
        module=find_module(Path(folder), decoder.model.config),
        group=group,
    )
