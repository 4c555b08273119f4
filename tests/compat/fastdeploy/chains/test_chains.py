"""FastDeploy's runners on the layer: each op does what FastDeploy's does, and requests get plain decoding's tokens.

``FASTDEPLOY_CHAINS=1000`` runs so many scenes of each platform on each backend, from FASTDEPLOY_CHAINS_FROM on.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.compat.fastdeploy.chains.run import run
from tests.compat.fastdeploy.chains.scenes import scene

RUNS = int(os.environ.get("FASTDEPLOY_CHAINS", "8"))
FIRST = int(os.environ.get("FASTDEPLOY_CHAINS_FROM", "0"))


@pytest.mark.parametrize("platform", ["gpu", "xpu"])
def test_chains(request: Any, layer: Any, platform: str, queue: int) -> None:
    ops = request.getfixturevalue(platform)
    for seed in range(FIRST, FIRST + RUNS):
        try:
            run(scene(seed, platform), platform, ops, queue if seed % 4 == 0 else None)
        except Exception as error:
            error.add_note(f"scene {seed}: FASTDEPLOY_CHAINS_FROM={seed} FASTDEPLOY_CHAINS=1 runs it alone")
            raise


@pytest.mark.gpu
def test_chains_on_a_gpu() -> None:
    """The runner of GPUs on Paddle's CUDA tensors."""
    import paddle

    import specdec_hal.compat.fastdeploy as package

    if not paddle.device.is_compiled_with_cuda():
        pytest.skip("Paddle is built for CPUs alone: install paddlepaddle-gpu")
    package.use_backend("cuda")
    paddle.set_device("gpu:0")
    try:
        for seed in range(FIRST, FIRST + RUNS):
            run(scene(seed, "gpu"), "gpu", package.gpu)
    finally:
        paddle.set_device("cpu")
        package.use_backend()
