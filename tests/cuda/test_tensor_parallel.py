"""Tensor parallelism on GPUs: captured steps over NCCL, ranks that share a GPU over gloo, ranks that die."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.errors import RankLostError
from specdec_hal.runner import Request, SamplingParams
from tests.parallel.cuda_ranks import run_ranks, whole_and_split

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/tiny-py-lm"
TOLERANCE = 2e-3
"""The checkpoint is float16, and so is what the ranks gather."""
PAIRS = 4


def gpus() -> int:
    return int(pytest.importorskip("torch").cuda.device_count())


@pytest.fixture(params=["one rank, NCCL", "two ranks on one GPU, gloo", "a GPU each, NCCL"])
def ranks(request: pytest.FixtureRequest) -> tuple[int, str, str]:
    """Number, place and transport."""
    if request.param == "one rank, NCCL":
        return 1, "cuda:0", "nccl"
    if request.param == "two ranks on one GPU, gloo":
        return 2, "cuda:0", "gloo"
    if gpus() < 2:
        pytest.skip(f"needs 2 GPUs, has {gpus()}")
    return 2, "each", "nccl"


def test_ranks_compute_the_model(tmp_path: Path, ranks: tuple[int, str, str]) -> None:
    """Ranks have the same bits, however a text is cut."""
    whole, split = map(np.load, whole_and_split("cuda_llama_rank", MODEL, tmp_path, *ranks))
    assert set(whole) == {"hidden", "tap", "logits", "drafts"} == set(split)
    for name, tensor in split.items():
        np.testing.assert_allclose(tensor, whole[name], rtol=0, atol=TOLERANCE * np.abs(whole[name]).max())


def test_pairs_of_ranks_side_by_side(tmp_path: Path) -> None:
    """Ranks wait for each other's time on GPUs that others use too, in trials while the model is loaded as well."""
    if gpus() < 2:
        pytest.skip(f"needs 2 GPUs, has {gpus()}")
    with ThreadPoolExecutor(PAIRS) as pool:
        outs = [tmp_path / str(pair) for pair in range(PAIRS)]
        pairs = [pool.submit(run_ranks, "cuda_llama_rank", MODEL, 2, out, "each", "nccl") for out in outs]
        first, *others = (np.load(pair.result()) for pair in pairs)
    for other in others:
        for name, tensor in first.items():
            np.testing.assert_array_equal(other[name], tensor, name)


@pytest.mark.parametrize("drafts", ["0", "3"])
def test_runners_deliver_the_same(tmp_path: Path, ranks: tuple[int, str, str], drafts: str) -> None:
    """Plain and drafted, captured and launched; one rank gives the tokens of no ranks."""
    files = whole_and_split("cuda_runner_rank", MODEL, tmp_path, *ranks, drafts)
    whole, split = (json.loads(file.read_text()) for file in files)
    same = [name for name, tokens in whole.items() if split[name] == tokens]
    print(f"{len(same)} of {len(whole)} requests have the tokens of the model that nobody has split")
    assert len(whole) >= 20
    if ranks[0] == 1:
        assert split == whole, "one part, whose float32 sums are rounded alike"
    else:
        assert len(same) > 0.8 * len(whole), "float32 sums in another order seldom decide about a token"


def load(devices: list[int], **engine: Any) -> Any:
    overrides = ["model.framework=transformers", "model.dtype=float32", f"engine.tensor_parallel={len(devices)}"]
    overrides += [f"engine.rank_devices={devices}", *(f"engine.{key}={value}" for key, value in engine.items())]
    return sd.load(ROOT / "configs/cuda.yaml", overrides)


def requests(tokens: int) -> list[Request]:
    rng = np.random.default_rng(2)
    params = [SamplingParams(max_new_tokens=tokens, temperature=i % 2, seed=i) for i in range(4)]
    return [Request(f"r{i}", rng.integers(1, 4096, 20).tolist(), one) for i, one in enumerate(params)]


def decode(runner: Any) -> dict[str, tuple[int, ...]]:
    for request in requests(32):
        runner.add_request(request)
    return {name: output.token_ids for name, output in runner.run().items()}


@pytest.mark.parametrize("devices", [[0, 0], [0, 1]], ids=["one GPU", "two GPUs"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_team_until_a_rank_fails(devices: list[int], how: int, caplog: pytest.LogCaptureFixture) -> None:
    """As the command line starts it; the end of a rank, or its silence, ends the others, and one error says so.

    Every team of this process shares memory between GPUs, not only the first.
    """
    if gpus() <= max(devices):
        pytest.skip(f"needs {max(devices) + 1} GPUs, has {gpus()}")
    silence_s = 10  # longer than one rank takes to compile what the other has compiled already
    runtime = load(devices, rank_timeout_s=silence_s)
    assert runtime.backend.device_name == "cuda:0"
    try:
        runner = runtime.runner()
        once = decode(runner)
        assert len(once) == 4 and all(once.values())
        assert decode(runner) == once
        captured = len(set(devices)) > 1
        assert "exchange by NCCL" not in caplog.text
        assert (runner.summary()["graphs"] > 0) == captured and not runner.summary()["graph_failures"]
        for request in requests(400):
            runner.add_request(request)
        for _ in range(5):
            runner.step()
        os.kill(runtime.team.processes[0].pid, how)
        start = time.monotonic()
        with pytest.raises(RankLostError, match="tensor-parallel rank"):
            while runner.has_requests:
                runner.step()
        noticed = time.monotonic()
        assert noticed - start < 2 + silence_s * (how == signal.SIGSTOP)
        runtime.close()
        assert time.monotonic() - noticed < 5 and runtime.team.group.left
        assert not any(rank.is_alive() for rank in runtime.team.processes)
    finally:
        runtime.close()


@pytest.mark.parametrize("devices", [[0, 0], [0, 1]], ids=["one GPU", "two GPUs"])
def test_a_team_ends_in_time_with_captured_steps(devices: list[int]) -> None:
    """NCCL waits for graphs with its collectives: they are released first, though their runner lives."""
    if gpus() <= max(devices):
        pytest.skip(f"needs {max(devices) + 1} GPUs, has {gpus()}")
    runtime = load(devices)
    runner = runtime.runner()
    assert all(decode(runner).values())
    assert (runner.summary()["graphs"] > 0) == (len(set(devices)) > 1)
    start = time.monotonic()
    runtime.close()
    assert time.monotonic() - start < 5 and runtime.team.group.left
    assert [rank.exitcode for rank in runtime.team.processes] == [0], "they have ended by themselves"
