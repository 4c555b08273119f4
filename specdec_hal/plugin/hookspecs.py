"""Hooks of plug-ins in the entry-point group ``specdec_hal``.

A plug-in is a module (or an object) with functions marked by :data:`hookimpl`::

    from specdec_hal import hookimpl
    from specdec_hal.plugin.backend import BackendSpec

    @hookimpl
    def specdec_backends() -> BackendSpec: ...

and, in its pyproject.toml, ``[project.entry-points.specdec_hal]`` with one line ``name = "package.module"``. Importing
that module and answering these hooks must not load accelerator libraries, which belong in factories.
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
    from specdec_hal.plugin.step_record import StepRecord

ANY_ARCHITECTURE = "*"

GROUP = "specdec_hal"
"""The pluggy project name, and the entry-point group of plug-ins."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@dataclass(frozen=True)
class ProposerSpec:
    """A drafting method. `name`: value of ``speculative.method``; `doc`: one line for listings.

    `factory` builds the proposer of one runner, which binds its ops to that runner's tensors. `settings` is the
    pydantic model of the section ``speculative.<name>`` (derive it from :class:`specdec_hal.config.Section`), or a
    function that returns it, so that a plug-in's import stays light; None: the proposer has no settings. `pads_drafts`:
    whether these settings pad drafts to K even near the request's end, so that the KV cache needs room for K positions
    past the length limit. `memory`: bytes that the factory would allocate, by purpose, checked with the runner's before
    any allocation.
    """

    name: str
    factory: Callable[[ProposerContext], Proposer]
    settings: type[BaseModel] | Callable[[], type[BaseModel]] | None = None
    doc: str = ""
    pads_drafts: Callable[[Any], bool] = lambda settings: False
    memory: Callable[[MemoryContext], Mapping[str, int]] = lambda context: {}


@dataclass(frozen=True)
class ModelSpec:
    """A target model. `name`: the ``architectures`` entry of config.json, or :data:`ANY_ARCHITECTURE` for unannounced
    ones; `framework`: value of ``model.framework`` ("paddle" or another).

    `loader(path, device=..., **options)` builds the :class:`specdec_hal.plugin.model.TargetModel` of a checkpoint
    folder with a valid config.json on a device ("cpu", "cuda:0"). `memory(path, device=...)` estimates its memory, for
    a draft model that may not fit beside its target; None: unknown.
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
    """Observe one finished step of a runner; do not modify `record`.

    Called on the decoding thread: be quick. An observer that raises is reported once and not called again.
    """
