"""A decode loop of one's own around a model of `transformers`, with drafts from this project.

``python examples/torch_loop.py [model] [prompt file]`` needs PyTorch and `transformers`. With and without drafts the
tokens are the same, greedy and sampled.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import specdec_hal as sd

ROOT = Path(__file__).parents[1]


@torch.inference_mode()
def generate(model: Any, prompt: list[int], max_new_tokens: int, k: int = 8, **sampling: Any) -> tuple[list[int], int]:
    """What continues the prompt, and in how many steps. `k` is the most drafts a step; `sampling` goes to `verify`."""
    drafter = sd.Drafter(num_speculative_tokens=k, max_ngram_size=4)
    cache, text, new, drafts, steps = DynamicCache(), list(prompt), list(prompt), [], 0
    while len(text) < len(prompt) + max_new_tokens and text[-1] != model.config.eos_token_id:
        fed = torch.tensor([new + drafts], device=model.device)
        logits = model(fed, past_key_values=cache, logits_to_keep=len(drafts) + 1).logits
        out = sd.verify(logits, [drafts], positions=len(text), end_tokens=[model.config.eos_token_id], **sampling)
        new = out.token_ids[0, : int(out.counts[0])].tolist()
        if rejected := len(drafts) + 1 - len(new):
            cache.crop(-rejected)
        text, new, steps = text + new, new[-1:], steps + 1
        room = len(prompt) + max_new_tokens - len(text) - 1
        drafts = drafter.propose([text], request_ids=["mine"], num_speculative_tokens=min(k, max(room, 0)))[0]
    return text[len(prompt) :], steps


def main(path: str = str(ROOT / "models/tiny-py-lm"), file: str = "examples/prompts/edit_function.txt") -> None:
    """Decode a file's text greedily and sampled, with drafts and without."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    # The line break at the end of a file is not part of the prompt.
    prompt = tokenizer((ROOT / file).read_text().removesuffix("\n"))["input_ids"]
    for sampling in ({}, {"temperature": 0.8, "top_p": 0.9, "seeds": 7}):
        tokens, steps = generate(model, prompt, 128, **sampling)
        plain, plain_steps = generate(model, prompt, 128, k=0, **sampling)
        same = "the same tokens" if tokens == plain else "OTHER TOKENS"
        print(f"{len(tokens)} tokens in {steps} steps, {plain_steps} without drafts: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])
