"""Decodes with EAGLE-3 heads: a perfect one is always right, any other drafts what it would without a cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import ConfigError, UnsupportedError
from specdec_hal.models.eagle3 import eagle3_head
from specdec_hal.proposers import eagle3
from specdec_hal.runner import Request, SamplingParams, build_runner
from specdec_hal_conformance.statistics import ALPHA, g_test
from tests.support.committed_drafters import acceptance_of
from tests.support.drafters import perfect
from tests.support.eagle3 import PROMPTS, decode, make_runner
from tests.support.history_model import HistoryModel
from tests.support.llama_oracle import oracle, stored

FRAMEWORKS = ["paddle", pytest.param("transformers", marks=pytest.mark.torch)]


def with_head(path: Path, **more: Any) -> dict[str, Any]:
    return {"method": "eagle3", "eagle3": {"path": str(path)}, "adaptive": False, **more}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("strategy", "temperature"), [("greedy", 0.0), ("target_match", 1.0), ("rejection", 0.0), ("rejection", 1.0)]
)
def test_every_draft_of_a_perfect_head_is_accepted(
    tmp_path: Path, framework: str, strategy: str, temperature: float
) -> None:
    """Prompts in chunks, in more slots than there are; sampled tokens are those of plain decoding."""
    target, head = perfect(tmp_path / "target")
    drafting = with_head(head.write_speculators(tmp_path / "head"), verify_strategy=strategy)
    outputs = decode(make_runner(target, drafting, framework), temperature)
    assert all(output.drafted == output.accepted > 10 for output in outputs)
    if strategy != "rejection":
        plain = decode(make_runner(target, {"method": "naive"}, framework), temperature)
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]


@pytest.mark.parametrize("framework", ["auto", pytest.param("device", marks=pytest.mark.torch)])
@pytest.mark.parametrize("mask", [None, 5])
@pytest.mark.parametrize("options", [{}, {"norm_before_residual": True, "fc_norm": True, "norm_output": True}])
def test_drafts_are_those_without_a_cache(
    tmp_path: Path, options: dict[str, bool], mask: int | None, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a head that is often wrong, in every round: its cache holds the target's features of all that was accepted."""
    if mask is not None:
        pytest.importorskip("torch", reason="PyTorch computes parallel heads (pip install 'specdec-hal[torch]')")
    target, head = perfect(tmp_path / "target")
    generator = np.random.default_rng(3)
    head.options, head.draft_vocab_size = options, 9
    ids = np.sort(generator.choice(12, 9, replace=False))
    exact = {**head.tensors, "lm_head.weight": head.tensors["lm_head.weight"][ids]}
    exact |= {f"fc_norm.{i}.weight": np.ones(16) for i in range(3)} if options else {}
    head.tensors = {name: value + 0.05 * generator.standard_normal(value.shape) for name, value in exact.items()}
    head.tensors |= {"d2t": ids - np.arange(9), "lm_head.weight": stored(target)["lm_head.weight"][ids]}
    kind = {"speculators_model_type": "peagle", "mask_token_id": mask} if mask is not None else {}
    if mask is not None:
        head.tensors["mask_hidden"] = generator.standard_normal((1, 1, head.features))
    folder = head.write_speculators(tmp_path / "head", ("lm_head.weight",), **kind)
    passes, name = 0, "forward_device" if framework == "device" else "forward"

    def counting_head(*args: Any) -> Any:
        module = eagle3_head(*args)
        compute = getattr(module, name)

        def counted(*args: Any) -> Any:
            nonlocal passes
            passes += 1
            return compute(*args)

        setattr(module, name, counted)
        return module

    monkeypatch.setattr(eagle3, "eagle3_head", counting_head)
    runner = make_runner(
        target, {"method": "auto", "path": str(folder), "verify_strategy": "greedy", "adaptive": False}, framework
    )
    outputs = decode(runner)
    assert 0 < runner.summary()["acceptance_rate"] < 0.9
    steps = runner.summary()["steps"]
    assert passes <= steps if mask is not None else passes > 2 * steps
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for round_ in output.drafts:
            text = [*prompt, *output.token_ids[: round_.start]]
            given = np.concatenate([oracle(target, np.array(text[:-1]), tap=tap - 1) for tap in head.taps], -1)
            count = len(round_.token_ids)
            wanted = head.chain(text, given, count) if mask is None else head.parallel(text, given, count, mask)
            assert list(round_.token_ids) == wanted


