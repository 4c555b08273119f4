"""Rows of logits as a process holds them, and what is done with them between the model and the verifier."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import DeviceModel, TargetModel
from specdec_hal.runner.logit_bias import LogitBias
from specdec_hal.runner.request import SamplingParams

Call = Callable[[int], None]
"""A part of a step; takes the stream."""


class RowLogits:
    """Whole rows: the model's logits, and the backend's ops over them. `width`: their columns."""

    def __init__(self, backend: Backend, model: TargetModel) -> None:
        self._backend, self._model = backend, model
        self.width = model.config.vocab_size

    def compute(self, hidden: Any) -> Any:
        """Float32 [R, width], as TargetModel.compute_logits."""
        return self._model.compute_logits(hidden)

    def compute_device(self, hidden: Any, out: Any, num_rows: Any | None) -> None:
        """As DeviceModel.compute_logits_device."""
        cast(DeviceModel, self._model).compute_logits_device(hidden, out, num_rows)

    def add_bias(self, bias: LogitBias, logits: Any, slot_of_row: Any, width: int) -> None:
        """As LogitBias.add."""
        bias.add(logits, slot_of_row, width)

    def bind(self, op: str, logits: Any, *args: Any, **operands: Any) -> Call:
        """As Backend.bind, of an op that looks for tokens: `apply_penalties`, `reasoning_constraint`,
        `apply_token_bitmask`, or `token_logprobs`."""
        return self._backend.bind(op, logits, *args, **operands)

    def work_of(self, requests: Iterable[SamplingParams]) -> Hashable:
        """What a launch of `sample_target` has to be bound with, that serves these requests whatever the values are."""
        return None

    def bind_sample_target(self, logits: Any, work: Hashable, **operands: Any) -> Call:
        """As Backend.bind. `work`: of :meth:`work_of`; None: it may look at values on the host."""
        return self._backend.bind("sample_target", logits, **operands)
