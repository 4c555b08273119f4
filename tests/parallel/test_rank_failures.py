"""Ranks that are killed, stopped, or cannot start: all callers are notified, and every process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.config import Config, parse
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import CaptureError, RankLostError
from specdec_hal.runner import journal
from specdec_hal.tensors.device import DeviceGraph
from specdec_hal.tensors.graph_capture import capturing
from tests.support.load import Clients
from tests.support.processes import gone
from tests.support.rank_server import END_S, Texts, body, disturb, rank_server, until
from tests.support.teams import requests, settings, tokens_of

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
SERVER = ("--config", "configs/reference.yaml", "--set", "model.framework=transformers")
SERVER += ("--set", "engine.tensor_parallel=2", "--set", "serve.drain_timeout_s=1")
ONE_PROCESS = ("--no-split", *SERVER)


@pytest.mark.parametrize(
    ("rank", "how"),
    [
        pytest.param(1, signal.SIGKILL, id="killed"),
        pytest.param(1, signal.SIGSTOP, id="stopped"),
        pytest.param(0, signal.SIGKILL, id="the first killed", marks=pytest.mark.slow),
        pytest.param(0, signal.SIGINT, id="Ctrl-C", marks=pytest.mark.slow),
        pytest.param(0, signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_server_under_load(rank: int, how: int) -> None:
    """Clients get errors in time, `/health` is 503, the server ends, and nothing is left over."""
    texts = Texts()
    found = disturb(ONE_PROCESS, rank, how, 3.0, texts, seed=1)
    assert not found["findings"], found
    assert not texts.findings and texts.known


def test_a_split_server_goes_on_whichever_rank_is_killed() -> None:
    """All ranks start again, and every answer is whole and what it was before; stop strings end most of them."""
    texts = Texts()
    with rank_server(*SERVER) as server:
        load = Clients(
            server.url, 4, 1, 24, lambda number: body(number) | {"stop": ["if", "\n\n"]}, texts.check, END_S * 8
        )
        for kill in (1, 0, None):
            wanted = load.outcomes["whole"] + 4
            assert until(lambda wanted=wanted: load.outcomes["whole"] >= wanted, END_S * 8) is not None  # type: ignore[misc]
            if kill is not None:
                ranks = server.split_ranks()
                os.kill(ranks[kill], signal.SIGKILL)
                assert until(lambda ranks=ranks: all(map(gone, ranks)), END_S) is not None  # type: ignore[misc]
        load.stop()
        load.join()
        assert load.outcomes.keys() == {"whole"}, (load.outcomes, server.stacks()[-6000:])
        assert not load.findings and not texts.findings and texts.known


def test_another_team_goes_on_from_the_journal(checkpoint: Path, tmp_path: Path) -> None:
    """After a rank's death, in the same process, with the tokens of an undisturbed run."""
    config = settings(checkpoint, 2)
    config["runner"] |= {"journal": str(tmp_path / "journal"), "journal_interval": 2}
    first = Runtime(parse(config))
    try:
        runner = first.runner()
        expected = tokens_of(runner)
        for request in requests():
            runner.add_request(request)
        for _ in range(5):  # no request has ended yet
            runner.step()
        os.kill(first.team.processes[0].pid, signal.SIGKILL)  # type: ignore[union-attr, arg-type]
        with pytest.raises(RankLostError, match=r"rank 1 of 2 has ended \(status -9\)"):
            while True:
                runner.step()
        assert runner.cancel("r0") and set(runner.take_finished()) == {"r0"}, "what is here can be taken"
    finally:
        first.close()
    second = Runtime(parse(config))
    try:
        runner = second.runner()
        saved = journal.read(tmp_path / "journal")
        assert any(record["token_ids"] for record in saved), "not from the beginning"
        runner.restore(saved)
        assert {name: output.token_ids for name, output in runner.run().items()} == expected
    finally:
        second.close()


def fails_to_load(config: Config, group: Any) -> Any:
    """A rank with unreadable files."""
    raise OSError("no such file")


def test_a_rank_that_cannot_load(checkpoint: Path) -> None:
    from specdec_hal.parallel.team import Team

    config = parse(settings(checkpoint, 2))
    start = time.monotonic()
    team = Team(config, ["cpu", "cpu"], fails_to_load)
    try:
        with pytest.raises(RankLostError, match=r"rank 1 of 2 has ended \(status 1\)"):
            team.runner(config)
        assert time.monotonic() - start < config.engine.rank_timeout_s / 2
    finally:
        team.close()


def test_graphs_are_released_before_their_communicator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits for them; those without a gather of this group stay."""
    torch = pytest.importorskip("torch")
    from specdec_hal.tensors.group import ProcessGroup

    group = ProcessGroup(0, 1, str(tmp_path / "meet"), 60)
    ended = list[str]()

    def capture(name: str, gathers: bool) -> DeviceGraph:
        with capturing(0) as under_way:
            if gathers:
                group.gather(torch.zeros(2))
        graph = DeviceGraph(lambda: None, lambda: ended.append(name))
        for graphs in under_way.users:
            graphs.add(graph)
        return graph

    mine, other = capture("mine", gathers=True), capture("other", gathers=False)
    destroy = torch.distributed.destroy_process_group
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: (ended.append("group"), destroy()))
    group.close()
    assert ended == ["mine", "group"] and group.left
    other()
    with pytest.raises(CaptureError, match="one that was released"):
        mine()
    group.close()
    assert ended == ["mine", "group"]


def test_a_communicator_that_cannot_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from specdec_hal.tensors.group import ProcessGroup

    group = ProcessGroup(0, 1, str(tmp_path / "meet"), 60)
    destroy, told = torch.distributed.destroy_process_group, threading.Event()
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: told.wait(60))
    start = time.monotonic()
    group.close()
    assert time.monotonic() - start < END_S and not group.left
    told.set()
    destroy()


def test_the_command_line_over_ranks_ends_quietly() -> None:
    """One progress bar of the model, and no warning when all processes have ended."""
    command = [sys.executable, "-m", "specdec_hal.cli", "generate", "--config", "configs/reference.yaml"]
    for key in ("model.framework=transformers", "engine.tensor_parallel=2", "sampling.max_new_tokens=8"):
        command += ["--set", key]
    done = subprocess.run([*command, "--prompt", "def add("], cwd=ROOT, capture_output=True, text=True, check=True)
    said = done.stderr.split()
    assert said[:2] == ["Loading", "weights:"] and done.stderr.count("100%|") == 1
    assert "Warning" not in done.stderr, done.stderr
