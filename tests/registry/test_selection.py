"""Choosing a backend: by name, by environment, automatically; and every way in which that can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specdec_hal.errors import (
    BackendUnavailableError,
    ConfigError,
    PluginError,
    UnknownBackendError,
    UnsupportedError,
)
from specdec_hal.ops import OPS
from specdec_hal.plugin.backend import API_VERSION, Probe
from specdec_hal.plugin.hookspecs import ModelSpec, ProposerSpec

ABSENT = {"probe": lambda: Probe(False, "no driver found", "install the driver")}


def raising(error: Exception) -> Any:
    def fails(*_: Any) -> Any:
        raise error

    return fails


@pytest.fixture
def machine(fakes: SimpleNamespace) -> SimpleNamespace:
    """slow (1) and fast (10) work, absent (99) lacks its driver, and others have probes that are wrong."""

    def registry(**environ: str) -> Any:
        first = fakes.announcing(fakes.spec("slow", priority=1), fakes.spec("absent", priority=99, **ABSENT))
        second = fakes.announcing(
            fakes.spec("fast", priority=10),
            fakes.spec("cursed", priority=50, probe=raising(OSError("libcuda.so: cannot open"))),
            fakes.spec("odd", probe=lambda: True),
            fakes.spec("silent", probe=lambda: Probe(False)),
        )
        return fakes.registry(environ, first=first, second=second)

    return SimpleNamespace(registry=registry)


class TestByName:
    def test_unknown_name(self, machine: SimpleNamespace) -> None:
        with pytest.raises(UnknownBackendError) as caught:
            machine.registry().get_backend("Fsat")
        assert str(caught.value) == (
            "unknown backend 'Fsat'; did you mean 'fast'?; known: absent, cursed, fast, odd, silent, slow"
        )

    def test_unknown_name_mentions_plugins_that_failed(self, fakes: SimpleNamespace) -> None:
        registry = fakes.registry(cuda=ImportError("no libfoo"))
        with pytest.raises(UnknownBackendError, match=r"known: none .*plug-in 'cuda'.*no libfoo"):
            registry.get_backend("cuda")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("absent", "^backend 'absent' cannot run here: no driver found; install the driver$"),
            ("cursed", "its probe raised OSError: libcuda.so: cannot open"),
            ("odd", "its probe returned True instead of a Probe"),
            ("silent", "its probe gave no reason"),
        ],
    )
    def test_unavailable(self, machine: SimpleNamespace, name: str, message: str) -> None:
        with pytest.raises(BackendUnavailableError, match=message):
            machine.registry().get_backend(name)

    def test_check_backend_name_probes_nothing(self, machine: SimpleNamespace) -> None:
        registry = machine.registry()
        registry.check_backend_name("absent")
        with pytest.raises(UnknownBackendError):
            registry.check_backend_name("nobody")


class TestAutomatic:
    @pytest.mark.parametrize(
        ("environment", "name", "chosen"),
        [
            *(("", None, "fast"), ("  ", "auto", "fast"), ("auto", None, "fast")),
            *(("slow", None, "slow"), ("slow", "auto", "slow"), ("slow", "fast", "fast")),
        ],
    )
    def test_a_name_then_the_environment_then_the_highest_priority_that_is_available(
        self, machine: SimpleNamespace, environment: str, name: str | None, chosen: str
    ) -> None:
        registry = machine.registry(SPECDEC_HAL_BACKEND=environment)
        assert registry.get_backend(name).name == registry.choose(name) == chosen
        assert machine.registry().get_backend().name == "fast"

    def test_bad_environment_is_named(self, machine: SimpleNamespace) -> None:
        with pytest.raises(UnknownBackendError, match=r"unknown backend 'sloww' \(from SPECDEC_HAL_BACKEND\)"):
            machine.registry(SPECDEC_HAL_BACKEND="sloww").get_backend()
        with pytest.raises(BackendUnavailableError, match=r"'absent' \(from SPECDEC_HAL_BACKEND\) cannot run here"):
            machine.registry(SPECDEC_HAL_BACKEND="absent").get_backend()

    def test_equal_priorities_go_by_name(self, fakes: SimpleNamespace) -> None:
        registry = fakes.registry(p=fakes.announcing(fakes.spec("b"), fakes.spec("a"), fakes.spec("c")))
        assert registry.get_backend().name == "a"

    def test_nothing_available(self, fakes: SimpleNamespace) -> None:
        registry = fakes.registry(p=fakes.announcing(fakes.spec("x", **ABSENT)))
        with pytest.raises(BackendUnavailableError, match="no backend can run here: x: no driver found"):
            registry.get_backend()
        with pytest.raises(BackendUnavailableError, match="none is registered"):
            fakes.registry().get_backend()


class TestFaultyAnnouncements:
    @pytest.fixture
    def registry(self, fakes: SimpleNamespace) -> Any:
        return fakes.registry(
            one=fakes.announcing(fakes.spec("twice", priority=9), fakes.spec("fine")),
            two=fakes.announcing(fakes.spec("twice", priority=8)),
            old=fakes.announcing(fakes.spec("old", api_version=API_VERSION + 6, priority=7), fakes.spec("new")),
        )

    def test_duplicate_name_is_an_error_that_names_both(self, registry: Any) -> None:
        for use in (registry.get_backend, registry.explain, registry.choose):
            with pytest.raises(PluginError) as caught:
                use("twice")
            assert "backend 'twice' is announced by plug-in 'one' (acme 1.2: acme.one)" in str(caught.value)
            assert "and plug-in 'two' (acme 1.2: acme.two)" in str(caught.value)

    def test_wrong_api_version_is_refused_with_both_numbers(self, registry: Any) -> None:
        with pytest.raises(PluginError, match=rf"api_version {API_VERSION + 6}, this specdec_hal has {API_VERSION};"):
            registry.get_backend("old")

    def test_listing_shows_the_errors(self, registry: Any) -> None:
        infos = {info.name: info for info in registry.backends()}
        assert set(infos) == {"twice", "old", "fine", "new"}
        twice, old = infos["twice"], infos["old"]
        assert (twice.available, twice.priority, twice.api_version, twice.plugin) == (False, None, None, "one, two")
        assert "plug-in 'one'" in twice.error
        assert "plug-in 'two'" in twice.error
        assert twice.reason == twice.error
        assert (old.available, old.priority, old.api_version) == (False, 7, API_VERSION + 6)
        assert "api_version" in old.error

    def test_automatic_choice_says_that_it_passes_over_them(
        self, registry: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert registry.get_backend().name == "fine"
        assert "skips backend 'twice': backend 'twice' is announced by plug-in 'one'" in caplog.text
        assert "skips backend 'old'" in caplog.text


class TestBuilding:
    @pytest.mark.parametrize(
        ("factory", "error", "message"),
        [
            (raising(RuntimeError("oh")), PluginError, "backend 'x' of plug-in 'p'.*factory raised RuntimeError: oh"),
            (raising(ConfigError("backend.options: no such option")), ConfigError, "^backend.options: no such option$"),
            (lambda options: "a backend", PluginError, "its factory returned 'a backend' instead of a Backend"),
        ],
    )
    def test_factories_that_give_no_backend(
        self, fakes: SimpleNamespace, factory: Any, error: type[Exception], message: str
    ) -> None:
        registry = fakes.registry(p=fakes.announcing(fakes.spec("x", factory=factory)))
        with pytest.raises(error, match=message):
            registry.get_backend("x")


class TestFallback:
    def test_in_the_order_given(self, machine: SimpleNamespace, fakes: SimpleNamespace) -> None:
        backend = machine.registry().get_backend("slow", fallback=("fast",), debug=True)
        (helper,) = backend.fallbacks
        assert (helper.name, helper.debug, helper.options) == ("fast", True, {})

    def test_itself_and_repetitions_change_nothing(self, machine: SimpleNamespace) -> None:
        backend = machine.registry().get_backend("slow", fallback=("slow", "fast", "fast"))
        assert [helper.name for helper in backend.fallbacks] == ["fast"]

    def test_must_exist_and_run_here(self, machine: SimpleNamespace) -> None:
        with pytest.raises(UnknownBackendError, match="nobody"):
            machine.registry().get_backend("slow", fallback=("nobody",))
        with pytest.raises(BackendUnavailableError, match="absent"):
            machine.registry().get_backend("slow", fallback=("absent",))
        with pytest.raises(UnknownBackendError, match="auto"):
            machine.registry().get_backend("slow", fallback=("auto",))


class TestExplain:
    def test_unavailable_backend(self, machine: SimpleNamespace) -> None:
        explanation = machine.registry().explain("absent")
        assert [status.op for status in explanation] == list(OPS)
        assert {(s.available, s.reason, s.hint) for s in explanation} == {
            (False, "no driver found", "install the driver")
        }

    def test_fallbacks_show(self, fakes: SimpleNamespace) -> None:
        def bare(options: Any) -> Any:
            backend = fakes.backend("bare", {})
            backend.capabilities = {}
            return backend

        registry = fakes.registry(p=fakes.announcing(fakes.spec("bare", factory=bare), fakes.spec("full")))
        (status,) = (s for s in registry.explain("bare", fallback=("full",)) if s.op == "ngram_match")
        assert (status.available, status.via) == (True, "full")
        assert "via full" in str(registry.explain("bare", fallback=("full",)))


class TestProposersAndModels:
    @pytest.fixture
    def registry(self, fakes: SimpleNamespace) -> Any:
        one = fakes.module(
            specdec_proposers=lambda: [ProposerSpec("ngram", dict), ProposerSpec("mtp", dict)],
            specdec_models=lambda: [ModelSpec("Llama", "paddle", dict), ModelSpec("Llama", "torch", dict)],
        )
        two = fakes.module(
            specdec_proposers=lambda: ProposerSpec("mtp", dict),
            specdec_models=lambda: ModelSpec("Llama", "torch", list),
        )
        return fakes.registry(one=one, two=two)

    def test_unknown(self, registry: Any) -> None:
        with pytest.raises(UnsupportedError, match="unknown speculative method 'ngarm'; did you mean 'ngram'"):
            registry.get_proposer("ngarm")
        with pytest.raises(UnsupportedError, match=r"unknown model Lama \(torch\); did you mean 'Llama \(torch\)'"):
            registry.get_model("Lama", "torch")

    def test_duplicates(self, registry: Any) -> None:
        with pytest.raises(PluginError, match=r"proposer 'mtp' is announced by plug-in 'one'.*plug-in 'two'"):
            registry.get_proposer("mtp")
        with pytest.raises(PluginError, match=r"model 'Llama \(torch\)' is announced by"):
            registry.get_model("Llama", "torch")
        assert registry.get_model("Llama", "paddle").loader is dict
