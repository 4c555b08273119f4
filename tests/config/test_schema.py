"""Types, ranges, names and combinations: what is accepted, and what the errors say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.config import MAX_DRAFTS, Config, SpeculativeSettings, load, parse, schema
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import BackendUnavailableError, ConfigError
from specdec_hal.ops import OPS
from specdec_hal.plugin import registry
from specdec_hal.plugin.registry import Registry
from specdec_hal.proposers.ngram import NgramSettings

Read = Callable[..., Config]
Problems = Callable[..., list[str]]
ROOT = Path(__file__).parents[2]


def test_naive_needs_no_second_key(read: Read) -> None:
    assert read("speculative: {method: naive}").speculative.num_speculative_tokens == 0
    assert read("speculative: {method: naive, num_speculative_tokens: 3}").speculative.num_speculative_tokens == 0
    config = read("speculative: {method: ngram, num_speculative_tokens: 8}", "speculative.method=naive")
    assert config.speculative.num_speculative_tokens == 0


ONE_PROBLEM = {
    "speculative": {
        "{num_speculative_tokens: 32}": "num_speculative_tokens: expected an integer in 0..31, got 32",
        "{num_speculative_tokens: -1}": "num_speculative_tokens: expected an integer in 0..31, got -1",
        "{num_speculative_tokens: 2.0}": "num_speculative_tokens: expected an integer in 0..31, got 2.0",
        "{ngram: {token_budget: 0}}": "ngram.token_budget: expected an integer in 1..2147483647 or null, got 0",
        "{verify_strategy: gredy}":
            "verify_strategy: expected one of greedy, target_match, topp, rejection, got 'gredy'; did you mean",
        "{verify_strategy: 1}": "verify_strategy: expected one of greedy, target_match, topp, rejection, got 1",
        "{ngram: {match_policy: last}}": "match_policy: expected one of leftmost, latest, got 'last'; did you mean",
        "{method: ngarm}":
            "speculative.method: unknown speculative method 'ngarm'; did you mean 'ngram'?; known: mtp, naive, ngram",
    },
    "runner": {
        "{max_num_seqs: 8193}": "max_num_seqs: expected an integer in 1..8192, got 8193",
        "{max_num_seqs: true}": "max_num_seqs: expected an integer in 1..8192, got true",
        "{max_num_seqs: '8'}": "max_num_seqs: expected an integer in 1..8192, got '8' (a string)",
        "{debug: 1}": "debug: expected true or false, got 1",
        "{debug: [1]}": "debug: expected true or false, got [1] (a list)",
        "7": "c.yaml:runner: expected a mapping with the keys max_num_seqs, max_model_len, prefill_chunk, ",
    },
    "sampling": {
        "{temperature: -0.1}": "temperature: expected a number >= 0, got -0.1",
        "{temperature: .nan}": "temperature: expected a number >= 0, got nan",
        "{temperature: warm}": "temperature: expected a number >= 0, got 'warm' (a string)",
        "{temperature: null}": "temperature: expected a number >= 0, got null",
        "{top_p: 0}": "top_p: expected a number > 0 and <= 1, got 0",
        "{seed: 9223372036854775808}": "or null, got 9223372036854775808",
        "{frequency_penalty: .inf}": "frequency_penalty: expected a number, got inf",
        "{stop: 6}": "stop: expected a list with a non-empty string per item, got 6",
        "{structured: {json_schema: 5}}": "structured.json_schema: expected a mapping or a string or null, got 5",
        "{structured: {type: object, json_schema: {}}}":
            "structured.type: unknown key; allowed: json_schema, json_object, regex, choice, grammar, structural_tag, ",
        "{stop: [a, '']}": "stop[1]: expected a non-empty string, got '' (a string)",
        "{temprature: 1}": "sampling.temprature: unknown key; did you mean 'temperature'?; allowed: temp",
    },
    "model": {
        "{path: ''}": "path: expected a non-empty string or null, got '' (a string)",
        "{framework: jax}": "framework: expected one of auto, paddle, torch, got 'jax'",
    },
    "backend": {
        "{options: 3}": "options: expected a mapping, got 3",
        "{name: fsat}": "backend.name: unknown backend 'fsat'; did you mean 'fast'?; known: fast, slow",
    },
    "fallback": {
        "{allow: [slwo]}": "fallback.allow[0]: unknown backend 'slwo'; did you mean 'slow'?",
        "{allow: [auto]}": "fallback.allow[0]: unknown backend 'auto'",
    },
    "temperature": {"1": "c.yaml:temperature: unknown key; did you mean 'sampling.temperature'?; allowed: backend, "},
    "xyzzy": {"1": "c.yaml:xyzzy: unknown key; allowed: backend, fallback, shadow, model, runner, engine, "},
}  # fmt: skip


@pytest.mark.parametrize("section", ONE_PROBLEM)
def test_one_problem(problems: Problems, section: str) -> None:
    for text, message in ONE_PROBLEM[section].items():
        (line,) = problems(f"{section}: {text}")
        assert line.startswith(f"c.yaml:{section}") and message in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "speculative: {ngram: {max_ngram_size: 2, min_ngram_size: 3}}",
            "speculative.ngram.min_ngram_size: expected at most max_ngram_size = 2, got 3",
        ),
        (
            "{speculative: {verify_strategy: greedy}, sampling: {temperature: 0.8}}",
            "sampling.temperature: expected 0 with speculative.verify_strategy 'greedy', got 0.8; use target_match",
        ),
        (
            "sampling: {min_new_tokens: 9, max_new_tokens: 8}",
            "sampling.min_new_tokens: expected at most max_new_tokens = 8, got 9",
        ),
        (
            "serve: {http_workers: 2, split: false}",
            "serve.http_workers: expected 1 without serve.split, got 2; set serve.split: true",
        ),
    ],
)
def test_keys_that_are_wrong_together(problems: Problems, text: str, message: str) -> None:
    (line,) = problems(text)
    assert line.startswith(f"c.yaml:{message}")


@pytest.mark.parametrize(
    ("keys", "cores", "workers"),
    [
        ({}, 1, 1), ({}, 2, 1), ({}, 7, 1), ({}, 8, 2), ({}, 16, 4), ({}, 64, 4), ({"http_workers": "auto"}, 12, 3),
        ({"http_workers": 5}, 2, 5), ({"split": False}, 16, 1), ({"http_workers": "auto", "split": False}, 16, 1),
        ({"http_workers": 1, "split": False}, 16, 1),
    ],
)  # fmt: skip
def test_http_workers_by_the_cores(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], cores: int, workers: int
) -> None:
    monkeypatch.setattr(schema, "cores", lambda: cores)
    assert parse({"serve": keys}).serve.num_http_workers == workers


def test_every_problem_of_a_file_at_once(problems: Problems) -> None:
    lines = problems("runner: {max_num_seqs: 0, debgu: true}\nsampling: {top_p: 0, stop: [1]}\nmodl: {}\n")
    assert [line.split(": ")[0] for line in lines] == [
        "c.yaml:runner.max_num_seqs", "c.yaml:runner.debgu", "c.yaml:sampling.top_p", "c.yaml:sampling.stop[0]",
        "c.yaml:modl",
    ]  # fmt: skip


def test_ranges_are_those_of_the_ops() -> None:
    """The contract's OpSpecs state these ranges too; the two may not drift apart."""
    for field in ("max_ngram_size", "min_ngram_size"):
        attr = OPS["ngram_match"].attr_by_name[field]
        (low,) = (m.ge for m in NgramSettings.model_fields[field].metadata if hasattr(m, "ge"))
        (high,) = (m.le for m in NgramSettings.model_fields[field].metadata if hasattr(m, "le"))
        assert (low, high) == (attr.minimum, attr.maximum)
    window = OPS["verify_draft_tokens"].attr_by_name["verify_window"]
    assert SpeculativeSettings.model_fields["verify_window"].default == window.default
    assert MAX_DRAFTS == 31


