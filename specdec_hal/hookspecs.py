"""What a plug-in may implement: the hooks of the entry-point group ``specdec_hal``.

A plug-in is a module (or an object) with functions marked by :data:`hookimpl`::

    from specdec_hal import hookimpl
    from specdec_hal.backend import BackendSpec

    @hookimpl
    def specdec_backends() -> BackendSpec: ...

and, in its pyproject.toml, ``[project.entry-points.specdec_hal]`` with one line ``name = "package.module"``. Importing
that module and answering these hooks must load no accelerator library: everything heavy belongs in a factory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from specdec_hal.backend import Backend, BackendSpec
    from specdec_hal.config import SpeculativeSettings
    from specdec_hal.proposers.protocol import Proposer
    from specdec_hal.runner import StepRecord
    from specdec_hal.state import DecodeState

GROUP = "specdec_hal"
"""The pluggy project name, and the entry-point group that plug-ins announce themselves in."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@dataclass(frozen=True)
class ProposerSpec:
    """A way to draft tokens. `name` is what ``speculative.method`` says; `doc` is one line for listings.

    `factory` builds the proposer of one runner, which binds its ops to that runner's tensors.
    """

    name: str
    factory: Callable[[Backend, DecodeState, SpeculativeSettings], Proposer]
    doc: str = ""


@dataclass(frozen=True)
class ModelSpec:
    """A target model. `name` is the ``architectures`` entry of config.json, `framework` "paddle", "torch" or another.

    `loader(path, **options)` builds the model from a checkpoint folder, whose config.json has been read already.
    """

    name: str
    framework: str
    loader: Callable[..., Any]


@hookspec
def specdec_backends() -> BackendSpec | list[BackendSpec]:  # type: ignore[empty-body]
    """Announce one backend, or several."""


@hookspec
def specdec_proposers() -> ProposerSpec | list[ProposerSpec]:  # type: ignore[empty-body]
    """Announce proposers: the methods that ``speculative.method`` may name."""


@hookspec
def specdec_models() -> ModelSpec | list[ModelSpec]:  # type: ignore[empty-body]
    """Announce target models for (architecture, framework) pairs."""


@hookspec
def specdec_step_finished(record: StepRecord) -> None:
    """Observe one finished step of a runner; `record` is not to be modified.

    Called on the decoding thread: be quick. An observer that raises is reported once and not called again.
    """