def test_auto_knows_the_format_and_says_what_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, head = perfect(tmp_path / "target")
    folder = head.write_original(tmp_path / "head")
    with caplog.at_level(logging.INFO, "specdec_hal"):
        runner = make_runner(target, {"method": "auto", "path": str(folder), "adaptive": False})
    assert runner.config.speculative.method == "eagle3"
    assert any("residuals after 1, 2, 4 of its layers" in record.message for record in caplog.records)
    assert all(output.drafted == output.accepted > 10 for output in decode(runner))


def test_settings_take_the_place_of_what_the_head_says(tmp_path: Path) -> None:
    target, head = perfect(tmp_path / "target")
    folder = head.write_speculators(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[1, 3, 4], norm_output=True)
    settings = {"path": str(folder), "layers": [1, 2, 4], "norm_output": False}
    runner = make_runner(target, {"method": "eagle3", "eagle3": settings, "adaptive": False})
    assert runner.proposer.hidden_layers == (0, 1, 3)
    assert all(output.drafted == output.accepted > 10 for output in decode(runner))
    for layers in ([1, 2], [2, 1, 4], [1, 2, 5]):
        with pytest.raises(ConfigError, match=r"eagle3\.layers: expected 3 different numbers in ascending order"):
            make_runner(target, {"method": "eagle3", "eagle3": {**settings, "layers": layers}})


def test_what_is_refused(tmp_path: Path) -> None:
    target, head = perfect(tmp_path / "target")
    with pytest.raises(ConfigError, match=r"speculative\.eagle3\.path: expected the folder of a drafter"):
        make_runner(target, {"method": "eagle3"})
    folder = head.write_speculators(tmp_path / "head")
    config = parse({"speculative": with_head(folder)})
    with pytest.raises(UnsupportedError, match="lends its embedding, got HistoryModel"):
        build_runner(config, ReferenceBackend(), HistoryModel())  # type: ignore[arg-type]
    other = head.write_speculators(tmp_path / "other", speculators_model_type="mtp")
    with pytest.raises(UnsupportedError, match=r"a target of transformers for the module in .*other, got LlamaPaddle"):
        make_runner(target, {"method": "auto", "path": str(other)})


def test_the_committed_head_is_worth_its_while() -> None:
    """On real text: the tokens of plain decoding, with drafts that are far from what chance accepts."""
    first, second, third = acceptance_of(
        "tiny-py-lm-eagle3", "reference.yaml", ["runner.max_num_seqs=2"], tokens=24, temperatures=[0, 0.8, 0, 0.8]
    )
    assert first > 0.5 and first > second > third > 0.15


def test_rejection_keeps_the_distribution_with_a_reduced_vocabulary(tmp_path: Path) -> None:
    """The joint one of three tokens: the head cannot propose one of them, and is wrong about the others."""
    target, head = perfect(tmp_path / "target", vocabulary=4)
    logits = np.stack([oracle(target, np.array([token]))[-1] for token in range(4)])
    ids = np.array([0, 1, 3])
    head.draft_vocab_size = 3
    rows = head.tensors["lm_head.weight"][ids] * np.random.default_rng(5).uniform(0.2, 1.5, (3, 1))
    head.tensors |= {"lm_head.weight": rows, "d2t": ids - np.arange(3)}
    drafting = with_head(head.write_speculators(tmp_path / "head"), verify_strategy="rejection", adaptive=False)
    runner = make_runner(target, drafting, max_num_seqs=200)
    for seed in range(400):
        runner.add_request(Request(str(seed), [0, 2, 1], SamplingParams(max_new_tokens=5, seed=seed, temperature=1.0)))
    counts = np.zeros((4, 4, 4))
    for output in runner.run().values():
        counts[tuple(output.token_ids[:3])] += 1
    assert 0 < runner.summary()["acceptance_rate"] < 1 and counts.sum() == 400
    step = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert g_test(counts, step[1][:, None, None] * step[:, :, None] * step[None]) > ALPHA
