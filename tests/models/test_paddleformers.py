"""Decoders of `paddleformers` over our KV cache: tiny random checkpoints of `transformers`, against that library."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_hal as sd
from specdec_hal.cli import main
from specdec_hal.config import parse
from specdec_hal.engine import AsyncEngine
from specdec_hal.errors import ArgumentError, CheckpointError, UnsupportedError
from specdec_hal.models import load_model, load_tokenizer
from specdec_hal.models.loader import checkpoint_memory
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.runner import SamplingParams
from tests.runner.conftest import make_runner
from tests.serve.conftest import served
from tests.support.decoding import outputs_of
from tests.support.hf_models import VOCABULARY, write_model

pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

from tests.models import test_any_decoder as any_decoder
from tests.models import test_families_mtp as families

pytestmark = [pytest.mark.torch, pytest.mark.paddleformers, pytest.mark.usefixtures("few_sizes")]

ROOT = Path(__file__).parents[2]
TINY = ROOT / "models/tiny-py-lm"
KINDS: dict[str, dict[str, Any]] = {
    "Llama": {"head_dim": 8}, "Qwen2": {}, "Qwen3": {}, "Ernie4_5": {}, "Phi3": {}, "Qwen2Moe": {}, "Qwen3Moe": {},
}  # fmt: skip
"""Qwen3 has a window of 8 keys in its second layer; the library's Llama has no heads of another width."""


class Models(any_decoder.Models):
    @cached_property
    def host(self) -> Any:
        return load_model(self.folder, "paddleformers")

    def on_pool(self) -> Any:
        """The model for GPUs, on a CPU."""
        return load_on_pool(self.folder)


def load_on_pool(folder: Path) -> Any:
    from specdec_hal.models.paddleformers import load
    from specdec_hal.models.paddleformers.device import DevicePaddleFormers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "PaddleFormers", DevicePaddleFormers)
        return load_model(folder, "paddleformers")


