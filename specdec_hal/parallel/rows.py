"""A runner's rows of logits where every rank has a part of the vocabulary."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from specdec_hal.parallel.kernels import kernels_of
from specdec_hal.parallel.sampling import VocabularyPart
from specdec_hal.parallel.work import RowParams, Work
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import TargetModel
from specdec_hal.runner.logit_bias import LogitBias
from specdec_hal.runner.request import SamplingParams
from specdec_hal.runner.row_logits import Call, RowLogits
from specdec_hal.tensors.group import Group

_OF_TOKENS = {
    "apply_penalties": ("token_ids_all", "draft_tokens", "bad_tokens", "end_tokens"),
    "reasoning_constraint": ("allowed_tokens",),
}
"""Operands that name columns of the logits."""


class VocabularyRows(RowLogits):
    """This rank's columns; a rank without any has one that nobody looks at."""

    def __init__(self, backend: Backend, model: TargetModel, group: Group) -> None:
        super().__init__(backend, model)
        self._part = VocabularyPart(group, model.config.vocab_size, kernels_of(backend))
        self.width = max(self._part.width, 1)
        self._shifted: dict[str, Any] = {}

    def compute(self, hidden: Any) -> Any:
        """See RowLogits.compute."""
        return self._model.compute_logits_part(hidden)[:, : self.width]  # type: ignore[attr-defined]

    def compute_device(self, hidden: Any, out: Any, num_rows: Any | None) -> None:
        """See RowLogits.compute_device."""
        self._model.compute_logits_part_device(hidden, out, num_rows)  # type: ignore[attr-defined]

    def add_bias(self, bias: LogitBias, logits: Any, slot_of_row: Any, width: int) -> None:
        """See RowLogits.add_bias: to the tokens that are here."""
        mine, ids, values, slots = map(_tensor, (logits, *bias.entries(width), slot_of_row))
        slots = slots.clamp(min=0)
        columns = ids.index_select(0, slots) - self._part.first
        columns = torch.where((columns >= 0) & (columns < self.width), columns, self.width)
        padded = F.pad(mine, (0, 1))  # a column for the tokens that are not
        padded.scatter_(1, columns, padded.gather(1, columns) + values.index_select(0, slots))
        mine.copy_(padded[:, :-1])

    def bind(self, op: str, logits: Any, *args: Any, **operands: Any) -> Call:
        """See RowLogits.bind; operands by name."""
        assert not args, args
        if op in _OF_TOKENS:
            return self._bind_shifted(op, logits, operands)
        if op == "apply_token_bitmask":
            return super().bind(op, logits, **operands, first_token=self._part.first)
        assert op == "token_logprobs", op
        mine, tensors = self._mine(logits, operands)
        return lambda stream: self._part.token_logprobs(mine, **tensors)

    def work_of(self, requests: Iterable[SamplingParams]) -> Hashable:
        """See RowLogits.work_of: what each row of a step may need."""
        filters = {(one.temperature, one.top_p, one.top_k, one.min_p) for one in requests}
        works = [_work_of(self._part.vocab_size, *one) for one in filters]
        return Work(*(any(getattr(work, field) for work in works) for field in Work._fields))

    def bind_sample_target(self, logits: Any, work: Hashable, **operands: Any) -> Call:
        """See RowLogits.bind_sample_target."""
        mine, tensors = self._mine(logits, operands)
        params = RowParams(*(tensors.pop(name if name == "position" else f"row_{name}") for name in RowParams._fields))
        wanted = cast(Work | None, work)
        return lambda stream: self._part.sample_target(mine, params, **tensors, work=wanted)

    def _mine(self, logits: Any, operands: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """This rank's columns, and the other operands, in PyTorch."""
        tensors = {name: _tensor(value) if hasattr(value, "shape") else value for name, value in operands.items()}
        return _tensor(logits)[:, : self._part.width], tensors

    def _bind_shifted(self, op: str, logits: Any, operands: dict[str, Any]) -> Call:
        """The op itself, which ignores tokens outside the rows that it sees: here, column 0 is this rank's first."""
        moved = []
        for name in _OF_TOKENS[op]:
            if name not in self._shifted:
                given = operands[name]
                self._shifted[name] = (np if isinstance(given, np.ndarray) else torch).empty_like(given)
            moved.append((_tensor(operands[name]), _tensor(self._shifted[name])))
        shifted = {name: self._shifted[name] for name in _OF_TOKENS[op]}
        launch = super().bind(op, logits, **{**operands, **shifted})

        def call(stream: int) -> None:
            for given, mine in moved:
                torch.sub(given, self._part.first, out=mine)
            launch(stream)

        return call


@lru_cache(4096)
def _work_of(vocab_size: int, temperature: float, top_p: float, top_k: int, min_p: float) -> Work:
    """What a row with these parameters needs."""
    values = (torch.tensor([value], dtype=torch.float32) for value in (temperature, top_p, top_k, min_p, 0, 0))
    return Work.of(RowParams(*values), vocab_size)


def _tensor(x: Any) -> Any:
    """The same memory in PyTorch."""
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x
