"""GGUF files under llama.cpp: its bits, its cache, its tokenizer, and every proposer's tokens."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.config import parse
from specdec_hal.errors import ArgumentError, BackendUnavailableError, CheckpointError, RequestError, UnsupportedError
from specdec_hal.models import llama_cpp_api as api
from specdec_hal.models import load_model, load_tokenizer
from specdec_hal.models.chat import load_chat_template
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.plugin.proposer import SlotView
from specdec_hal.runner import Request, SamplingParams, build_runner
from specdec_hal.tensors.views import as_numpy
from tests.support.guess import Guess, with_proposer
from tests.support.scripts import script

pytestmark = pytest.mark.gguf
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models/tiny-py-lm"
Rows = np.ndarray


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf") / "tiny-py-lm.gguf"
    script("examples/gguf/hf_to_gguf.py").convert(MODEL, target)
    return target


@pytest.fixture(scope="module")
def model(file: Path) -> Any:
    model = load_model(file, threads=1, batch_invariant=True)
    assert model.capabilities.stable_row_counts is None
    model.allocate(3, 700)
    return model


def rewritten(source: Path, target: Path, changes: dict[str, Any]) -> Path:
    """A GGUF file with the vocabulary of another and other metadata; None removes a key."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in changes:
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for name, value in changes.items():
        if value is not None:
            kind = gguf.GGUFValueType.BOOL if isinstance(value, bool) else gguf.GGUFValueType.STRING
            writer.add_key_value(name, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def step(model: Any, *parts: tuple[int, int, Sequence[int]]) -> list[Rows]:
    """Feed (slot, position, tokens) together; the logits of each."""
    segments, start = [], 0
    for slot, position, tokens in parts:
        segments.append(Segment(slot, start, len(tokens), position))
        start += len(tokens)
    ids = np.concatenate([np.asarray(tokens, np.int64) for *_, tokens in parts])
    logits = model.compute_logits(model.forward(ForwardBatch(ids, segments))[FINAL_NORM])
    return [logits[s.start : s.start + s.length] for s in segments]


def text(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 4000, count).tolist()


def test_logits_are_those_of_another_implementation(file: Path) -> None:
    ids = text(200)
    other, ours = load_model(MODEL), load_model(file, dtype="float32")
    for each in (other, ours):
        each.allocate(1, 256)
    expected, got = (as_numpy(step(each, (0, 0, ids))[0]) for each in (other, ours))
    assert np.abs(got - expected).max() < 1e-3 * expected.std()


def test_bits_do_not_depend_on_how_many_tokens_share_a_step(model: Any) -> None:
    ids = text(600)
    (whole,) = step(model, (0, 0, ids))
    for start in (0, 251, 500):
        step(model, (1, 0, ids[:start])) if start else None
        end = start + 60
        for size in (1, 2, 3, 7, 9, 13, 64, 100):  # each writes over what the one before left behind `start`
            parts = [step(model, (1, at, ids[at : min(at + size, end)]))[0] for at in range(start, end, size)]
            np.testing.assert_array_equal(np.concatenate(parts), whole[start:end], str((start, size)))


def test_other_requests_do_not_matter(model: Any) -> None:
    texts = [text(n, n) for n in (90, 37, 300)]
    alone = [step(model, (0, 0, ids))[0] for ids in texts]
    for order in ((0, 1, 2), (2, 0, 1)):
        together = step(model, *((slot, 0, texts[slot]) for slot in order))
        for slot, logits in zip(order, together, strict=True):
            np.testing.assert_array_equal(logits, alone[slot])


def test_rejected_positions_leave_nothing_behind(model: Any) -> None:
    ids = text(50)
    (whole,) = step(model, (0, 0, ids))
    step(model, (1, 0, ids[:20]))
    for at in range(20, 50, 3):
        step(model, (1, at, [*ids[at : at + 2], *text(7, at)]))  # two right drafts, seven wrong ones
        np.testing.assert_array_equal(step(model, (1, at, ids[at : at + 3]))[0], whole[at : at + 3])


def test_logits_are_computed_for_what_is_asked(model: Any) -> None:
    ids = np.array(text(40))
    whole = model.compute_logits(model.forward(ForwardBatch(ids, [Segment(0, 0, 40, 0)]))[FINAL_NORM])
    tickets = model.forward(ForwardBatch(ids, [Segment(0, 0, 40, 0, outputs=1)]))[FINAL_NORM]
    np.testing.assert_array_equal(model.compute_logits(tickets[-1:]), whole[-1:])
    assert np.isnan(model.compute_logits(tickets[:1])).all()


def test_without_stable_bits_requests_share_a_pass(file: Path) -> None:
    model = load_model(file, threads=1)
    assert model.capabilities.stable_row_counts == ()
    model.allocate(3, 700)
    texts = [text(n, n) for n in (600, 1, 9)]
    alone = [step(model, (0, 0, ids))[0] for ids in texts]
    for logits, expected in zip(step(model, *((s, 0, ids) for s, ids in enumerate(texts))), alone, strict=True):
        assert np.abs(logits - expected).max() < 0.05 * expected.std()
        assert (logits.argmax(-1) == expected.argmax(-1)).mean() > 0.95


PROMPTS = [path.read_text().removesuffix("\n") for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 5, "repetition_penalty": 1.1}])
def test_drafts_change_the_steps_and_not_the_tokens(file: Path, sampling: dict[str, Any]) -> None:
    """Requests together, with drafts, in short chunks, against one after the other without."""
    tokenizer = load_tokenizer(file)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    outputs = []
    for speculative, runner_settings in (
        ({"method": "ngram", "num_speculative_tokens": 8, "adaptive": False}, {"max_num_seqs": 3, "prefill_chunk": 37}),
        ({"method": "naive"}, {"max_num_seqs": 1}),
    ):
        config = parse({"speculative": speculative, "runner": {**runner_settings, "max_model_len": 1024}})
        runner = sd.build_runner(
            config, sd.get_backend("reference"), load_model(file, threads=1, batch_invariant=True), tokenizer
        )
        for at, prompt in enumerate(prompts):
            runner.add_request(sd.Request(str(at), prompt, sd.SamplingParams(max_new_tokens=40, **sampling)))
        outputs.append(runner.run())
    drafted, plain = outputs
    assert {n: out.token_ids for n, out in drafted.items()} == {n: out.token_ids for n, out in plain.items()}
    assert sum(out.accepted for out in drafted.values()) > 20