@pytest.fixture(scope="module", params=list(KINDS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = write_model(tmp_path_factory.mktemp(request.param), request.param, **KINDS[request.param])
    made = Models(folder)
    made.kind = request.param
    return made


def test_logits(case: Models) -> None:
    """Of two texts in parts that share steps, with rows that are taken back; every layer's hidden states too."""
    any_decoder.test_logits(case)
    assert case.host.windows == ([0, 8] if case.kind == "Qwen3" else [0, 0])


def test_tokens(case: Models) -> None:
    """Those of `generate`, without drafts and with; prompts come in chunks of 5."""
    accepted = 0
    for method in ("none", "ngram", "suffix"):
        tokens, counted = case.decode(case.host, method)
        assert tokens == case.generated, method
        accepted += counted["accepted_tokens"]
    assert accepted > 0


def test_bits_of_a_row(case: Models) -> None:
    """They do not depend on the rest of its step, unless the model has experts."""
    assert case.host.batch_invariant == (not case.kind.endswith("Moe"))
    model, ids = case.host, np.random.default_rng(0).integers(3, VOCABULARY, 24)
    model.allocate(2, 64)

    def logits(chunk: int) -> Any:
        parts = []
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            hidden = model.forward(ForwardBatch(part, [Segment(1, 0, len(part), start)]))[FINAL_NORM]
            parts.append(model.compute_logits(hidden).numpy())
        return np.concatenate(parts)

    alone = logits(1)
    for chunk in (2, 5, 24) if model.batch_invariant else ():
        np.testing.assert_array_equal(logits(chunk), alone)


def flash(q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, most_q: int, most_k: int, scale: float, **rest: Any) -> Any:
    """Paddle's `flash_attn_unpadded` in NumPy: each text's last queries see the keys up to their own."""
    import paddle

    assert rest == {"causal": True, "training": False}
    q, k, v, ends_q, ends_k = (x.numpy() for x in (q, k, v, ends_q, ends_k))
    assert np.diff(ends_q).max() == most_q and np.diff(ends_k).max() == most_k
    assert (ends_q[-1], ends_k[-1]) == (len(q), len(k))
    out = np.zeros((*q.shape[:2], v.shape[2]), np.float32)
    for i in range(len(ends_q) - 1):
        rows, keys = slice(*ends_q[i : i + 2]), slice(*ends_k[i : i + 2])
        for head in range(q.shape[1]):
            kv = head // (q.shape[1] // k.shape[1])
            scores = q[rows, head] @ k[keys, kv].T * scale
            scores[~np.tri(*scores.shape, k=scores.shape[1] - scores.shape[0], dtype=bool)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[rows, head] = weights / weights.sum(-1, keepdims=True) @ v[keys, kv]
    return paddle.to_tensor(out), None


@pytest.mark.parametrize("how", ["flash", "operators"])
def test_tokens_over_a_small_pool(case: Models, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model for GPUs, on a CPU: by Paddle's operators, and by a stand-in for flash attention, which needs a GPU and
    has no windows. Requests lose their blocks and come back."""
    import paddle

    from specdec_hal.models import paddle_attention

    calls: list[int] = []

    def counted(*args: Any, **rest: Any) -> Any:
        calls.append(len(args[3]) - 1)
        return flash(*args, **rest)

    monkeypatch.setattr(paddle_attention, "flash_attn_unpadded", counted)
    if how == "flash":
        monkeypatch.setattr(paddle_attention, "FLASH", (paddle.float32,))
    model = case.on_pool()
    drafted, counts = case.decode(model, "ngram", block_size=4, num_kv_blocks=11)
    assert drafted == case.generated and counts["preemptions"] > 0
    assert max(calls, default=0) > 1 if how == "flash" else not calls
    assert model.cache_bytes == 12 * model.bytes_per_block(4)


@pytest.mark.parametrize("place", ["host", "pool"])
def test_mtp(place: str, tmp_path: Path) -> None:
    """Rows in chunks, the last in two passes, over what others left; then the tokens of `generate`, with drafts that
    `auto` has chosen."""
    folder, reference = families.write(tmp_path / "model", "Ernie4_5")
    case, tokens = Models(folder), np.random.default_rng(1).integers(3, VOCABULARY, 45)
    model = case.host if place == "host" else case.on_pool()
    assert model.capabilities.mtp_modules == 1
    model.allocate(2, 64)
    hidden = model.forward(ForwardBatch(tokens[:44], [Segment(0, 0, 44, 0)]))[FINAL_NORM].numpy()
    module = model.mtp_module()
    module.forward(ForwardBatch(tokens[:44], [Segment(1, 0, 44, 0)]), hidden)
    parts = [
        module.forward(ForwardBatch(tokens[a + 1 : b + 1], [Segment(1, 0, b - a, a)]), hidden[a:b]).numpy()
        for a, b in ((0, 9), (9, 10), (10, 44))
    ]
    wanted = families.wanted(reference, "Ernie4_5", tokens, hidden)
    np.testing.assert_allclose(np.concatenate(parts), wanted, atol=2e-3)
    pool = {} if place == "host" else {"block_size": 4, "num_kv_blocks": 12}
    runner = make_runner(
        model=model, speculative={"method": "auto", "num_speculative_tokens": 3, "adaptive": False},
        runner={"max_num_seqs": 3, "prefill_chunk": 5, "max_model_len": 64, **pool},
    )  # fmt: skip
    assert runner.config.speculative.method == "mtp"
    params = SamplingParams(max_new_tokens=case.new_tokens)
    outputs = outputs_of(runner, *((prompt, params) for prompt in case.prompts))
    assert [list(output.token_ids) for output in outputs] == case.generated
    summary = runner.summary()
    assert sum(output.drafted for output in outputs) > 20 and not summary["failed_proposals"]
    assert (summary["preemptions"] > 0) == bool(pool)


def test_the_embedded_model() -> None:
    """The tokens of the Paddle class, greedy and sampled, with n-gram and MTP drafts."""
    prompt = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n"
    params = [sd.SamplingParams(max_new_tokens=24), sd.SamplingParams(max_new_tokens=24, temperature=0.8, seed=7)]
    texts = {}
    for framework, method in (("paddle", "ngram"), ("paddleformers", "ngram"), ("paddleformers", "mtp")):
        speculative = {"method": method, "adaptive": False}
        llm = sd.LLM(TINY, ROOT / "configs/cpu.yaml", framework=framework, speculative=speculative)
        outputs = llm.generate([prompt] * 2, params)
        texts[framework, method] = [output.text for output in outputs]
        assert outputs[0].accepted > 10
    assert len({tuple(text) for text in texts.values()}) == 1


def test_the_server() -> None:
    """Answers over HTTP are those of the Paddle class."""
    answers = []
    for framework in ("paddle", "paddleformers"):
        config = parse(
            {"backend": {"name": "cpu"}, "speculative": {"method": "ngram", "adaptive": False}, "serve": {"port": 0}}
        )
        engine = AsyncEngine(load_model(TINY, framework), config, tokenizer=load_tokenizer(TINY))
        with served(engine, "tiny", None) as running:
            body = {"model": "tiny", "prompt": "def sub(a, b):\n    return a", "max_tokens": 12, "temperature": 0}
            answers.append(running.post(body).json()["choices"][0]["text"])
    assert answers[0] == answers[1] and len(answers[0]) > 8


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`generate` decodes an ERNIE 4.5 folder with drafts, and writes nothing into the folder."""
    folder = write_model(tmp_path / "ernie", "Ernie4_5", vocab_size=4096, eos_token_id=4095)
    (folder / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    before = sorted(folder.iterdir())
    settings = (f"model.path={folder}", "model.framework=paddleformers", "speculative.method=ngram")
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["generate", *words, "--prompt", "a b a b a b a b", "--max-new-tokens", "32", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["requests"][0]["token_ids"]) == 32 and answer["metrics"]["drafted_tokens"] > 0
    assert sorted(folder.iterdir()) == before


def test_what_is_refused(tmp_path: Path) -> None:
    """By name and with the reason."""
    for kind, reason in {
        "Gemma3": "Gemma3ForCausalLM: its types of layers have rotary embeddings of their own",
        "Qwen3Next": "Qwen3NextForCausalLM: it has layers of type linear_attention",
        "Mistral": "MistralForCausalLM: paddleformers has no model of type mistral",
        "Glm4": "Glm4ForCausalLM: paddleformers has no model of type glm4",
    }.items():
        folder = write_model(tmp_path / kind, kind)
        with pytest.raises(UnsupportedError, match=f"^{reason}.*; choose another model$"):
            load_model(folder, "paddleformers")
    folder = write_model(tmp_path / "model", "Ernie4_5")
    for options, reason in {
        "dtype": ("bfloat16", "'dtype': expected float32 on cpu, got 'bfloat16'"),
        "device": ("cuda:0", "'device': expected cpu, or cuda:N with a GPU build of Paddle"),
        "threads": (0, "'threads': expected an integer >= 1, got 0"),
    }.items():
        with pytest.raises(ArgumentError, match=reason[1]):
            load_model(folder, "paddleformers", **{options: reason[0]})


def test_a_checkpoint_that_is_not_whole(tmp_path: Path) -> None:
    """One clear error each, after which the next loads."""
    from safetensors.numpy import load_file, save_file

    folder = write_model(tmp_path, "Ernie4_5")
    whole = load_file(folder / "model.safetensors")
    lost = "model.layers.1.mlp.down_proj.weight"
    infinite = {**whole, lost: np.full_like(whole[lost], np.inf)}
    for weights, reason in (
        ({name: weight for name, weight in whole.items() if name != lost}, f"got .*{lost}"),
        (infinite, f"finite numbers in {lost}"),
    ):
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(CheckpointError, match=reason):
            load_model(folder, "paddleformers")
    save_file({**whole, "model.other.weight": whole[lost]}, folder / "model.safetensors", {"format": "pt"})
    assert load_model(folder, "paddleformers").batch_invariant


def test_memory(tmp_path: Path) -> None:
    case = Models(write_model(tmp_path, "Qwen3"))
    need = checkpoint_memory(case.folder, "paddleformers")
    assert need is not None and need.kv_position == 0 and need.hidden_row == 4 * 32
    taken = sum(weight.nbytes for weight in case.reference.parameters())
    assert need.weights["weights as float32"] == taken


BESIDE = """
import logging, sys
from specdec_hal.models import load_model
first, second, folder = sys.argv[1:]
handlers = [*logging.root.handlers]
models = [load_model(folder, name) for name in (first, second)]
from transformers.utils import is_torch_available
import importlib.util
assert is_torch_available() and importlib.util.find_spec("paddlefleet") is None
assert logging.root.handlers == handlers and logging.root.level == logging.WARNING
print([type(model).__name__ for model in models])
"""


@pytest.mark.parametrize("order", [("paddleformers", "transformers"), ("transformers", "paddleformers")])
def test_beside_pytorch(order: tuple[str, str], tmp_path: Path) -> None:
    """Both adapters work in one process, in any order; nothing else of the process changes, nothing is printed."""
    folder = write_model(tmp_path, "Qwen2")
    done = subprocess.run(
        [sys.executable, "-c", BESIDE, *order, str(folder)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    names = {"paddleformers": "PaddleFormers", "transformers": "HostTransformers"}
    assert done.stdout == f"{[names[name] for name in order]}\n", done.stderr
