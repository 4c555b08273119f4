"""Loading plug-ins: what each kind of broken one says, and that it breaks nothing else."""

from __future__ import annotations

import importlib.metadata
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specdec_hal.errors import PluginError
from specdec_hal.plugin.hookspecs import hookimpl
from specdec_hal.plugin.registry import Registry


def _raising(*_: Any) -> Any:
    raise ValueError("first line\nsecond line")


def error_of(fakes: SimpleNamespace, plugin: object) -> str:
    """The error of a broken plug-in, after checking that a good one beside it still works."""
    good = fakes.announcing(fakes.spec("good"))
    registry = fakes.registry(before=good, broken=plugin, after=fakes.announcing(fakes.spec("other")))
    assert registry.get_backend("good").name == "good"
    assert [info.name for info in registry.backends()] == ["good", "other"]
    before, broken, after = registry.plugins()
    assert not before.error
    assert not after.error
    assert broken.error.startswith("plug-in 'broken' (acme 1.2: acme.broken): ")
    assert "\n" not in broken.error
    return broken.error


class Panic(BaseException):
    """As native extensions raise them: no Exception."""


@pytest.mark.parametrize(
    "error", [SystemExit(3), Panic("3"), GeneratorExit("3")], ids=lambda error: type(error).__name__
)
def test_a_plugin_that_gives_up_does_not_end_the_process(fakes: SimpleNamespace, error: BaseException) -> None:
    """On import, in a hook, in a probe."""

    def gives_up(**_: Any) -> Any:
        raise error

    what = f"{type(error).__name__}: 3"
    assert error_of(fakes, error).endswith(f"import failed: {what}")
    assert error_of(fakes, fakes.module(specdec_backends=lambda: gives_up())).endswith(
        f"specdec_backends raised {what}"
    )
    registry = fakes.registry(lost=fakes.announcing(fakes.spec("lost", probe=gives_up)))
    assert [info.reason for info in registry.backends()] == [f"its probe raised {what}"]
    observer = fakes.module(specdec_step_finished=lambda record: gives_up())
    registry = fakes.registry(observer=observer)
    registry.step_finished(None)
    assert registry.plugins()[0].error.endswith(f"hook specdec_step_finished raised {what}")


def test_an_interrupt_while_a_plugin_is_imported(fakes: SimpleNamespace) -> None:
    with pytest.raises(KeyboardInterrupt):
        fakes.registry(broken=KeyboardInterrupt()).plugins()


def test_hook_with_an_unknown_argument(fakes: SimpleNamespace) -> None:
    def specdec_step_finished(record: Any, device: Any) -> None: ...

    error = error_of(fakes, fakes.module(specdec_step_finished=specdec_step_finished))
    assert "hook 'specdec_step_finished'" in error
    assert "{'device'}" in error
    assert error.endswith("specdec_step_finished(record)")


def test_unknown_hook_suggests_the_nearest(fakes: SimpleNamespace) -> None:
    def specdec_backend() -> None: ...

    error = error_of(fakes, fakes.module(specdec_backend=specdec_backend))
    assert "unknown hook 'specdec_backend'; did you mean 'specdec_backends'?" in error


def test_hook_without_its_marker(fakes: SimpleNamespace) -> None:
    module = ModuleType("fake")
    module.specdec_backends = lambda: []  # type: ignore[attr-defined]
    assert "hook specdec_backends lacks its marker" in error_of(fakes, module)


def test_a_class_instead_of_an_instance(fakes: SimpleNamespace) -> None:
    class Plugin:
        @hookimpl
        def specdec_backends(self) -> list[Any]:
            return []

    assert "got the class Plugin" in error_of(fakes, Plugin)


@pytest.mark.parametrize("answer", ["cuda", [1], {"name": "x"}])
def test_hook_that_answers_something_else(fakes: SimpleNamespace, answer: Any) -> None:
    error = error_of(fakes, fakes.module(specdec_backends=lambda: answer))
    assert "hook specdec_backends: expected BackendSpec or a list of them, got" in error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name: expected a non-empty string, got ''"),
        ({"name": 3}, "name: expected a non-empty string, got 3"),
        ({"name": "auto"}, "name: 'auto' is reserved"),
        ({"api_version": "1"}, "api_version of 'x': expected an integer, got '1'"),
        ({"priority": True}, "priority of 'x': expected an integer, got True"),
        ({"probe": None}, "probe of 'x': expected a callable, got None"),
        ({"factory": 7}, "factory of 'x': expected a callable, got 7"),
    ],
)
def test_spec_with_a_wrong_field(fakes: SimpleNamespace, changes: dict[str, Any], message: str) -> None:
    error = error_of(fakes, fakes.announcing(fakes.spec("x", **changes)))
    assert f"hook specdec_backends: BackendSpec.{message}" in error


