"""MTP modules in checkpoints of other families: rows are those of the library's own layer over a slow projection."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specdec_hal.cli import main
from specdec_hal.engine.runtime import Runtime
from specdec_hal.errors import CheckpointError
from specdec_hal.models import load_model
from specdec_hal.models.mtp import FAMILIES as NAMES
from specdec_hal.models.mtp import one_layer
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.proposers import calibration
from specdec_hal.runner import SamplingParams
from specdec_hal.runner.footprint import footprint
from tests.runner.conftest import make_runner
from tests.support.decoding import outputs_of
from tests.support.hf_models import VOCABULARY, Case, enlarge, write_model
from tests.support.history_model import LetterTokenizer

pytestmark = pytest.mark.torch
pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

GLM = {"moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
GLM |= {"first_k_dense_replace": 1, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
GLM |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}
ERNIE_MOE = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
ERNIE_MOE |= {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "max_position_embeddings": 256}
ERNIE_MOE |= {"moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_num_shared_experts": 1}
LATENT = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4}
LATENT |= {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
LATENT |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "max_position_embeddings": 256}
HY = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
HY |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "max_position_embeddings": 256}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}
WINDOWS |= {"num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "dense"]}
LINEAR = {"layer_types": ["linear_attention", "full_attention", "full_attention"]}
TRAINED = "a module of speculators"
FAMILIES: dict[str, dict[str, Any]] = {
    "DeepseekV3": {"num_hidden_layers": 3},
    "Glm4Moe": GLM,
    "Glm4MoeLite": {**LATENT, "num_hidden_layers": 3},
    "HYV3": {**HY, "num_hidden_layers": 3},
    "Ernie4_5": {"num_hidden_layers": 3},
    "Ernie4_5_Moe": {**ERNIE_MOE, "num_hidden_layers": 3},
    "ExaoneMoe": {**HY, **WINDOWS, "pad_token_id": 0},
    "MiMoV2Flash": {**HY, **WINDOWS, "n_routed_experts": 4, "v_head_dim": 8},
    "MiMo": {"num_hidden_layers": 3},
    TRAINED: {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "num_hidden_layers": 3},
    "Qwen3_5Text": LINEAR,
    "Qwen3_5MoeText": LINEAR,
    "Qwen3Next": LINEAR,
}
"""Each with one layer more than the target has: the module's."""


