"""Find and select backends, proposers and models, and explain missing ones.

A :class:`Registry` loads its plug-ins on first use. The module-level functions are those of one default registry: the
built-in plug-ins and the entry points of the group ``specdec_hal``. This module imports no accelerator library.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from specdec_hal.errors import BackendUnavailableError, PluginError, UnknownBackendError, UnsupportedError
from specdec_hal.ops import OPS
from specdec_hal.plugin import discovery as loading
from specdec_hal.plugin.backend import API_VERSION, AUTO, Backend, BackendSpec, OpStatus, Probe
from specdec_hal.plugin.calls import build_backend, call, check_members, probe
from specdec_hal.plugin.discovery import Candidate, Plugin
from specdec_hal.plugin.hookspecs import ANY_ARCHITECTURE, ModelSpec, ProposerSpec
from specdec_hal.text import did_you_mean, short

if TYPE_CHECKING:
    from specdec_hal.plugin.model import ModelMemory, TargetModel
    from specdec_hal.plugin.proposer import MemoryContext, Proposer, ProposerContext
    from specdec_hal.plugin.step_record import StepRecord

BUILTINS = (
    "specdec_hal.backends.reference.plugin",
    "specdec_hal.backends.cpu.plugin",
    "specdec_hal.backends.cuda.plugin",
    "specdec_hal.proposers.plugin",
    "specdec_hal.models.plugin",
)
"""The core's plug-ins, registered like all others. Other parts of this distribution announce theirs by entry point."""

_DEFAULTS = {
    "draft_positions": "specdec_hal.plugin.proposer.Proposer",
    "forget": "specdec_hal.plugin.proposer.Proposer",
    "cache_bytes": "specdec_hal.plugin.model.DeviceModel",
}
"""Names with a default in a protocol."""
_OF_PREFIXES = ("keeps_prefix", "keep_prefix", "resume_prefix")
"""Methods of a RecurrentModel with `device_lengths`."""

ENV_BACKEND = "SPECDEC_HAL_BACKEND"
ENV_PLUGINS = "SPECDEC_HAL_PLUGINS"
"""``none``: only built-in plug-ins; no third-party code is imported."""

log = logging.getLogger(__name__)
imports = logging.getLogger(f"{__name__}.imports")
"""Logs (INFO) the start and end of third-party imports."""
Named = TypeVar("Named", BackendSpec, ProposerSpec, ModelSpec)


@dataclass(frozen=True)
class BackendInfo:
    """One line of the listing. `reason` and `hint`: set if `available` is False.

    `error`: equals `reason` if a plug-in is faulty (duplicate name, wrong api_version, failing probe), not if hardware
    or software is missing. `priority` and `api_version` are None if several plug-ins claim the name.
    """

    name: str
    available: bool
    reason: str
    hint: str
    priority: int | None
    api_version: int | None
    plugin: str
    description: str
    error: str


class Explanation(tuple[OpStatus, ...]):
    """What :meth:`Registry.explain` returns: one OpStatus per op; as text, a table."""

    backend: str

    def __new__(cls, backend: str, statuses: Iterable[OpStatus]) -> Explanation:
        """Keep the backend's name along with its statuses."""
        explanation = super().__new__(cls, statuses)
        explanation.backend = backend
        return explanation

    def __str__(self) -> str:
        width = max((len(status.op) for status in self), default=0)
        lines = [f"backend '{self.backend}':"]
        for status in self:
            parts = (status.via and f"via {status.via}", status.modes, status.reason, status.hint)
            detail = "; ".join(part for part in parts if part)
            lines.append(f"  {status.op:<{width}}  {'yes' if status.available else 'no '}  {detail}".rstrip())
        return "\n".join(lines)


