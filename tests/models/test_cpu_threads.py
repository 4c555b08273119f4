"""How many threads compute a model on a CPU; that their number leaves tokens alone: tests/end_to_end."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.config import load as load_config
from specdec_hal.errors import ConfigError
from specdec_hal.models import linear, llama, load_model
from specdec_hal.models.attention import HostAttention
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.tensors import cpu_threads

ROOT = Path(__file__).parents[2]
TINY = ROOT / "models/tiny-py-lm"

needs_paddle = pytest.mark.skipif(
    importlib.util.find_spec("paddle") is None,
    reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')",
)


@pytest.mark.parametrize(
    ("given", "cores", "threads"), [("", 6, 6), ("1", 6, 1), ("8", 6, 6), ("4", 6, 4), ("0", 6, 1), ("all", 6, 6)]
)
def test_available(monkeypatch: pytest.MonkeyPatch, given: str, cores: int, threads: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(cpu_threads, "GIVEN", given)
    assert cpu_threads.available() == threads


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/", {}, 6),
        ("0::/", {"cpu.max": "max 100000\n"}, 6),
        ("0::/", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/pod/one", {"pod/cpu.max": "200000 100000\n", "pod/one/cpu.max": "max 100000\n"}, 2),
        ("0::/pod/gone", {"cpu.max": "10000 100000\n"}, 1),
        ("1:name=systemd:/\n0::/", {"cpu.max": "900000 100000\n"}, 6),
        ("3:cpuset:/a\n2:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "50000"}, 3),
        ("2:cpu,cpuacct:/a", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "50000"}, 6),
    ],
)
def test_cores_are_those_of_the_affinity_and_of_the_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, membership: str, files: dict[str, str], expected: int
) -> None:
    for name, text in {
        "groups/membership": membership,
        **{f"groups/{name}": text for name, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(cpu_threads, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(cpu_threads, "MEMBERSHIP", tmp_path / "groups/membership")
    assert cpu_threads.cores() == expected


@needs_paddle
@pytest.mark.parametrize(("given", "most"), [({}, os.cpu_count()), ({"OMP_NUM_THREADS": "1"}, 1)])
def test_paddle_itself_asks_for_nothing(given: dict[str, str], most: int) -> None:
    """It sets OMP_NUM_THREADS when it is imported, which is not the user's word."""
    code = (
        "import os, specdec_hal, paddle\n"
        "print(os.environ['OMP_NUM_THREADS'], specdec_hal.tensors.cpu_threads.available())"
    )
    names = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", str(min(most, len(os.sched_getaffinity(0))))]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], set[int]]:
    """used(model): numbers of threads of its products and its attention."""

    def step(model: Any) -> set[int]:
        found, multiply = set(), linear.multiply
        monkeypatch.setattr(linear, "multiply", lambda *args: (found.add(args[4]), multiply(*args))[1])
        monkeypatch.setattr(
            llama, "HostAttention", lambda *a, **b: (found.add(b["threads"]), HostAttention(*a, **b))[1]
        )
        model.allocate(1, 8)
        model.compute_logits(model.forward(ForwardBatch(np.array([5]), [Segment(0, 0, 1, 0)]))[FINAL_NORM])
        return found

    return step


@needs_paddle
def test_paddle_uses_all_cores(used: Callable[[Any], set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr(cpu_threads, "GIVEN", "")
    assert used(load_model(TINY, "paddle", batch_invariant=False)) == {6}


class TestConfiguration:
    def runtime(self, *overrides: str) -> sd.Runtime:
        return sd.load(ROOT / "configs/reference.yaml", [*overrides])

    @needs_paddle
    @pytest.mark.parametrize("count", [1, 2])
    def test_paddle(self, count: int, used: Callable[[Any], set[int]]) -> None:
        assert used(self.runtime("model.framework=paddle", f"model.num_threads={count}").load_model()) == {count}

    @pytest.mark.torch
    def test_torch(self) -> None:
        import torch

        before = torch.get_num_threads()
        try:
            self.runtime("model.framework=transformers", f"model.num_threads={before + 1}").load_model()
            assert torch.get_num_threads() == before + 1
        finally:
            torch.set_num_threads(before)
        with pytest.raises(ValueError, match="'threads': expected an integer >= 1, got 0"):
            load_model(TINY, "transformers", threads=0)

    @pytest.mark.torch
    def test_a_gpu_has_none(self) -> None:
        with pytest.raises(ValueError, match="'threads': expected none on cuda:0, got 2; leave it out"):
            load_model(TINY, "transformers", device="cuda:0", threads=2)

    def test_range(self) -> None:
        for wrong in ("0", "-1", "two"):
            with pytest.raises(ConfigError, match=r"model.num_threads: "):
                load_config(ROOT / "configs/reference.yaml", [f"model.num_threads={wrong}"])
