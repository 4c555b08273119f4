"""Decoders with recurrent layers: drafted decoding computes the logits of plain decoding, bit for bit.

Tokens alone are a weak test: a state that is slightly wrong changes few of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.cli import main
from specdec_hal.config import parse
from specdec_hal.errors import ArgumentError, UnsupportedError
from specdec_hal.models import load_model, load_tokenizer
from specdec_hal.ops import Storage, TokenOrder
from specdec_hal.parallel.runner import RankHook
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.plugin.proposer import SlotView
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from tests.parallel.ranks import Threads
from tests.support.byte_level import byte_level_library
from tests.support.drafters import Head
from tests.support.guess import Guess, with_proposer
from tests.support.hf_models import RECURRENT, VOCABULARY, Case, write_model

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("few_sizes")]
pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
# A gated delta rule, a decay per channel, Mamba-2, and a convolution without a recurrence.
KINDS = ("Qwen3_5Text", "KimiLinear", "NemotronH", "Lfm2")
K = 3
LENGTH = 30


class Recording:
    """A model on the host that notes the bits of each row's hidden state, by the text up to it, and of its logits."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._texts: dict[int, list[int]] = {}
        self.rows: dict[tuple[int, ...], bytes] = {}
        self.logits: dict[bytes, bytes] = {}
        self.wrong: list[Any] = []
        """Texts with other bits than before."""
        self.failures = 0
        """How many of the next steps fail."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: ForwardBatch) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("injected")
        out = self._model.forward(batch)
        for one in batch.segments:
            text = self._texts.get(one.slot, [])[: one.position]
            for row in range(one.start, one.start + one.length):
                text.append(int(batch.token_ids[row]))
                self._note(self.rows, tuple(text), out[FINAL_NORM][row])
            self._texts[one.slot] = text
        return out

    def compute_logits(self, hidden: Any) -> Any:
        out = self._model.compute_logits(hidden)
        for state, row in zip(np.asarray(hidden), out, strict=True):
            self._note(self.logits, state.tobytes(), row)
        return out

    def _note(self, known: dict[Any, bytes], key: Any, row: Any) -> None:
        bits = np.asarray(row).tobytes()
        if known.setdefault(key, bits) != bits:
            self.wrong.append(key)


class Planned(Guess):
    """Drafts the known continuation, of every length up to K, often with a wrong token in it."""

    texts: Sequence[Sequence[int]] = ()

    def tokens(self, view: SlotView) -> Sequence[int]:
        text = [*view.prompt_token_ids, *view.token_ids]
        rng = np.random.default_rng(len(text))
        drafts = next(list(one[len(text) :]) for one in self.texts if list(one[: len(text)]) == text)
        drafts = drafts[: min(int(rng.integers(0, K + 1)), view.max_drafts)]
        if drafts and rng.random() < 0.4:
            wrong = int(rng.integers(len(drafts)))
            drafts[wrong] = (drafts[wrong] + 1) % VOCABULARY
        return drafts


class Models:
    """A checkpoint, its model, and what plain decoding computes: tokens and bits."""

    def __init__(self, folder: Path) -> None:
        generator = np.random.default_rng(5)
        beginning = generator.integers(3, VOCABULARY, 9)
        self.prompts = [np.tile(beginning, 2).tolist(), generator.integers(3, VOCABULARY, 21).tolist(), [7, 8], [9]]
        self.case = Case(folder, new_tokens=LENGTH)
        self.model = load_model(folder, "transformers")
        self.plain = Recording(self.model)
        runner = self.runner("naive", self.plain)
        self.tokens = self.run(runner)

    def runner(
        self, method: str, model: Any, *, backend: Any = None, adaptive: bool = False, group: Any = None, **runner: Any
    ) -> ModelRunner:
        def planned(context: Any) -> Planned:
            made = Planned(context)
            made.texts = [[*prompt, *text] for prompt, text in zip(self.prompts, self.tokens, strict=True)]
            return made

        registry = with_proposer(planned)
        speculative = {"method": method, "num_speculative_tokens": 0 if method == "naive" else K, "adaptive": adaptive}
        if method == "eagle3":
            speculative["path"] = str(self.case.folder / "head")
        if method == "guess":
            speculative["guess"] = {"guess": 4}
        settings = {"max_num_seqs": 2, "prefill_chunk": 5, "max_model_len": 96, **runner}
        sections = {"speculative": speculative, "runner": settings, "model": {"path": str(self.case.folder)}}
        if group is not None:
            sections["engine"] = {"tensor_parallel": group.size}
        config = parse(sections, registry=registry)
        hook = None if group is None else RankHook(config, group)
        return build_runner(config, backend or sd.get_backend("cpu"), model, registry=registry, hook=hook)

    def add(self, runner: ModelRunner) -> None:
        params = SamplingParams(max_new_tokens=LENGTH)
        for number, prompt in enumerate(self.prompts):
            runner.add_request(Request(str(number), prompt, params))

    def run(self, runner: ModelRunner, add: bool = True) -> list[list[int]]:
        """Tokens of all prompts, after a check of the bits."""
        made = self.run_plain(runner, add)
        assert runner.model.wrong == []
        return made

    def run_plain(self, runner: ModelRunner, add: bool = True) -> list[list[int]]:
        """The same without a check."""
        if add:
            self.add(runner)
        outputs = runner.run()
        return [list(outputs[str(number)].token_ids) for number in range(len(self.prompts))]

    def recording(self, plain: Recording | None = None, model: Any = None) -> Recording:
        """One that starts with the bits of plain decoding, by default those of the whole model."""
        made, plain = Recording(model or self.model), plain or self.plain
        made.rows, made.logits = dict(plain.rows), dict(plain.logits)
        return made


OTHERS = [pytest.param(kind, marks=pytest.mark.slow) for kind in RECURRENT if kind not in KINDS]


@pytest.fixture(scope="module", params=[*KINDS, *OTHERS])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(write_model(tmp_path_factory.mktemp(request.param), request.param))


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """One kind of layers suffices for what does not depend on it. It has an MTP module, like its attention layer."""
    from safetensors.numpy import load_file, save_file

    folder = write_model(tmp_path_factory.mktemp("delta"), KINDS[0])
    tensors, generator = load_file(folder / "model.safetensors"), np.random.default_rng(2)
    layer = {name: tensor for name, tensor in tensors.items() if name.startswith("model.layers.1.")}
    tensors |= {name.replace("model.layers.1", "mtp.layers.0"): tensor.copy() for name, tensor in layer.items()}
    for name, shape in {"fc": (32, 64), "pre_fc_norm_embedding": 32, "pre_fc_norm_hidden": 32, "norm": 32}.items():
        tensors[f"mtp.{name}.weight"] = (generator.standard_normal(shape) / 8).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return Models(folder)


def test_plain_decoding(models: Models) -> None:
    """Over slots that are used again; all rows have a known text, and the library's tokens."""
    models.case.prompts = models.prompts
    assert models.tokens == models.case.generated
    assert len(models.plain.rows) == sum(len(x) for x in (*models.prompts, *models.tokens)) - len(models.prompts)