def write(folder: Path, kind: str) -> tuple[Path, Any]:
    """A checkpoint of two layers with a module, and the library's model of all three layers."""
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file

    mimo, trained = kind == "MiMo", kind == TRAINED  # MiMo has Qwen2's decoder, and no class in the library
    write_model(folder, "Qwen2" if mimo else "Qwen3" if trained else kind, **FAMILIES[kind])
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tensors, generator = load_file(folder / "model.safetensors"), np.random.default_rng(2)
    ernie, qwen, v2 = kind.startswith("Ernie"), kind.startswith(("Qwen", "Exaone")), kind == "MiMoV2Flash"
    layer = "model.mtp_block.0" if ernie else "mtp.layers.0" if qwen else f"model.mtp{'.' if v2 else '_'}layers.0"
    layer = "mtp_layers.0" if trained else layer
    moves = ernie or mimo or qwen or v2 or trained
    for name in [name for name in tensors if moves and name.startswith("model.layers.2.")]:
        moved = name.replace("model.layers.2", layer)
        moved = moved.replace("post_attention_layernorm", "pre_mlp_layernorm") if v2 else moved
        tensors[moved] = tensors.pop(name)
    names = [f"model.mtp_{name}.0.weight" for name in ("emb_norm", "hidden_norm", "linear_proj")]
    if mimo or trained:
        parts = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        names = [f"{layer}.{name}.weight" for name in parts]
    elif qwen:
        names = [f"mtp.{name}.weight" for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")]
    elif v2:
        names = [f"{layer}.{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "final_layernorm")]
    elif not ernie:
        names = [f"model.layers.2.{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")]
        tensors["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()
    for name in names:
        projects = "proj" in name or "fc.w" in name
        values = generator.standard_normal((32, 64) if projects else (32,))
        tensors[name] = (values / 8 if projects else (not kind.startswith("Qwen")) + values / 10).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    changed = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    if mimo:
        code = {"AutoConfig": "configuration_mimo.MiMoConfig", "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"}
        changed |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "auto_map": code}
    changed |= {name: value[:2] for name, value in raw.items() if name.endswith("layer_types") and value}
    (folder / "config.json").write_text(json.dumps({**raw, **changed}))
    return folder, (whole, {name: tensors[name].astype(np.float64) for name in names}, tensors)


def wanted(reference: Any, kind: str, tokens: Any, hidden: Any, zeros: bool = False) -> Any:
    """Rows [T, D] of the module, from tokens [T + 1] and hidden states [T, D] of the target. `zeros`: as in vLLM."""
    import torch

    whole, own, tensors = reference
    norms = [weight for weight in own.values() if weight.ndim == 1]
    (projection,) = (weight for weight in own.values() if weight.ndim == 2)
    epsilon = whole.config.rms_norm_eps

    def norm(x: Any, weight: Any) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * (weight + qwen)

    embedded = tensors["model.embed_tokens.weight"].astype(np.float64)[tokens[1:]]
    qwen = kind.startswith("Qwen")
    if zeros or kind == "MiMo":
        embedded[0] = 0
    parts = [norm(embedded, norms[0]), norm(hidden.astype(np.float64), norms[1])]
    x = np.concatenate(parts[::-1] if kind == "MiMo" else parts, -1) @ projection.T
    final = tensors["model.norm.weight"] if kind.startswith("Ernie") else norms[2]
    with torch.inference_mode():
        rows = torch.from_numpy(x.astype(np.float32))[None]
        positions = torch.arange(len(x))[None]
        mask = torch.full((len(x), len(x)), -torch.inf).triu(1)[None, None]
        if kind in ("ExaoneMoe", "MiMoV2Flash"):
            mask += torch.full((len(x), len(x)), -torch.inf).tril(-8)
        base, types = whole.get_decoder(), {"layer_type": "sliding_attention"} if kind == "MiMoV2Flash" else {}
        turned = positions.expand(3, 1, -1) if kind.startswith("Qwen3_5") else positions  # of images
        given = base.layers[2](
            rows, attention_mask=mask, position_ids=positions,
            position_embeddings=base.rotary_emb(rows, position_ids=turned, **types),
        )  # fmt: skip
        given = given[0] if isinstance(given, tuple) else given
    return norm(given[0].numpy().astype(np.float64), final)


def load(folder: Path, kind: str) -> Any:
    if kind == "host":
        return load_model(folder, "transformers")
    from specdec_hal.models.mtp import find_module
    from specdec_hal.models.transformers.device import DeviceTransformers
    from specdec_hal.models.transformers.load import load_decoder

    decoder = load_decoder(folder, "cpu", "float32")
    return DeviceTransformers(decoder, module=find_module(folder, decoder.model.config))


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != TRAINED])
def test_rows_and_tokens(kind: str, tmp_path: Path) -> None:
    """Rows in chunks, over what others left; then the tokens of `generate`, with drafts that `auto` has chosen."""
    folder, reference = write(tmp_path / "model", kind)
    case = Case(folder)
    tokens = np.random.default_rng(1).integers(3, VOCABULARY, 25)
    for place in ("host", "device") if kind in ("DeepseekV3", "Ernie4_5_Moe") else ("host",):
        model = load(folder, place)
        assert model.capabilities.mtp_modules == 1
        model.allocate(2, 64)
        hidden = model.forward(ForwardBatch(tokens[:24], [Segment(0, 0, 24, 0)]))[FINAL_NORM].numpy()
        expected = wanted(reference, kind, tokens, hidden)
        if place == "host":
            module = model.mtp_module()
            module.forward(ForwardBatch(tokens[:24], [Segment(1, 0, 24, 0)]), hidden)
            parts = [
                module.forward(ForwardBatch(tokens[a + 1 : b + 1], [Segment(1, 0, b - a, a)]), hidden[a:b]).numpy()
                for a, b in ((0, 9), (9, 10), (10, 24))
            ]
            np.testing.assert_allclose(np.concatenate(parts), expected, atol=2e-3)
        runner = make_runner(
            model=model, speculative={"method": "auto", "num_speculative_tokens": 3, "adaptive": False},
            runner={"max_num_seqs": 3, "prefill_chunk": 5, "max_model_len": 64},
        )  # fmt: skip
        assert runner.config.speculative.method == "mtp"
        params = SamplingParams(max_new_tokens=case.new_tokens)
        outputs = outputs_of(runner, *((prompt, params) for prompt in case.prompts))
        assert [list(output.token_ids) for output in outputs] == case.generated
        assert sum(output.drafted for output in outputs) > 20 and not runner.summary()["failed_proposals"]


