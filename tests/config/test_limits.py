"""Hostile configurations: each is an error within bounds of time and memory, its message short."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from specdec_hal.config import load, parse
from specdec_hal.config.reader import MAX_DEPTH, MAX_VALUES
from specdec_hal.config.source import MAX_BYTES
from specdec_hal.errors import ConfigError
from specdec_hal.plugin.registry import Registry
from specdec_hal.text import MESSAGE_LIMIT
from tests.support.bounded import bounded


def aliases(levels: int, width: int) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * width)}]" for i in range(levels)]
    return "\n".join(lines)


def merges(levels: int) -> str:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}], k{i}: 1}}" for i in range(levels)]
    return "\n".join(lines)


HOSTILE = {
    "alias bomb": (aliases(9, 9), "expected at most 10000 keys and values"),
    "merge bomb": (merges(24), "expected at most 10000 keys and values"),
    "alias of itself": ("a: &a [*a]", "1:8: the alias '*a' stands for a value around it"),
    "merge of itself": ("a: &a {<<: *a}", "1:12: the alias '*a' stands for a value around it"),
    "many values": ("a: [" + "1," * 15_000 + "]", "expected at most 10000 keys and values"),
    "nested lists": ("[" * 20_000, "1:65: expected at most 64 sections and lists inside each other"),
    "nested sections": ("{a: " * 20_000, "expected at most 64 sections and lists inside each other"),
    "nested keys": ("? " * 20_000, "expected at most 64 sections and lists inside each other"),
    "5,000 digits": ("a: " + "1" * 5000, "1:4: expected a number of at most 100 characters, got 5000"),
    "hexadecimal": ("a: 0x" + "f" * 5000, "1:4: expected a number of at most 100 characters, got 5002"),
    "base 60": ("sampling: {seed: 1" + ":59" * 5000 + "}", "1:18: expected a number of at most 100 characters"),
    "digits of a number": ("sampling: {seed: " + "1" * 50_000 + "x}", "sampling.seed: expected an integer"),
    "bool": ("runner: {debug: !!bool maybe}", "1:17: cannot be read as !!bool: 'maybe'"),
    "int": ("a: !!int ''", "1:4: cannot be read as !!int: ''"),
    "float": ("a: !!float much", "1:4: cannot be read as !!float: 'much'"),
    "time": ("a: !!timestamp soon", "1:4: cannot be read as !!timestamp: 'soon'"),
    "mapping": ("a: !!map x", "1:4: expected a mapping node"),
    "NUL": ("a: x\0", "expected text, got the character U+0000"),
    "escaped NUL": ('a: "x\\0"', "1:4: expected text, got the character U+0000"),
    "surrogate": ('a: "\\ud800"', "1:4: expected text, got the character U+D800"),
    "surrogate in a key": ('"\\ud800": 1', "1:1: expected text, got the character U+D800"),
    "long key": ("? " + "k" * 50_000 + "\n: 1", ": unknown key"),
    "long tag": ("a: !" + "t" * 50_000 + " x", "1:4: could not determine a constructor"),
    "long choice": ("speculative: {verify_strategy: " + "x" * 50_000 + "}", "verify_strategy: expected one of greedy"),
    "many problems": ("".join(f"samplin{i}: 1\n" for i in range(1500)), "did you mean 'sampling'?"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), HOSTILE.values(), ids=HOSTILE)
def test_text(tmp_path: Path, registry: Registry, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with bounded(), pytest.raises(ConfigError) as caught:
        load(tmp_path / "c.yaml", registry=registry)
    assert message in str(caught.value)
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (".".join(["a"] * 60_000) + "=1", "expected at most 64 names, got 60000"),
        ("sampling.seed" * 10_000, "expected KEY=VALUE"),
        ("sampl\udcffing=1", "expected text, got the character U+DCFF"),
        ("model.path=x\udcff", "expected text, got the character U+DCFF"),
        ("model.path=x\0", "expected text, got the character U+0000"),
    ],
)
def test_override_keys(registry: Registry, override: str, message: str) -> None:
    with bounded(), pytest.raises(ConfigError) as caught:
        parse({}, [override], registry=registry)
    assert message in str(caught.value)
    assert len(str(caught.value).encode()) <= MESSAGE_LIMIT


def test_what_the_limits_allow(tmp_path: Path, registry: Registry) -> None:
    depth = MAX_DEPTH - 3  # in the document, its `backend` and its `options`
    values = MAX_VALUES - 100
    ids = [7] * (values - depth)
    text = f"backend: {{options: {{a: {'[' * depth}{']' * depth}}}}}\nsampling: {{stop_token_ids: &i {ids}}}\n"
    (tmp_path / "c.yaml").write_text(text)
    config = load(tmp_path / "c.yaml", registry=registry)
    assert config.sampling.stop_token_ids == ids
    (tmp_path / "c.yaml").write_text(text.replace("[]", "[[]]"))
    with pytest.raises(ConfigError, match="inside each other"):
        load(tmp_path / "c.yaml", registry=registry)


class TestFiles:
    def refused(self, path: Path | str, registry: Registry) -> str:
        with bounded(), pytest.raises(ConfigError) as caught:
            load(path, registry=registry)
        return str(caught.value).rpartition("cannot be read: ")[2]

    def test_fifo(self, tmp_path: Path, registry: Registry) -> None:
        os.mkfifo(tmp_path / "fifo")
        assert self.refused(tmp_path / "fifo", registry) == "expected a regular file, got a FIFO"

    def test_device(self, registry: Registry) -> None:
        assert self.refused("/dev/zero", registry) == "expected a regular file, got a device"

    def test_socket(self, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)  # the longest name of a socket is short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket")
            assert self.refused("socket", registry) == "No such device or address"

    def test_nul_in_the_name(self, registry: Registry) -> None:
        assert self.refused("a\0b", registry) == "embedded null byte"

    def test_size(self, tmp_path: Path, registry: Registry) -> None:
        (tmp_path / "c.yaml").write_bytes(b"#" * MAX_BYTES)
        assert load(tmp_path / "c.yaml", registry=registry).sampling.seed is None
        with (tmp_path / "c.yaml").open("ab") as file:
            file.truncate(1 << 40)  # holes: takes no room
        assert self.refused(tmp_path / "c.yaml", registry) == f"expected at most {MAX_BYTES} bytes, got {1 << 40}"


@pytest.mark.parametrize("path", ["~nobody-of-this-name/x", "a\0b", "x" * 5000])
def test_paths_that_cannot_be(registry: Registry, path: str) -> None:
    config = parse({"model": {"path": path}}, registry=registry)
    with pytest.raises(ConfigError, match="no such folder"):
        config.model_path  # noqa: B018
