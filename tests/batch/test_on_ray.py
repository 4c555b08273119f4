"""Batches on a Ray cluster of this machine: replicas are killed, and the answers are those of one process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdec_hal.cli import main
from tests.support.processes import descendants

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
PROMPTS = sorted((ROOT / "examples" / "prompts").glob("*.txt"))


def command(source: Path, output: Path, *more: str) -> list[str]:
    options = ["--config", str(ROOT / "configs" / "reference.yaml"), "--input", str(source), "--output", str(output)]
    return [sys.executable, "-m", "specdec_hal.cli", "batch", *options, "--json", *more]


def environment() -> dict[str, str]:
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_DATA_DISABLE_PROGRESS_BARS": "1", "OMP_NUM_THREADS": "1"}


def prompts(path: Path, rows: int, new_tokens: int) -> Path:
    texts = [file.read_text() for file in PROMPTS]
    params = [{"max_new_tokens": new_tokens + row % 5, "temperature": float(row % 2)} for row in range(rows)]
    lines = [{"id": f"r{row}", "prompt": texts[row % len(texts)], "params": params[row]} for row in range(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def kill_some(args: list[str], kills: int, seed: int) -> dict[str, object]:
    """Run a batch while replicas are killed at random moments."""
    rng, left = random.Random(seed), kills
    with subprocess.Popen(
        args, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            time.sleep(rng.random() * 2)
            if left and (found := descendants(process.pid, "Replica")):
                os.kill(rng.choice(found), signal.SIGKILL)
                left -= 1
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert left == 0, "the batch ended before all kills"
    document: dict[str, object] = json.loads(out)
    return document


@pytest.mark.parametrize(("rows", "kills"), [(12, 1), pytest.param(160, 20, marks=pytest.mark.slow)])
def test_killed_replicas_change_nothing(tmp_path: Path, rows: int, kills: int) -> None:
    source = prompts(tmp_path / "prompts.jsonl", rows, 60)
    assert main(command(source, tmp_path / "alone")[3:]) == 0
    on_ray = command(source, tmp_path / "ray", "--ray", "--replicas", "2", "--block-size", "4", "--max-crashes", "20")
    document = kill_some(on_ray, kills, seed=kills)
    assert document["rows"] == rows
    assert (tmp_path / "ray" / "results.jsonl").read_bytes() == (tmp_path / "alone" / "results.jsonl").read_bytes()


def test_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    source = prompts(tmp_path / "prompts.jsonl", 5, 8)
    source.write_text(source.read_text() + '{"prompt": "a", "params": {"logprobs": 1, "max_new_tokens": 2}}\n')
    assert main(command(source, tmp_path / "lines")[3:]) == 0
    for size in ("2", "3"):
        assert main(command(source, tmp_path / size, "--format", "parquet", "--block-size", size)[3:]) == 0
    files = [tmp_path / size / "results.parquet" for size in ("2", "3")]
    assert files[0].read_bytes() == files[1].read_bytes()
    lines = (tmp_path / "lines" / "results.jsonl").read_text().splitlines()
    assert pq.read_table(files[0]).to_pylist() == [json.loads(line) for line in lines]


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    source = prompts(tmp_path / "prompts.jsonl", 1, 1)
    args = command(source, tmp_path / "out", "--ray", "127.0.0.1:1")
    done = subprocess.run(args, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--ray 127.0.0.1:1: no such cluster can be reached" in done.stderr
