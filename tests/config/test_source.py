"""Files, YAML and overrides: reading, and what is wrong with what cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.config import Config, arguments, changed, load, parse
from specdec_hal.errors import ConfigError
from specdec_hal.plugin.registry import Registry

Read = Callable[..., Config]
Problems = Callable[..., list[str]]


class TestFiles:
    def test_folder(self, tmp_path: Path, registry: Registry) -> None:
        with pytest.raises(ConfigError, match=r": cannot be read: Is a directory$"):
            load(tmp_path, registry=registry)

    def test_not_text(self, tmp_path: Path, registry: Registry) -> None:
        (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigError, match=r"c.yaml: expected UTF-8 text, got "):
            load(tmp_path / "c.yaml", registry=registry)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\n", "c.yaml:2:1: while parsing a flow sequence"),
        ("a: b: c\n", "c.yaml:1:5: mapping values are not allowed here"),
        ("a\tb: \x00", "c.yaml: not YAML: "),
        (
            "- 1\n",
            "c.yaml: expected a mapping with the keys backend, fallback, shadow, model, runner, engine, speculative, "
            "sampling, structured, serve",
        ),
        ("just text\n", "c.yaml: expected a mapping with the keys backend, fallback, shadow, model"),
        ("{}\n---\n{}\n", "c.yaml:2:1: expected a single document in the stream"),
        ("sampling: {seed: 1, seed: 2}\n", "c.yaml:1:21: duplicate key 'seed'"),
        ("runner: {}\nsampling: {}\nrunner: {}\n", "c.yaml:3:1: duplicate key 'runner'"),
        ("backend:\n  options:\n    a: 1\n    a: 2\n", "c.yaml:4:5: duplicate key 'a'"),
        ("backend: {options: {1: a}}\n", "c.yaml:1:21: expected a name as key, got 1"),
        ("? [a]\n: 1\n", "c.yaml:1:3: expected a name as key, got ['a']"),
        ("sampling: {seed: 2026-13-01}\n", "c.yaml:1:18: cannot be read as !!timestamp: '2026-13-01'"),
        ("a: !!python/object:os.system x\n", "c.yaml:1:4: could not determine a constructor"),
    ],
)
def test_not_a_configuration(problems: Problems, text: str, message: str) -> None:
    (line,) = problems(text)
    assert line.startswith(message)


@pytest.mark.parametrize("number", ["1e-1", "1E-1", "0.1", ".1", "+.1e0", "1.e-1"])
def test_numbers_in_scientific_notation(read: Read, number: str) -> None:
    assert read(f"sampling: {{temperature: {number}}}").sampling.temperature == 0.1


def test_merge_keys_and_anchors(read: Read) -> None:
    config = read("runner: &r {max_num_seqs: 3}\nsampling: {}\n", "sampling.seed=4")
    assert config.runner.max_num_seqs == 3
    merged = read("speculative:\n  ngram: &n {max_ngram_size: 5}\nbackend: {options: {<<: *n, max_ngram_size: 6}}\n")
    assert merged.speculative.ngram.max_ngram_size == 5
    assert merged.backend.options == {"max_ngram_size": 6}


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "section", "key", "value"),
        [
            ("sampling.temperature=0.8", "sampling", "temperature", 0.8),
            ("sampling.temperature=1e-1", "sampling", "temperature", 0.1),
            ("sampling.seed=7", "sampling", "seed", 7),
            (" sampling . seed = 7", "sampling", "seed", 7),
            ("sampling.logprobs=null", "sampling", "logprobs", None),
            ("sampling.logprobs=", "sampling", "logprobs", None),
            ('sampling.stop=["a=b", c]', "sampling", "stop", ["a=b", "c"]),
            ("speculative.method=mtp", "speculative", "method", "mtp"),
        ],
    )
    def test_value(self, read: Read, override: str, section: str, key: str, value: object) -> None:
        config = read("sampling: {logprobs: 3}", override)
        assert getattr(getattr(config, section), key) == value

    def test_whole_section(self, read: Read) -> None:
        config = read("sampling: {seed: 5, top_k: 4}", "sampling={seed: 9}")
        assert (config.sampling.seed, config.sampling.top_k) == (9, 0)

    def test_the_caller_keeps_its_mapping(self, registry: Registry) -> None:
        data = {"sampling": {"seed": 1}}
        parse(data, ["sampling.seed=2", "model.path=x"], registry=registry)
        assert data == {"sampling": {"seed": 1}}

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("sampling.seed", "--set:sampling.seed: expected KEY=VALUE such as sampling.temperature=0.8"),
            ("=3", "--set:=3: expected KEY=VALUE"),
            ("sampling..seed=3", "--set:sampling..seed=3: expected KEY=VALUE"),
            ("sampling.seed=[1", "--set:sampling.seed:1:3: while parsing a flow sequence"),
            ("sampling.sed=3", "--set:sampling.sed: unknown key; did you mean 'seed'?"),
            ("sampling.seed=x", "--set:sampling.seed: expected an integer in "),
            ("sampling.seed.x=3", "--set:sampling.seed.x: 'sampling.seed' is not a section, it holds 1"),
            ("sampling=5", "--set:sampling: expected a mapping with the keys temperature"),
            ("sampling.stop=[1]", "--set:sampling.stop[0]: expected a non-empty string, got 1"),
            ("runner={debug: 3}", "--set:runner.debug: expected true or false, got 3"),
            ("backend.name=slwo", "--set:backend.name: unknown backend 'slwo'; did you mean 'slow'?"),
            ("sampling.min_new_tokens=999", "--set:sampling.min_new_tokens: expected at most max_new_tokens = 128"),
        ],
    )
    def test_bad(self, problems: Problems, override: str, message: str) -> None:
        (line,) = problems("sampling: {seed: 1}", override)
        assert line.startswith(message)

    def test_problems_name_where_each_value_came_from(self, problems: Problems) -> None:
        lines = problems("sampling: {top_p: 0, top_k: -1}", "sampling.top_k=-2")
        assert [line.split(": ")[0] for line in lines] == ["c.yaml:sampling.top_p", "--set:sampling.top_k"]


class TestArguments:
    """Keyword arguments override a configuration."""

    def config(self, registry: Registry, given: dict[str, Any], data: Any = None) -> Config:
        return parse(data or {}, arguments(given, registry), source="c.yaml", registry=registry)

    def test_sections_and_bare_keys(self, registry: Registry) -> None:
        data = {"speculative": {"method": "naive", "ngram": {"min_ngram_size": 2}}, "runner": {"block_size": 8}}
        given = {
            "speculative": {"method": "ngram", "ngram": {"max_ngram_size": 6}},
            "max_num_seqs": 3,
            "dtype": "float16",
        }
        config = self.config(registry, given, data)
        assert (config.speculative.ngram.min_ngram_size, config.speculative.ngram.max_ngram_size) == (2, 6)
        assert (config.runner.max_num_seqs, config.runner.block_size, config.model.dtype) == (3, 8, "float16")
        assert config.speculative.method == "ngram"
        assert data["speculative"]["method"] == "naive", "the mapping is the caller's"

    def test_values_are_pythons_not_yaml(self, registry: Registry) -> None:
        given = {"sampling": {"stop": ["yes", "1: 2"], "logit_bias": {5: 1.5}}, "path": "a: b"}
        config = self.config(registry, given)
        assert (config.sampling.stop, config.sampling.logit_bias) == (["yes", "1: 2"], {5: 1.5})
        assert config.model.path == str(Path.cwd() / "a: b")

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                {"max_num_seq": 4},
                "argument:max_num_seq: unknown; did you mean 'max_num_seqs'?; expected a section (backend",
            ),
            ({"max_num_seqs": 0}, "argument:runner.max_num_seqs: expected an integer in 1..8192, got 0"),
            ({"speculative": {"method": "ngarm"}}, "argument:speculative.method: unknown speculative method 'ngarm'"),
            ({"speculative": {"metod": 1}}, "argument:speculative.metod: unknown key; did you mean 'method'?"),
            ({"speculative": "ngram"}, "argument:speculative: expected a mapping with the keys method, "),
            ({"speculative": None}, "argument:speculative: expected a mapping with the keys method, "),
            ({"sampling": {1: 2}}, "argument:sampling[1]: unknown key; allowed: temperature"),
            (
                {"sampling": {"min_new_tokens": 200}},
                "argument:sampling.min_new_tokens: expected at most max_new_tokens",
            ),
        ],
    )
    def test_bad(self, registry: Registry, given: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError) as error:
            self.config(registry, given)
        assert str(error.value).startswith(message) and "\n" not in str(error.value)

    def test_a_configuration_is_changed_as_a_copy(self, registry: Registry) -> None:
        before = parse({"sampling": {"seed": 3, "logit_bias": {7: 2.0}}}, source="c.yaml", registry=registry)
        after = changed(before, [("sampling.top_k", 4)], registry)
        assert (before.sampling.top_k, after.sampling.top_k, after.sampling.seed) == (0, 4, 3)
        assert after.sampling.logit_bias == {7: 2.0}
        assert str(after.error("sampling.seed", "odd")) == "c.yaml:sampling.seed: odd"
        assert str(after.error("sampling.top_k", "odd")) == "argument:sampling.top_k: odd"
