"""Every error this project raises on purpose.

All derive from :class:`SpecDecError`, so that a caller (the CLI, a server) can report them on one line, without hiding
bugs. Each also derives from the closest built-in exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec_hal.text import clip


class SpecDecError(Exception):
    """Base class. The message has the expected and the actual value and a hint, in at most 2 KB.

    `command_line`: the message on the command line, if its hint differs.
    """

    def __init__(self, message: str = "", *, command_line: str = "") -> None:
        super().__init__(clip(message))
        self.command_line = clip(command_line or message)


class ArgumentError(SpecDecError, ValueError):
    """A tensor or attribute of an op call violates its OpSpec."""

    def __init__(self, *, op: str, backend: str, argument: str, expected: str, got: str, hint: str = "") -> None:
        self.op, self.backend, self.argument = op, backend, argument
        self.expected, self.got, self.hint = expected, got, hint
        super().__init__(f"{op} [{backend}]: argument '{argument}': expected {expected}, got {got}; {hint}")


class NoDistributionError(ArgumentError):
    """Rows of logits with NaN, or of -inf only, from which no token can be drawn. `requests`: their first indices."""

    requests: tuple[int, ...] = ()


class OutputError(SpecDecError, RuntimeError):
    """An op has written values that its contract excludes: a defect of the backend, found in debug mode."""


class UnsupportedError(SpecDecError, NotImplementedError):
    """A backend lacks an op, or a mode of one, and no fallback was allowed."""


class UnknownBackendError(SpecDecError, LookupError):
    """No plug-in registered a backend of that name."""


class BackendUnavailableError(SpecDecError, RuntimeError):
    """The backend is known, but its probe says it cannot run here."""


class PluginError(SpecDecError, RuntimeError):
    """A plug-in breaks the rules: duplicate name, wrong api_version, wrong hook signature, failed import."""


class ConfigError(SpecDecError, ValueError):
    """A configuration file or override is wrong; the message starts with ``file:key:``."""


class CheckpointError(SpecDecError, ValueError):
    """A model or tokenizer file is missing, corrupt or inconsistent with others."""


class RequestError(SpecDecError, ValueError):
    """A request cannot be served as specified; nothing was changed."""


class InsufficientMemoryError(SpecDecError, MemoryError):
    """Not enough free memory; nothing was allocated."""


class QueueFullError(RequestError):
    """The queue is full; `retry_after_s` estimates when it has room."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class WorkerError(SpecDecError, RuntimeError):
    """A helper process of this one has ended, or does not start; no request is at fault, and any may be repeated."""


class RunnerBusyError(SpecDecError, RuntimeError):
    """A runner was driven from inside its own callback, or by two threads at once; nothing was changed."""


class EngineDeadError(SpecDecError, RuntimeError):
    """An engine has stopped serving."""


class RankLostError(EngineDeadError):
    """A tensor-parallel rank has ended or does not answer; the message names it."""


class RankMismatchError(EngineDeadError):
    """Tensor-parallel ranks disagree; the message names step and slot."""


class JournalError(SpecDecError, ValueError):
    """A file is not a valid journal, or its requests do not fit the runner; nothing was changed."""


class BatchError(SpecDecError, ValueError):
    """A batch cannot start or resume; finished blocks are kept."""


class BatchWriteError(BatchError, OSError):
    """The output folder of a batch cannot be written; finished blocks are kept."""


class ClusterError(SpecDecError, RuntimeError):
    """Ray is not installed, or a cluster cannot be reached."""


class CaptureError(SpecDecError, RuntimeError):
    """An operation that cannot be captured occurred during a capture."""


class FrameError(SpecDecError, ValueError):
    """An output frame cannot be encoded or decoded."""


class QueueError(SpecDecError, OSError):
    """A system message queue cannot be opened, or a message was not sent or received."""


class CompileError(SpecDecError, ValueError):
    """Kernel sources cannot be compiled."""


class KernelError(SpecDecError, RuntimeError):
    """A kernel on the emulator failed: findings, an error, or the end of the process.

    `findings`: those of the run, as in the emulator's JSON.
    """

    def __init__(self, message: str, *, findings: Sequence[Mapping[str, Any]] = ()) -> None:
        self.findings = list(findings)
        super().__init__(message)