def test_its_configuration_drafts_plain_tokens(file: Path) -> None:
    outputs = []
    for speculative in ([], ["speculative.method=naive"]):
        settings = [f"model.path={file}", "engine.batch_invariant=true", "model.num_threads=1", *speculative]
        runner = sd.load(ROOT / "configs/llama_cpp.yaml", settings).runner()
        assert runner.model.framework == "llama.cpp"
        prompt = runner.tokenizer.encode("def add(a, b):\n")
        runner.add_request(sd.Request("a", prompt, sd.SamplingParams(max_new_tokens=64)))
        outputs.append(runner.run()["a"])
    drafted, plain = outputs
    assert drafted.token_ids == plain.token_ids
    assert drafted.accepted > 20 and not plain.accepted


@pytest.mark.parametrize("invariant", [False, True])
def test_residuals_are_those_of_another_implementation(file: Path, invariant: bool) -> None:
    """Of two slots, in passes that begin in the middle of a text; taken up in a later pass, and after a new cache."""
    ours, other = load_model(file, dtype="float32", threads=1, batch_invariant=invariant), load_model(MODEL)
    assert list(ours.capabilities.hidden_layers) == list(range(7)) and ours.config.hidden_size == 256
    ids = np.array(text(700))
    for cache in (64, 700):
        for model in (ours, other):
            model.allocate(2, cache)
        model_steps: list[tuple[Any, tuple[int, ...]]] = [
            ([(0, 0, 20), (1, 0, 9)], ()), ([(0, 20, 3), (1, 9, 30)], (6, 1)), ([(1, 30, cache - 40)], (0, 6)),
        ]  # fmt: skip
        for parts, layers in model_steps:
            segments, start = [], 0
            for slot, position, length in parts:
                segments.append(Segment(slot, start, length, position))
                start += length
            batch = ForwardBatch(ids[:start], segments, hidden_layers=layers)
            given, expected = (model.forward(batch) for model in (ours, other))
            for layer in layers:
                wanted = as_numpy(expected[layer])
                np.testing.assert_allclose(given[layer], wanted, atol=1e-3 * float(np.abs(wanted).max()))


def test_embedding_and_head_are_lent(file: Path) -> None:
    ours, other = load_model(file, threads=1), load_model(MODEL)
    rows = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    np.testing.assert_allclose(ours.embed(np.array([0, 7, 4095])), as_numpy(other.embed(np.array([0, 7, 4095]))))
    np.testing.assert_allclose(ours.head_logits(rows), as_numpy(other.compute_logits(rows)), rtol=1e-3, atol=1e-3)


