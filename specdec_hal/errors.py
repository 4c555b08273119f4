"""Every error this project raises on purpose.

All derive from :class:`SpecDecError`, so that a caller (the CLI, a server) can turn them into one line and exit
status 2 without catching bugs along with them. Each also derives from the closest built-in exception.
"""

from __future__ import annotations


class SpecDecError(Exception):
    """Base class. The message says what was expected, what came, and the cure."""


class ArgumentError(SpecDecError, ValueError):
    """A tensor or attribute of an op call is not what its OpSpec declares."""

    def __init__(self, *, op: str, backend: str, argument: str, expected: str, got: str, cure: str) -> None:
        self.op, self.backend, self.argument = op, backend, argument
        self.expected, self.got, self.cure = expected, got, cure
        super().__init__(f"{op} [{backend}]: argument '{argument}': expected {expected}, got {got}; {cure}")


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


class EngineDeadError(SpecDecError, RuntimeError):
    """An engine has stopped, and serves no more requests."""


class CaptureError(SpecDecError, RuntimeError):
    """Something that cannot be part of a device graph was done while a step was captured."""


class FrameError(SpecDecError, ValueError):
    """An output frame cannot be encoded, or bytes are no output frame."""


class CompileError(SpecDecError, ValueError):
    """Kernel sources cannot be given to the compiler."""
