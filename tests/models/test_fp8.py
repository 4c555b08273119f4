"""Models with weights in FP8: what is loaded, refused and computed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import specdec_hal as sd
from specdec_hal.errors import ArgumentError, CheckpointError, ConfigError, UnsupportedError
from specdec_hal.models import load_model
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from tests.support.fp8_models import write_fp8
from tests.support.hf_models import VOCABULARY, write_model

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
TEXT = np.array([7, 3, 80, 41, 5])


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """FP8 on CPUs too, where Triton's interpreter computes it."""
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    from specdec_hal.models.transformers import fp8

    monkeypatch.setattr(fp8, "supported", lambda device: True)


def load(folder: Path, place: str, quantization: str = "auto", dtype: str = "float32") -> tuple[Any, Any]:
    """The model for GPUs, wherever Triton's kernels run, and its decoder."""
    import torch

    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder
    from specdec_hal.models.triton_kernels.launcher import Launcher

    decoder = load_decoder(folder, place, dtype, None, quantization)
    make = partial(Launcher, torch.device(place))
    model = DeviceTransformers(decoder, make_launcher=make, batch_invariant=None if place != "cpu" else False)
    return model, decoder


def logits(model: Any) -> npt.NDArray[np.float32]:
    """Of the text, after each token."""
    model.allocate(1, 16)
    hidden = model.forward(ForwardBatch(TEXT, [Segment(0, 0, len(TEXT), 0)], ()))[FINAL_NORM]
    found: npt.NDArray[np.float32] = np.asarray(model.compute_logits(hidden).cpu())
    return found


