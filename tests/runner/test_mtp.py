"""MTP and hybrid drafts: the embedded model decodes the tokens of plain decoding, in fewer steps; what is refused."""

from __future__ import annotations

import itertools
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specdec_hal as sd
from specdec_hal.errors import UnsupportedError
from specdec_hal.plugin.model import ModelCapabilities
from specdec_hal.proposers.mtp import mention_training
from specdec_hal.runner import ModelRunner
from tests.runner.conftest import make_runner
from tests.support.decoding import outputs_of
from tests.support.history_model import HistoryModel

ROOT = Path(__file__).parents[2]
PROMPTS = sorted((ROOT / "examples" / "prompts").glob("*.txt"))


@cache
def loaded(framework: str) -> tuple[Any, Any]:
    pytest.importorskip(framework)
    runtime = sd.load(ROOT / "configs/reference.yaml", [f"model.framework={framework}"])
    return runtime.load_model(), runtime.load_tokenizer()


def runner(framework: str, method: str, *overrides: str) -> ModelRunner:
    model, tokenizer = loaded(framework)
    settings = ["backend.name=cpu", f"speculative.method={method}", "speculative.adaptive=false", *overrides]
    return sd.load(ROOT / "configs/reference.yaml", settings).runner(model=model, tokenizer=tokenizer)


def decode(runner: ModelRunner, texts: list[list[int]], params: sd.SamplingParams) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs_of(runner, *((text, params) for text in texts))]


@pytest.mark.parametrize("framework", ["paddle", pytest.param("transformers", marks=pytest.mark.torch)])
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    method=st.sampled_from(["mtp", "hybrid"]), strategy=st.sampled_from(["greedy", "target_match"]),
    k=st.integers(1, 8), batch=st.integers(1, 4), chunk=st.integers(3, 64), seed=st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_the_tokens_of_plain_decoding(
    framework: str, method: str, strategy: str, k: int, batch: int, chunk: int, seed: int
) -> None:
    params = sd.SamplingParams(max_new_tokens=10, temperature=0.0 if strategy == "greedy" else 0.8, seed=seed)
    overrides = (
        f"speculative.verify_strategy={strategy}", f"speculative.num_speculative_tokens={k}",
        "runner.max_num_seqs=3", f"runner.prefill_chunk={chunk}",
    )  # fmt: skip
    drafted = runner(framework, method, *overrides)
    texts = [drafted.tokenizer.encode(prompt.read_text())[: 12 + 9 * i] for i, prompt in enumerate(PROMPTS)][:batch]
    tokens = decode(drafted, texts, params)
    assert drafted.summary()["drafted_tokens"] > 0
    assert drafted.summary()["failed_steps"] == drafted.summary()["failed_proposals"] == 0
    assert tokens == decode(runner(framework, "naive"), texts, params)


def test_the_module_is_worth_its_while() -> None:
    """Far from what chance accepts: its inputs are those it was trained on."""
    drafted = runner("paddle", "mtp", "speculative.num_speculative_tokens=3")
    texts = [drafted.tokenizer.encode(prompt.read_text().rstrip("\n")) for prompt in PROMPTS]
    decode(drafted, texts, sd.SamplingParams(max_new_tokens=48))
    first, second, third = drafted.summary()["acceptance_by_position"]
    assert first > 0.7
    assert first > second > third > 0.3


def test_a_model_without_a_module_is_refused_by_name() -> None:
    class Plain(HistoryModel):
        capabilities = ModelCapabilities(stable_row_counts=None)

    for method in ("mtp", "hybrid"):
        with pytest.raises(UnsupportedError, match=f"'{method}'.*num_nextn_predict_layers"):
            make_runner(model=Plain(), speculative={"method": method})


@pytest.mark.parametrize(("k", "times"), [(0, 0), (1, 0), (5, 1)])
def test_more_drafts_than_were_trained_are_mentioned_once(k: int, times: int, caplog: Any) -> None:
    mention_training.cache_clear()
    with caplog.at_level(logging.WARNING, "specdec_hal"):
        for _ in range(2):
            decoding = make_runner(speculative={"method": "mtp", "num_speculative_tokens": k})
        for number in range(3):
            decoding.add_request(sd.Request(str(number), [3, 4, 5], sd.SamplingParams(max_new_tokens=8)))
        decoding.run()
    assert sum("trained for one draft" in record.message for record in caplog.records) == times


def test_hybrid_goes_on_where_the_module_stops() -> None:
    """One draft of the module, and then what followed it before."""
    decoding = make_runner(
        speculative={
            "method": "hybrid",
            "num_speculative_tokens": 4,
            "verify_strategy": "greedy",
            "hybrid": {"num_model_steps": 1},
        }
    )
    wanted = {"0": 4, "1": 1, "2": 0}
    for name, most in wanted.items():
        params = sd.SamplingParams(max_new_tokens=40, num_speculative_tokens=most)
        decoding.add_request(sd.Request(name, [3, 4, 5] * 4, params))
    outputs = decoding.run()
    tokens = {output.token_ids for output in outputs.values()}
    assert len(tokens) == 1
    assert outputs["0"].steps < outputs["1"].steps < outputs["2"].steps
    assert outputs["2"].drafted == 0
    # A module that is always right: its own draft is accepted in every step.
    assert outputs["1"].accepted == outputs["1"].drafted
    flags = outputs["1"].accepted_draft
    assert not any(a and b for a, b in itertools.pairwise(flags))


def test_a_slot_that_was_fed_after_it_had_stopped() -> None:
    """With overlap the step behind a request's last one still feeds it, and the rows of the others stand after."""
    runner = make_runner(
        prefill_first=True,
        runner={"max_num_seqs": 2, "prefill_chunk": 1, "overlap": True},
        speculative={"method": "hybrid", "num_speculative_tokens": 1, "hybrid": {"num_model_steps": 1}},
    )
    runner.add_request(sd.Request("ends", [1], sd.SamplingParams(temperature=1.0, max_new_tokens=2, seed=0)))
    runner.step()
    runner.add_request(sd.Request("goes on", [1], sd.SamplingParams(temperature=1.0, max_new_tokens=5, seed=0)))
    runner.run()
    assert runner.summary()["failed_proposals"] == 0