@pytest.mark.parametrize("method", ["ngram", "suffix", "guess"])
def test_drafts(models: Models, method: str) -> None:
    """Chunks of prompts, accepted and rejected drafts, steps without any."""
    recording = models.recording()
    runner = models.runner(method, recording)
    assert models.run(runner) == models.tokens
    counted = runner.summary()
    if method == "guess":
        assert len(recording.rows) > len(models.plain.rows)  # those of rejected drafts
        assert 20 < counted["accepted_tokens"] < counted["drafted_tokens"] - 10


@pytest.mark.parametrize("storage", ["states", "replay"])
@pytest.mark.parametrize("changes", [{"prefill_chunk": 1}, {"prefill_chunk": 96, "max_num_seqs": 4}])
def test_other_chunks_and_batches(delta: Models, changes: dict[str, Any], storage: str) -> None:
    assert delta.run(delta.runner("guess", delta.recording(), recurrent_storage=storage, **changes)) == delta.tokens


def test_replayed_updates(models: Models) -> None:
    """One state and a ring of updates have the bits of a state per position: after rejected drafts, in slots that are
    used again, and after failed steps."""
    recording = models.recording()
    runner = models.runner("guess", recording, recurrent_storage="replay")
    models.add(runner)
    for step in range(9):
        recording.failures = int(step == 5)
        runner.step()
    assert models.run(runner, add=False) == models.tokens
    assert runner.metrics.failed_steps == 1
    counted = runner.summary()
    assert 20 < counted["accepted_tokens"] < counted["drafted_tokens"] - 10


