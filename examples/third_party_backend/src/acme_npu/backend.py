"""Binds the kernels to the op contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import specdec_hal as sd
from acme_npu import kernels
from specdec_hal.ops import Strategy
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch

_KERNELS: Mapping[str, Callable[..., None]] = {
    "prepare_inputs": kernels.prepare_inputs,
    "verify_draft_tokens": kernels.verify_by_tokens,
    "gather_accepted": kernels.gather_accepted,
}


class AcmeBackend(sd.Backend):
    """Three ops, and of one of them two strategies. What is not in `capabilities` is refused before anything runs."""

    name = "acme_npu"
    device = "cpu"
    capabilities: Mapping[str, sd.Capability] = {
        "prepare_inputs": sd.Capability(limits={"M": 1024}),
        "verify_draft_tokens": sd.Capability(attrs={"strategy": frozenset({Strategy.GREEDY, Strategy.TARGET_MATCH})}),
        "gather_accepted": sd.Capability(),
    }

    def plan(self, call: Call) -> Launch:
        """`call` has been checked against the contract and the table above."""
        tensors = {name: array for name, array in self.arrays(call).items() if array is not None}
        run = partial(_KERNELS[call.op.name], **tensors, **call.attrs)

        def launch(stream: int) -> None:
            run()

        return launch