def expected(folder: Path) -> npt.NDArray[np.float32]:
    """By the library, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        found: npt.NDArray[np.float32] = model(input_ids=torch.from_numpy(TEXT)[None]).logits[0].numpy()
    return found


def weights_of(decoder: Any) -> list[Any]:
    """Weights in FP8 of a loaded model; those of gated MLPs are not among them."""
    from specdec_hal.models.fp8 import Fp8Weight

    return [part for part in decoder.model.modules() if isinstance(part, Fp8Weight)]


@pytest.mark.parametrize(
    ("kind", "scales"),
    [*(("Qwen3", scales) for scales in ("blocks", "channel", "tensor")), ("Qwen3Moe", "blocks"), ("Mixtral", "tensor")],
)
def test_checkpoints_in_fp8(kind: str, scales: str, tmp_path: Path, everywhere: None, triton_device: str) -> None:
    """They stay in FP8, and compute what their widened weights do in float32."""
    import torch

    packed, wide = write_fp8(tmp_path, kind, scales, moe_intermediate_size=144)
    model, decoder = load(packed, triton_device)
    found = weights_of(decoder)
    assert len(found) == (2 * 3 if kind == "Qwen3" else 2 * 4)  # qkv, out and down of two layers, or those of experts
    assert all(weight.by_group == (scales == "blocks") and not weight.by_row for weight in found)
    assert all(weight.values.dtype == torch.float8_e4m3fn for weight in found)
    want = expected(wide)
    np.testing.assert_allclose(logits(model), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "GPT2", "Phi3", "Gemma2", "Qwen2Moe", "GptOss"])
def test_weights_quantised_at_loading(kind: str, tmp_path: Path, everywhere: None, triton_device: str) -> None:
    """Biases, transposed weights, joined projections, experts: by rows, as PyTorch rounds them. The head and what
    chooses experts stay."""
    import torch
    from safetensors.torch import load_file, save_file

    from specdec_hal.models.fp8 import quantised, widened

    folder = write_model(tmp_path, kind)
    model, decoder = load(folder, triton_device, "fp8")
    got, found = logits(model), weights_of(decoder)
    assert found and all(not weight.by_group for weight in found)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        transposed = weight.ndim == 3 or (kind == "GPT2" and ".c_" in name)
        if weight.ndim > 1 and "_bias" not in name and (transposed or "_proj" in name):
            rounded = widened(*quantised(weight.mT if transposed else weight))
            weights[name] = (rounded.mT if transposed else rounded).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    want = expected(folder)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4 * np.abs(want).max())
    assert isinstance(decoder.model.get_output_embeddings().weight, torch.Tensor)


def test_activations_in_fp8(tmp_path: Path, everywhere: None, triton_device: str) -> None:
    packed, wide = write_fp8(tmp_path, "Qwen3", "channel")
    model, decoder = load(packed, triton_device, "fp8_dynamic")
    assert all(weight.by_row for weight in weights_of(decoder))
    want, got = expected(wide), logits(model)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 1e-3 < error < (0.3 if triton_device == "cpu" else 0.1), error  # the interpreter's cast loses carries


@pytest.mark.parametrize(
    ("kind", "parts"), [("Qwen3", "self_attn.k_proj mlp.up_proj"), ("Qwen3Moe", "self_attn.k_proj down_proj")]
)
def test_a_layer_that_a_checkpoint_leaves_as_it_is(
    kind: str, parts: str, tmp_path: Path, everywhere: None, triton_device: str
) -> None:
    from safetensors.torch import load_file, save_file

    packed, wide = write_fp8(tmp_path, kind, "channel", moe_intermediate_size=144)
    stored, whole = (load_file(folder / "model.safetensors") for folder in (packed, wide))
    kept = tuple(f"{part}.weight" for part in parts.split())
    for name in [name for name in stored if "layers.1." in name and name.endswith(kept)]:
        stored[name] = whole[name]
        del stored[f"{name}_scale"]
    save_file(stored, packed / "model.safetensors", metadata={"format": "pt"})
    want = expected(wide)
    np.testing.assert_allclose(logits(load(packed, triton_device)[0]), want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_a_head_in_fp8(tmp_path: Path, everywhere: None, triton_device: str) -> None:
    from specdec_hal.models.fp8 import quantised, widened

    folders = write_fp8(tmp_path, "Qwen3", "channel", num_hidden_layers=1)

    def round_head(weights: Any) -> None:
        values, scales = quantised(weights["lm_head.weight"])
        change(folders[0], lambda stored: stored.update({"lm_head.weight": values, "lm_head.weight_scale": scales}))
        weights["lm_head.weight"] = widened(values, scales)

    change(folders[1], round_head)
    model, decoder = load(folders[0], triton_device)
    want = expected(folders[1])
    assert len(weights_of(decoder)) == 4
    np.testing.assert_allclose(logits(model), want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("module_in_fp8", [False, True])
def test_mtp_modules(
    module_in_fp8: bool, tmp_path: Path, everywhere: None, triton_device: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """One in 16 bits is there; one in FP8 is left out, with a warning, and the rest of the checkpoint loads."""
    from safetensors.torch import load_file, save_file

    from specdec_hal.models.fp8 import quantised
    from specdec_hal.models.transformers import load as loading

    embedded = ROOT / "models/tiny-py-lm"
    config = json.loads((embedded / "config.json").read_text()) | {"num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    stored: dict[str, Any] = {}
    for name, weight in load_file(embedded / "model.safetensors").items():
        parts = name.split(".")
        layer = int(parts[2]) if parts[1] == "layers" else 0
        if 1 < layer < 8:
            continue
        name = name.replace("layers.8.", "layers.2.")
        if name.endswith("_proj.weight") and "eh_proj" not in name and (layer < 8 or module_in_fp8):
            stored[name], scales = quantised(weight)
            stored[f"{name}_scale"] = scales[:, None].contiguous()
        else:
            stored[name] = weight
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(loading, "gpu", lambda device: triton_device)
    model = loading.load(tmp_path, device="cuda", dtype="float32", batch_invariant=False)
    assert model.capabilities.mtp_modules == (not module_in_fp8)
    assert ("its MTP module is in FP8, which is not supported; it cannot draft" in caplog.text) == module_in_fp8


# ---- loading without kernels


def test_quantisation_is_that_of_pytorch() -> None:
    """The largest number of a row becomes 448; a row of zeros stays."""
    import torch

    from specdec_hal.models.fp8 import quantised, widened

    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 160))).float()
    weight[3] = 0
    values, scales = quantised(weight)
    assert values.float().abs().amax(1).tolist() == [448.0 * (i != 3) for i in range(40)]
    assert torch.equal(values.float(), (weight / scales[:, None]).to(torch.float8_e4m3fn).float())
    error = (widened(values, scales) - weight).abs()
    assert (error <= weight.abs() / 16 + scales[:, None] * 2**-10).all()


@pytest.mark.parametrize("by_row", [False, True])
def test_what_trials_compare_with(by_row: bool) -> None:
    """Rows are rounded where the kernels round them."""
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    import torch

    from specdec_hal.models.fp8 import Fp8Weight, quantised, widened
    from specdec_hal.models.transformers.fp8 import Fp8Linear

    weight, x = torch.randn(6, 40), torch.randn(1, 3, 40)
    values, scales = quantised(weight)
    got = Fp8Linear(Fp8Weight(values, scales, by_row), torch.ones(6))(x)
    rows = widened(*quantised(x[0])) if by_row else x[0]
    assert torch.allclose(got[0], rows @ widened(values, scales).T + 1, atol=1e-5)
    assert torch.allclose(got[0], x[0] @ widened(values, scales).T + 1, atol=1e-5) != by_row


def test_joined_weights() -> None:
    """Rows after each other and in turns, also of rows' and of groups' scales."""
    import torch

    from specdec_hal.models.fp8 import Fp8Weight, in_turns, quantised, stacked, widened

    one, two = (torch.from_numpy(np.random.default_rng(i).standard_normal((6, 200))).float() for i in (0, 1))
    rows, other = (Fp8Weight(*quantised(weight), False) for weight in (one, two))
    groups = Fp8Weight(other.values, torch.stack([other.scales, 3 * other.scales]), False)
    wide = [widened(weight.values, weight.scales) for weight in (rows, other, groups)]
    assert torch.equal(wide[2][:, :128], wide[1][:, :128])
    assert torch.allclose(wide[2][:, 128:], 3 * wide[1][:, 128:], rtol=1e-6)
    for first, second, whole in ((rows, other, wide[1]), (rows, groups, wide[2])):
        both = stacked([first, second])
        assert both.by_group == second.by_group and both.shape == (12, 200)
        assert torch.equal(widened(both.values, both.scales), torch.cat([wide[0], whole]))
        both = in_turns([first, second])
        assert torch.equal(widened(both.values, both.scales), torch.stack([wide[0], whole], 1).flatten(0, 1))


@pytest.mark.parametrize("scales", ["blocks", "channel"])
def test_checkpoints_in_fp8_on_a_cpu(scales: str, tmp_path: Path) -> None:
    """They are not widened without being asked."""
    packed, _ = write_fp8(tmp_path, "Qwen3", scales)
    match = (
        r"argument 'quantization': expected a GPU with FP8 \(compute capability 8.9 or newer\) and Triton, got 'auto' "
        "on cpu for a checkpoint in FP8; to widen its weights, set model.quantization: none"
    )
    with pytest.raises(ArgumentError, match=match):
        load_model(packed, "transformers")


@pytest.mark.parametrize("value", ["fp8", "fp8_dynamic"])
def test_quantising_on_a_cpu(value: str, tmp_path: Path) -> None:
    """Refused by the key in a configuration, and by the argument otherwise."""
    folder = write_model(tmp_path, "Llama")
    with pytest.raises(ArgumentError, match=f"'quantization': expected a GPU with FP8 .*got '{value}' on cpu; leave"):
        load_model(folder, "transformers", quantization=value)
    keys = [f"model.path={folder}", "model.framework=transformers", f"model.quantization={value}"]
    with pytest.raises(ConfigError, match=f"model.quantization: expected a GPU with FP8 for {value}, got cpu; leave"):
        sd.load(ROOT / "configs/cpu.yaml", keys).load_model()


def test_quantising_with_another_framework(tmp_path: Path) -> None:
    match = r"load_model \[paddle\]: argument 'quantization': expected auto or none, got 'fp8'; use model"
    with pytest.raises(ArgumentError, match=match):
        load_model(write_model(tmp_path, "Llama"), "paddle", quantization="fp8")


def test_an_unknown_quantisation(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected one of auto, none, fp8, fp8_dynamic, got int4; choose one"):
        load_model(write_model(tmp_path, "Llama"), "transformers", quantization="int4")


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0)])
def test_cards_without_fp8(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.transformers import fp8

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert fp8.supported("cuda:0") == (capability >= (8, 9))
    assert not fp8.supported("cpu")


def test_experts_in_a_list_are_refused(tmp_path: Path, everywhere: None) -> None:
    import torch

    from specdec_hal.models.transformers.fp8 import Plan

    model = torch.nn.Module()
    model.experts = torch.nn.ModuleList()
    with pytest.raises(
        UnsupportedError, match=r"^Module: it runs its experts one by one, which is not supported in FP8"
    ):
        Plan(tmp_path, {}, (128, 128), False).finish(model, "cpu")


def test_experts_that_are_not_all_in_fp8(tmp_path: Path, everywhere: None) -> None:
    from specdec_hal.models.transformers.load import load_decoder

    packed, _ = write_fp8(tmp_path, "Qwen3Moe", "channel", moe_intermediate_size=144)
    name = "model.layers.1.mlp.experts.2.up_proj.weight"

    def widen(weights: Any) -> None:
        weights[name] = weights[name].float() * weights.pop(f"{name}_scale")

    change(packed, widen)
    match = r"its model.layers.1.mlp.experts.\d.\w+.weight is in FP8, which is supported for linear layers, and for ex"
    with pytest.raises(UnsupportedError, match=match):
        load_decoder(packed, "cpu", "float32")


def test_ranks_are_refused(tmp_path: Path, everywhere: None) -> None:
    from specdec_hal.models.transformers.load import load_decoder

    group: Any = object()
    with pytest.raises(ArgumentError, match="expected one GPU for weights in FP8, got 'fp8' with ranks"):
        load_decoder(write_model(tmp_path, "Llama"), "cpu", "float32", group, "fp8")


def change(folder: Path, edit: Any) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


NAME = "model.layers.1.mlp.down_proj.weight"


def _nan(weights: Any) -> None:
    import torch

    weights[NAME].view(torch.uint8)[2, 3] = 0x7F


def _embedding(weights: Any) -> None:
    import torch

    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].to(torch.float8_e4m3fn)
    weights["model.embed_tokens.weight_scale"] = torch.ones(1)


@pytest.mark.parametrize(
    ("edit", "error", "match"),
    [
        (lambda weights: weights.pop(f"{NAME}_scale"), CheckpointError, rf"expected scales of {NAME} \(weight_scale_"),
        (_nan, CheckpointError, "expected finite numbers in model.layers.1.mlp.down_proj.weight, got 1 that are not"),
        (
            _embedding, UnsupportedError,
            "its model.embed_tokens.weight is in FP8, which is supported for linear layers, and for experts if",
        ),
        (
            lambda weights: weights.update({f"{NAME}_scale": weights[f"{NAME}_scale"][:7].clone()}), CheckpointError,
            r"in model.layers.1.mlp.down_proj.weight_scale, got \[7, 1\] for \[160, 288\] with blocks of \[128, 128\]",
        ),
    ],
)  # fmt: skip
def test_broken_checkpoints(edit: Any, error: Any, match: str, tmp_path: Path, everywhere: None) -> None:
    from specdec_hal.models.transformers.load import load_decoder

    packed, _ = write_fp8(tmp_path, "Qwen3", "channel")
    change(packed, edit)
    with pytest.raises(error, match=match):
        load_decoder(packed, "cpu", "float32")


def test_memory_of_a_checkpoint_in_fp8(tmp_path: Path) -> None:
    """A byte per weight on a GPU; the cache has the other numbers' width."""
    pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")
    from safetensors.torch import load_file, save_file

    from specdec_hal.models.transformers.load import memory

    packed, wide = write_fp8(tmp_path, "Qwen3", "channel")
    for folder in (packed, wide):
        weights = load_file(folder / "model.safetensors")
        halves = {name: x.bfloat16() if x.itemsize == 4 and "scale" not in name else x for name, x in weights.items()}
        save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    few, many = (memory(folder, device="cuda:0") for folder in (packed, wide))
    assert few is not None and many is not None
    assert few.kv_position == many.kv_position
    assert 0.5 < few.weights["weights"] / many.weights["weights"] < 0.7
    assert json.loads((packed / "config.json").read_text())["vocab_size"] == VOCABULARY


@pytest.mark.parametrize("by_row", [False, True])
def test_what_a_trial_tolerates(by_row: bool) -> None:
    """Rows that are rounded to FP8 differ more where they differed by the last bit before."""
    import torch

    from specdec_hal.models.fp8 import Fp8Weight, quantised
    from specdec_hal.models.transformers.fp8 import Fp8Linear
    from specdec_hal.models.transformers.replace import close

    module = Fp8Linear(Fp8Weight(*quantised(torch.randn(6, 40)), by_row), None)
    expected = torch.randn(5, 6, dtype=torch.bfloat16)
    assert close(expected, expected * 1.01, module) and not close(expected, expected * 1.08, module)
    assert close(expected, expected * 1.035, module) == by_row