class Registry:
    """Plug-ins: `builtins` (module names; None: the project's own) and `entry_points` (None: those installed).

    `environ` has SPECDEC_HAL_BACKEND and SPECDEC_HAL_PLUGINS (None: the process's environment). A third-party plug-in
    that claims a built-in name is refused entirely.
    """

    def __init__(
        self,
        *,
        builtins: Sequence[str] | None = None,
        entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._builtins = builtins
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._environ = os.environ if environ is None else environ
        self._plugins: list[Plugin] | None = None
        self._loading = False
        self._lock = threading.RLock()

    # ---- plug-ins

    def plugins(self) -> list[Plugin]:
        """All plug-ins in loading order; failed ones have an `error`."""
        with self._lock:
            if self._plugins is None:
                if self._loading:
                    raise PluginError("a plug-in asked the registry while it was being loaded; ask later, in a factory")
                self._loading = True
                try:
                    self._plugins = self._load()
                finally:
                    self._loading = False
                for plugin in self._plugins:
                    if plugin.error:
                        log.warning("%s", plugin.error)
            return self._plugins

    def _load(self) -> list[Plugin]:
        candidates = list(loading.builtin_candidates(BUILTINS if self._builtins is None else self._builtins))
        candidates += loading.part_candidates() if self._builtins is None else ()
        own = [loading.load(candidate) for candidate in candidates]
        taken = {claim for plugin in own for claim in plugin.claims()}
        others = []
        for candidate in self._third_party():
            # First, so that an import that ends the process has been named.
            imports.info("importing plug-in '%s' (%s: %s)", candidate.name, candidate.source, candidate.target)
            plugin = loading.load(candidate)
            imports.info("imported")
            others.append(plugin.refused(taken))
        return own + others

    def _announced(self, kind: str) -> list[tuple[Plugin, Any]]:
        """Every spec of a kind ("backends", "proposers", "models") with its plug-in."""
        return [(plugin, spec) for plugin in self.plugins() for spec in getattr(plugin, kind)]

    def _third_party(self) -> Iterable[Candidate]:
        wanted = self._environ.get(ENV_PLUGINS, "")
        if wanted == "none":
            return ()
        if wanted:
            raise PluginError(f"{ENV_PLUGINS}: expected 'none' or no value, got {short(wanted)}; unset it")
        if self._entry_points is None:
            return loading.installed_candidates()
        return loading.entry_point_candidates(self._entry_points)

    def register(self, implementation: object, name: str) -> Plugin:
        """Add a plug-in manually (an observer in a notebook, a test); raises PluginError for errors that loading would
        store.
        """
        plugin = Plugin(name, "registered at run time", type(implementation).__name__)
        loading.attach(plugin, implementation)
        with self._lock:
            self.plugins().append(plugin)
        return plugin

    def unregister(self, plugin: Plugin) -> None:
        """Undo :meth:`register`."""
        with self._lock:
            self.plugins().remove(plugin)

    # ---- backends

    def backends(self) -> list[BackendInfo]:
        """Every known backend with its probe's answer, highest priority first; equal priorities by name.

        Names claimed by several plug-ins, hence unusable, come first.
        """
        names = {spec.name for _, spec in self._announced("backends")}
        infos = [self._info(name) for name in names]
        return sorted(infos, key=lambda info: (info.priority is not None, -(info.priority or 0), info.name))

    def get_backend(
        self,
        name: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        fallback: Sequence[str] = (),
        debug: bool = False,
    ) -> Backend:
        """Build a backend.

        `name` None or "auto": the one SPECDEC_HAL_BACKEND names, else the available one of highest priority (equal
        priorities: the first by name). `options` go to the backend's factory. `fallback` names the backends that may
        serve ops this one lacks (naming the backend itself is allowed and changes nothing). `debug` checks values too.
        Raises UnknownBackendError, BackendUnavailableError, or PluginError (duplicate name, wrong api_version, a
        factory that fails).
        """
        plugin, spec = self._select(name)
        others = [self._available(other) for other in dict.fromkeys(fallback)]
        backend = build_backend(plugin, spec, options or {}, debug)
        helpers = [build_backend(p, s, {}, debug) for p, s in others if s.name != spec.name]
        backend.set_fallback(helpers)
        return backend

    def check_backend_name(self, name: str) -> None:
        """Raise UnknownBackendError for an unannounced name, without probing."""
        self._claims(name)

    def choose(self, name: str | None = None) -> str:
        """The name of the backend that :meth:`get_backend` would build; raises as it does."""
        return self._select(name)[1].name

    def explain(self, name: str | None = None, *, fallback: Sequence[str] = ()) -> Explanation:
        """Per op of the contract: available (and in which modes), or the reason and the hint.

        For a backend that cannot run here, every op has the probe's reason.
        """
        try:
            chosen = self.choose(name)
        except BackendUnavailableError:
            wanted, _ = self._wanted(name)
            if wanted == AUTO:
                raise
            info = self._info(wanted)
            return Explanation(wanted, (_unavailable(op, info) for op in OPS))
        backend = self.get_backend(chosen, fallback=fallback)
        return Explanation(backend.name, backend.explain())

    def _select(self, name: str | None) -> tuple[Plugin, BackendSpec]:
        """The plug-in and spec for a request, known to be available."""
        wanted, origin = self._wanted(name)
        return self._best() if wanted == AUTO else self._available(wanted, origin)

    def _available(self, name: str, origin: str = "") -> tuple[Plugin, BackendSpec]:
        plugin, spec = self._entry(name, origin)
        answer, _ = probe(spec)
        if not answer.available:
            hint = f"; {answer.hint}" if answer.hint else ""
            raise BackendUnavailableError(f"backend '{name}'{origin} cannot run here: {answer.reason}{hint}")
        return plugin, spec

    def _wanted(self, name: str | None) -> tuple[str, str]:
        """The backend's name and its origin for messages."""
        if name is not None and name != AUTO:
            return name, ""
        from_env = self._environ.get(ENV_BACKEND, "").strip()
        return (from_env, f" (from {ENV_BACKEND})") if from_env else (AUTO, "")

    def _best(self) -> tuple[Plugin, BackendSpec]:
        infos = self.backends()
        for info in infos:
            if info.available:
                return self._entry(info.name)
            if info.error:  # log a faulty installation, unlike missing hardware
                log.warning("automatic choice skips backend '%s': %s", info.name, info.error)
        why = "; ".join(f"{info.name}: {info.reason}" for info in infos)
        raise BackendUnavailableError(f"no backend can run here: {why or 'none is registered'}{self._failures()}")

    def _entry(self, name: str, origin: str = "") -> tuple[Plugin, BackendSpec]:
        """The one plug-in and spec of that name; raises for unknown names, duplicates and the wrong api_version."""
        plugin, spec = _only_claim("backend", name, self._claims(name, origin))
        if spec.api_version != API_VERSION:
            raise PluginError(
                f"backend '{name}' of {plugin.label} has api_version {spec.api_version}, this specdec_hal has "
                f"{API_VERSION}; install versions that agree"
            )
        return plugin, spec

    def _claims(self, name: str, origin: str = "") -> list[tuple[Plugin, BackendSpec]]:
        """The plug-ins that announced that backend; UnknownBackendError if none did."""
        every = self._announced("backends")
        claims = [(plugin, spec) for plugin, spec in every if spec.name == name]
        if not claims:
            known = sorted({spec.name for _, spec in every})
            raise UnknownBackendError(
                f"unknown backend '{name}'{origin}{did_you_mean(name, known)}; "
                f"known: {', '.join(known) or 'none'}{self._failures()}"
            )
        return claims

    def _failures(self) -> str:
        failed = [plugin.error for plugin in self.plugins() if plugin.error]
        return f" (plug-ins with errors: {'; '.join(failed)})" if failed else ""

    def _info(self, name: str) -> BackendInfo:
        claims = self._claims(name)
        spec = claims[0][1]
        try:
            self._entry(name)
        except PluginError as error:
            answer, fault = Probe(False, str(error)), str(error)
        else:
            answer, fault = probe(spec)
        unique = len(claims) == 1
        return BackendInfo(
            name=name,
            available=answer.available,
            reason=answer.reason,
            hint=answer.hint,
            priority=spec.priority if unique else None,
            api_version=spec.api_version if unique else None,
            plugin=", ".join(plugin.name for plugin, _ in claims),
            description=spec.description if unique else "",
            error=fault,
        )

    # ---- proposers, models, observers

    def proposers(self) -> list[str]:
        """The names of every announced proposer, sorted."""
        return sorted({spec.name for _, spec in self._announced("proposers")})

    def unique_proposers(self) -> list[tuple[Plugin, ProposerSpec]]:
        """Every proposer with a unique name, and its plug-in."""
        claims = self._announced("proposers")
        names = Counter(spec.name for _, spec in claims)
        return [(plugin, spec) for plugin, spec in claims if names[spec.name] == 1]

    def get_proposer(self, name: str) -> ProposerSpec:
        """The proposer of that name; UnsupportedError if there is none, PluginError if there are two."""
        return self._proposer(name)[1]

    def build_proposer(self, name: str, context: ProposerContext) -> Proposer:
        """Build a proposer; raises as :meth:`get_proposer`, or PluginError for a factory that fails."""
        plugin, spec = self._proposer(name)
        what = f"proposer '{name}' of {plugin.label}"
        proposer: Proposer = call(what, "factory", spec.factory, context)
        values = ("hidden_layers", "gives_draft_probs", "draft_positions")
        check_members(what, proposer, methods=("reset", "propose", "forget"), values=values, defaults=_DEFAULTS)
        if getattr(proposer, "runs_on", None) not in ("device", "host"):
            got = short(getattr(proposer, "runs_on", None))
            raise PluginError(f"{what}: runs_on: expected 'device' or 'host', got {got}")
        if type(positions := proposer.draft_positions) is not int or positions < 0:
            raise PluginError(f"{what}: draft_positions: expected an integer >= 0, got {short(positions)}")
        return proposer

    def pads_drafts(self, name: str, settings: Any) -> bool:
        """Whether a proposer's drafts may exceed the length limit; raises as :meth:`get_proposer`."""
        plugin, spec = self._proposer(name)
        return bool(call(f"proposer '{name}' of {plugin.label}", "pads_drafts", spec.pads_drafts, settings))

    def draft_memory(self, name: str, context: MemoryContext) -> dict[str, int]:
        """Bytes that a proposer would allocate, by purpose; raises as :meth:`get_proposer`."""
        plugin, spec = self._proposer(name)
        return dict(call(f"proposer '{name}' of {plugin.label}", "memory", spec.memory, context))

    def disable_proposers(self, plugin: Plugin, error: str) -> None:
        """Remove a plug-in's proposers for an error found after loading."""
        plugin.proposers, plugin.error = (), error
        log.warning("%s", error)

    def _proposer(self, name: str) -> tuple[Plugin, ProposerSpec]:
        claims = [(plugin, spec) for plugin, spec in self._announced("proposers") if spec.name == name]
        if not claims:
            known = self.proposers()
            raise UnsupportedError(
                f"unknown speculative method '{name}'{did_you_mean(name, known)}; "
                f"known: {', '.join(known) or 'none'}{self._failures()}"
            )
        return _only_claim("proposer", name, claims)

    def models(self) -> list[ModelSpec]:
        """Every announced model."""
        return [spec for _, spec in self._announced("models")]

    def frameworks(self) -> list[str]:
        """The frameworks of announced models, sorted."""
        return sorted({spec.framework for spec in self.models()})

    def check_framework(self, name: str) -> None:
        """Raise UnsupportedError unless some model is announced for that framework."""
        known = self.frameworks()
        if name not in known:
            raise UnsupportedError(
                f"expected one of {', '.join((AUTO, *known))}, got '{name}'{did_you_mean(name, known)}"
            )

    def get_model(self, name: str, framework: str) -> ModelSpec:
        """The model of that architecture and framework; UnsupportedError if there is none, PluginError if two.

        Models for :data:`~specdec_hal.plugin.hookspecs.ANY_ARCHITECTURE` come second.
        """
        return self._model(name, framework)[1]

    def build_model(self, name: str, framework: str, path: str | os.PathLike[str], **options: Any) -> TargetModel:
        """Load a model; raises as :meth:`get_model`, or PluginError for a loader that fails."""
        plugin, spec = self._model(name, framework)
        what = f"model '{name}' ({framework}) of {plugin.label}"
        model: TargetModel = call(what, "loader", spec.loader, path, **options)
        values = ("config", "framework", "capabilities")
        check_members(what, model, methods=("allocate", "forward", "compute_logits"), values=values)
        if model.capabilities.device_lengths:
            methods = ("bytes_per_block", "allocate_blocks", "forward_device", "compute_logits_device")
            check_members(what, model, methods=methods, values=("cache_bytes",), defaults=_DEFAULTS)
        if model.capabilities.rope_switch is not None:
            check_members(what, model, methods=("set_long",), values=())
        if model.capabilities.recurrent:
            check_members(what, model, methods=("bytes_per_slot", "allocate_states"), values=("state_bytes",))
            if model.capabilities.device_lengths:
                check_members(what, model, methods=_OF_PREFIXES, values=("bytes_per_prefix",))
        return model

    def model_memory(self, name: str, framework: str, path: str | os.PathLike[str], device: str) -> ModelMemory | None:
        """Memory of a model on that device; None if unknown. Raises as :meth:`build_model`."""
        plugin, spec = self._model(name, framework)
        if spec.memory is None:
            return None
        what = f"model '{name}' ({framework}) of {plugin.label}"
        need: ModelMemory | None = call(what, "memory", spec.memory, path, device=device)
        return need

    def _model(self, name: str, framework: str) -> tuple[Plugin, ModelSpec]:
        every = self._announced("models")
        of_framework = [(plugin, spec) for plugin, spec in every if spec.framework == framework]
        claims = [(plugin, spec) for plugin, spec in of_framework if spec.name == name]
        claims = claims or [(plugin, spec) for plugin, spec in of_framework if spec.name == ANY_ARCHITECTURE]
        if not claims:
            known = sorted(f"{spec.name} ({spec.framework})" for _, spec in every if spec.name != ANY_ARCHITECTURE)
            wanted = f"{name} ({framework})"
            general = sorted({spec.framework for _, spec in every if spec.name == ANY_ARCHITECTURE})
            raise UnsupportedError(
                f"unknown model {wanted}{did_you_mean(wanted, known)}; known: {', '.join(known) or 'none'}; "
                f"of any architecture: model.framework {' or '.join(general) or 'none'}{self._failures()}"
            )
        return _only_claim("model", f"{name} ({framework})", claims)

    def step_finished(self, record: StepRecord) -> None:
        """Call every observer; one that raises is logged once and dropped."""
        for plugin in self.plugins():
            if plugin.on_step is None:
                continue
            try:
                with loading.faults(f"{plugin.label}: hook specdec_step_finished raised"):
                    plugin.on_step(record=record)
            except PluginError as error:
                plugin.on_step, plugin.error = None, str(error)
                log.warning("%s; it will not be called again", plugin.error)


def _only_claim(what: str, name: str, claims: Sequence[tuple[Plugin, Named]]) -> tuple[Plugin, Named]:
    if len(claims) > 1:
        labels = " and ".join(plugin.label for plugin, _ in claims)
        raise PluginError(f"{what} '{name}' is announced by {labels}; uninstall or rename all but one")
    return claims[0]


def _unavailable(op: str, info: BackendInfo) -> OpStatus:
    return OpStatus(op, False, reason=info.reason, hint=info.hint)


default = Registry()
"""The default registry of this process; only entry points use it."""


def or_default(registry: Registry | None) -> Registry:
    """The given registry, or that of this process."""
    return default if registry is None else registry


plugins = default.plugins
register = default.register
unregister = default.unregister
backends = default.backends
get_backend = default.get_backend
choose = default.choose
explain = default.explain
proposers = default.proposers
models = default.models