def test_a_broken_plugin_contributes_nothing(fakes: SimpleNamespace) -> None:
    module = fakes.module(specdec_backends=lambda: fakes.spec("half"), specdec_models=lambda: _raising())
    registry = fakes.registry(half=module)
    assert registry.backends() == []


def test_missing_builtin_is_listed_and_breaks_nothing(fakes: SimpleNamespace) -> None:
    registry = Registry(builtins=("specdec_hal.backends.missing.plugin", "json"), entry_points=())
    missing, json = registry.plugins()
    assert (missing.name, missing.source) == ("missing", "built-in")
    assert "ModuleNotFoundError" in missing.error
    assert "implements no hook" in json.error


def test_a_plugin_that_asks_the_registry_while_loading(fakes: SimpleNamespace) -> None:
    holder: list[Registry] = []

    def specdec_backends() -> Any:
        return holder[0].backends()

    registry = fakes.registry(nosy=fakes.module(specdec_backends=specdec_backends))
    holder.append(registry)
    assert "while it was being loaded" in registry.plugins()[0].error


def test_plugins_load_once_and_late(fakes: SimpleNamespace) -> None:
    calls = []

    def specdec_backends() -> Any:
        calls.append(1)
        return fakes.spec("x")

    registry = fakes.registry(p=fakes.module(specdec_backends=specdec_backends))
    assert calls == []
    registry.backends()
    registry.get_backend("x")
    assert calls == [1]


class TestRegister:
    def test_raises_where_loading_would_note_it(self, fakes: SimpleNamespace) -> None:
        registry = fakes.registry()
        with pytest.raises(PluginError, match=r"plug-in 'bad' .* implements no hook"):
            registry.register(ModuleType("fake"), "bad")
        assert registry.plugins() == []


class TestObservers:
    def test_one_that_raises_is_reported_once_and_stops_nobody(
        self, fakes: SimpleNamespace, caplog: pytest.LogCaptureFixture
    ) -> None:
        seen: list[Any] = []

        def specdec_step_finished(record: Any) -> None:
            seen.append(record)

        def raises(record: Any) -> None:
            raise KeyError(record)

        registry = fakes.registry(
            bad=fakes.module(specdec_step_finished=raises),
            good=fakes.module(specdec_step_finished=specdec_step_finished),
        )
        registry.step_finished(1)
        registry.step_finished(2)
        assert seen == [1, 2]
        assert caplog.text.count("raised KeyError") == 1
        assert "hook specdec_step_finished raised KeyError" in registry.plugins()[0].error


def _install(folder: Path, name: str, entry_points: str, source: str = "") -> None:
    """A distribution as pip would leave it: a module and a dist-info folder."""
    info = folder / f"{name}-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"{name}.py").write_text(textwrap.dedent(source))


THIRD_PARTY = """
    from specdec_hal import API_VERSION, Backend, BackendSpec, Probe, hookimpl

    class Acme(Backend):
        name = "acme"

    @hookimpl
    def specdec_backends():
        return BackendSpec("acme", API_VERSION, lambda: Probe(True), lambda options: Acme(), priority=7)
"""


class TestInstalledDistributions:
    def test_unreadable_entry_points_of_another_distribution(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _install(tmp_path, "acme_specdec", "[specdec_hal]\nacme = acme_specdec\n", THIRD_PARTY)
        _install(tmp_path, "mangled", "[specdec_hal]\nno equals sign here\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(Exception):  # noqa: B017 - what this test is about: the stdlib gives up on everything
            importlib.metadata.entry_points(group="specdec_hal")
        registry = Registry(builtins=())
        assert registry.get_backend("acme").name == "acme"
        (mangled,) = (plugin for plugin in registry.plugins() if plugin.name == "mangled")
        assert mangled.error.startswith("plug-in 'mangled' (mangled 2.5: entry_points.txt): import failed: ")
