"""GGUF files with `transformers`: what its loader leaves out, against llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import UnsupportedError
from specdec_hal.models import load_model, load_tokenizer
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.tensors.views import as_numpy

pytestmark = [pytest.mark.torch, pytest.mark.gguf]
VOCABULARY, WIDTH, HEADS, KV_HEADS, LAYERS, INNER = 300, 64, 4, 2, 2, 96
EXPERTS, EXPERT = 4, 32
"""Experts of a mixture, and their width."""
IDS = np.random.default_rng(1).integers(3, VOCABULARY, 160)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(architecture, **metadata): a file with random weights. A name's dots are written as two underlines."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install gguf)")

    def make(
        architecture: str = "llama", head: int = 16, tensors: dict[str, Any] | None = None, **metadata: Any
    ) -> Path:
        rng, file = np.random.default_rng(0), tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(file, architecture)
        own = {
            "context_length": 256, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER,
            "attention__head_count": HEADS, "attention__head_count_kv": KV_HEADS, "attention__key_length": head,
            "attention__value_length": head, "rope__dimension_count": head, "attention__layer_norm_rms_epsilon": 1e-5,
            "rope__freq_base": 10000.0,
        } | metadata  # fmt: skip
        for name, value in own.items():
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            if value is not None:
                add[type(value)](f"{architecture}.{name.replace('__', '.')}", value)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        texts = [f"<{i}>" for i in range(VOCABULARY - 256)] + [chr(0x100 + i) for i in range(256)]
        texts[7], texts[9] = "<|im_end|>", "<|eot_id|>"
        writer.add_token_list(texts)
        writer.add_token_types([3] * 20 + [1] * (VOCABULARY - 20))
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
        for i in range(own["block_count"]):
            layer = {
                "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (HEADS * head, WIDTH),
                "attn_k": (KV_HEADS * head, WIDTH), "attn_v": (KV_HEADS * head, WIDTH),
                "attn_output": (WIDTH, HEADS * head), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
                "ffn_down": (WIDTH, INNER),
            }  # fmt: skip
            if architecture.startswith("gemma"):
                layer |= {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
            if architecture.startswith(("qwen3", "gemma3")):
                layer |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
            if architecture == "qwen2":
                layer |= {f"attn_{name}.bias": layer[f"attn_{name}"][:1] for name in "qkv"}
            if architecture == "qwen3moe":
                layer = {name: shape for name, shape in layer.items() if name[:4] != "ffn_" or name == "ffn_norm"}
                layer |= {"ffn_gate_inp": (EXPERTS, WIDTH), "ffn_down_exps": (EXPERTS, WIDTH, EXPERT)}
                layer |= {f"ffn_{name}_exps": (EXPERTS, EXPERT, WIDTH) for name in ("gate", "up")}
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        for name, shape in shapes.items():
            values = rng.standard_normal(shape) * (2 if name[-1] in "qk" else 1)
            scaled = 1 + 0.1 * values if len(shape) == 1 else values / np.sqrt(shape[-1])
            writer.add_tensor(name if name.endswith("bias") else f"{name}.weight", scaled.astype(np.float32))
        for name, array in (tensors or {}).items():
            writer.add_tensor(name, array.astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    return make


def log_probabilities(file: Path, framework: str) -> np.ndarray:
    model = load_model(file, framework, dtype="float32")
    model.allocate(1, 256)
    hidden = model.forward(ForwardBatch(IDS, [Segment(0, 0, len(IDS), 0)]))[FINAL_NORM]
    logits = as_numpy(model.compute_logits(hidden)).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


YARN = {
    "rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64,
}  # fmt: skip
WINDOW = {"attention__sliding_window": 32, "rope__dimension_count": None}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("llama", {"rope__dimension_count": None, "rope__freq_base": None}),
        ("llama", {"tensors": {"rope_freqs.weight": np.linspace(1, 8, 8)}}),
        ("llama", {"rope__scaling__type": "none", "rope__scaling__factor": 4.0}),
        ("llama", {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}),
        ("llama", {"rope__scaling__factor": 3.0}),
        ("llama", {"rope__scale_linear": 2.0}),
        ("llama", YARN),
        ("llama", YARN | {"rope__scaling__yarn_beta_fast": 32.0, "rope__scaling__yarn_beta_slow": 1.0}),
        ("llama", YARN | {"rope__scaling__attn_factor": 0.8}),
        ("llama", YARN | {"tensors": {"rope_freqs.weight": np.linspace(1, 8, 8)}}),
        ("llama", {"head": 32}),
        ("qwen3", {"head": 128}),
        ("qwen3", {"head": 32}),
        ("qwen3", {"head": 64} | YARN),
        ("qwen2", {"rope__freq_base": 1e6}),
        ("gemma2", {**WINDOW, "head": 64, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0}),
        ("gemma3", {**WINDOW, "head": 64, "block_count": 7}),
        ("gemma3", {**WINDOW, "head": 64, "block_count": 7, "rope__scaling__factor": 8.0}),
        (
            "qwen3moe",
            {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": EXPERT, "head": 32},
        ),
    ],
)
def test_the_logits_are_llama_cpps(write: Write, architecture: str, changes: dict[str, Any]) -> None:
    file = write(architecture, **changes)
    expected, got = (log_probabilities(file, framework) for framework in ("llama.cpp", "transformers"))
    assert expected.std() > 0.5
    assert np.abs(got - expected).max() < 0.02, np.abs(got - expected).max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope__scaling__type": "longrope"}, "rope.scaling.type is longrope, expected none, linear or yarn"),
        ({"attention__sliding_window": 32}, r"transformers ignores attention\.sliding_window \(32\)"),
        ({"attention__scale": 0.5, "logit_scale": 2.0}, r"ignores attention.scale \(0\.5\), logit_scale \(2\.0\)"),
        ({"attention__causal": False}, r"ignores attention\.causal \(False\)"),
        ({"attention__value_length": 8}, r"ignores attention\.value_length \(8\)"),
        ({**YARN, "rope__scaling__yarn_ext_factor": 0.5}, r"ignores rope\.scaling\.yarn_ext_factor \(0\.5\)"),
        ({**YARN, "rope__scaling__yarn_beta_fast": 16.0}, r"ignores rope\.scaling\.yarn_beta_fast \(16\.0\)"),
        ({"rope__dimension_count": 8}, "rope.dimension_count is 8, and transformers turns 16"),
        ({"tensors": {"blk.0.attn_q.bias": np.ones(64)}}, r"ignores the tensors blk\.0\.attn_q\.bias"),
        ({"tensors": {"rope_factors_long.weight": np.ones(8)}}, r"ignores the tensors rope_factors_long\.weight"),
        ({"tensors": {"rope_freqs.weight": np.ones(5)}}, r"has no frequencies for rope_freqs\.weight"),
    ],
)
def test_what_would_be_ignored_is_refused_by_name(write: Write, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"model\.gguf: .*{message}.*; leave model\.framework to llama\.cpp"):
        load_model(write(**changes), "transformers")


@pytest.mark.parametrize(("layers", "scalar"), [(42, 32), (46, WIDTH // HEADS)])
def test_the_scale_of_gemmas_scores_depends_on_its_layers(write: Write, layers: int, scalar: int) -> None:
    import transformers

    from specdec_hal.models.transformers.gguf_file import GgufFile

    file = write("gemma2", **WINDOW, head=32, block_count=layers)
    config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    GgufFile(file, config).complete()
    assert (config.head_dim, config.query_pre_attn_scalar) == (32, scalar)


def test_the_same_tokens_end_a_text_with_either_framework(write: Write) -> None:
    file = write()
    ends = load_tokenizer(file).eos_token_ids
    assert set(ends) == {2, 7, 9}
    assert load_model(file).config.eos_token_ids == load_model(file, "transformers").config.eos_token_ids == ends
