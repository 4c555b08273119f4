"""The options of the CPU backend, as they stand under ``backend.options`` in a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from specdec_hal.errors import ConfigError
from specdec_hal.plugin.backend import check_backend_options
from specdec_hal.tensors import cpu_threads

LIBRARY = "specdec_cpu"
MAX_THREADS = 1024


@dataclass(frozen=True)
class Options:
    """`threads`: the most that an op uses, of the pool that it shares with attention and products of models. None: one
    per core available to the process, limited by MKL_NUM_THREADS or OMP_NUM_THREADS. Results do not depend on it.
    """

    threads: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check options from outside; ConfigError for an unknown name or a value out of range."""
        check_backend_options(given, [field.name for field in fields(cls)])
        threads = given.get("threads")
        if threads is None:
            return cls()
        if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MAX_THREADS:
            raise ConfigError(
                f"backend.options.threads: expected an integer in [1, {MAX_THREADS}], got {threads!r}; change it or "
                "leave it out"
            )
        return cls(threads)

    def most_threads(self) -> int:
        """`threads`, or what this process may use."""
        return cpu_threads.available() if self.threads is None else self.threads