class TestModelPath:
    def test_home(self, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "lm").mkdir()
        assert read("model: {path: ~/lm}").model_path == tmp_path / "lm"

    def test_none(self, read: Read) -> None:
        """In Python and on the command line, each with its own remedy."""
        with pytest.raises(ConfigError) as caught:
            _ = read("").model_path
        message = "c.yaml:model.path: no model is configured; pass a checkpoint's folder, or its name on a hub: "
        assert (str(caught.value), caught.value.command_line) == (f"{message}LLM(MODEL)", f"{message}--model MODEL")

    def test_missing(self, read: Read, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf"^c.yaml:model.path: no such folder: {tmp_path}/nowhere; give"):
            _ = read("model: {path: nowhere}").model_path
        with pytest.raises(ConfigError, match=r"^--set:model.path: no such folder"):
            _ = read("", "model.path=nowhere").model_path

    def test_a_name_on_a_hub(self, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is no folder: the error says how to get one. A folder beside similar names is a misspelling."""
        monkeypatch.chdir(tmp_path)
        fetched = "hf download Qwen/Qwen3-0.6B, or --download (model.download)"
        download = f"; for a model of a hub that is not in its cache: {fetched}"
        with pytest.raises(ConfigError) as caught:
            _ = read("", "model.path=Qwen/Qwen3-0.6B").model_path
        assert str(caught.value).endswith(f"give the folder of a checkpoint, or a .gguf file{download}")
        (tmp_path / "Qwen/other").mkdir(parents=True)
        with pytest.raises(ConfigError, match=r"hf download Qwen/Qwen3-0\.6B"):
            _ = read("", "model.path=Qwen/Qwen3-0.6B").model_path
        (tmp_path / "Qwen/Qwen3-0.8B").mkdir()
        with pytest.raises(ConfigError, match=r"did you mean 'Qwen3-0\.8B'"):
            _ = read("", "model.path=Qwen/Qwen3-0.6B").model_path
        for path in ("a/b/c/d", "nowhere", "Qwen/other/a", "/a b/c"):
            with pytest.raises(ConfigError, match=r"or a \.gguf file$"):
                _ = read("", f"model.path={path}").model_path

    def test_error_names_the_origin_of_a_key(self, read: Read) -> None:
        config = read("", "sampling.stop=[a]")
        assert str(config.error("sampling.stop[0]", "too odd")) == "--set:sampling.stop[0]: too odd"
        assert str(config.error("sampling.stopping", "too odd")) == "c.yaml:sampling.stopping: too odd"
        assert str(config.error("sampling.seed", "too odd")) == "c.yaml:sampling.seed: too odd"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_committed_configurations(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They load from anywhere, name what is registered, and find the embedded model."""
    monkeypatch.chdir(tmp_path)
    config = load(path)
    assert config.model_path == ROOT / "models" / "tiny-py-lm"
    name = config.backend.name
    if name == "auto":
        assert Runtime(config).backend.name in {info.name for info in registry.backends() if info.available}
    elif next(info for info in registry.backends() if info.name == name).available:
        assert Runtime(config).backend.name == name
    else:
        with pytest.raises(BackendUnavailableError, match=f"backend '{name}' cannot run here"):
            _ = Runtime(config).backend


def test_a_mapping_may_come_from_anywhere(registry: Registry) -> None:
    config = parse({"sampling": {"seed": 3}}, ["sampling.top_k=2"], registry=registry)
    assert (config.sampling.seed, config.sampling.top_k) == (3, 2)
    with pytest.raises(ConfigError, match=r"^request:speculative.5: unknown key; allowed: method"):
        parse({"speculative": {"5": 1}}, source="request", registry=registry)