def test_ops_are_bound_once(delta: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a size that was there before bind nothing for recurrent layers."""
    runner = delta.runner("naive", delta.model)
    delta.run_plain(runner)
    bound, bind, kind = list[str](), type(runner.backend).bind, type(runner.backend)
    monkeypatch.setattr(kind, "bind", lambda self, op, *a, **k: bound.append(op) or bind(self, op, *a, **k))
    assert delta.run_plain(runner) == delta.tokens
    assert not {"causal_conv1d", "gated_delta_rule"}.intersection(bound)


def test_an_eagle3_head(delta: Models) -> None:
    """With random weights: it reads hidden states of a layer of each kind, and few of its drafts are accepted."""
    Head(VOCABULARY, 32, 4, 2, 8, 40, (1, 2, 3), VOCABULARY).randomize(4).write_speculators(delta.case.folder / "head")
    runner = delta.runner("eagle3", delta.recording())
    assert delta.run(runner) == delta.tokens
    counted = runner.summary()
    assert counted["drafted_tokens"] > 50 and counted["drafted_tokens"] > counted["accepted_tokens"]
    assert not counted["failed_proposals"]


def test_an_mtp_module(delta: Models) -> None:
    runner = delta.runner("mtp", delta.recording())
    assert delta.run(runner) == delta.tokens
    counted = runner.summary()
    assert counted["drafted_tokens"] > counted["accepted_tokens"] and not counted["failed_proposals"]


def test_two_ranks(models: Models) -> None:
    """Of a model that is divided among them, drafted decoding has the logits of plain decoding on each rank."""
    folder = models.case.folder
    if not any("layers." in name for name in models.case.reference.config.base_model_tp_plan or ()):
        with pytest.raises(UnsupportedError, match=r"no plan for tensor parallel|plan is expert parallel"):
            load_model(folder, "transformers", group=Threads(2).rank(0))
        return

    def work(group: Any) -> Any:
        model = load_model(folder, "transformers", group=group)
        plain = Recording(model)
        texts = [models.run(models.runner("naive", plain, group=group))]
        for method, storage in (("ngram", "states"), ("guess", "states"), ("guess", "replay")):
            recording = models.recording(plain, model)
            runner = models.runner(method, recording, group=group, recurrent_storage=storage)
            texts.append(models.run(runner))
        assert len(recording.rows) > len(plain.rows) and len(recording.logits) > len(plain.logits)
        return texts, plain.rows

    (texts, rows), (others, more) = Threads(2).run(work)
    assert texts == others == [models.tokens] * 4
    assert rows == more


def test_adaptive_lengths(delta: Models) -> None:
    assert delta.run(delta.runner("ngram", delta.recording(), adaptive=True)) == delta.tokens


def test_another_order_of_tokens(delta: Models) -> None:
    """Ops take rows in the order of slots, whatever order a backend packs tokens in."""
    backend = sd.get_backend("reference")
    backend.token_order = TokenOrder.PREFILL_FIRST
    orders: set[bool] = set()

    class Watching(Recording):
        def forward(self, batch: ForwardBatch) -> Any:
            slots = [one.slot for one in batch.segments]
            orders.add(slots == sorted(slots))
            return super().forward(batch)

    recording = Watching(delta.model)
    recording.rows = dict(delta.plain.rows)
    assert delta.run(delta.runner("guess", recording, backend=backend, max_num_seqs=3)) == delta.tokens
    assert orders == {True, False}


def test_cancelled_requests(delta: Models) -> None:
    """Their slots go to others, after steps whose drafts nobody verified."""
    recording = delta.recording()
    runner = delta.runner("guess", recording)
    delta.add(runner)
    for step in range(7):
        runner.step()
        if step == 4:
            runner.cancel("0")
    outputs = runner.run()
    assert recording.wrong == []
    assert [list(outputs[name].token_ids) for name in "123"] == delta.tokens[1:]
    assert list(outputs["0"].token_ids) == delta.tokens[0][: len(outputs["0"].token_ids)]


@pytest.mark.parametrize("steps", [1, 6, 13])
def test_a_journal(delta: Models, steps: int) -> None:
    """Another runner, with other slots, computes the same from the beginning."""
    first = delta.runner("guess", delta.recording())
    delta.add(first)
    for _ in range(steps):
        first.step()
    records = json.loads(json.dumps(first.snapshot()))
    second = delta.runner("guess", delta.recording(), max_num_seqs=3)
    second.restore(records)
    assert delta.run(second, add=False) == delta.tokens


def test_failed_steps(delta: Models) -> None:
    """All requests lose their slots and come back."""
    recording = delta.recording()
    runner = delta.runner("guess", recording)
    delta.add(runner)
    for step in range(12):
        recording.failures = int(step in (3, 9))
        runner.step()
    assert delta.run(runner, add=False) == delta.tokens
    assert runner.metrics.failed_steps == 2


def test_the_fault_of_other_engines_is_found(delta: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM #39273: a step without drafts, after one that accepted some, reads the state of that step's first token."""
    from specdec_hal.models.states import StateStore

    begin, last, planted = StateStore.begin_segments, dict[int, Segment](), []

    def wrong(self: Any, segments: Sequence[Segment], first: int, rows: int) -> None:
        for one in segments:
            before = last.get(one.slot)
            if before is not None and one.length == 1 and one.position > before.position + 1:
                for states in (kept["states"] for kept in self._states):
                    size = states.shape[1]
                    states[one.slot, (one.position - 1) % size] = states[one.slot, before.position % size]
                planted.append(one)
            last[one.slot] = one
        begin(self, segments, first, rows)

    monkeypatch.setattr(StateStore, "begin_segments", wrong)
    recording = delta.recording()
    runner = delta.runner("guess", recording)
    delta.add(runner)
    runner.run()
    assert planted and recording.wrong


def test_bytes_of_replayed_updates() -> None:
    """In the shapes of Qwen3.5-4B and Nemotron-H-4B, in bfloat16, at most 1.3 times what a text is continued from."""
    from specdec_hal.models.states import DELTA_RULE, MAMBA2, Recurrence

    qwen = Recurrence(0, 8192, 4, (32, 128, 128), DELTA_RULE, 16)
    for layer in (qwen, Recurrence(0, 9216, 4, (112, 128, 64), MAMBA2, 8)):
        for drafts in (0, 3, 7):
            assert layer.nbytes(drafts, 2, Storage.REPLAY) <= 1.3 * layer.prefix_nbytes(2)
        assert layer.nbytes(3, 2, Storage.STATES) > 4.9 * layer.prefix_nbytes(2)


def steps(model: Any, storage: Storage) -> Callable[[int, int], Any]:
    """A function of a position and a number of tokens, in a slot of a model that keeps room for one draft."""
    model.allocate(2, 64)
    model.allocate_states(2, 1, storage=storage)

    def step(position: int, length: int) -> Any:
        ids = np.arange(3 + position, 3 + position + length)
        return model.forward(ForwardBatch(ids, [Segment(1, 0, length, position)]))[FINAL_NORM]

    return step


def test_replayed_updates_that_are_gone(delta: Models) -> None:
    """A step of a prompt moves the checkpoint to its end: nothing of it can be taken back."""
    step = steps(delta.model, Storage.REPLAY)

    step(0, 7)
    with pytest.raises(ArgumentError, match=r"position of slot 1.*expected 0, or one of 7\.\.7, .*got 6"):
        step(6, 1)
    two = step(7, 2)
    assert (step(8, 1) == two[1:]).all()
    assert (step(0, 9)[7:] == two).all()


def test_states_that_are_gone(delta: Models) -> None:
    """Fewer are kept than a caller would take back: an error by name, and the next step works."""
    step = steps(delta.model, Storage.STATES)

    whole = step(0, 12)
    with pytest.raises(ArgumentError, match=r"position of slot 1.*expected 0, or one of 10\.\.12, .*got 9"):
        step(9, 2)
    with pytest.raises(ArgumentError, match=r"expected 0, or one of 10\.\.12, .*got 13"):
        step(13, 1)
    assert (step(10, 2) == whole[10:]).all()
    assert (step(0, 1) == whole[:1]).all()


def test_memory(delta: Models, caplog: pytest.LogCaptureFixture) -> None:
    """The runner counts the states and reports them."""
    from specdec_hal.runner.footprint import footprint
    from specdec_hal.serve import logs

    caplog.set_level("INFO")
    runner = delta.runner("ngram", delta.model)
    inputs, states = (K + 4) * (2 * 2 * 8 + 4 * 8) * 4, (K + 2) * 4 * 8 * 8 * 4
    assert runner.state_bytes == delta.model.state_bytes == 2 * 2 * (inputs + states)
    logs.started(runner.config, runner, 1.0)
    assert caplog.records[-1].fields["states_mib"] == round(runner.state_bytes / 2**20, 1)  # type: ignore[attr-defined]
    assert footprint(runner.config, delta.model, 96, 96)["recurrent states"] == runner.state_bytes
    assert "recurrent states" not in footprint(runner.config, _Without(delta.model), 96, 96)


class _Without(Recording):
    """The model, as if it had attention only."""

    @property
    def capabilities(self) -> Any:
        return replace(self._model.capabilities, recurrent=False)


def device_model(folder: Path, **changes: Any) -> Any:
    """The model for GPUs, on the host and without our kernels."""
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder

    return DeviceTransformers(load_decoder(write_model(folder, **changes), "cpu", "float32"))


@pytest.mark.parametrize("storage", ["states", "replay"])
@pytest.mark.parametrize("kind", KINDS)
def test_shared_prefixes(tmp_path: Path, kind: str, storage: str) -> None:
    """A state is kept at the last block's end in a prompt, and where its length doubles."""
    model = device_model(tmp_path, kind=kind)
    settings = {"max_num_seqs": 2, "max_model_len": 128, "block_size": 8, "prefill_chunk": 16}
    settings |= {"enable_prefix_caching": True, "recurrent_storage": storage, "num_prefix_states": 4}
    speculative = {"method": "ngram", "num_speculative_tokens": K, "adaptive": False}
    runner = build_runner(parse({"speculative": speculative, "runner": settings}), sd.get_backend("reference"), model)
    generator = np.random.default_rng(1)
    first = generator.integers(3, VOCABULARY, 43).tolist()
    other = first[:35] + generator.integers(3, VOCABULARY, 6).tolist()

    def run(prompt: list[int]) -> tuple[list[int], int | None]:
        runner.add_request(Request("a", prompt, SamplingParams(max_new_tokens=9, ignore_eos=True)))
        output = runner.run()["a"]
        return list(output.token_ids), output.num_cached_tokens

    def fresh(prompt: list[int]) -> list[int]:
        runner.forget()
        tokens, cached = run(prompt)
        assert cached == 0
        return tokens

    wanted = fresh(other), fresh(first)
    # With REPLAY there is a state after chunks of more than half a ring only: 6 rows.
    assert run(first) == (wanted[1], 40)
    assert run(other) == (wanted[0], 32)
    longer = [*first, *wanted[1]]
    assert run(longer) == (fresh(longer), 40)
    assert runner.state_bytes == model.state_bytes


def test_prefixes_without_room_for_states(tmp_path: Path) -> None:
    """Every prompt is computed from its beginning."""
    model = device_model(tmp_path, kind=KINDS[0])
    settings = {"max_num_seqs": 1, "max_model_len": 64, "block_size": 4, "enable_prefix_caching": True}
    config = {"speculative": {"method": "naive"}, "runner": {**settings, "num_prefix_states": 0}}
    runner = build_runner(parse(config), sd.get_backend("reference"), model)
    for name in "ab":
        runner.add_request(Request(name, [5, 6, 7] * 5, SamplingParams(max_new_tokens=4)))
        (output,) = runner.run().values()
        assert output.num_cached_tokens == 0


def test_a_backend_without_the_ops(delta: Models) -> None:
    """Is refused by name when a runner is made, not in its first step."""
    backend = sd.get_backend("reference")
    backend.capabilities = {op: one for op, one in backend.capabilities.items() if op != "gated_delta_rule"}
    with pytest.raises(UnsupportedError, match="backend 'reference' lacks gated_delta_rule, which the model"):
        delta.runner("naive", delta.model, backend=backend)


class RecordingDevice(Recording):
    """The same for a model over device tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._kept: dict[int, list[int]] = {}
        self.resumed = 0

    def keep_prefix(self, slot: int, position: int, entry: int) -> None:
        self._model.keep_prefix(slot, position, entry)
        self._kept[entry] = self._texts[slot][:position]

    def resume_prefix(self, entry: int, slot: int, position: int) -> None:
        self._model.resume_prefix(entry, slot, position)
        self._texts[slot] = self._kept[entry]
        self.resumed += 1

    def forward_device(self, batch: Any, out: Any) -> None:
        self._model.forward_device(batch, out)
        ids, hidden = np.asarray(batch.token_ids).ravel(), np.asarray(out[FINAL_NORM])
        ends, positions = np.asarray(batch.cu_seqlens_q), np.asarray(batch.seq_lens_decoder)
        for slot, (start, end) in enumerate(pairwise(ends.tolist())):
            text = self._texts.get(slot, [])[: positions[slot]]
            for row in range(start, end):
                text.append(int(ids[row]))
                self._note(self.rows, tuple(text), hidden[row])
            self._texts[slot] = text


@pytest.mark.slow
def test_bits_of_the_gpu_model(tmp_path: Path, triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our kernels, and so few blocks that requests lose them and come back, or a prefix that is shared."""
    import torch

    from specdec_hal.models.transformers import device
    from specdec_hal.models.transformers.gates import DeltaLayer
    from specdec_hal.models.transformers.load import load_decoder
    from specdec_hal.models.triton_kernels.launcher import Launcher
    from specdec_hal.runner import build as build_module
    from specdec_hal.tensors.on_torch import TorchDevice

    on_host = triton_device == "cpu"
    if on_host:
        monkeypatch.setattr(build_module, "get_device", lambda place, framework: TorchDevice("cpu"))
        monkeypatch.setattr(device, "SIZES", (1, 3))
    # A row's gates fill whole vectors of PyTorch's operators on a CPU, whose tails have other bits.
    few = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 32}
    decoder = load_decoder(write_model(tmp_path, KINDS[0], **few), triton_device, "float32")
    make = partial(Launcher, torch.device(triton_device))
    model = device.DeviceTransformers(decoder, make_launcher=make, batch_invariant=True)
    assert model.capabilities.static_shapes
    assert sum(isinstance(module.forward, DeltaLayer) for module in decoder.model.modules()) == 1
    prompts, rows, texts = ([7, 8] * 4 + [5], [9, 5, 6], [11], [7, 8] * 4 + [3]), None, None
    runs = ("naive", "states", 4), ("ngram", "replay", 4), ("ngram", "states", 12), ("ngram", "replay", 12)
    for method, storage, blocks in runs:
        recording = RecordingDevice(model)
        settings = {"max_num_seqs": 2, "prefill_chunk": 8, "max_model_len": 24, "block_size": 8}
        settings |= {"num_kv_blocks": blocks, "recurrent_storage": storage, "enable_prefix_caching": blocks > 4}
        speculative = {"method": method, "num_speculative_tokens": 0 if method == "naive" else K, "adaptive": False}
        config = parse({"speculative": speculative, "runner": settings})
        runner = build_runner(config, sd.get_backend("cpu" if on_host else "cuda"), recording)  # type: ignore[arg-type]
        for number, prompt in enumerate(prompts):
            runner.add_request(Request(str(number), prompt, SamplingParams(max_new_tokens=9, ignore_eos=True)))
        done = runner.run()
        outputs = [list(done[str(number)].token_ids) for number in range(len(prompts))]
        assert recording.wrong == []
        assert (runner.scheduler.preemptions > 0, recording.resumed > 0) == (blocks == 4, blocks > 4)
        if rows is None:
            rows, texts = recording.rows, outputs
        assert outputs == texts
        assert {text: bits for text, bits in recording.rows.items() if text in rows}.items() <= rows.items()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder and a method are enough."""
    folder = write_model(tmp_path, KINDS[0], vocab_size=320)
    byte_level_library().save(str(folder / "tokenizer.json"))
    settings = (f"model.path={folder}", "speculative.method=ngram", "backend.name=cpu", "sampling.max_new_tokens=12")
    command = ["generate", "--json", "--prompt", "abcabcabc", *(word for one in settings for word in ("--set", one))]
    assert main(command) == 0
    (result,) = json.loads(capsys.readouterr().out)["requests"]
    case = Case(folder)
    case.prompts = [load_tokenizer(folder).encode("abcabcabc")]
    assert result["token_ids"] == case.generated[0]