def test_tables_need_the_package_gguf(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_hal.models.llama_cpp.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match="expected the package gguf"):
        load_model(file, threads=1).embed(np.array([0]))


@pytest.mark.torch
@pytest.mark.parametrize(("method", "layers"), [("eagle3", [2, 4, 7]), ("dflash", [2, 4, 6, 7])])
def test_trained_drafters_draft_as_for_another_implementation(file: Path, method: str, layers: list[int]) -> None:
    """The same drafts in every round, with the committed drafters, whose last tap moves to a residual that exists."""
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
    tokenizer = load_tokenizer(file)
    speculative = {
        "method": method, "path": f"{MODEL}-{method}", "adaptive": False, "num_speculative_tokens": 4,
        "calibrate": False, "verify_strategy": "greedy", method: {"layers": layers},
    }  # fmt: skip
    found = []
    for target in (load_model(file, threads=1, dtype="float32"), load_model(MODEL, "transformers")):
        settings = {"max_num_seqs": 2, "prefill_chunk": 37, "max_model_len": 512}
        config = parse({"speculative": speculative, "runner": settings})
        runner = sd.build_runner(config, sd.get_backend("reference"), target, tokenizer)
        for at, prompt in enumerate(PROMPTS[:2]):
            params = sd.SamplingParams(max_new_tokens=24, return_drafts=True)
            runner.add_request(sd.Request(str(at), tokenizer.encode(prompt), params))
        found.append(runner.run())
    ours, other = found
    for name, output in ours.items():
        assert output.token_ids == other[name].token_ids
        assert output.drafts == other[name].drafts and len(output.drafts) > 3
    assert sum(output.accepted for output in ours.values()) > 5


@pytest.mark.torch
def test_a_drafter_of_the_last_residual_is_refused(file: Path) -> None:
    """The committed head reads the residual after all 8 layers."""
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
    config = parse({"speculative": {"method": "eagle3", "path": f"{MODEL}-eagle3", "calibrate": False}})
    with pytest.raises(UnsupportedError, match=r"hidden states of the layers \[7\], the model gives those of \[0, 1"):
        sd.build_runner(config, sd.get_backend("reference"), load_model(file, threads=1), load_tokenizer(file))


def test_the_final_norm_is_refused(file: Path) -> None:
    model = load_model(file, threads=1)
    model.allocate(1, 64)
    batch = ForwardBatch(np.array([1, 2]), [Segment(0, 0, 2, 0)], hidden_layers=(FINAL_NORM,))
    with pytest.raises(ArgumentError, match="hidden_layers"):
        model.forward(batch)


# ---- the tokenizer


def test_text_goes_there_and_back(file: Path) -> None:
    from tokenizers import Tokenizer, pre_tokenizers

    library = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # GGUF's rule "gpt-2"
    tokenizer = load_tokenizer(file)
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids, tokenizer.bos_token_id) == (4096, (0,), 0)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        assert tokenizer.decode(ids) == prompt
        assert ids == library.encode(prompt).ids
    for odd in ("", "é", "naïve Grüße, 数学 🙂", "\0", "<|endoftext|>"):
        ids = tokenizer.encode(odd)
        assert tokenizer.decode(ids) == odd
        detokenizer = tokenizer.detokenizer()
        pieces = [detokenizer.push(token) for token in ids] + [detokenizer.finish()]
        assert "".join(pieces) == odd
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert tokenizer.encode("<|endoftext|>") == [0]  # one special token, as Hugging Face's tokenizers have it
    assert tokenizer.decode([0]) == "<|endoftext|>"
    assert tokenizer.decode([-1, 4096]) == ""


@pytest.mark.parametrize("text", ["\ud83d", "a \udc00 b"])
def test_half_of_a_character_is_refused(file: Path, text: str) -> None:
    with pytest.raises(RequestError, match="it has half of a surrogate pair; replace it"):
        load_tokenizer(file).encode(text)


def test_special_tokens_are_added_as_the_file_says(file: Path, tmp_path: Path) -> None:
    plain = load_tokenizer(file).encode("def f():")
    for key in ("add_bos_token", "add_eos_token"):
        changed = rewritten(file, tmp_path / f"{key}.gguf", {f"tokenizer.ggml.{key}": True})
        added = load_tokenizer(changed).encode("def f():")
        assert added == ([0, *plain] if key == "add_bos_token" else [*plain, 0])
        assert load_tokenizer(changed).encode("def f():", add_special_tokens=False) == plain


