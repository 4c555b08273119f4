"""A scene from beginning to end."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_hal.compat.fastdeploy import output
from tests.compat.fastdeploy.chains import engine_ops
from tests.compat.fastdeploy.chains.engine import Engine
from tests.compat.fastdeploy.chains.gpu_runner import KERNELS as GPU_KERNELS
from tests.compat.fastdeploy.chains.gpu_runner import GpuRunner
from tests.compat.fastdeploy.chains.lockstep import Lockstep
from tests.compat.fastdeploy.chains.plain import plain
from tests.compat.fastdeploy.chains.scenes import Scene
from tests.compat.fastdeploy.chains.xpu_runner import KERNELS as XPU_KERNELS
from tests.compat.fastdeploy.chains.xpu_runner import XpuRunner
from tests.compat.fastdeploy.test_messages import read_plain, received

OWN = {name: function for name, function in vars(engine_ops).items() if callable(function)}
PLATFORMS = {"gpu": (GpuRunner, GPU_KERNELS), "xpu": (XpuRunner, XPU_KERNELS)}
BUDGETS = ("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", "SPEC_TOKENUM_THRESHOLD")


def run(chosen: Scene, platform: str, ops: Any, queue: int | None = None) -> Lockstep:
    """Run a scene to its end; its messages go through a queue, if there is one. What was called."""
    runner_type, kernels = PLATFORMS[platform]
    lockstep = Lockstep(kernels, OWN, ops)
    runner = runner_type(chosen, lockstep)
    if queue is not None:
        runner.receive = lambda: read_plain(received(output.PLAIN_PATH, queue))
    with pytest.MonkeyPatch.context() as patch:
        for variable in BUDGETS:
            patch.setenv(variable, str(chosen.token_budget))
        Engine(chosen, runner).run()
    for number, request in enumerate(chosen.requests):
        assert request.output == plain(chosen, request), f"request {number}"
    return lockstep
