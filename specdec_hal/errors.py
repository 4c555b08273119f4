"""Every error this project raises on purpose.

All derive from :class:`SpecDecError`, so that a caller (the CLI, a server) can turn them into one line and exit
status 2 without catching bugs along with them. Each also derives from the closest built-in exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec_hal.text import clip


class SpecDecError(Exception):
    """Base class. The message says what was expected, what came, and the hint, in at most 2 KB."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clip(message))


class ArgumentError(SpecDecError, ValueError):
    """A tensor or attribute of an op call is not what its OpSpec declares."""

    def __init__(
        self, *, op: str, backend: str, argument: str, expected: str, got: str, hint: str = "", cure: str = ""
    ) -> None:
        hint = hint or cure  # `cure`: the name until 0.2
        self.op, self.backend, self.argument = op, backend, argument
        self.expected, self.got, self.hint = expected, got, hint
        super().__init__(f"{op} [{backend}]: argument '{argument}': expected {expected}, got {got}; {hint}")

    @property
    def cure(self) -> str:
        """Deprecated name of `hint`, until 0.2."""
        return self.hint


class OutputError(SpecDecError, RuntimeError):
    """An op has written values that its contract excludes: a defect of the backend. Found in debug mode only."""


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
    """A model or tokenizer file is missing, corrupt, or does not fit the others."""


class RequestError(SpecDecError, ValueError):
    """A generation request cannot be served as asked; nothing was changed."""


class InsufficientMemoryError(SpecDecError, MemoryError):
    """More memory is asked for than is free; nothing was allocated."""


class QueueFullError(RequestError):
    """As many requests wait as may wait; `retry_after_s` is when room can be expected."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class RunnerBusyError(SpecDecError, RuntimeError):
    """A runner was driven from inside its own callback, or by two threads at once; nothing was changed."""


class EngineDeadError(SpecDecError, RuntimeError):
    """An engine has stopped, and serves no more requests."""


class RankLostError(EngineDeadError):
    """A rank of a tensor-parallel model has ended, or does not answer; the message names it."""


class RankMismatchError(EngineDeadError):
    """The ranks of a tensor-parallel model have decided differently; the message names step and slot."""


class JournalError(SpecDecError, ValueError):
    """A file is no journal of a runner, or is damaged, or its requests do not fit the runner; nothing was changed."""


class BatchError(SpecDecError, ValueError):
    """A batch cannot be begun or gone on with; what is done stays as it is."""


class BatchWriteError(BatchError, OSError):
    """The output folder of a batch cannot be written; what is done stays as it is."""


class ClusterError(SpecDecError, RuntimeError):
    """Ray is not installed, or a cluster cannot be reached."""


class CaptureError(SpecDecError, RuntimeError):
    """Something that cannot be part of a device graph was done while a step was captured."""


class FrameError(SpecDecError, ValueError):
    """An output frame cannot be encoded, or bytes are no output frame."""


class QueueError(SpecDecError, OSError):
    """A message queue of the system cannot be opened, or a message was not sent or not received."""


class CompileError(SpecDecError, ValueError):
    """Kernel sources cannot be given to the compiler."""


class KernelError(SpecDecError, RuntimeError):
    """A kernel on the emulator did wrong: it has findings, gave an error, or ended the process.

    `findings`: those of the run, as in the emulator's JSON.
    """

    def __init__(self, message: str, *, findings: Sequence[Mapping[str, Any]] = ()) -> None:
        self.findings = list(findings)
        super().__init__(message)