def test_the_chat_template_of_a_file(file: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert load_chat_template(file).render(messages) == "hi"  # the embedded model's
    source = "{{ eos_token }}{{ messages[0].content }}{{ bos_token }}"
    keys = {"tokenizer.chat_template": source, "tokenizer.chat_template.tool_use": "{{ tools | length }} tools"}
    changed = load_chat_template(rewritten(file, tmp_path / "own.gguf", keys))
    assert changed.render(messages) == "<|endoftext|>hi<|endoftext|>"
    assert changed.render(messages, tools=[{}, {}]) == "2 tools"
    assert load_chat_template(rewritten(file, tmp_path / "none.gguf", {"tokenizer.chat_template": None})) is None


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (lambda f: f.with_name("other.gguf"), {}, CheckpointError, "expected a GGUF file, got nothing there"),
        (lambda f: f, {"device": "cuda:0"}, ArgumentError, "argument 'device': expected cpu, got 'cuda:0'"),
        (lambda f: f, {"dtype": "int8"}, ArgumentError, "float32 or float16 or bfloat16"),
        (lambda f: f, {"framework": "paddle"}, ArgumentError, "for a GGUF file, got 'paddle'"),
        (lambda f: MODEL, {"framework": "llama.cpp"}, CheckpointError, "expected a GGUF file, got a folder"),
    ],
)
def test_what_cannot_be_loaded(
    file: Path, change: Callable[[Path], Path], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_model(change(file), **options)


@pytest.mark.parametrize("size", [0, 100, 1_000_000])
def test_a_file_that_is_cut_off(file: Path, tmp_path: Path, size: int) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:size])
    for load in (load_model, load_tokenizer) if size < 1_000_000 else (load_model,):
        with pytest.raises(CheckpointError, match=r"broken\.gguf: expected a GGUF file that llama\.cpp reads, got: "):
            load(broken)


def test_batches_that_do_not_fit_change_nothing(model: Any) -> None:
    ids = text(30)
    (expected,) = step(model, (0, 0, ids))
    step(model, (0, 0, ids[:20]))
    for part, message in (
        ((0, 25, ids[25:]), r"segments\[0\].position': expected at most 20, what slot 0 holds, got 25"),
        ((3, 0, ids), r"segments\[0\].slot"),
        ((0, 20, [4096]), "token_ids"),
        ((0, 690, ids), "positions in"),
    ):
        with pytest.raises(ArgumentError, match=message):
            step(model, part)
    np.testing.assert_array_equal(step(model, (0, 20, ids[20:]))[0], expected[20:])


def test_a_cache_must_be_allocated(file: Path) -> None:
    fresh = load_model(file, threads=1)
    with pytest.raises(ArgumentError, match=r"expected a call of allocate\(\) first"):
        step(fresh, (0, 0, [1]))
    for slots, length in ((0, 10), (1, 0), (257, 10)):
        with pytest.raises(ArgumentError, match="allocate"):
            fresh.allocate(slots, length)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2027.1.5")
    with pytest.raises(
        UnsupportedError, match=r"llama.cpp \(xllamacpp\) 2027\.1\.5: expected a version .*\(2026\.10\)"
    ):
        api.load.__wrapped__()


def test_another_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(api.FUNCTIONS, "llama_frobnicate", (None, ()))
    with pytest.raises(UnsupportedError, match=r"expected llama\.cpp with a function llama_frobnicate, got none"):
        api.load.__wrapped__()