def test_a_module_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the format of `speculators`: the module has full attention, whatever the target's last layer has."""
    from safetensors.numpy import save_file

    folder, reference = write(tmp_path / "model", TRAINED)
    module, tensors = tmp_path / "module", reference[2]
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith("mtp_layers.")}
    module.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_file({**own, "verifier_lm_head.weight": tensors["lm_head.weight"].copy()}, module / "model.safetensors")
    layer = json.loads((folder / "config.json").read_text())
    about = {"architectures": ["MTPDraftModel"], "speculators_model_type": "mtp", "num_nextn_predict_layers": 1}
    (module / "config.json").write_text(json.dumps({**about, "transformer_layer_config": layer}))
    case, tokens = Case(folder), np.random.default_rng(1).integers(3, VOCABULARY, 25)
    for place in ("host", "device"):
        model = load(folder, place)
        model.allocate(2, 64)
        hidden = model.forward(ForwardBatch(tokens[:24], [Segment(0, 0, 24, 0)]))[FINAL_NORM].numpy()
        if place == "host":
            given = model.trained_module(str(module), 1).forward(
                ForwardBatch(tokens[1:], [Segment(0, 0, 24, 0)]), hidden
            )
            np.testing.assert_allclose(given, wanted(reference, TRAINED, tokens, hidden), atol=2e-3)
        runner = make_runner(
            model=model, runner={"max_num_seqs": 3, "prefill_chunk": 5, "max_model_len": 64},
            speculative={"method": "auto", "path": str(module), "num_speculative_tokens": 3, "adaptive": False},
        )  # fmt: skip
        assert runner.config.speculative.method == "mtp"
        outputs = outputs_of(
            runner, *((prompt, SamplingParams(max_new_tokens=case.new_tokens)) for prompt in case.prompts)
        )
        assert [list(output.token_ids) for output in outputs] == case.generated
        assert sum(output.drafted for output in outputs) > 20 and not runner.summary()["failed_proposals"]
        parts = footprint(runner.config, model, 64, 64)
        assert parts["MTP module"] == (module / "model.safetensors").stat().st_size
        assert ("MTP module's KV cache" in parts) == (place == "device")
    monkeypatch.setattr(calibration, "TEXTS", ("bcd", "fghb"))
    monkeypatch.setattr(Runtime, "load_tokenizer", lambda runtime: LetterTokenizer())
    to_target = ("--set", f"model.path={folder}", "--set", "model.framework=transformers")
    assert main(["drafters", "check", str(module), "--set", "backend.name=reference", *to_target, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["numbering"] == "a multi-token-prediction module, which reads the target's last state"
    (configured,) = document["variants"]
    assert len(configured["agreement"]) == calibration.DEPTH
    layer["hidden_size"] = 48
    (module / "config.json").write_text(json.dumps({**about, "transformer_layer_config": layer}))
    with pytest.raises(CheckpointError, match=r"transformer_layer_config\.hidden_size: the target's 32, got 48"):
        model.trained_module(str(module), 1)


def test_config_json_decides_on_the_layer() -> None:
    """By the library's keys; without them EXAONE-MoE's is dense with the attention of the first layer."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]}
    wanted = {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]}
    own = {"mtp_layer_types": ["full_attention"], "mtp_mlp_layer_types": ["sparse"]}
    for more, kinds in (({}, wanted), (own, {name.removeprefix("mtp_"): value for name, value in own.items()})):
        assert one_layer(SimpleNamespace(**layers, **more), NAMES["exaone_moe"]) == kinds


LIBRARY = ("DeepseekV3", "Glm4Moe", "Glm4MoeLite", "HYV3", "ExaoneMoe", "MiMoV2Flash")
"""Modules that the library's MtpModel computes."""


@pytest.mark.parametrize("kind", LIBRARY)
def test_drafts_of_the_library(kind: str, tmp_path: Path) -> None:
    """First drafts after each prefix of a text, beside the library's `MtpModel` with the same weights."""
    import torch
    import transformers
    from transformers.cache_utils import DynamicCache

    library = pytest.importorskip("transformers.modeling_layers").MtpModel
    if kind == "MiMoV2Flash" and tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        pytest.skip("MtpModel needs transformers 5.24 for rotary embeddings that depend on the layer")
    folder, (every_layer, own, _) = write(tmp_path / "model", kind)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    dense = kind in ("ExaoneMoe", "MiMoV2Flash")
    whole.config.num_mtp_layers, whole.config.mtp_mlp_layer_types = 1, ["dense" if dense else "sparse"]
    if dense:
        whole.config.mtp_layer_types = ["sliding_attention"]
    theirs = library(whole, 1).eval()
    names = (f"{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "post_norm"))
    weights = {name: torch.from_numpy(array).float() for name, array in zip(names, own.values(), strict=True)}
    block = every_layer.get_decoder().layers[2].state_dict()
    theirs.layers[0].load_state_dict({**weights, **{f"mtp_block.{name}": weight for name, weight in block.items()}})
    model = load(folder, "host")
    model.allocate(1, 64)
    tokens, at = np.random.default_rng(1).integers(3, VOCABULARY, 25), 24
    hidden = model.forward(ForwardBatch(tokens[:at], [Segment(0, 0, at, 0)]))[FINAL_NORM]
    module = model.mtp_module()
    rows = module.forward(ForwardBatch(tokens[1 : at + 1], [Segment(0, 0, at, 0)]), hidden)
    ours = module.compute_logits(rows).argmax(-1).tolist()
    drafts = []
    for end in range(1, at + 1):
        with torch.inference_mode():
            state = whole.get_decoder()(torch.as_tensor(tokens[:end])[None]).last_hidden_state
            ids, positions = torch.as_tensor(tokens[1 : end + 1])[None], torch.arange(1, end + 1)[None]
            given, *_ = theirs(ids, state, torch.ones_like(ids), positions, DynamicCache())
        drafts.append(int(given[0, 0]))
    assert ours == drafts and len(set(drafts)) > 4


WHOLE = json.loads((Path(__file__).parent / "step.json").read_text())  # two layers of Step, and the module's


def write_step(folder: Path, alone: bool) -> tuple[Any, dict[str, Any]]:
    """A checkpoint of Step-3.7, or of Step-3.5 (`alone`), with a module under the authors' names. Returns the library's
    decoder of all three layers, and the module's own weights."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Step3p7Config, Step3p7ForConditionalGeneration

    torch.manual_seed(3)
    whole = Step3p7ForConditionalGeneration(Step3p7Config(**copy.deepcopy(WHOLE))).eval()
    enlarge(whole, 4)
    whole.save_pretrained(folder)
    sizes = {
        "enorm": (32,),
        "hnorm": (32,),
        "eh_proj": (32, 64),
        "shared_head.norm": (32,),
        "shared_head.output": (96, 32),
    }
    own = {name: torch.randn(size) / 8 for name, size in sizes.items()}
    named = {f"model.layers.2.{n.replace('shared', 'transformer.shared')}.weight": one for n, one in own.items()}
    tensors = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in tensors.items() if not alone or not name.startswith("vi")}
    save_file({**kept, **named}, folder / "model.safetensors", {"format": "pt"})
    text = {**WHOLE["text_config"], "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "model_type": "step3p5"}
    (folder / "config.json").write_text(json.dumps(text if alone else {**whole.config.to_dict(), "text_config": text}))
    return whole, own


def step_drafts(base: Any, own: dict[str, Any], text: list[int], drafts: int) -> list[int]:
    """Drafts after a text, as vLLM and SGLang compute them: without a cache, by the library's layers in float64."""
    import torch

    def norm(x: Any, name: str) -> Any:
        return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-5) * (1 + own[name].double())

    def layer(index: int, x: Any) -> Any:
        rows, kind = torch.arange(len(x)), WHOLE["text_config"]["layer_types"][index]
        before, turn = rows[:, None] - rows, base.rotary_emb(x[None], rows[None], kind)
        unseen = ((before < 0) | (before >= (8 if index else len(x)))).double()[None, None] * -1e30
        return base.layers[index](x[None], attention_mask=unseen, position_embeddings=turn)[0]

    ids, embed = list(text), base.embed_tokens
    states = layer(1, layer(0, embed(torch.tensor(text[:-1]))))  # of the target, before its norm
    for _ in range(drafts):
        read = torch.cat([norm(embed(torch.tensor(ids[1:])), "enorm"), norm(states, "hnorm")], -1)
        states = torch.cat([states, row := layer(2, read @ own["eh_proj"].double().T)[-1:]])
        ids.append(int((norm(row, "shared_head.norm") @ own["shared_head.output"].double().T).argmax()))
    return ids[len(text) :]


@pytest.mark.parametrize(("place", "alone"), [("host", False), ("device", True)])
def test_step(tmp_path: Path, place: str, alone: bool) -> None:
    """Step-3.7 and Step-3.5: heads and rotation by the kind of layer, a window, a head of the module's own. Drafts of
    every round are those of a slow pass; tokens are the library's."""
    import torch
    from transformers import Step3p7Config

    from specdec_hal.models.transformers.load import decoder_class

    whole, own = write_step(tmp_path / "model", alone)
    config = Step3p7Config(quantization_config={"quant_method": "fp8"})
    assert decoder_class(config)[0] is type(whole), "quantised parts of another model are not loaded"
    prompts = [np.random.default_rng(i).integers(3, VOCABULARY, size).tolist() for i, size in enumerate((2, 11, 19))]
    runner = make_runner(
        model=load(tmp_path / "model", place), runner={"max_num_seqs": 2, "prefill_chunk": 5, "max_model_len": 64},
        speculative={"method": "auto", "num_speculative_tokens": 3, "adaptive": False},
    )  # fmt: skip
    params = SamplingParams(max_new_tokens=16, ignore_eos=True, return_drafts=True)
    outputs = outputs_of(runner, *((prompt, params) for prompt in prompts))
    rounds, whole.double().config.text_config.num_hidden_layers = 0, 2  # the target leaves the third layer out
    with torch.inference_mode():
        for prompt, output in zip(prompts, outputs, strict=True):
            text = [*prompt, *output.token_ids]
            best = whole(torch.tensor([text]), use_cache=False).logits[0].argmax(-1).tolist()
            assert best[len(prompt) - 1 : -1] == list(output.token_ids)
            for round_ in output.drafts:
                before, drafts = text[: len(prompt) + round_.start], list(round_.token_ids)
                assert drafts == step_drafts(whole.model.language_model, own, before, len(drafts))
                rounds += len(drafts) == 3
    assert rounds > 20 and not runner.summary()["failed_proposals"]


@pytest.mark.parametrize("reads", [True, False])
def test_the_embedding_of_the_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """The setting decides between the library's rule and vLLM's."""
    folder, reference = write(tmp_path / "model", "DeepseekV3")
    model, made = load(folder, "host"), list[Any]()
    make = model.mtp_module
    monkeypatch.setattr(model, "mtp_module", lambda: made.append(make()) or made[-1])
    make_runner(
        model=model, speculative={"method": "mtp", "num_speculative_tokens": 2, "mtp": {"first_embedding": reads}},
        runner={"max_num_seqs": 2, "max_model_len": 64},
    )  # fmt: skip
    tokens = np.random.default_rng(1).integers(3, VOCABULARY, 9)
    hidden = model.forward(ForwardBatch(tokens[:8], [Segment(0, 0, 8, 0)]))[FINAL_NORM].numpy()
    given = made[0].forward(ForwardBatch(tokens[1:], [Segment(0, 0, 8, 0)]), hidden).numpy()
    np.testing.assert_allclose(given, wanted(reference, "DeepseekV3", tokens, hidden, not reads), atol=2e-3)


def test_a_module_that_is_not_whole(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder, _ = write(tmp_path / "model", "Ernie4_5")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.mtp_emb_norm.0.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"mtp_emb_norm\.0\.weight beside model\.mtp_linear_proj"):
        load_model(folder, "transformers")
