"""The example of a vendor's distribution, as its README says: installed beside the wheel, away from the checkout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specdec_hal.ops import OPS
from tests.support.environments import Environment, example_wheel

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "third_party_backend"
CLAIMED = {"prepare_inputs", "verify_draft_tokens", "gather_accepted"}


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Environment:
    return Environment.make(tmp_path, [wheel, example_wheel(EXAMPLE, tmp_path)], borrowed=True)


def test_the_example_beside_the_wheel(environment: Environment) -> None:
    """One test, because the environment is made once."""
    where = environment.output("python", "-c", "import acme_npu; print(acme_npu.__file__)").strip()
    assert Path(where).is_relative_to(environment.packages)

    listed = json.loads(environment.output("specdec-hal", "backends", "--json"))
    acme = {info["name"]: info for info in listed["backends"]}["acme_npu"]
    assert acme["available"]
    assert listed["auto"] != "acme_npu"
    assert listed["plugin_errors"] == []

    explained = json.loads(environment.output("specdec-hal", "explain", "acme_npu", "--json"))["ops"]
    assert {op["op"] for op in explained if op["available"]} == CLAIMED
    assert len(explained) == len(OPS)
    assert all(op["reason"] and op["hint"] for op in explained if not op["available"])

    proves_what_it_claims(environment)
    fails_when_broken(environment)
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    generates(environment)


def proves_what_it_claims(environment: Environment) -> None:
    suite = ("specdec-hal", "conformance", "--backend", "acme_npu", "--level", "quick", "--jobs", 2, "--json")
    report = json.loads(environment.output(*suite))
    assert report["ok"]
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in report["table"]:
        rows.setdefault(row["op"], []).append(row)
    assert set(rows) == set(OPS)
    for op, modes in rows.items():
        if op in CLAIMED:
            assert sum(row.get("passed", 0) for row in modes) > 500
        else:
            assert [(row["reasons"], row.get("passed", 0)) for row in modes] == [(["the op is missing"], 0)]
    plugin = ("--pyargs", "specdec_hal_conformance", "--specdec-backend", "acme_npu", "-p", "no:cacheprovider")
    only = ("--specdec-op", "gather_accepted", "--specdec-op", "ngram_match")
    summary = environment.output("python", "-m", "pytest", *plugin, *only).splitlines()[-1]
    assert re.search(r"5 passed, 5 skipped", summary)
    refused = {row["mode"] for row in rows["verify_draft_tokens"] if row.get("refused") and not row.get("passed")}
    assert refused == {"TOPP", "REJECTION", "REJECTION dense"}


def generates(environment: Environment) -> None:
    config = EXAMPLE / "acme_npu.yaml"
    command = (
        "specdec-hal", "generate", "--config", config, "--prompt", "def main():", "--max-new-tokens", 24, "--json",
    )  # fmt: skip
    told = json.loads(environment.output(*command))
    plain = json.loads(environment.output(*command, "--set", "backend.name=reference"))
    assert told["backend"] == "acme_npu"
    assert len(told["requests"][0]["token_ids"]) == 24
    assert told["requests"][0]["token_ids"] == plain["requests"][0]["token_ids"]
    assert told["metrics"]["accepted_tokens"] > 0
    # Its own ops were not served by the fallback, the others were.
    assert not CLAIMED & set(told["metrics"]["fallback_calls"])
    assert told["metrics"]["fallback_calls"]["sample_target"] == told["metrics"]["steps"]


def fails_when_broken(environment: Environment) -> None:
    """A defect in the vendor's kernel fails the suite, and what it prints shows the defect again."""
    kernels = environment.packages / "acme_npu" / "kernels.py"
    text = kernels.read_text()
    right = "np.where(seq_lens_encoder[slot] > 0, 0, position)"
    assert text.count(right) == 1
    kernels.write_text(text.replace(right, "position"))
    suite = ("specdec-hal", "conformance", "--backend", "acme_npu", "--op", "gather_accepted")
    report = json.loads(environment.output(*suite, "--jobs", 2, "--json", status=1))
    shown = [result for result in report["results"] if result["reproduction"]]
    assert shown
    assert shown[0]["op"] == "gather_accepted"
    again = environment.output("python", "-c", shown[0]["reproduction"])
    assert re.match(r"'rows'\[\d+\] is \d+, expected \d+", again)
    kernels.write_text(text)
