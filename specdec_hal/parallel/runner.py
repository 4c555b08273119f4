"""What every rank adds to a runner, and the first rank's runner, which has the others do what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Protocol

from specdec_hal.config.schema import Config
from specdec_hal.errors import EngineDeadError, RankLostError, RankMismatchError, RequestError
from specdec_hal.request import FinishReason
from specdec_hal.runner import ModelRunner, Request, RequestOutput, StreamDelta
from specdec_hal.runner.build import RunnerHook, RunnerParts
from specdec_hal.runner.guard import owns_cache
from specdec_hal.runner.journal import Record
from specdec_hal.runner.report import StepReport, StepSink
from specdec_hal.tensors.group import Group

Decision = tuple[int, int, tuple[int, ...]]
"""A step's effect on a slot: step, slot, tokens."""
WITH_GRAMMARS = "with_grammars"
"""The command that :func:`with_grammars` carries out."""


def with_grammars(runner: ModelRunner, name: str, what: list[Any], grammars: Iterable[tuple[Any, str, Any]]) -> None:
    """Call a method with grammars compiled by another process; see Grammars.put."""
    held = [runner.grammars.put(*grammar) for grammar in grammars]
    getattr(runner, name)(what)
    del held


class RankHook(RunnerHook):
    """Compares what a runner decides with the other ranks, by a 64-bit digest, every engine.digest_interval steps."""

    def __init__(self, config: Config, group: Group) -> None:
        self._group, self._interval = group, config.engine.digest_interval
        self._compared = 0
        self._decisions: list[Decision] = []

    def took(self, step: int, slots: Iterable[int], report: StepReport) -> None:
        """See RunnerHook."""
        if self._interval is not None:
            self._decisions += [(step, slot, tuple(report.tokens(slot))) for slot in slots]

    def stepped(self, steps: int) -> None:
        """See RunnerHook. RankMismatchError if the ranks differ, at the first comparison after that step."""
        if self._interval is not None and steps - self._compared >= self._interval:
            self._compared = steps
            self._compare()

    def forget(self) -> None:
        """See RunnerHook."""
        self._decisions, self._compared = [], 0

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
    """Rank 0's view of the others."""

    error: EngineDeadError | None

    def send(self, name: str, *args: Any) -> None:
        """Call a method of each rank's runner. RankLostError if they have stopped."""

    def watch(self, ended: Callable[[EngineDeadError], None]) -> None:
        """Register `ended`, called when they have stopped."""

    def failed(self, error: Exception) -> EngineDeadError:
        """End them after a failed collective; returns the reason."""

    def lose(self, why: str) -> EngineDeadError:
        """End them."""


class LeadingHook(RankHook):
    """The first rank's, which knows whether the others still serve."""

    def __init__(self, config: Config, group: Group, team: Others) -> None:
        super().__init__(config, group)
        self._team = team

    def took(self, step: int, slots: Iterable[int], report: StepReport) -> None:
        """See RunnerHook."""
        if self._team.error is not None:  # so the result may lack its part
            raise self._team.error
        super().took(step, slots, report)


class LeadingRunner(ModelRunner):
    """Rank 0's runner, which repeats its calls on the others."""

    def __init__(self, parts: RunnerParts, team: Others) -> None:
        super().__init__(parts)
        self._team = team

    def when_lost(self, ended: Callable[[EngineDeadError], None]) -> None:
        """See ModelRunner.when_lost."""
        self._team.watch(ended)

    def attach(self, sink: StepSink) -> None:
        """See ModelRunner.attach. The other ranks leave stop strings to it too."""
        super().attach(sink)
        self._send("attach", StepSink())

    def _send(self, name: str, *args: Any) -> None:
        """The other ranks only hold the newest runner."""
        if owns_cache(self.model, self.state):
            self._team.send(name, *args)

    def _send_with_grammars(self, name: str, what: list[Any], requests: Iterable[Request]) -> None:
        """Send the grammars of these requests too, so that only this process compiles."""
        wanted = {one.key: one for each in requests if (one := each.params.structured) is not None}
        grammars = [(one, self.grammars.get(one)) for one in wanted.values()]
        self._send(WITH_GRAMMARS, name, what, [(one, each.backend, each.exported) for one, each in grammars])

    def add_requests(self, requests: Iterable[Request]) -> None:
        """See ModelRunner.add_requests. RequestError for a deadline, as ranks may disagree when it has passed."""
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
        """See ModelRunner.warm_up. `progress` must not raise, since the other ranks would continue."""
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
            if self._team.error is not None:  # such as CUDA errors of an aborted collective
                raise self._team.error from error
            raise

    def take_finished(self, request_ids: Collection[str] | None = None) -> dict[str, RequestOutput]:
        """See ModelRunner.take_finished."""
        self._send_if_alive("take_finished", request_ids)
        return super().take_finished(request_ids)

    def _send_if_alive(self, name: str, *args: Any) -> None:
        """Finished outputs can be taken, and requests ended, after the other ranks have stopped."""
        if self._team.error is None:
            with suppress(RankLostError):
                self._send(name, *args)
