"""The distributions under examples/ that bring a proposer and a model, installed beside the wheel and run there."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

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


@pytest.mark.torch
def test_a_model_that_transformers_does_not_have(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a clean environment: the same tokens with drafts, without, and from the model itself."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed (pip install transformers)")
    import torch

    from specdec_hal.models import load_tokenizer

    example, folder = EXAMPLES / "transformers_model", tmp_path / "side_by_side"
    environment = Environment.make(tmp_path, [wheel, example_wheel(example, tmp_path)], borrowed=True)
    environment.run("python", "-m", "transformers_model.make", folder, ROOT / "models/tiny-py-lm/tokenizer.json")
    config = ("--config", example / "transformers_model.yaml", "--set", f"model.path={folder}")
    prompts = ("--prompt", "def add(a, b):\n    return a + b\n" * 3, "--prompt", "import os\n", "--max-new-tokens", 40)
    told = json.loads(environment.output("specdec-hal", "compare", *config, *prompts, "--repeat", 1, "--json"))
    assert told["identical"] and told["spec"]["accepted_tokens"] > 0
    document = json.loads(environment.output("specdec-hal", "generate", *config, *prompts, "--json"))

    monkeypatch.syspath_prepend(str(example / "src"))
    from transformers_model.modeling import SideBySideForCausalLM

    model, tokenizer = SideBySideForCausalLM.from_pretrained(folder).eval(), load_tokenizer(folder)
    for prompt, request in zip((prompts[1], prompts[3]), document["requests"], strict=True):
        ids = torch.tensor([tokenizer.encode(prompt)])
        alone = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, use_cache=False
        )
        assert request["token_ids"] == alone[0, ids.shape[1] :].tolist()
