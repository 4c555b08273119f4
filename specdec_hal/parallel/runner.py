"""A runner as every rank holds it, and the first rank's, which has the others do what it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Protocol

from specdec_hal.errors import EngineDeadError, RankLostError, RankMismatchError, RequestError
from specdec_hal.runner import ModelRunner, Request, RequestOutput, StreamDelta
from specdec_hal.runner.guard import owns_cache
from specdec_hal.runner.journal import Record
from specdec_hal.runner.metrics import StepRecord
from specdec_hal.runner.plan import ShardedLogitsHead
from specdec_hal.runner.report import StepReport
from specdec_hal.runner.request import FinishReason
from specdec_hal.runner.scheduler import Work
from specdec_hal.tensors.group import Group

Decision = tuple[int, int, tuple[int, ...]]
"""What a step did to a slot: step, slot, tokens."""


class RankRunner(ModelRunner):
    """Compares what it decides with the other ranks, by a 64-bit digest."""

    def __init__(self, *args: Any, group: Group, **options: Any) -> None:
        self._group = group
        super().__init__(*args, **options)
        self._decisions: list[Decision] = []
        self._compared = 0

    def _sharded_head(self) -> ShardedLogitsHead | None:
        if not self.config.engine.vocabulary_parallel:
            return None
        from specdec_hal.parallel import vocabulary

        return vocabulary.ShardedLogitsHead.of(self._group, self.backend, self.model)

    def with_grammars(self, name: str, what: list[Any], grammars: Iterable[tuple[Any, str, Any]]) -> None:
        """Call a method while this process holds grammars that another has compiled; see Grammars.put."""
        held = [self._structured.grammars.put(*grammar) for grammar in grammars]
        getattr(self, name)(what)
        del held

    def step(self) -> list[StreamDelta]:
        """See ModelRunner.step. RankMismatchError if the ranks differ, at the first comparison after that step."""
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
        rows = zip(*(streams + [(-1, -1, ())] * (longest - len(streams)) for streams in everyone), strict=True)
        streams = next(row for row in rows if len(set(row)) > 1)
        step, slot, _ = max(streams)
        got = ", ".join(f"rank {rank}: {list(tokens)}" for rank, (_, _, tokens) in enumerate(streams))
        raise RankMismatchError(
            f"step {step}, slot {slot}: expected the same tokens on every tensor-parallel rank, got {got}; "
            "run the ranks on equal hardware and libraries"
        )


class Others(Protocol):
    """The other ranks, as the first sees them."""

    error: EngineDeadError | None

    def send(self, name: str, *args: Any) -> None:
        """Have each of them call a method of its runner. RankLostError if they serve no more."""

    def watch(self, ended: Callable[[EngineDeadError], None]) -> None:
        """Have `ended` called once they serve no more."""

    def failed(self, error: Exception) -> EngineDeadError:
        """A collective has failed: end them; why it has."""

    def lose(self, why: str) -> EngineDeadError:
        """End them."""


class LeadingRunner(RankRunner):
    """The first rank's, which has the others do what it does."""

    def __init__(self, *args: Any, team: Others, **options: Any) -> None:
        super().__init__(*args, **options)
        self._team = team

    @property
    def device_wait_s(self) -> float:
        """How long this process has waited for its device. Any thread may ask."""
        doing = self._activity.doing
        return 0.0 if doing is None or doing[0] not in ("wait", "replay") else time.perf_counter() - doing[2]

    def when_lost(self, ended: Callable[[EngineDeadError], None]) -> None:
        """See ModelRunner.when_lost."""
        self._team.watch(ended)

    def _send(self, name: str, *args: Any) -> None:
        """The others hold the runner that was made last alone."""
        if owns_cache(self.model, self):
            self._team.send(name, *args)

    def _send_with_grammars(self, name: str, what: list[Any], requests: Iterable[Request]) -> None:
        """Send the grammars of these requests too, so that this process alone compiles, within its limits."""
        wanted = {one.key: one for each in requests if (one := each.params.structured) is not None}
        grammars = [(one, self._structured.grammars.get(one)) for one in wanted.values()]
        self._send("with_grammars", name, what, [(one, each.backend, each.exported) for one, each in grammars])

    def add_requests(self, requests: Iterable[Request]) -> None:
        """See ModelRunner.add_requests. RequestError for a deadline: the ranks may not agree when it has passed."""
        requests = list(requests)
        for request in requests:
            if request.timeout_s is not None or request.ttft_timeout_s is not None:
                raise RequestError(f"request '{request.request_id}': expected no deadline with engine.tensor_parallel")
        if self._team.error is not None:
            raise self._team.error
        held = self.compile_grammars(requests)
        super().add_requests(requests)
        # With the seeds that were drawn here.
        admitted = [found.request for request in requests if (found := self.find(request.request_id)) is not None]
        self._send_with_grammars("add_requests", [replace(one, callback=None) for one in admitted], admitted)
        del held

    def cancel(self, request_id: str, reason: FinishReason = "cancelled", error: str = "") -> bool:
        """See ModelRunner.cancel."""
        self._send_if_alive("cancel", request_id, reason, error)
        return super().cancel(request_id, reason, error)

    def restore(self, records: list[Record]) -> None:
        """See ModelRunner.restore."""
        super().restore(records)
        self._send_with_grammars("restore", records, [stream.request for stream in self.streams])

    def forget(self) -> None:
        """See ModelRunner.forget."""
        super().forget()
        self._send("forget")

    def warm_up(self, progress: Callable[[int, int], None] = lambda done, steps: None) -> None:
        """See ModelRunner.warm_up. `progress` must not raise: the other ranks go on."""
        self._send("warm_up")
        super().warm_up(progress)

    def step(self) -> list[StreamDelta]:
        """See ModelRunner.step. RankLostError if a rank has ended, or does not answer."""
        self._send("step")
        try:
            return super().step()
        except RankMismatchError as error:
            self._team.lose(str(error))
            raise
        except RankLostError as error:
            raise self._team.failed(error) from error
        except Exception as error:
            if self._team.error is not None:  # such as what CUDA says of an aborted collective
                raise self._team.error from error
            raise

    def _take(self, slot: int, work: Work, report: StepReport, record: StepRecord) -> int | None:
        if self._team.error is not None:  # so that what came out may lack its part
            raise self._team.error
        return super()._take(slot, work, report, record)

    def take_finished(self, request_ids: Collection[str] | None = None) -> dict[str, RequestOutput]:
        """See ModelRunner.take_finished."""
        self._send_if_alive("take_finished", request_ids)
        return super().take_finished(request_ids)

    def _send_if_alive(self, name: str, *args: Any) -> None:
        """What has ended can be taken, and what has not be ended, though the others serve no more."""
        if self._team.error is None:
            with suppress(RankLostError):
                self._send(name, *args)
