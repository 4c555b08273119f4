"""Load one plug-in: import it, check its hooks, call them once. Failures affect only that plug-in.

Built-in and third-party plug-ins are treated alike; :mod:`specdec_hal.plugin.registry` combines their answers
(duplicates, selection).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pluggy

from specdec_hal.errors import PluginError
from specdec_hal.plugin import hookspecs, parts
from specdec_hal.plugin.backend import AUTO, BackendSpec
from specdec_hal.plugin.hookspecs import GROUP, ModelSpec, ProposerSpec
from specdec_hal.text import describe, did_you_mean, one_line, short

ANNOUNCED = {"backends": BackendSpec, "proposers": ProposerSpec, "models": ModelSpec}
"""Kinds of announcements, each with the hook ``specdec_<name>``."""
HOOKS = (*(f"specdec_{name}" for name in ANNOUNCED), "specdec_step_finished")
RESERVED = (AUTO,)


@dataclass
class Plugin:
    """A plug-in and its announcements; only `error` if it failed.

    `source` is "built-in" or the distribution and its version, `target` what was imported.
    """

    name: str
    source: str
    target: str
    error: str = ""
    backends: tuple[BackendSpec, ...] = ()
    proposers: tuple[ProposerSpec, ...] = ()
    models: tuple[ModelSpec, ...] = ()
    on_step: Callable[..., Any] | None = None

    def claims(self) -> Iterator[tuple[str, str]]:
        """Its announced names with their kinds."""
        yield from (("backend", spec.name) for spec in self.backends)
        yield from (("proposer", spec.name) for spec in self.proposers)
        yield from (("model", f"{spec.name} in {spec.framework}") for spec in self.models)

    def refused(self, taken: Collection[tuple[str, str]]) -> Plugin:
        """This plug-in, or only its error if it claims a built-in name (`taken`)."""
        for claim in self.claims():
            if claim in taken:
                problem = f"{self.label}: the {claim[0]} '{claim[1]}' is built in; choose another name"
                return Plugin(self.name, self.source, self.target, error=problem)
        return self

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"plug-in '{self.name}' ({self.source}: {self.target})"


@dataclass(frozen=True)
class Candidate:
    """A plug-in that has not been imported yet. `load` returns the module or object with the hooks."""

    name: str
    source: str
    target: str
    load: Callable[[], object]


def builtin_candidates(modules: Iterable[str]) -> Iterator[Candidate]:
    """The project's own plug-ins, by module name: ``specdec_hal.backends.cuda.plugin`` becomes ``cuda``."""
    for module in modules:
        name = module.removesuffix(".plugin").rpartition(".")[2]
        yield Candidate(name, "built-in", module, lambda module=module: importlib.import_module(module))  # type: ignore[misc]


def part_candidates() -> Iterator[Candidate]:
    """Plug-ins of this distribution's other parts, such as the emulator, by entry point."""
    for entry in parts.entry_points(GROUP):
        yield Candidate(entry.name, "built-in", entry.value, entry.load)


def entry_point_candidates(entry_points: Iterable[importlib.metadata.EntryPoint]) -> Iterator[Candidate]:
    """Third-party plug-ins, by entry point."""
    for entry in entry_points:
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown distribution"
        yield Candidate(entry.name, source, entry.value, entry.load)


def installed_candidates() -> Iterator[Candidate]:
    """Third-party plug-ins of the running interpreter."""
    try:
        found = [entry for entry in importlib.metadata.entry_points(group=GROUP) if not parts.is_own(entry.dist)]
    except Exception:  # that call fails for one unreadable entry_points.txt on sys.path: read them one by one
        yield from _candidates_by_distribution()
    else:
        yield from entry_point_candidates(found)


def _candidates_by_distribution() -> Iterator[Candidate]:
    seen = set()
    for dist in importlib.metadata.distributions():
        name = str(dist.metadata["Name"])
        if name in seen or parts.is_own(dist):  # the first: shadowed by an earlier folder of sys.path
            continue
        seen.add(name)
        try:
            found = [entry for entry in dist.entry_points if entry.group == GROUP]
        except Exception as error:
            yield Candidate(name, f"{name} {dist.version}", "entry_points.txt", lambda error=error: _raise(error))  # type: ignore[misc]
        else:
            yield from entry_point_candidates(found)


def _raise(error: Exception) -> object:
    raise error


