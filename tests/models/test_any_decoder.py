"""Decoders of `transformers` over our KV cache: tiny random checkpoints of many architectures, against the library."""

from __future__ import annotations

import json
import re
import unittest.mock
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal.cli import main
from specdec_hal.errors import BackendUnavailableError, CheckpointError, UnsupportedError
from specdec_hal.models import load_model
from specdec_hal.models.loader import checkpoint_memory
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from tests.support.architectures import Models, write
from tests.support.hf_models import ARCHITECTURES, RECURRENT, REFUSED, SPARSE, VOCABULARY, write_model

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("few_sizes")]
pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    made = Models(write_model(tmp_path_factory.mktemp(request.param.replace(" ", "-")), request.param))
    made.kind = request.param
    yield made


def test_logits(case: Models) -> None:
    """Of two texts in parts that share steps, with rows that are taken back; every layer's hidden states too."""
    model, reference = case.host, case.reference
    texts = np.random.default_rng(0).integers(3, VOCABULARY, (2, 40))
    layers = tuple(range(len(model.capabilities.hidden_layers) - 1))
    assert len(layers) == reference.config.num_hidden_layers
    hidden = case.check_logits(texts, layers)
    import torch

    with torch.inference_mode():
        states = reference(torch.as_tensor(texts[:1]), output_hidden_states=True).hidden_states
    for layer in layers[:-1]:  # the library gives the last one after the norm
        np.testing.assert_allclose(hidden[layer], states[layer + 1][0, :19].numpy(), rtol=0, atol=1e-3)


def test_tokens(case: Models) -> None:
    """Those of `generate`, without drafts and with, which so change no token."""
    assert case.host.capabilities.stable_row_counts == (() if case.kind in SPARSE else None)
    accepted = 0
    for method in ("none", "ngram", "suffix"):
        tokens, counted = case.decode(case.host, method)
        assert tokens == case.generated, method
        accepted += counted["accepted_tokens"]
    assert accepted > 0 or case.kind in RECURRENT  # test_recurrent gives these drafts that are accepted


def test_bits(case: Models) -> None:
    """A row's depend on no other row, also through experts, each of which gets another number of rows in each step."""
    model, generator, known = case.host, np.random.default_rng(0), dict[int, bytes]()
    if model.capabilities.stable_row_counts == ():
        assert case.kind in SPARSE
        return
    model.allocate(13, 8)
    for count in (1, 2, 13, 3, 7, 1, 12, 4, 2, 13, 9, 13, 1, 13):
        ids = generator.integers(3, 40, count)
        rows = model.forward(ForwardBatch(ids, [Segment(slot, slot, 1, 0) for slot in range(count)], ()))[FINAL_NORM]
        for token, row in zip(ids.tolist(), rows, strict=True):
            assert known.setdefault(token, row.numpy().tobytes()) == row.numpy().tobytes(), (count, token)


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_layers_like_llamas_run_without_the_library(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a step takes longer on a CPU, and nothing else would show it."""
    import transformers

    case = Models(write_model(tmp_path, kind))
    model, expected = case.host, case.generated
    monkeypatch.delattr(getattr(transformers, f"{kind}Model"), "forward")
    assert case.decode(model, "ngram")[0] == expected


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3"])  # with biases of queries, keys and values, and with norms of heads
def test_layers_that_compute_something_else_stay_the_library_s(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by other rotations: weights then have their first order."""
    import transformers

    from specdec_hal.models.transformers import host, packed

    monkeypatch.setattr(host, "rotary_table", lambda base, positions: rotations(base, positions).flip(0))
    rotations = packed.rotary_table
    case = Models(write_model(tmp_path, kind))
    model, theirs = case.host, getattr(transformers, f"{kind}Model")
    with unittest.mock.patch.object(theirs, "forward", autospec=True, side_effect=theirs.forward) as forward:
        assert case.decode(model, "ngram")[0] == case.generated
    assert forward.called


def test_a_limit_that_few_values_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that limit activations stay the library's, also if the text of the trial does not reach the limit."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    def forward(self: Any, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=1.2) * self.up_proj(x))

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    case = Models(write_model(tmp_path, "Llama"))
    got, want = first_logits(case.folder, 80), case.logits(np.arange(3, 83))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * max(1.0, np.abs(want).max()))


