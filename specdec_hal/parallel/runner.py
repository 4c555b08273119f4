"""A runner as every rank holds it, and the first rank's, which has the others do what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from specdec_hal.errors import EngineDeadError, RankMismatchError, RequestError
from specdec_hal.parallel.group import Group
from specdec_hal.runner import ModelRunner, Request, RequestOutput, StreamDelta
from specdec_hal.runner.journal import Record
from specdec_hal.runner.metrics import StepRecord
from specdec_hal.runner.report import StepReport
from specdec_hal.runner.request import FinishReason
from specdec_hal.runner.row_logits import RowLogits
from specdec_hal.runner.scheduler import Work

Decision = tuple[int, int, tuple[int, ...]]
"""What a step did to a slot: step, slot, tokens."""


class RankRunner(ModelRunner):
    """Compares what it decides with the other ranks, by a 64-bit digest."""

    def __init__(self, *args: Any, group: Group, **options: Any) -> None:
        self._group = group
        super().__init__(*args, **options)
        self._decisions: list[Decision] = []
        self._compared = 0

    def _row_logits(self) -> RowLogits:
        if not self.config.engine.vocabulary_parallel:
            return super()._row_logits()
        from specdec_hal.parallel.rows import VocabularyRows

        return VocabularyRows(self.backend, self.model, self._group)

    def step(self) -> list[StreamDelta]:
        """See ModelRunner.step. RankMismatchError if the ranks differ, at the first comparison behind that step."""
        deltas = super().step()
        interval, steps = self.config.engine.digest_interval, self.metrics.steps
        if interval is not None and steps - self._compared >= interval:
            self._compared = steps
            self._compare()
        return deltas

    def forget(self) -> None:
        """See ModelRunner.forget."""
        super().forget()
        self._decisions, self._compared = [], 0

    def _take(self, slot: int, work: Work, report: StepReport, record: StepRecord) -> int | None:
        if self.config.engine.digest_interval is not None:
            self._decisions.append((self.metrics.steps, slot, tuple(report.tokens(slot))))
        return super()._take(slot, work, report, record)

    def _compare(self) -> None:
        decisions, self._decisions = self._decisions, []
        digest = blake2b(repr(decisions).encode(), digest_size=8).digest()
        if len(set(self._group.gather_objects(digest))) == 1:
            return
        everyone: list[list[Decision]] = self._group.gather_objects(decisions)
        longest = max(map(len, everyone))
        rows = zip(*(told + [(-1, -1, ())] * (longest - len(told)) for told in everyone), strict=True)
        told = next(row for row in rows if len(set(row)) > 1)
        step, slot, _ = max(told)
        got = ", ".join(f"rank {rank}: {list(tokens)}" for rank, (_, _, tokens) in enumerate(told))
        raise RankMismatchError(
            f"step {step}, slot {slot}: expected the same tokens on every tensor-parallel rank, got {got}; "
            "run the ranks on equal hardware and libraries"
        )


class LeadingRunner(RankRunner):
    """The first rank's. `tell` has the other ranks call a method of theirs; `lost`: whether one of them has ended."""

    def __init__(self, *args: Any, tell: Callable[..., None], lost: Callable[[], bool], **options: Any) -> None:
        super().__init__(*args, **options)
        self._tell, self._lost = tell, lost

    def add_requests(self, requests: Iterable[Request]) -> None:
        """See ModelRunner.add_requests. RequestError for a deadline: the ranks may not agree when it has passed."""
        requests = list(requests)
        for request in requests:
            if request.timeout_s is not None or request.ttft_timeout_s is not None:
                raise RequestError(f"request '{request.request_id}': expected no deadline with engine.tensor_parallel")
        super().add_requests(requests)
        # With the seeds that were drawn here.
        admitted = [found.request for request in requests if (found := self.find(request.request_id)) is not None]
        self._tell("add_requests", [replace(request, callback=None) for request in admitted])

    def cancel(self, request_id: str, reason: FinishReason = "cancelled", error: str = "") -> bool:
        """See ModelRunner.cancel."""
        self._tell("cancel", request_id, reason, error)
        return super().cancel(request_id, reason, error)

    def restore(self, records: list[Record]) -> None:
        """See ModelRunner.restore."""
        super().restore(records)
        self._tell("restore", records)

    def forget(self) -> None:
        """See ModelRunner.forget."""
        super().forget()
        self._tell("forget")

    def step(self) -> list[StreamDelta]:
        """See ModelRunner.step. EngineDeadError if a rank has ended."""
        self._tell("step")
        return super().step()

    def _take(self, slot: int, work: Work, report: StepReport, record: StepRecord) -> int | None:
        if self._lost():  # so that what came out may lack its part
            raise EngineDeadError("a tensor-parallel rank has ended; start the engine anew")
        return super()._take(slot, work, report, record)

    def take_finished(self, request_ids: Collection[str] | None = None) -> dict[str, RequestOutput]:
        """See ModelRunner.take_finished."""
        self._tell("take_finished", request_ids)
        return super().take_finished(request_ids)