@contextmanager
def faults(what: str, *passing: type[BaseException]) -> Iterator[None]:
    """Context around a plug-in's code: exceptions other than `passing` and interrupts become a PluginError that begins
    with `what`.

    A failing plug-in must not end this process: SystemExit and Rust panics are not Exceptions.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except passing:
        raise
    except BaseException as error:
        raise PluginError(f"{what} {describe(error)}") from error


def load(candidate: Candidate) -> Plugin:
    """Import the candidate, check its hooks and collect its answers; a failure is only stored in `error`."""
    plugin = Plugin(candidate.name, candidate.source, candidate.target)
    try:
        with faults(f"{plugin.label}: import failed:"):
            implementation = candidate.load()
        attach(plugin, implementation)
    except PluginError as error:
        return Plugin(candidate.name, candidate.source, candidate.target, error=str(error))
    return plugin


def attach(plugin: Plugin, implementation: object) -> None:
    """Check the hooks of `implementation` and store its answers in `plugin`; raises :class:`PluginError`."""
    # One manager per plug-in, so that errors and hook wrappers are isolated.
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    hooks = _implemented_hooks(plugin, manager, implementation)
    try:
        manager.register(implementation, plugin.name)
    except pluggy.PluginValidationError as error:
        signatures = ", ".join(f"{hook}{_signature(hook)}" for hook in hooks)
        raise PluginError(f"{plugin.label}: {one_line(error)}; the hooks are declared as {signatures}") from error
    for name, kind in ANNOUNCED.items():
        setattr(plugin, name, _answers(plugin, manager, f"specdec_{name}", kind))
    if "specdec_step_finished" in hooks:
        plugin.on_step = manager.hook.specdec_step_finished


def _implemented_hooks(plugin: Plugin, manager: pluggy.PluginManager, implementation: object) -> list[str]:
    if inspect.isclass(implementation):
        raise PluginError(f"{plugin.label}: got the class {implementation.__name__}; give a module or an instance")
    hooks = []
    for attribute in dir(implementation):
        options = manager.parse_hookimpl_opts(implementation, attribute)
        if options is None:
            if attribute in HOOKS and isinstance(implementation, ModuleType):
                raise PluginError(f"{plugin.label}: hook {attribute} lacks its marker; add @specdec_hal.hookimpl")
            continue
        hook = options.get("specname") or attribute
        if hook not in HOOKS:
            hint = did_you_mean(hook, HOOKS)
            raise PluginError(f"{plugin.label}: unknown hook '{hook}'{hint}; hooks: {', '.join(HOOKS)}")
        hooks.append(hook)
    if not hooks:
        raise PluginError(
            f"{plugin.label}: implements no hook; mark one of {', '.join(HOOKS)} with @specdec_hal.hookimpl"
        )
    return hooks


def _signature(hook: str) -> str:
    return f"({', '.join(inspect.signature(getattr(hookspecs, hook)).parameters)})"


def _answers(plugin: Plugin, manager: pluggy.PluginManager, hook: str, kind: type[Any]) -> tuple[Any, ...]:
    with faults(f"{plugin.label}: hook {hook} raised"):
        answers = getattr(manager.hook, hook)()
    specs = []
    for answer in answers:
        for spec in answer if isinstance(answer, (list, tuple)) else (answer,):
            if not isinstance(spec, kind):
                raise PluginError(
                    f"{plugin.label}: hook {hook}: expected {kind.__name__} or a list of them, got {short(spec)}"
                )
            if wrong := _wrong_field(spec):
                raise PluginError(f"{plugin.label}: hook {hook}: {kind.__name__}.{wrong}")
            specs.append(spec)
    return tuple(specs)


def _wrong_field(spec: Any) -> str | None:
    """A message about the first invalid field of a spec.

    Nothing else has checked the plug-in's fields against their annotations.
    """
    if not isinstance(spec.name, str) or not spec.name.strip():
        return f"name: expected a non-empty string, got {short(spec.name)}"
    if spec.name in RESERVED:
        return f"name: '{spec.name}' is reserved; choose another"
    numbers = ("api_version", "priority") if isinstance(spec, BackendSpec) else ()
    for field in numbers:
        if type(value := getattr(spec, field)) is not int:
            return f"{field} of '{spec.name}': expected an integer, got {short(value)}"
    for field in ("probe", "factory", "loader", "pads_drafts"):
        if hasattr(spec, field) and not callable(value := getattr(spec, field)):
            return f"{field} of '{spec.name}': expected a callable, got {short(value)}"
    if isinstance(spec, ProposerSpec) and spec.settings is not None and not callable(spec.settings):
        got = short(spec.settings)
        return f"settings of '{spec.name}': expected a pydantic model or a function that returns it, got {got}"
    return None
