"""The distributions under examples/ that bring a proposer and a model, installed beside the wheel and run there."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import Environment, example_wheel

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROMPT = ("--prompt-file", EXAMPLES / "prompts" / "edit_function.txt", "--max-new-tokens", 32)


def test_a_proposer_with_settings(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    example = EXAMPLES / "third_party_proposer"
    environment = Environment.make(tmp_path, [wheel, example_wheel(example, tmp_path)], borrowed=True)
    config = ("--config", example / "phrase_book.yaml")
    told = json.loads(environment.output("specdec-hal", "compare", *config, *PROMPT, "--repeat", 1, "--json"))
    assert (told["identical"], told["method"]) == (True, "phrase_book")
    assert told["spec"]["accepted_tokens"] > 10
    assert told["spec"]["tokens_per_step"] > 1.3

    def refused(*overrides: str) -> str:
        more = [part for override in overrides for part in ("--set", override)]
        command = ("specdec-hal", "generate", *config, *more, "--prompt", "x")
        imported, _, rest = environment.output(*command, status=2, stream="stderr").partition("\n")
        assert imported.startswith("specdec-hal: importing plug-in 'phrase_book' ")
        return rest

    section = "speculative.phrase_book"
    assert refused(f"{section}.longets=4") == (
        f"specdec-hal: --set:{section}.longets: unknown key; did you mean 'longest'?; allowed: corpus, longest, "
        "shortest\n"
    )
    assert refused(f"{section}.longest=17").endswith("longest: expected an integer in 1..16, got 17\n")
    assert refused(f"{section}.shortest=9").endswith("shortest: expected at most longest = 5, got 9\n")
    missing = refused(f"{section}.corpus=nowhere.txt")
    assert missing.startswith(f"specdec-hal: --set:{section}.corpus: cannot be read: ")
    assert str(environment.work / "nowhere.txt") in missing


@pytest.fixture
def installed_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's module, from its sources."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed (pip install transformers)")
    monkeypatch.syspath_prepend(str(EXAMPLES / "transformers_model" / "src"))
    import transformers_model.model

    yield transformers_model.model
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_model"]:
        del sys.modules[name]


def random_checkpoint(folder: Path, kind: str, **changes: Any) -> Path:
    """A model of transformers with random weights, of the embedded tokenizer's vocabulary."""
    import torch
    import transformers

    torch.manual_seed(3)
    vocabulary = json.loads((ROOT / "models/tiny-py-lm/config.json").read_text())["vocab_size"]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocabulary, max_position_embeddings=256, **sizes, **ends, **changes
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():  # far from zero, so that choices are clear and texts repeat
            parameter.mul_(4)
    model.save_pretrained(folder)
    shutil.copy(ROOT / "models/tiny-py-lm/tokenizer.json", folder)
    return folder


@pytest.mark.torch
def test_a_model_of_transformers(wheel: Path, tmp_path: Path) -> None:
    """Another architecture than ours, from a clean environment: the same tokens with drafts, without, and alone."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed (pip install transformers)")
    import torch
    from transformers import AutoModelForCausalLM

    from specdec_hal.models import load_tokenizer

    example = EXAMPLES / "transformers_model"
    environment = Environment.make(tmp_path, [wheel, example_wheel(example, tmp_path)], borrowed=True)
    folder = random_checkpoint(tmp_path / "neox", "GPTNeoX")
    config = ("--config", example / "transformers_model.yaml", "--set", f"model.path={folder}")
    prompts = ("--prompt", "def add(a, b):\n    return a + b\n" * 3, "--prompt", "import os\n", "--max-new-tokens", 40)
    told = json.loads(environment.output("specdec-hal", "compare", *config, *prompts, "--repeat", 1, "--json"))
    assert told["identical"] and told["spec"]["accepted_tokens"] > 0
    document = json.loads(environment.output("specdec-hal", "generate", *config, *prompts, "--json"))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), load_tokenizer(folder)
    for prompt, request in zip((prompts[1], prompts[3]), document["requests"], strict=True):
        ids = torch.tensor([tokenizer.encode(prompt)])
        alone = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)
        assert request["token_ids"] == alone[0, ids.shape[1] :].tolist()


@pytest.mark.torch
def test_the_embedded_model_through_transformers(installed_model: Any) -> None:
    """It computes what the project's own decoder computes, layer by layer, and forgets rejected drafts."""
    import numpy as np

    from specdec_hal.models import load_model
    from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

    path = ROOT / "models/tiny-py-lm"
    theirs, ours = installed_model.TransformersModel(path), load_model(path, "torch")
    layers = tuple(range(len(theirs.capabilities.hidden_layers) - 1))
    assert layers and set(theirs.capabilities.hidden_layers) < set(ours.capabilities.hidden_layers)
    ids = np.random.default_rng(0).integers(3, 500, 30)
    for model in (theirs, ours):
        model.allocate(2, 64)
    steps = [
        ForwardBatch(ids[:20], [Segment(1, 0, 12, 0), Segment(0, 12, 8, 0)], layers),
        ForwardBatch(ids[20:26], [Segment(0, 0, 4, 8), Segment(1, 4, 2, 12)], layers),  # two of slot 0 are rejected
        ForwardBatch(ids[26:], [Segment(0, 0, 2, 10), Segment(1, 2, 2, 14)], layers),
        ForwardBatch(ids[:5], [Segment(1, 0, 5, 0)], layers),  # a new owner
    ]
    for batch in steps:
        found, expected = theirs.forward(batch), ours.forward(batch)
        assert set(found) == {FINAL_NORM, *layers}
        for layer, hidden in found.items():
            np.testing.assert_allclose(hidden.numpy(), expected[layer].numpy(), rtol=1e-3, atol=1e-3)
        logits = theirs.compute_logits(found[FINAL_NORM])
        np.testing.assert_allclose(logits.numpy(), ours.compute_logits(expected[FINAL_NORM]).numpy(), atol=2e-3)


@pytest.mark.torch
def test_what_it_cannot_serve_is_refused(installed_model: Any, tmp_path: Path) -> None:
    from specdec_hal.errors import UnsupportedError

    capped = random_checkpoint(tmp_path / "capped", "Gemma2", num_key_value_heads=2, head_dim=8)
    with pytest.raises(UnsupportedError, match="Gemma2ForCausalLM computes its logits in another way"):
        installed_model.TransformersModel(capped)
