"""What a plug-in may implement: the hooks of the entry-point group ``specdec_hal``.

A plug-in is a module (or an object) with functions marked by :data:`hookimpl`::

    from specdec_hal import hookimpl
    from specdec_hal.plugin.backend import BackendSpec

    @hookimpl
    def specdec_backends() -> BackendSpec: ...

and, in its pyproject.toml, ``[project.entry-points.specdec_hal]`` with one line ``name = "package.module"``. Importing
that module and answering these hooks must load no accelerator library: everything heavy belongs in a factory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from pydantic import BaseModel

    from specdec_hal.plugin.backend import BackendSpec
    from specdec_hal.plugin.model import ModelMemory
    from specdec_hal.plugin.proposer import MemoryContext, Proposer, ProposerContext
    from specdec_hal.runner.metrics import StepRecord

ANY_ARCHITECTURE = "*"

GROUP = "specdec_hal"
"""The pluggy project name, and the entry-point group that plug-ins announce themselves in."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@dataclass(frozen=True)
class ProposerSpec:
    """A way to draft tokens. `name` is what ``speculative.method`` says; `doc` is one line for listings.

    `factory` builds the proposer of one runner, which binds its ops to that runner's tensors. `settings` is the
    pydantic model of the section ``speculative.<name>`` (derive it from :class:`specdec_hal.config.Section`), or a
    function that returns it, so that a plug-in's import stays light; None: the proposer has no settings. `pads_drafts`
    says of these settings whether drafts are padded to K whatever is left of the request, so that they may stand up to
    K positions past the length limit: the KV cache then gets that room. `memory`: bytes of what the factory would
    allocate, by what they are for; they are counted with the runner's before anything is allocated.
    """

    name: str
    factory: Callable[[ProposerContext], Proposer]
    settings: type[BaseModel] | Callable[[], type[BaseModel]] | None = None
    doc: str = ""
    pads_drafts: Callable[[Any], bool] = lambda settings: False
    memory: Callable[[MemoryContext], Mapping[str, int]] = lambda context: {}


@dataclass(frozen=True)
class ModelSpec:
    """A target model. `name` is the ``architectures`` entry of config.json, or :data:`ANY_ARCHITECTURE` for those that
    nobody else announces; `framework` what computes it ("paddle", "torch" or another), as ``model.framework`` says.

    `loader(path, device=..., **options)` builds the :class:`specdec_hal.plugin.model.TargetModel` of a checkpoint
    folder, whose config.json has been read already, in the memory of a place ("cpu", "cuda:0").
    `memory(path, device=...)` says what that would take, for a draft model that may not fit beside its target; None:
    unknown.
    """

    name: str
    framework: str
    loader: Callable[..., Any]
    memory: Callable[..., ModelMemory | None] | None = None


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
