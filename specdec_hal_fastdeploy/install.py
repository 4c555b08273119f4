"""Install the layer in FastDeploy's op packages, and remove it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.registry import ENV_BACKEND
from specdec_hal_fastdeploy import enums, gpu, xpu
from specdec_hal_fastdeploy.adaptor import ADAPTORS, use_backend
from specdec_hal_fastdeploy.found import folders
from specdec_hal_fastdeploy.unserved import LEFT, WITHOUT_COMPILED

PACKAGE = "fastdeploy.model_executor.ops"
COMPILED = "fastdeploy_ops"
ENUMERATIONS = "fastdeploy.spec_decode"
_MODULES = {"gpu": gpu, "xpu": xpu}
_ABSENT: Any = object()

log = logging.getLogger("specdec_hal.fastdeploy")


@dataclass
class Installed:
    """Result of :func:`install`: `taken` names by op package, and `left` ones with reasons."""

    taken: dict[str, list[str]] = field(default_factory=dict)
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    """By op package: where the names went."""

    def __str__(self) -> str:
        lines = []
        for platform, names in self.taken.items():
            lines.append(f"{PACKAGE}.{platform}: {self.how[platform]}")
            lines.append(f"  served: {', '.join(names)}")
            left = self.left[platform]
            for reason in dict.fromkeys(left.values()):
                lines.append(f"  left, {reason}: {', '.join(name for name in left if left[name] == reason)}")
        return "\n".join(lines)


_undo: list[tuple[dict[str, Any], str, Any]] = []
"""(namespace, name, what it held), in the order of the changes."""
_installed: Installed | None = None


def install(
    backend: str | Backend | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    platforms: tuple[str, ...] = ("gpu", "xpu"),
) -> Installed:
    """Serve FastDeploy's ops; :func:`uninstall` undoes it. A second call only changes the backend.

    Where FastDeploy has no compiled ops, the layer becomes ``fastdeploy.model_executor.ops.gpu.fastdeploy_ops`` (and
    ``.xpu``), and where there is no FastDeploy at all, its op packages too. Otherwise the names that are served are
    replaced in the op package, and in all of FastDeploy's modules that have bound them already; the others stay, and
    so do those of `unserved.WITHOUT_COMPILED`.
    Choice of the backend: see :func:`~specdec_hal_fastdeploy.use_backend`.
    """
    global _installed
    use_backend(backend, config=config)
    if _installed is not None:
        return _installed
    report = Installed()
    roots = folders()
    try:
        for platform in platforms:
            report.how[platform], own = _install(platform, roots)
            report.taken[platform] = sorted(ADAPTORS[platform].keys() - own)
            report.left[platform] = {**LEFT[platform], **own}
    except BaseException:
        _restore()
        raise
    _installed = report
    log.info("%s", report)
    return report


def register() -> None:
    """FastDeploy's plug-in of this package: :func:`install`, on the backend of SPECDEC_HAL_BACKEND.

    Does nothing without that variable, since FastDeploy calls all plug-ins.
    """
    if os.environ.get(ENV_BACKEND):
        install()
    else:
        log.info("%s is not set: FastDeploy's ops stay its own", ENV_BACKEND)


def uninstall() -> None:
    """Restore the original names, also in modules imported since; drop backend and plans.

    Names that FastDeploy does not have are removed. Does nothing if nothing is installed.
    """
    global _installed
    _restore()
    _installed = None
    use_backend()


def _restore() -> None:
    if not _undo:
        return
    ours = {id(module): _ABSENT for module in (gpu, xpu, enums)}
    ours |= {id(served): _ABSENT for adaptors in ADAPTORS.values() for served in adaptors.values()}
    ours |= {id(namespace.get(name)): before for namespace, name, before in reversed(_undo)}  # the op package's first
    while _undo:
        _put_back(*_undo.pop())
    for module in _modules():
        for name, value in list(vars(module).items()):
            if id(value) in ours:
                _put_back(vars(module), name, ours[id(value)])


def _put_back(namespace: dict[str, Any], name: str, before: Any) -> None:
    if before is _ABSENT:
        namespace.pop(name, None)
    else:
        namespace[name] = before


def _modules() -> list[ModuleType]:
    """FastDeploy's that have been imported."""
    return [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "fastdeploy"]


def _set(namespace: dict[str, Any], name: str, value: Any) -> None:
    _undo.append((namespace, name, namespace.get(name, _ABSENT)))
    namespace[name] = value


def _install(platform: str, roots: list[str] | None) -> tuple[str, dict[str, str]]:
    """How the names were installed, and those that FastDeploy keeps, with reasons."""
    package = f"{PACKAGE}.{platform}"
    name = f"{package}.{COMPILED}"
    folders = [Path(root, "model_executor", "ops", platform) for root in roots or ()]
    if name in sys.modules or any(found for folder in folders for found in folder.glob(f"{COMPILED}*")):
        own = WITHOUT_COMPILED[platform]
        return _replace(platform, importlib.import_module(package), own), own
    _set(sys.modules, name, _MODULES[platform])
    if package in sys.modules:
        return _replace(platform, sys.modules[package], {}), {}
    if roots is None:
        _build_packages(package, platform)
        return "FastDeploy is not installed; its op package is this layer", {}
    return f"in the place of the compiled module {COMPILED}, which is absent", {}


def _replace(platform: str, package: ModuleType, own: dict[str, str]) -> str:
    """Take the served names of an op package but its `own`, wherever FastDeploy holds them."""
    holders, rebound = _modules(), set()
    for name, served in ADAPTORS[platform].items():
        if name in own:
            continue
        before = getattr(package, name, _ABSENT)
        _set(vars(package), name, served)
        for module in holders:
            if before is not _ABSENT and vars(module).get(name) is before:
                _set(vars(module), name, served)
                rebound.add(module.__name__)
    return f"replaced in {', '.join(sorted({package.__name__, *rebound}))}"


def _build_packages(package: str, platform: str) -> None:
    """The packages that hold FastDeploy's ops and enumerations, where there is no FastDeploy."""
    _put(package, _MODULES[platform])
    _put(ENUMERATIONS, enums)
    _put(f"{ENUMERATIONS}.types", enums)


def _put(name: str, module: ModuleType) -> None:
    """Make a module importable under a name, creating missing parent packages."""
    above, _, own = name.rpartition(".")
    if above and above not in sys.modules:
        holder = ModuleType(above, "Made by specdec_hal: there is no FastDeploy here.")
        holder.__path__ = []
        _put(above, holder)
    if sys.modules.get(name) is not module:
        _set(sys.modules, name, module)
        if above:
            _set(vars(sys.modules[above]), own, module)
