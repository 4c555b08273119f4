"""Sections that third parties' proposers bring along: checked like ours, and no danger to the others."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from specdec_hal.config import Config, PathText, Section, load, parse, raise_combinations
from specdec_hal.errors import ConfigError
from specdec_hal.plugin.hookspecs import ProposerSpec, hookimpl
from specdec_hal.plugin.registry import Registry


class Weights(Section):
    recent: Annotated[float, Field(ge=0, le=1)] = 0.5


class LookUpSettings(Section):
    """Every kind of key."""

    corpus: PathText
    window: Annotated[int, Field(ge=1, le=64)] = 4
    order: Literal["first", "last"] = "last"
    weights: Weights = Field(default_factory=Weights)
    pair: tuple[int, int] = (1, 2)
    words: list[str] = Field(default_factory=list)

    @field_validator("words")
    @classmethod
    def _lower(cls, words: list[str]) -> list[str]:
        if any(word != word.lower() for word in words):
            raise ValueError("expected words in lower case; write them small")
        return words


def registry_with(*specs: ProposerSpec, **plugins: ProposerSpec) -> Registry:
    registry = Registry(builtins=("specdec_hal.proposers.plugin",), entry_points=(), environ={})
    for name, announced in {"mine": list(specs), **plugins}.items():
        module = ModuleType("fake")
        module.specdec_proposers = hookimpl(lambda announced=announced: announced)  # type: ignore[attr-defined]
        registry.register(module, name)
    return registry


@pytest.fixture
def look_up() -> Registry:
    return registry_with(ProposerSpec("look_up", dict, LookUpSettings))


def parse_with(registry: Registry, *overrides: str, **speculative: Any) -> Config:
    return parse({"speculative": speculative}, overrides, source="c.yaml", registry=registry)


def problem(registry: Registry, *overrides: str, **speculative: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_with(registry, *overrides, **speculative)
    return str(caught.value)


def test_the_section_of_the_method(look_up: Registry) -> None:
    config = parse_with(look_up, method="look_up", look_up={"corpus": "/a", "order": "first", "weights": {"recent": 1}})
    settings = config.speculative.settings
    assert isinstance(settings, LookUpSettings)
    assert (settings.corpus, settings.window, settings.order, settings.weights.recent) == ("/a", 4, "first", 1.0)
    assert config.speculative.num_speculative_tokens == 5
    assert config.naive().speculative.settings is None


def test_sections_of_other_methods_keep_their_defaults(look_up: Registry) -> None:
    config: Any = parse_with(look_up, method="ngram")
    assert config.speculative.settings is config.speculative.ngram
    assert config.speculative.look_up is None  # it has a key without a default
    without: Any = parse({}, registry=registry_with())
    assert not hasattr(without.speculative, "look_up")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "look_up.corpus: expected a non-empty string, got no such key; add it"),
        ({"corpus": "a", "window": 65}, "look_up.window: expected an integer in 1..64, got 65"),
        (
            {"corpus": "a", "order": "lst"},
            "look_up.order: expected one of first, last, got 'lst'; did you mean 'last'?",
        ),
        (
            {"corpus": "a", "widnow": 4},
            "look_up.widnow: unknown key; did you mean 'window'?; allowed: corpus, window, order, weights, pair, words",
        ),
        ({"corpus": "a", "weights": {"recent": 2}}, "look_up.weights.recent: expected a number in 0..1, got 2"),
        (
            {"corpus": "a", "weights": {"recnt": 1}},
            "look_up.weights.recnt: unknown key; did you mean 'recent'?; allowed: recent",
        ),
        ({"corpus": "a", "pair": [1, 2]}, "look_up.pair: input should be a valid tuple, got [1, 2] (a list)"),
        ({"corpus": "a", "pair": (1, "b")}, "look_up.pair[1]: input should be a valid integer, got 'b' (a string)"),
        ({"corpus": "a", "words": ["A"]}, "look_up.words: expected words in lower case; write them small"),
        (3, "look_up: expected a mapping with the keys corpus, window, order, weights, pair, words, got 3"),
    ],
)
def test_one_problem(look_up: Registry, section: Any, message: str) -> None:
    assert problem(look_up, method="look_up", look_up=section).startswith(f"c.yaml:speculative.{message}")


def test_a_section_that_is_left_out_is_checked_if_it_is_needed(look_up: Registry) -> None:
    message = "speculative.look_up.corpus: expected a non-empty string, got no such key; add it"
    assert problem(look_up, method="look_up") == f"c.yaml:{message}"


def test_a_section_that_is_not_needed_is_checked_if_it_is_there(look_up: Registry) -> None:
    assert "look_up.window: expected an integer" in problem(look_up, look_up={"corpus": "a", "window": 0})


def test_overrides(look_up: Registry) -> None:
    config = parse_with(look_up, "speculative.method=look_up", "speculative.look_up={corpus: a, window: 9}")
    assert config.speculative.settings.window == 9
    override = problem(look_up, "speculative.look_up.window=0", look_up={"corpus": "a"})
    assert override == "--set:speculative.look_up.window: expected an integer in 1..64, got 0"


def test_paths_are_relative_to_who_names_them(
    look_up: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs" / "c.yaml"
    file.write_text("speculative: {method: look_up, look_up: {corpus: ../texts.txt, words: [../not/a/path]}}")
    monkeypatch.chdir(tmp_path)
    settings = load(file, registry=look_up).speculative.settings
    assert (settings.corpus, settings.words) == (str(tmp_path / "texts.txt"), ["../not/a/path"])
    settings = load(file, ["speculative.look_up.corpus=here.txt"], registry=look_up).speculative.settings
    assert settings.corpus == str(tmp_path / "here.txt")


def test_combinations_name_the_key(look_up: Registry) -> None:
    class Both(Section):
        low: int = 1
        high: int = 2

        def model_post_init(self, context: Any, /) -> None:
            raise_combinations([("low", f"expected at most {self.high}")] if self.low > self.high else [])

    registry = registry_with(ProposerSpec("both", dict, lambda: Both))
    assert problem(registry, both={"low": 3}) == "c.yaml:speculative.both.low: expected at most 2"


class Bare(BaseModel):
    anything: int = 0


class Unfinished(Section):
    other: NotThere  # type: ignore[name-defined]  # noqa: F821


def failing() -> Any:
    raise ImportError("no module named 'acme'")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("look_up", Bare, "Bare lets unknown keys pass; derive it from specdec_hal.config.Section"),
        ("look_up", Unfinished, "Unfinished: PydanticUserError: `Unfinished` is not fully defined"),
        ("look_up", failing, "raised ImportError: no module named 'acme'"),
        ("look_up", IntEnum, "expected a pydantic model, or a function that returns one, got <enum 'IntEnum'>"),
        ("look_up", lambda: 3, "expected a pydantic model, or a function that returns one, got 3"),
        ("method", LookUpSettings, "'method' cannot be the key of a section; choose another name"),
        ("copy", LookUpSettings, "'copy' cannot be the key of a section"),
        ("look-up", LookUpSettings, "'look-up' cannot be the key of a section"),
    ],
)
def test_settings_that_cannot_be_used_are_their_plugins_fault(
    name: str, settings: Callable[..., Any], message: str
) -> None:
    registry = registry_with(ProposerSpec(name, dict, settings))
    assert parse({"speculative": {"method": "ngram"}}, registry=registry).speculative.settings.max_ngram_size == 3
    (fault,) = [plugin.error for plugin in registry.plugins() if plugin.error]
    assert fault.startswith(f"plug-in 'mine' (registered at run time: module): settings of the proposer '{name}': ")
    assert message in fault
    assert message in problem(registry, method=name)  # the error names the reason
    assert len([plugin for plugin in registry.plugins() if plugin.error]) == 1


def test_two_proposers_of_one_name_have_no_section() -> None:
    spec = ProposerSpec("look_up", dict, LookUpSettings)
    registry = registry_with(spec, other=spec)
    assert "proposer 'look_up' is announced by" in problem(registry, method="look_up")
    assert "unknown key" in problem(registry, look_up={"corpus": "a"})


def test_registering_later_adds_the_section() -> None:
    registry = registry_with()
    assert "unknown key" in problem(registry, look_up={"corpus": "a"})
    module = ModuleType("fake")
    module.specdec_proposers = hookimpl(lambda: ProposerSpec("look_up", dict, LookUpSettings))  # type: ignore[attr-defined]
    plugin = registry.register(module, "late")
    assert parse_with(registry, method="look_up", look_up={"corpus": "/a"}).speculative.settings.corpus == "/a"
    registry.unregister(plugin)
    assert "unknown key" in problem(registry, look_up={"corpus": "a"})