def test_tokens_over_a_small_pool(case: Models) -> None:
    """The model for GPUs: requests lose their blocks and come back."""
    drafted, counted = case.decode(case.device, "ngram", block_size=4, num_kv_blocks=11)
    assert drafted == case.generated
    assert counted["preemptions"] > 0


# Norms of heads and a gated MLP, experts and sinks, another rotary embedding and norm, learned positions, ALiBi, heads
# that are rotated in part and whole.
@pytest.mark.parametrize("kind", ["Qwen3", "GptOss", "Cohere", "GPT2", "Bloom", "Falcon", "Laguna"])
def test_kernels(kind: str, triton_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model for GPUs with our kernels, which leave no product to the library."""
    import torch

    from specdec_hal.models.transformers import device
    from specdec_hal.models.transformers.load import load_decoder
    from specdec_hal.models.triton_kernels.launcher import Launcher

    monkeypatch.setattr(device, "SIZES", (1, 3))
    layers = "n_layer" if kind in ("GPT2", "Bloom") else "num_hidden_layers"
    few = {layers: 1} if kind != "Laguna" else {}  # Triton's interpreter takes seconds for each
    case = Models(write_model(tmp_path, kind, **few))
    decoder = load_decoder(case.folder, triton_device, "float32")
    make = partial(Launcher, torch.device(triton_device))
    model = device.DeviceTransformers(decoder, make_launcher=make, batch_invariant=True)
    assert not [module for module in decoder.model.modules() if type(module) is torch.nn.Linear]
    texts = np.random.default_rng(0).integers(3, VOCABULARY, (2, 10))
    model.allocate(2, 32)
    attention, without_modes = Launcher.attention, set[bool]()

    def watched(launcher: Launcher, *args: Any, **options: Any) -> None:
        without_modes.add(torch._C._is_torch_function_all_disabled())
        attention(launcher, *args, **options)

    monkeypatch.setattr(Launcher, "attention", watched)

    def logits(*parts: tuple[int, int, int]) -> list[Any]:
        ids = np.concatenate([texts[slot][first:last] for slot, first, last in parts])
        ends = np.cumsum([last - first for _, first, last in parts])
        segments = [
            Segment(slot, int(end) - last + first, last - first, first)
            for end, (slot, first, last) in zip(ends, parts, strict=True)
        ]
        rows = model.compute_logits(model.forward(ForwardBatch(ids, segments, ()))[FINAL_NORM])
        return list(np.split(rows.cpu().numpy(), ends[:-1]))

    (first,) = logits((0, 0, 7))
    second, other = logits((0, 7, 10), (1, 0, 10))
    for text, got in zip(texts, (np.concatenate([first, second]), other), strict=True):
        np.testing.assert_allclose(got, case.logits(text), rtol=0, atol=1e-4)
    assert without_modes == {kind == "Qwen3"}, "a layer of ours alone waits for no mode at each attribute of a tensor"


@pytest.mark.parametrize(
    "kind",
    ["Llama", "GPT2", "DeepseekV3", "DeepseekV32", "GlmMoeDsa", "GptOss", "Falcon", "Bloom", "Qwen3_5Text", "NemotronH",
     "FalconH1", "Lfm2", "KimiLinear", "Gemma4Text shared"],
)  # fmt: skip
def test_memory(kind: str, tmp_path: Path) -> None:
    """What loading will take is known before: weights, and the cache of the model for GPUs."""
    case = Models(write_model(tmp_path, kind))
    host = checkpoint_memory(case.folder, "transformers")
    assert host is not None and host.kv_position == 0
    taken = sum(weight.nbytes for weight in case.reference.parameters())  # less a few buffers
    assert host.weights["weights"] == pytest.approx(taken, rel=1e-3)
    device = checkpoint_memory(case.folder, "transformers", device="cuda:0")
    assert device is not None and device.kv_position == case.device.bytes_per_block(1)
    assert device.hidden_row == 4 * case.reference.config.hidden_size


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says whether bits are promised."""
    folder = write_model(tmp_path, "Llama")
    for setting, how in (("null", "do not depend"), ("false", "may depend")):
        settings = (f"model.path={folder}", "model.framework=transformers", f"engine.batch_invariant={setting}")
        assert main(["explain", *(word for setting in settings for word in ("--set", setting))]) == 0
        assert f"a token's bits {how}" in capsys.readouterr().out


def first_logits(folder: Path, rows: int = 8) -> Any:
    """Those of the text 3, 4, ..."""
    model = load_model(folder, "transformers")
    model.allocate(1, rows)
    batch = ForwardBatch(np.arange(3, 3 + rows) % VOCABULARY, [Segment(0, 0, rows, 0)])
    return model.compute_logits(model.forward(batch)[FINAL_NORM]).numpy()


def test_biases_that_the_library_rounds(tmp_path: Path) -> None:
    """Falcon's to bfloat16: from position 257 on two keys may have the same."""
    case = Models(write_model(tmp_path, "Falcon ALiBi", num_attention_heads=8, max_position_embeddings=640))
    want = case.logits(np.arange(3, 603) % VOCABULARY)
    np.testing.assert_allclose(first_logits(case.folder, 600), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("original", [20, 64])
def test_longrope(original: int, tmp_path: Path) -> None:
    """The engine's longest context, 64, chooses one of two sets of frequencies; texts of 40 tokens have the same."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original, **factors}
    options = {"original_max_position_embeddings": original, "rope_parameters": rope}
    case = Models(write_model(tmp_path, "Phi3", num_attention_heads=2, **options))
    ids = np.arange(3, 43)
    case.host.allocate(1, 64)
    hidden = case.host.forward(ForwardBatch(ids, [Segment(0, 0, len(ids), 0)]))[FINAL_NORM]
    got, want = case.host.compute_logits(hidden).numpy(), case.logits(ids)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * max(1.0, np.abs(want).max()))


def test_a_projected_embedding(tmp_path: Path) -> None:
    """OPT-350m's is narrower than its layers, and so is what its head reads."""
    case = Models(write_model(tmp_path, "OPT", word_embed_proj_dim=16, do_layer_norm_before=False))
    assert case.host.config.hidden_size == 16
    for method in ("none", "ngram"):
        assert case.decode(case.host, method)[0] == case.generated


@pytest.mark.parametrize(
    ("kind", "text", "options"),
    [
        ("Gemma3", {}, {"mm_tokens_per_image": 4}),
        ("SmolVLM", {"model_type": "llama", "pad_token_id": 0}, {}),  # its text model has another name
        ("Mistral3", {"model_type": "mistral"}, {"tie_word_embeddings": True}),  # which is not said of the text model
    ],
    ids=["Gemma3", "SmolVLM", "Mistral3"],
)
def test_a_decoder_that_is_a_part_of_another_model(
    kind: str, text: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """With a vision tower, for texts."""
    import torch
    import transformers

    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "Mistral3":
        vision |= {"model_type": "pixtral", "head_dim": 16}
    text = {**ARCHITECTURES["Gemma3" if kind == "Gemma3" else "Llama"], **text, "vocab_size": VOCABULARY}
    parts = {"text_config": text, "vision_config": {**vision, "image_size": 28, "patch_size": 14}}
    config = getattr(transformers, f"{kind}Config")(**parts, **options)
    whole = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    whole.save_pretrained(tmp_path)
    with torch.inference_mode():
        want = whole(torch.arange(3, 11)[None]).logits[0].numpy()
    np.testing.assert_allclose(first_logits(tmp_path), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen2_vl", "kimi_k25"])  # with M-RoPE; with the names of weights of the whole alone
def test_the_text_of_a_model_that_sees(kind: str, tmp_path: Path) -> None:
    """Its class has the decoder; the tower for images is dropped."""
    import torch

    from specdec_hal.models.transformers.load import load_decoder

    whole = write(tmp_path, kind)
    text = torch.arange(3, 11)[None]
    with torch.inference_mode():
        want = whole(text, attention_mask=torch.ones_like(text)).logits[0].numpy()
    np.testing.assert_allclose(first_logits(tmp_path), want, rtol=0, atol=1e-5)
    towers = [name for name, _ in whole.named_parameters() if "vis" in name and "projector" not in name]
    kept = dict(load_decoder(tmp_path, "cpu", "float32").model.named_parameters())
    assert towers and kept.keys().isdisjoint(towers)


# Two attentions in a layer; one called twice, for the same keys; a stack of layers called several times.
@pytest.mark.parametrize("kind", ["longcat_flash", "diffllama", "hrm_text"])
def test_layers_with_several_attentions(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each call has keys and values of its own."""
    write(tmp_path, kind)
    case = Models(tmp_path)
    with caplog.at_level("WARNING", logger="specdec_hal"):
        case.check_logits(np.random.default_rng(0).integers(3, VOCABULARY, (2, 40)))
    assert ("prefix_lm is not applied" in caplog.text) == (kind == "hrm_text")


def test_a_failed_pass_leaves_no_call_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one begins with the first call of each layer."""
    from specdec_hal.models.attention import HostStore

    write(tmp_path, "diffllama")
    expected = first_logits(tmp_path)
    model = load_model(tmp_path, "transformers")
    model.allocate(1, 8)
    batch = ForwardBatch(np.arange(3, 11), [Segment(0, 0, 8, 0)])
    with monkeypatch.context() as patch:
        attend = HostStore.attend

        def failing(self: Any, layer: Any, *tensors: Any) -> Any:
            if layer.index == 1:  # the second call of the first layer
                raise RuntimeError("full")
            return attend(self, layer, *tensors)

        patch.setattr(HostStore, "attend", failing)
        with pytest.raises(RuntimeError, match="full"):
            model.forward(batch)
    again = model.compute_logits(model.forward(batch)[FINAL_NORM]).numpy()
    np.testing.assert_array_equal(again, expected)


def test_a_first_layer_without_rotary_embedding(tmp_path: Path) -> None:
    """A rotation that a trial left to its last layer is not applied to it."""
    kinds = ["full_attention", "sliding_attention"]
    case = Models(write_model(tmp_path, "Exaone4", layer_types=kinds, num_hidden_layers=2))
    case.check_logits(np.random.default_rng(0).integers(3, VOCABULARY, (2, 40)))


def test_code_that_does_not_run_on_packed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaModel

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("images wanted")

    monkeypatch.setattr(LlamaModel, "forward", forward)
    write_model(tmp_path, "Llama")
    with pytest.raises(UnsupportedError, match=r"LlamaForCausalLM: it does not run on packed rows .*images wanted"):
        load_model(tmp_path, "transformers")


def test_a_gguf_file(tmp_path: Path) -> None:
    """Without the package accelerate, which the library's own way of reading one wants."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install gguf)")
    case = Models(write_model(tmp_path / "folder", "Qwen3", use_sliding_window=False, head_dim=128))
    config, file = case.reference.config, tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([str(i) for i in range(VOCABULARY)])
    writer.add_token_merges(["1 2"])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for name, weight in case.reference.state_dict().items():
        writer.add_tensor(names.get_name(name, (".weight",)), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.testing.assert_allclose(first_logits(file), case.logits(np.arange(3, 11)), rtol=0, atol=1e-5)


def change_weights(folder: Path, change: Any) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_quantisation(folder: Path, method: dict[str, Any]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    return folder


@pytest.mark.parametrize(
    ("method", "error", "reason"),
    [
        ({"quant_method": "?"}, UnsupportedError, "^LlamaForCausalLM: transformers does not know its {}"),
        ({"quant_method": "torchao", "quant_type": {}}, UnsupportedError, "{}: tensors of torchao cannot be used"),
        ({"quant_method": "quanto"}, UnsupportedError, "{}: transformers cannot save such weights"),
        ({"quant_method": "hqq"}, BackendUnavailableError, "{} needs, got ImportError: .*HQQ.*; install the"),
        ({"quant_method": "gptq", "bits": 4}, BackendUnavailableError, "{} needs, got ImportError: .*; install the"),
        ({"quant_method": "awq", "bits": 4}, BackendUnavailableError, "{} needs, got ImportError: .*; install the"),
    ],
)
def test_refused_quantisations(method: dict[str, Any], error: Any, reason: str, tmp_path: Path) -> None:
    """By name, with the package that a method wants."""
    named = re.escape(f"quantization_config.quant_method '{method.get('quant_method')}'")
    with pytest.raises(error, match=reason.format(named)):
        load_model(with_quantisation(write_model(tmp_path, "Llama"), method), "transformers")


def test_a_quantisation_that_fails_in_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by name, whichever part of loading meets it."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    from specdec_hal.models.transformers import host, load

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise TypeError("unpacked")

    folder, reason = write_model(tmp_path, "Llama"), r"quant_method 'awq' does not run here \(TypeError: unpacked\)"
    monkeypatch.setattr(load, "quantisation_of", lambda config: "quantization_config.quant_method 'awq'")
    for part, name in ((host, "install"), (LlamaMLP, "forward")):
        monkeypatch.setattr(part, name, fail)
        with pytest.raises(UnsupportedError, match=f"^LlamaForCausalLM: quantization_config.{reason}"):
            load_model(folder, "transformers")


def test_layers_of_quantisations_stay_as_they_are(tmp_path: Path) -> None:
    """Those of bitsandbytes are packed again after a state_dict, with other values; others have a `forward`."""
    import torch

    from specdec_hal.models.transformers.load import load_decoder, unwrap
    from specdec_hal.models.transformers.replace import is_linear
    from specdec_hal.models.transformers.survey import kind_of

    model = load_decoder(write_model(tmp_path, "Llama"), "cpu", "float32").model
    one, two, three = (model.model.layers[0].mlp.get_submodule(f"{name}_proj") for name in ("gate", "up", "down"))
    three.register_state_dict_pre_hook(lambda *args: pytest.fail("packed again"))
    assert kind_of(model.model.layers[0])
    one.quantization_scheme = SimpleNamespace(input_activations=None, output_activations=None)
    two.quantization_scheme = SimpleNamespace(input_activations="int8", output_activations=None)
    one.forward, two.forward = one.forward, two.forward  # of compressed-tensors
    unwrap(model)
    assert [is_linear(layer, torch.float32) for layer in (one, two, three)] == [True, False, True]


def test_a_missing_weight(tmp_path: Path) -> None:
    """The library would draw it."""
    change_weights(write_model(tmp_path, "Llama"), lambda weights: weights.pop("model.norm.weight"))
    with pytest.raises(CheckpointError, match="expected all weights of LlamaForCausalLM, got none of model"):
        load_model(tmp_path, "transformers")


@pytest.mark.parametrize("kind", list(REFUSED))
def test_refused(kind: str, tmp_path: Path) -> None:
    """By name, with the reason, and before its weights are read where its class tells."""
    changes, reason = REFUSED[kind]
    with pytest.raises(UnsupportedError, match=reason):
        load_model(write_model(tmp_path, kind, **changes), "transformers")
