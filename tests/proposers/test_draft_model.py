"""Proposers that are built in decode to the tokens of plain decoding; a draft model's cache is that of its request."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec_hal as sd
from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config import parse
from specdec_hal.errors import CheckpointError, UnsupportedError
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ForwardBatch, ModelConfig
from specdec_hal.runner import Request, RequestOutput, SamplingParams, build_runner
from tests.proposers.conftest import PROPOSERS, registry_with_draft_model, settings_of
from tests.runner.conftest import PrefillFirst
from tests.support.cuda_on_host import CudaOnHost, why_not
from tests.support.decoding import outputs_of
from tests.support.drafters import perfect
from tests.support.eagle3 import make_runner
from tests.support.history_model import CONTEXT, VOCABULARY, DeviceHistoryModel, HistoryModel

ROOT = Path(__file__).parents[2]
TINY, DRAFT = ROOT / "models/tiny-py-lm", ROOT / "models/tiny-py-lm-draft"
_NOISE = np.random.default_rng(8).normal(0, 1.0, (VOCABULARY, VOCABULARY)).astype(np.float32)


class Imitator(HistoryModel):
    """Nearly the target; like it, it refuses to look at a position that was never written."""

    def forward(self, batch: ForwardBatch) -> dict[int, Any]:
        hidden = super().forward(batch)[FINAL_NORM]
        hidden[:, :VOCABULARY] += _NOISE[batch.token_ids]
        return {FINAL_NORM: hidden}


class DeviceImitator(DeviceHistoryModel):
    """The same over device tensors, where the target marks such a position by NaN."""

    def forward_device(self, batch: DeviceBatch, out: Any) -> None:
        super().forward_device(batch, out)
        out[FINAL_NORM][:, :VOCABULARY] += _NOISE[batch.token_ids[:, 0].clip(0, VOCABULARY - 1)]


class OnHost(CudaOnHost):
    """CUDA kernels over the tensors of a runner on a CPU."""

    device_name = "cpu"


def backends() -> list[Any]:
    return [ReferenceBackend(), sd.get_backend("cpu"), *([] if why_not() else [OnHost()])]


BACKENDS = backends()
Requests = list[tuple[list[int], SamplingParams]]


def decode(
    asked: Requests, backend: Any, *, plain: bool = False, model: Any = None, **keys: Any
) -> list[RequestOutput]:
    """The outputs of these requests; `keys`: method, slots, chunk, k, strategy, adaptive, device (models), overlap."""
    on_device = keys.get("device", False)
    speculative: dict[str, Any] = {"method": "naive"}
    if not plain:
        method = keys.get("method", "imitation")
        speculative = {"method": method, "num_speculative_tokens": keys["k"], "adaptive": False}
        if section := settings_of(method):
            speculative[method] = section
        speculative |= {
            "verify_strategy": keys.get("strategy", "target_match"),
            "adaptive": keys.get("adaptive", False),
        }
    registry = registry_with_draft_model(lambda: model or (DeviceImitator() if on_device else Imitator()))
    sizes = {"max_num_seqs": keys.get("slots", 1), "prefill_chunk": keys.get("chunk", 8), "block_size": 3}
    config = parse(
        {"runner": {**sizes, "overlap": keys.get("overlap", False)}, "speculative": speculative}, registry=registry
    )
    runner = build_runner(config, backend, DeviceHistoryModel() if on_device else HistoryModel(), registry=registry)
    if plain:
        asked = [(prompt, params.model_copy(update={"num_speculative_tokens": None})) for prompt, params in asked]
    return outputs_of(runner, *asked)


def params(temperature: float) -> st.SearchStrategy[SamplingParams]:
    return st.builds(
        SamplingParams,
        temperature=st.just(temperature),
        top_p=st.sampled_from([1.0, 0.8]),
        seed=st.integers(-(2**63), 2**63 - 1),
        max_new_tokens=st.integers(1, 14),
        num_speculative_tokens=st.sampled_from([None, None, 0, 1]),
    )


prompts = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=20)


@settings(max_examples=50)
@given(data=st.data())
def test_tokens_are_those_of_plain_decoding(data: st.DataObject) -> None:
    greedy = data.draw(st.booleans())
    asked = data.draw(st.lists(st.tuples(prompts, params(0.0 if greedy else 0.8)), min_size=1, max_size=4))
    strategy = data.draw(st.sampled_from(["greedy", "target_match"])) if greedy else "target_match"
    keys = {name: data.draw(st.integers(1, most)) for name, most in (("slots", 3), ("chunk", 9), ("k", 5))}
    backend = data.draw(st.sampled_from(BACKENDS))
    method, adaptive = data.draw(st.sampled_from(PROPOSERS)), data.draw(st.booleans())
    device = data.draw(st.booleans())
    overlap = device and method != "suffix" and data.draw(st.booleans())
    expected = decode(asked, BACKENDS[0], plain=True)
    kind = {"method": method, "strategy": strategy, "adaptive": adaptive, "device": device, "overlap": overlap}
    drafted = decode(asked, backend, **kind, **keys)
    for output, wanted in zip(drafted, expected, strict=True):
        assert (output.token_ids, output.finish_reason, output.error) == (wanted.token_ids, wanted.finish_reason, "")


@settings(max_examples=25)
@given(
    asked=st.lists(st.tuples(prompts, params(0.8)), min_size=2, max_size=4),
    slots=st.integers(2, 4),
    chunk=st.integers(1, 9),
    device=st.booleans(),
)
def test_drafts_do_not_depend_on_the_batch(asked: Requests, slots: int, chunk: int, device: bool) -> None:
    """Nor on who chains them. Under REJECTION a draft that were drawn otherwise would end in other tokens."""
    together = decode(asked, BACKENDS[0], k=3, slots=slots, chunk=chunk, strategy="rejection", device=device)
    for request, output in zip(asked, together, strict=True):
        (alone,) = decode([request], BACKENDS[1], k=3, chunk=20, strategy="rejection")
        assert (alone.token_ids, alone.accepted_draft) == (output.token_ids, output.accepted_draft)


@pytest.mark.parametrize("device", [False, True])
def test_a_perfect_model_is_never_refused(device: bool) -> None:
    """The draws of draft and target agree wherever their logits do."""
    asked = [([7, 8], SamplingParams(max_new_tokens=30, temperature=1.0, seed=seed)) for seed in range(6)]
    model = DeviceHistoryModel() if device else HistoryModel()
    for output in decode(asked, BACKENDS[0], k=3, slots=2, model=model, device=device):
        assert output.accepted == output.drafted > 0


WHERE = ["device", "device, overlapped", "host", "host, prefill first"]


@pytest.mark.parametrize("drafter", [*(f"imitation, {where}" for where in WHERE[:2]), *(f"mtp, {w}" for w in WHERE)])
@pytest.mark.parametrize("blocks", [12, 48], ids=["few blocks", "enough blocks"])
@pytest.mark.parametrize(("k", "chunk"), [(1, 1), (1, 9), (4, 2), (4, 9)])
def test_a_drafter_that_is_always_right_is_always_accepted(drafter: str, blocks: int, k: int, chunk: int) -> None:
    """Its inputs are in place: it looks at each token of its text, the first one included.

    Whatever was rejected, chunked, reordered, preempted, or not drafted for some steps; a position that it lacks has it
    draft nothing, or fail.
    """
    method, on_device = drafter.partition(",")[0], "device" in drafter
    registry = registry_with_draft_model(DeviceHistoryModel)
    speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": k, "adaptive": False}
    if section := settings_of(method):
        speculative[method] = section
    sizes = {"max_num_seqs": 3, "prefill_chunk": chunk, "block_size": 4, "num_kv_blocks": blocks}
    sizes["overlap"] = "overlapped" in drafter
    config = parse({"runner": sizes, "speculative": speculative}, registry=registry)
    backend = PrefillFirst() if "prefill first" in drafter else ReferenceBackend()
    backend.debug = True
    model = DeviceHistoryModel() if on_device else HistoryModel()
    runner = build_runner(config, backend, model, registry=registry)
    wanted = (None, None, 1, 0, None)
    asked = [
        ([3, 4, 5 + i] * (1 + i), SamplingParams(max_new_tokens=21, num_speculative_tokens=most))
        for i, most in enumerate(wanted)
    ]
    for i, (prompt, params) in enumerate(asked):
        runner.add_request(Request(str(i), prompt, params))
    lengths, steps = runner.state.request, 0
    while runner.has_requests:
        runner.step()
        steps += 1
        for slot, sequence in runner.scheduler.running.items() if method == "imitation" else ():
            # No drafts in two of five steps.
            most = sequence.request.params.num_speculative_tokens
            lengths.host["draft_token_num"][slot] = (k if most is None else most) if steps % 5 < 3 else 0
    outputs, summary = runner.take_finished(), runner.summary()
    assert summary["failed_steps"] == summary["failed_proposals"] == 0
    assert (summary["preemptions"] > 0) == (blocks == 12 and on_device)
    for i, most in enumerate(wanted):
        output = outputs[str(i)]
        assert output.token_ids == decode([asked[i]], ReferenceBackend(), plain=True)[0].token_ids
        assert (output.drafted == 0) == (most == 0)
        if not summary["preemptions"]:  # which drops unverified drafts
            assert output.accepted == output.drafted
    # Where it drafts nothing though it may, it has not read everything.
    assert summary["drafted_tokens"] > 5 * k
    assert method == "imitation" or outputs["0"].steps == -(-20 // (k + 1))


def test_a_forward_that_fails_leaves_nothing_behind() -> None:
    """The tokens that were not read are read again."""
    model = Imitator()
    model.failures.append(MemoryError("out of memory"))
    asked = [([3, 4, 5] * 3, SamplingParams(max_new_tokens=20))]
    (output,) = decode(asked, BACKENDS[0], k=3, model=model)
    assert output.token_ids == decode(asked, BACKENDS[0], plain=True)[0].token_ids
    assert output.accepted > 0


def test_another_vocabulary() -> None:
    class Other(HistoryModel):
        config = ModelConfig(vocab_size=25, hidden_size=25, max_position_embeddings=CONTEXT)

    with pytest.raises(
        UnsupportedError, match=r"vocabulary of 24 tokens without a tokenizer .*, got 25 in .*nowhere; choose a draft"
    ):
        decode([], BACKENDS[0], k=2, model=Other())


class TestEmbeddedModel:
    def runtime(self, path: Path = DRAFT, *overrides: str) -> Any:
        pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
        chosen = (
            "speculative.method=draft_model",
            "speculative.adaptive=false",
            f"speculative.draft_model.path={path}",
        )
        return sd.load(ROOT / "configs/reference.yaml", [*chosen, "model.framework=paddle", *overrides])

    def test_real_text(self) -> None:
        runtime = self.runtime(DRAFT, "speculative.num_speculative_tokens=3", "runner.max_num_seqs=2")
        runner = runtime.runner()
        plain = runtime.naive()
        texts = [path.read_text().rstrip("\n") for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]
        requests = [
            Request(str(i), runner.tokenizer.encode(text), SamplingParams(max_new_tokens=32, temperature=i % 2, seed=i))
            for i, text in enumerate(texts)
        ]

        def run(runner: Any) -> dict[str, RequestOutput]:
            for request in requests:
                runner.add_request(request)
            outputs: dict[str, RequestOutput] = runner.run()
            return outputs

        drafted = run(runner)
        expected = run(plain.runner(model=runner.model, tokenizer=runner.tokenizer))
        assert {name: o.token_ids for name, o in drafted.items()} == {name: o.token_ids for name, o in expected.items()}
        assert runner.summary()["tokens_per_step"] > 1.3

    def test_another_tokenizer(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = tmp_path / "other"
        shutil.copytree(DRAFT, folder)
        raw = json.loads((folder / "tokenizer.json").read_text())
        ids = raw["model"]["vocab"]
        first, second = list(ids)[300:302]
        ids[first], ids[second] = ids[second], ids[first]
        (folder / "tokenizer.json").write_text(json.dumps(raw))
        with caplog.at_level(logging.INFO, "specdec_hal"):
            self.runtime(folder).runner()
        shared = re.search(r"it drafts the (\d+) of the target's 4096 tokens", caplog.text)
        assert shared and int(shared[1]) > 4000  # all but what both tokenizers lack

    def test_a_model_trained_to_draft_in_parallel(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """It drafts, and a warning says what it could do elsewhere."""
        folder = tmp_path / "pard"
        shutil.copytree(DRAFT, folder)
        raw = json.loads((folder / "config.json").read_text())
        for more, said in ({}, False), ({"pard_token": 5}, True):
            (folder / "config.json").write_text(json.dumps(raw | more))
            caplog.clear()
            self.runtime(folder).runner()
            assert ("PARD: its config.json has pard_token" in caplog.text) == said


def test_a_drafter_is_no_draft_model(tmp_path: Path) -> None:
    """Its kind is named; one that nothing reads is refused as such."""
    target, head = perfect(tmp_path / "target")
    folder = head.write_speculators(tmp_path / "head")
    settings = {"method": "draft_model", "draft_model": {"path": str(folder)}}
    with pytest.raises(UnsupportedError, match=r"expected a whole model in .*, got a drafter of the kind 'eagle3'"):
        make_runner(target, settings)
    raw = json.loads((target / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "architectures": ["XPressSpeculator"]}))
    with pytest.raises(CheckpointError, match=r"a drafter of a known format .* got XPressSpeculator"):
        make_runner(target, settings)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("method", ["imitation", "mtp", "hybrid"])
def test_a_request_that_drafts_again_lacks_nothing(method: str, device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under adaptive lengths; the models of these tests fail where they would look at a row that was never written."""
    limits = iter([0, 0, 3, 1, 0, 0, 0, 3, 3] * 100)
    choose = "specdec_hal.runner.draft_length.DraftLengths.limits"
    monkeypatch.setattr(choose, lambda self, rows: np.array([next(limits) for _ in rows]))
    prompts = [[3, 4, 5, 6], [7, 8]]
    registry = registry_with_draft_model(DeviceHistoryModel if device else HistoryModel)
    speculative = {"method": method, "num_speculative_tokens": 3, "adaptive": True, method: settings_of(method)}
    if not speculative[method]:
        del speculative[method]
    config = parse({"runner": {"max_num_seqs": 2, "block_size": 3}, "speculative": speculative}, registry=registry)
    runner = build_runner(
        config, ReferenceBackend(), DeviceHistoryModel() if device else HistoryModel(), registry=registry
    )
    outputs_of(runner, *((prompt, SamplingParams(max_new_tokens=30)) for prompt in prompts))
    summary = runner.summary()
    assert summary["failed_proposals"] == 0
    assert summary["accepted_tokens"] > 5
