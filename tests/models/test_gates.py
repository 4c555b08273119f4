"""Norms with a gate and layers with a gated delta rule are replaced where a trial gives what the library gives."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def gates(triton_device: str) -> Any:
    """Our kernels, interpreted where there is no GPU."""
    import torch

    from specdec_hal.models.transformers.kernels import Kernels
    from specdec_hal.models.triton_kernels.launcher import Launcher

    return Kernels(Launcher(torch.device(triton_device), torch.float32))


@pytest.mark.parametrize(
    ("place", "arguments", "how"),
    [
        ("qwen3_5.Qwen3_5RMSNormGated", (8,), (False, False, 8)),
        ("kimi_linear.KimiLinearRMSNormGated", (8,), (False, True, 8)),
        ("granitemoehybrid.GraniteMoeHybridRMSNormGated", (24,), (True, False, 24)),
        ("zamba2.Zamba2RMSNormGated", (24, 8), (True, False, 8)),
        ("falcon_h1.FalconH1RMSNormGated", (24, 1e-6, 3, False), (True, False, 8)),
        ("falcon_h1.FalconH1RMSNormGated", (24, 1e-6, 3, True), (False, False, 8)),
    ],
)
def test_norms(gates: Any, triton_device: str, place: str, arguments: Any, how: tuple[bool, bool, int]) -> None:
    """Each class as its gate and its groups are, also of rows that lie beside others."""
    import torch

    from specdec_hal.models.transformers.gates import GatedNorm, install_gates
    from specdec_hal.models.transformers.replace import close

    file, name = place.split(".")
    module = getattr(import_module(f"transformers.models.{file}.modeling_{file}"), name)(*arguments).to(triton_device)
    width = arguments[0]
    with torch.inference_mode():
        module.weight.normal_()
        rows = torch.randn((1, 5, 2 * width + 3), device=triton_device)
        x, gate = rows[..., :width], rows[..., width : 2 * width]
        expected = module(x, gate)
        install_gates(torch.nn.ModuleList([module]), gates, lambda parts: None, close)
        assert isinstance(module.forward, GatedNorm)
        assert (*module.forward.how, module.forward.width) == how
        torch.testing.assert_close(module(x, gate), expected, rtol=1e-5, atol=1e-6)


def test_another_norm_stays(gates: Any, triton_device: str) -> None:
    """One that computes something else keeps its code."""
    import torch
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

    from specdec_hal.models.transformers.gates import install_gates
    from specdec_hal.models.transformers.replace import close

    class OtherRMSNormGated(Qwen3_5RMSNormGated):  # type: ignore[misc]
        def forward(self, hidden_states: Any, gate: Any = None) -> Any:
            return super().forward(hidden_states, gate) + gate / 8

    module = OtherRMSNormGated(8).to(triton_device)
    with torch.inference_mode():
        install_gates(torch.nn.ModuleList([module]), gates, lambda parts: None, close)
    assert "forward" not in module.__dict__