@pytest.fixture(scope="module")
def hybrid(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An LFM2 with random weights: short convolutions, and attention between them."""
    import gguf

    target, rng, kinds = tmp_path_factory.mktemp("hybrid") / "lfm2.gguf", np.random.default_rng(0), "caac"
    writer, reader = gguf.GGUFWriter(target, "lfm2"), gguf.GGUFReader(file)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            types = field.types
            writer.add_key_value(name, field.contents(), types[0], types[-1] if len(types) > 1 else None)
    vocabulary, d, heads, width, ffn = len(reader.fields["tokenizer.ggml.tokens"].contents()), 32, 4, 8, 48
    writer.add_block_count(len(kinds))
    writer.add_context_length(512)
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0 if kind == "c" else 2 for kind in kinds])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_shortconv_l_cache(3)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(vocabulary)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocabulary, d), "token_embd_norm": (d,)}
    for i, kind in enumerate(kinds):
        layer = {"attn_norm": (d,), "ffn_norm": (d,), "ffn_gate": (ffn, d), "ffn_up": (ffn, d), "ffn_down": (d, ffn)}
        if kind == "c":
            layer |= {"shortconv.conv": (d, 3), "shortconv.in_proj": (3 * d, d), "shortconv.out_proj": (d, d)}
        else:
            layer |= {"attn_q": (heads * width, d), "attn_k": (2 * width, d), "attn_v": (2 * width, d)}
            layer |= {"attn_output": (d, heads * width), "attn_q_norm": (width,), "attn_k_norm": (width,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    for name, shape in shapes.items():
        values = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) / np.sqrt(shape[-1])
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_states_go_back_by_drafts(hybrid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own rolling set of states: slots with other numbers of drafts, accepted and rejected, in small passes."""
    from specdec_hal.models import llama_cpp

    model, rng = load_model(hybrid, threads=1, dtype="float32"), np.random.default_rng(1)
    model.allocate_states(3, 3)
    model.allocate(3, 128)
    texts = [text(100, seed) for seed in range(3)]
    whole = [step(model, (0, 0, ids))[0] for ids in texts]
    monkeypatch.setattr(llama_cpp, "BATCH", 6)
    at = [10, 11, 12]
    step(model, *((slot, 0, texts[slot][:end]) for slot, end in enumerate(at)))
    while max(at) < 96:
        lengths = rng.integers(1, 5, 3).tolist()
        right = [int(rng.integers(length)) for length in lengths]
        parts = []
        for slot, (length, good) in enumerate(zip(lengths, right, strict=True)):
            ids = np.array(texts[slot][at[slot] : at[slot] + length])
            ids[1 + good :] = ids[1 + good :] % 4000 + 1
            parts.append((slot, at[slot], ids))
        for slot, logits in enumerate(step(model, *parts)):
            end = at[slot] + 1 + right[slot]
            np.testing.assert_allclose(logits[: 1 + right[slot]], whole[slot][at[slot] : end], atol=1e-3)
            at[slot] = end
    with pytest.raises(UnsupportedError, match=r"a refusal of llama.cpp; .*allocate_states\(\) for more than 3 drafts"):
        step(model, (1, 40, texts[1][40:41]))
    np.testing.assert_allclose(step(model, (1, 0, texts[1][:9]))[0], whole[1][:9], atol=1e-3)


def test_drafts_of_a_hybrid(hybrid: Path) -> None:
    """The tokens of plain decoding, with slots that are used again; its states are counted."""
    known, model = dict[tuple[int, ...], list[int]](), load_model(hybrid, threads=1, dtype="float32")

    class Planned(Guess):
        def tokens(self, view: SlotView) -> Sequence[int]:
            made = len(view.token_ids)
            drafts = known[tuple(view.prompt_token_ids)][made : made + min(4, view.max_drafts)]
            return [*drafts[: made % 4], *(draft + 1 for draft in drafts[made % 4 :])]

    registry, texts = with_proposer(Planned), list[Any]()
    for method, drafts in (("naive", 0), ("guess", 4)):
        speculative = {"method": method, "num_speculative_tokens": drafts, "adaptive": False}
        speculative |= {"guess": {"guess": 4}} if drafts else {}
        sections = {"speculative": speculative, "runner": {"max_num_seqs": 2, "max_model_len": 128}}
        config = parse(sections, registry=registry)
        runner = build_runner(config, sd.get_backend("cpu"), model, registry=registry)
        for number in range(4):
            params = SamplingParams(max_new_tokens=24, ignore_eos=True)
            runner.add_request(Request(str(number), text(5 + number, number), params))
        outputs = runner.run()
        texts.append([list(outputs[str(number)].token_ids) for number in range(4)])
        known |= {tuple(text(5 + number, number)): texts[0][number] for number in range(4)}
        assert runner.state_bytes == model.state_bytes >= 2 * (1 + drafts) * 2 * 32 * 2 * 4  # of two convolutions
    assert texts[0] == texts[1]
    assert runner.summary()["drafted_tokens"] > runner.summary()["accepted_tokens"] > 20


def test_states_that_cannot_go_back(hybrid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where llama.cpp keeps fewer states, as for some architectures, and with padded passes."""
    model = load_model(hybrid, threads=1)
    monkeypatch.setattr(model.api, "llama_n_rs_seq", lambda context: 0)
    model.allocate_states(1, 3)
    with pytest.raises(
        UnsupportedError, match=r"states go back by 3 tokens, got 0 from llama\.cpp; use the checkpoint's"
    ):
        model.allocate(1, 64)
    with pytest.raises(ArgumentError, match=r"batch_invariant.*expected false for a model with recurrent layers"):
        load_model(hybrid, threads=1, batch_invariant=True)
