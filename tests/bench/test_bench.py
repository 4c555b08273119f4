"""The benchmark harness measures only what computes the right thing, and says where its figures come from."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from specdec_hal import bench
from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.bench.case import Case, OpCall, Prepared
from specdec_hal.bench.runner import run_suites
from specdec_hal.bench.timing import Figures
from specdec_hal.cli import main
from specdec_hal.errors import ArgumentError
from specdec_hal.ops.inputs.generate import generate
from specdec_hal.tensors.on_host import HostDevice


def status(seed: int) -> list[OpCall]:
    return [OpCall("update_model_status", generate("update_model_status", seed, M=6, S=4, L=30))]


def looked_up(seed: int) -> list[OpCall]:
    return [OpCall("ngram_match", generate("ngram_match", seed, M=5, S=4, L=30, index=False, states=("decode",)))]


CASES = (
    Case("six slots", "slots", status, 1000, target=(2.5, None)),
    Case("five slots", "look-up", looked_up, 2000, peers={"someone": (7.0, 9.0)}, params={"B": 5}),
)


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> str:
    def cases(quick: bool) -> Iterator[Case]:
        yield from CASES[:1] if quick else CASES

    module = ModuleType("specdec_hal.bench.fake")
    module.cases = cases  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "specdec_hal.bench.fake", module)
    monkeypatch.setattr(bench, "SUITES", {})
    monkeypatch.setitem(bench.SUITES, "fake", "two cases")
    monkeypatch.setattr("specdec_hal.bench.runner.SUITES", bench.SUITES)
    return "fake"


def test_a_document(suite):
    seen: list[Any] = []
    document = run_suites(
        [suite],
        ReferenceBackend(),
        ["specdec-hal", "bench"],
        on_row=lambda partial, total: seen.append((len(partial["rows"]), partial["rows"][-1]["label"], total)),
    )
    assert seen == [(1, "six slots", 2), (2, "five slots", 2)] and json.dumps(document)
    slots, look_up = document["rows"]
    assert slots["warm_us"]["runs"] >= 3 and slots["warm_us"]["minimum"] <= slots["warm_us"]["median"]
    assert slots["target_us"] == {"warm": 2.5, "cold": None} and "cold_us" not in slots
    assert look_up["peers_us"] == {"someone": {"warm": 7.0, "cold": 9.0}} and look_up["B"] == 5
    assert document["command"] == "specdec-hal bench" and {"commit", "machine", "date", "packages"} <= document.keys()


def test_only_some_cases(suite):
    rows = run_suites([suite], ReferenceBackend(), [], only=["look", "nowhere"])["rows"]
    assert [row["label"] for row in rows] == ["five slots"]
    with pytest.raises(ArgumentError, match=r"'only': expected a part .* got 'nothing like it'"):
        run_suites([suite], ReferenceBackend(), [], only=["nothing like it"])
    with pytest.raises(ArgumentError, match=r"'suite': expected one of fake, got 'none'"):
        run_suites(["none"], ReferenceBackend(), [])


class Wrong(ReferenceBackend):
    """Forgets what it emits."""

    def plan(self, call: Any) -> Any:
        launch = super().plan(call)

        def run(stream: int) -> None:
            launch(stream)
            if call.op.name == "update_model_status":
                call.tensors["step_idx"][:1] += 1

        return run


def test_a_wrong_kernel_is_not_measured(suite, monkeypatch, capsys):
    wrong, right = run_suites([suite], Wrong(), [])["rows"]
    assert re.fullmatch(r"six slots: 'step_idx'\[0\] is \d+, expected \d+: not measured", wrong["error"])
    assert "warm_us" not in wrong and "warm_us" in right
    monkeypatch.setattr("specdec_hal.plugin.registry.get_backend", lambda name: Wrong())
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "--suite", suite]) == 1
    assert "six slots" in capsys.readouterr().out


def test_every_measurement_starts_from_the_same_state():
    prepared = Prepared(CASES[0], ReferenceBackend(), HostDevice(), 3)
    prepared.upload()
    before = {name: np.array(t) for name, t in prepared.plans[0].call.tensors.items()}
    prepared.check()
    prepared.restore()
    for name in ("step_idx", "seq_lens_decoder", "token_ids_all", "stop_flags", "accept_num"):
        assert (prepared.plans[0].call.tensors[name] == before[name]).all(), name


def test_figures():
    figures = Figures.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (figures.median, figures.minimum, figures.runs) == (3.0, 1.0, 5)
    assert figures.rounded()["p90"] == pytest.approx(61.6)


def test_the_command(suite, capsys, tmp_path):
    out, lock = tmp_path / "figures.json", str(tmp_path / "lock")
    options = ["--quick", "--json", "--out", str(out), "--lock", lock]
    assert main(["bench", "--suite", suite, "--backend", "reference", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text()) and len(document["rows"]) == 1
    assert document["command"] == f"specdec-hal bench --suite {suite} --backend reference --quick"
    assert main(["bench", "--suite", suite, "--backend", "reference"]) == 0
    printed = capsys.readouterr().out
    assert "six slots" in printed and "target" not in printed  # on a CPU
    assert main(["bench", "--read", str(out)]) == 0
    assert "six slots" in capsys.readouterr().out
    out.write_text("[]")
    assert main(["bench", "--read", str(out)]) == 2
    assert "expected a document of `bench --out` or `compare --json`" in capsys.readouterr().err
    out.write_text(json.dumps({**document, "rows": [{"method": "ngram", "speedup": 2.0}]}))  # as `compare` writes them
    assert main(["bench", "--read", str(out)]) == 2
    assert re.search(r"expected .* of `bench --out` or `compare --json`, got rows\.0\.", capsys.readouterr().err)
    assert main(["bench", "--suite", "typo", "--backend", "reference"]) == 2
    assert "expected one of fake, got 'typo'" in capsys.readouterr().err
