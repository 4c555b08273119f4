"""Gemma 4's assistants: written with random weights, and the drafts of the library's own generator."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

VOCABULARY, WINDOW, DRAFTS = 16, 6, 4
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "global_head_dim": 32, "sliding_window": WINDOW, "max_position_embeddings": 128,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "bos_token_id": 2, "eos_token_id": 1,
    "pad_token_id": 0,
}  # fmt: skip


def scrambled(model: Any, seed: int) -> Any:
    """Random weights that are large enough for layers to decide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.1 * values if weight.ndim == 1 else 2 * values / weight.shape[-1] ** 0.5)
            if "embed" in name:
                weight.copy_(values / 4)
    return model.eval()


def of_library(family: str, name: str) -> Any:
    return getattr(transformers, family + name)


def write_target(folder: Path, family: str = "Gemma4", shared: int = 0) -> Path:
    """Four layers, and up to three that share their keys, with inputs of their own, as in E2B and E4B."""
    kinds = ["full", "sliding", "sliding", "full", "sliding", "sliding", "full"][: 4 + shared]
    own = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY} if shared else {}
    config = of_library(family, "TextConfig")(
        **{**SIZES, **own}, hidden_size=32, num_hidden_layers=len(kinds), num_kv_shared_layers=shared,
        layer_types=[f"{kind}_attention" for kind in kinds],
    )  # fmt: skip
    scrambled(of_library(family, "ForCausalLM")(config), 1).save_pretrained(folder)
    return folder


def write(folder: Path, ordered: bool = False, backbone: int = 32, family: str = "Gemma4", **changes: Any) -> Path:
    """An assistant of two layers with half of the target's width, and twice its heads."""
    own = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 8}
    own |= {"layer_types": ["sliding_attention", "full_attention"], **changes}
    config = of_library(family, "AssistantConfig")(
        text_config=of_library(family, "TextConfig")(**{**SIZES, **own}), backbone_hidden_size=backbone,
        use_ordered_embeddings=ordered, num_centroids=8, centroid_intermediate_top_k=3,
    )  # fmt: skip
    made = scrambled(of_library(family, "AssistantForCausalLM")(config), 2)
    if ordered:
        made.masked_embedding.token_ordering.copy_(torch.arange(VOCABULARY).view(2, -1).T.flatten())
    made.save_pretrained(folder)
    return folder


class Generator:
    """The library's generator, without what a rejection leaves: after each text its target has read that text alone."""

    def __init__(self, target: Path, assistant: Path, family: str = "Gemma4") -> None:
        from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

        self.target = of_library(family, "ForCausalLM").from_pretrained(target).eval()
        model = of_library(family, "AssistantForCausalLM").from_pretrained(assistant).eval()
        model.generation_config.num_assistant_tokens = DRAFTS
        config = copy.deepcopy(self.target.generation_config)
        config.max_length, config.eos_token_id = 128, None
        ids = torch.tensor([[2]])
        self.made = SinglePositionMultiTokenCandidateGenerator(
            input_ids=ids, assistant_model=model, target_model_input_embeddings=self.target.get_input_embeddings(),
            generation_config=config, model_kwargs={"attention_mask": None}, eos_token_id=[-1],
        )  # fmt: skip

    def drafts(self, text: list[int]) -> list[int]:
        """After a text, whose last token the target has not read."""
        ids = torch.tensor([text])
        with torch.inference_mode():
            given = self.target(ids[:, :-1], output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
            found, _ = self.made.get_candidates(ids, {}, given, False, len(text) - 2)
        return found[0, len(text) :].tolist()

    def check(self, prompts: list[list[int]], outputs: list[Any]) -> None:
        """That drafts of outputs with `return_drafts` are the library's in every round."""
        rounds, differ = 0, set[int]()
        for prompt, output in zip(prompts, outputs, strict=True):
            for round_ in output.drafts:
                wanted = self.drafts([*prompt, *output.token_ids[: round_.start]])
                assert list(round_.token_ids) == wanted[: len(round_.token_ids)]
                differ |= set(wanted)
                rounds += len(round_.token_ids) == DRAFTS
        assert rounds > 20 and len(differ) > 6
