"""The adapter for `transformers` over many architectures: the tokens of plain decoding, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import UnsupportedError
from tests.support.scripted import Scripted, padded

pytestmark = pytest.mark.torch
V, END = 40, 0
PROMPTS = [[3, 4, 5, 3, 4, 5, 6, 9], [9, 8, 9], [7, 2, 7, 2, 7]]
NEOX = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "initializer_range": 0.5, "eos_token_id": END, "pad_token_id": END,
    "bos_token_id": 1,
}  # fmt: skip
LLAMA = {**NEOX, "num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {
    "vocab_size": V, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "initializer_range": 0.5, "eos_token_id": END, "pad_token_id": END, "bos_token_id": 1,
}  # fmt: skip
BART = {
    "vocab_size": V, "d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4,
    "max_position_embeddings": 64, "init_std": 0.5, "eos_token_id": END, "pad_token_id": END, "bos_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
FALCON = {**NEOX, "ffn_hidden_size": 48, "new_decoder_architecture": True, "num_kv_heads": 2}
NEO = {**NEOX, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 6}
del NEO["num_hidden_layers"], NEO["num_attention_heads"]
MPT = {"vocab_size": V, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "use_cache": True}

SERVED = {
    "Llama": ("LlamaForCausalLM", LLAMA), "Qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}),
    "Mixtral": ("MixtralForCausalLM", {**LLAMA, **EXPERTS}), "Granite": ("GraniteForCausalLM", LLAMA),
    "Cohere": ("CohereForCausalLM", LLAMA), "StableLm": ("StableLmForCausalLM", LLAMA),
    "Phi": ("PhiForCausalLM", LLAMA), "GPTNeoX": ("GPTNeoXForCausalLM", NEOX), "GPT2": ("GPT2LMHeadModel", GPT2),
    "GPTJ": ("GPTJForCausalLM", {**GPT2, "rotary_dim": 4}),
    "OPT": ("OPTForCausalLM", {**NEOX, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.5}),
    "Falcon": ("FalconForCausalLM", FALCON), "Mpt": ("MptForCausalLM", MPT),
}  # fmt: skip
ALONE = {
    "Bart": ("BartForCausalLM", BART, "gives other logits"),
    "GPTNeo": ("GPTNeoForCausalLM", NEO, "gives other logits"),
    "RoFormer": ("RoFormerForCausalLM", {**NEOX, "is_decoder": True}, "gives other logits"),
    "Bloom": ("BloomForCausalLM", GPT2, "does not take a cache and a mask"),
    "Falcon": ("FalconForCausalLM", {**FALCON, "alibi": True}, "does not take a cache and a mask"),
}
REFUSED = {
    "Mamba": ("MambaForCausalLM", {**NEOX, "state_size": 8}, "has no cache"),
    "Rwkv": ("RwkvForCausalLM", NEOX, "has no cache"),
    "OpenAIGPT": ("OpenAIGPTLMHeadModel", GPT2, "has no cache"),
    "XLM": ("XLMWithLMHeadModel", {"vocab_size": V, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, "returned no keys"),
    "Mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 8}, "DynamicSlidingWindowLayer"),
    "MiniMax": ("MiniMaxForCausalLM", {**LLAMA, **EXPERTS}, "MiniMaxCache|has no cache"),
}


def build(transformers: Any, kind: str, name: str, config: dict[str, Any]) -> Any:
    """A model with random weights, large enough that logits lie far apart and rounding decides nothing."""
    import torch

    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**config)).eval()


def truth_and_lies(texts: list[list[int]]) -> Scripted:
    """A drafter that knows each text, and is wrong after some tokens: rows of a batch accept different numbers."""
    calls = iter(range(1 << 20))

    def propose(text: list[int]) -> list[int]:
        whole = next((t for t in texts if t[: len(text)] == text), text)
        return [*whole[len(text) :][: 5 * next(calls) % 4], 7]

    return Scripted(3, propose)


def compare(model: Any, adapter: Any, prompts: list[list[int]], **how: Any) -> None:
    """Ours gives what plain decoding gives; some drafts are accepted."""
    inputs = padded(prompts)
    how = {"max_new_tokens": 16, "do_sample": False, **how}
    plain = model.generate(**inputs, **how).tolist()
    width = inputs["input_ids"].shape[1]
    texts = [row[width - len(prompt) :] for row, prompt in zip(plain, prompts, strict=True)]
    drafter = truth_and_lies(texts)
    ours = model.generate(**inputs, **how, custom_generate=adapter.generate, drafter=drafter)
    assert ours.tolist() == plain
    assert 0 < drafter.calls < max(map(len, plain)) - width


def refused(model: Any, adapter: Any, prompts: list[list[int]], message: str, **how: Any) -> None:
    """One clear error that names the model, before anything was drafted."""
    drafter = Scripted(3, lambda text: [7])
    how = {"max_new_tokens": 16, "do_sample": False, "custom_generate": adapter.generate, "drafter": drafter, **how}
    with pytest.raises(UnsupportedError, match=message):
        model.generate(**padded(prompts), **how)
    assert drafter.calls == 0


@pytest.mark.parametrize("kind", SERVED)
def test_models_that_go_by_positions_and_masks(adapter: Any, transformers: Any, kind: str) -> None:
    model = build(transformers, kind, *SERVED[kind])
    compare(model, adapter, PROMPTS[2:])
    compare(model, adapter, PROMPTS)


@pytest.mark.parametrize("kind", ALONE)
def test_models_that_are_right_for_one_prompt_alone(adapter: Any, transformers: Any, kind: str) -> None:
    """They count positions by columns, see a window of columns, or want one mask for all: a batch is refused."""
    name, config, message = ALONE[kind]
    model = build(transformers, kind, name, config)
    compare(model, adapter, PROMPTS[2:])
    refused(model, adapter, PROMPTS, f"{name} {message}.*one prompt at a time")


@pytest.mark.parametrize("kind", REFUSED)
def test_models_with_a_state_or_a_cache_of_their_own(adapter: Any, transformers: Any, kind: str) -> None:
    name, config, message = REFUSED[kind]
    model = build(transformers, kind, name, config)
    for prompts in (PROMPTS[2:], PROMPTS):
        refused(model, adapter, prompts, message)


def test_a_window_that_the_texts_do_not_reach(adapter: Any, transformers: Any) -> None:
    """Only the given extent matters, and correctness for short texts does not imply it for long ones."""
    model = build(transformers, "GPTNeo", "GPTNeoForCausalLM", {**NEO, "window_size": 20})
    compare(model, adapter, PROMPTS, max_new_tokens=12)
    for new in (16, 40):  # the window hides columns of the longest prompt, and of all
        refused(model, adapter, PROMPTS, "gives other logits", max_new_tokens=new)
    compare(model, adapter, PROMPTS, max_new_tokens=12)


# ---- rotary embeddings that depend on the length of the text

SWITCH = 20
DYNAMIC = {
    **LLAMA,
    "max_position_embeddings": SWITCH,
    "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
}
LONG = {
    **LLAMA,
    "original_max_position_embeddings": SWITCH,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0],
        "original_max_position_embeddings": SWITCH,
    },
}  # fmt: skip
ROTARY = {"Llama": ("LlamaForCausalLM", DYNAMIC), "Phi3": ("Phi3ForCausalLM", LONG)}


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "batch"])
def test_texts_that_cross_the_switch(adapter: Any, transformers: Any, kind: str, prompts: list[list[int]]) -> None:
    """They are refused, and leave the model as it was; texts on the short side of it are served."""
    model, fresh = (build(transformers, kind, *ROTARY[kind]) for _ in range(2))
    compare(model, adapter, prompts, max_new_tokens=SWITCH - 8)
    refused(model, adapter, prompts, "rotary embedding of .*inv_freq.* changes with the length", max_new_tokens=20)
    behind = padded([prompt * 3 for prompt in prompts])
    expected = fresh.generate(**behind, max_new_tokens=8, do_sample=False)
    assert model.generate(**behind, max_new_tokens=8, do_sample=False).tolist() == expected.tolist()
    compare(model, adapter, prompts, max_new_tokens=SWITCH - 8)


def test_texts_beyond_the_switch(adapter: Any, transformers: Any) -> None:
    """LongRoPE has one set of frequencies there. A batch must be there as a whole: which set depends on all rows."""
    model = build(transformers, "Phi3", *ROTARY["Phi3"])
    beyond = [prompt * 8 for prompt in PROMPTS]
    compare(model, adapter, beyond[:1])
    compare(model, adapter, beyond)
    refused(model, adapter, [beyond[0], PROMPTS[1]], "rotary embedding", max_new_tokens=8)


@pytest.mark.parametrize("kind", ROTARY)
def test_assisted_decoding_across_the_switch(adapter: Any, transformers: Any, kind: str) -> None:
    """Refused as `generate` refuses it, before anything is drafted; on one side of the switch it is served."""
    model, fresh = (build(transformers, kind, *ROTARY[kind]) for _ in range(2))
    how: dict[str, Any] = {"do_sample": False, "custom_generate": adapter.assisted_generate}
    for prompt in PROMPTS:
        for new in (SWITCH - 8, SWITCH - len(prompt)):  # the last text ends at the switch
            right = fresh.generate(**padded([prompt]), max_new_tokens=new, do_sample=False).tolist()
            drafter = Scripted(4, lambda text, right=right: right[0][len(text) :])  # type: ignore[misc]
            out = model.generate(**padded([prompt]), max_new_tokens=new, drafter=drafter, **how)
            assert out.tolist() == right and drafter.calls
        drafter = Scripted(4, lambda text: [7])
        message = "rotary embedding of .*inv_freq.* changes with the length"
        with pytest.raises(UnsupportedError, match=message):
            model.generate(**padded([prompt]), max_new_tokens=SWITCH - len(prompt) + 2, drafter=drafter, **how)
        assert not drafter.calls
    if kind == "Phi3":  # which has one set of frequencies beyond the switch
        beyond = padded([PROMPTS[0] * 8])
        expected = fresh.generate(**beyond, max_new_tokens=8, do_sample=False).tolist()
        assert model.generate(**beyond, max_new_tokens=8, **how).tolist() == expected


# ---- what a call brings along


def test_the_last_position_of_a_table(adapter: Any, transformers: Any) -> None:
    """A row with one token to go is fed beside rows with more drafts, and is not looked up beyond its end."""
    model = build(transformers, "GPT2", "GPT2LMHeadModel", {**GPT2, "n_positions": 24})
    how = {**padded(PROMPTS), "max_new_tokens": 16, "do_sample": False}
    plain = model.generate(**how).tolist()
    drafter = Scripted(3, lambda text: [plain[0][len(text)], 7] if text == plain[0][: len(text)] else [7, 7, 7])
    assert model.generate(**how, custom_generate=adapter.generate, drafter=drafter).tolist() == plain


def test_positions_that_do_not_begin_at_0(adapter: Any, transformers: Any) -> None:
    import torch

    model = build(transformers, "GPT2", *SERVED["GPT2"])
    plain = model.generate(**padded(PROMPTS[:1]), max_new_tokens=12, do_sample=False)
    position_ids = torch.arange(8)[None] + 5
    how = {**padded(PROMPTS[:1]), "position_ids": position_ids, "max_new_tokens": 12, "do_sample": False}
    shifted = model.generate(**how)
    assert shifted.tolist() != plain.tolist()
    assert model.generate(**how, custom_generate=adapter.generate).tolist() == shifted.tolist()


def test_arguments_that_every_step_would_need(adapter: Any, transformers: Any) -> None:
    import torch

    model, ids = build(transformers, "GPT2", *SERVED["GPT2"]), torch.full((1, 8), 9)
    refused(model, adapter, PROMPTS[:1], "needs token_type_ids", token_type_ids=ids)


def test_a_cache_that_holds_more_than_the_text(adapter: Any, transformers: Any) -> None:
    import torch

    model, ids = build(transformers, "Llama", *SERVED["Llama"]), torch.tensor([[3, 4, 3, 4, 3, 9]])
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :4], past_key_values=cache, use_cache=True)
    how = {"attention_mask": torch.ones_like(ids), "past_key_values": cache, "custom_generate": adapter.generate}
    with pytest.raises(UnsupportedError, match="the whole text in input_ids, got 2 tokens and a cache of 6"):
        model.generate(ids[:, 4:], **how, max_new_tokens=4)


def test_a_model_is_checked_once(adapter: Any, transformers: Any) -> None:
    """And again only for texts that begin earlier or go further than all before."""
    from tests.support.scripted import watched

    model = build(transformers, "Llama", *SERVED["Llama"])

    def passes(prompts: list[list[int]], new: int) -> int:
        with watched(model) as shapes:
            arguments = {"custom_generate": adapter.generate, "drafter": Scripted(3, lambda text: [])}
            model.generate(**padded(prompts), max_new_tokens=new, min_new_tokens=new, do_sample=False, **arguments)
        return len(shapes) - new

    assert [passes(PROMPTS, 8), passes(PROMPTS, 8), passes(PROMPTS, 6), passes(PROMPTS, 9)] == [6, 0, 0, 6]
    assert [passes(PROMPTS[:1], 6), passes(PROMPTS[:1], 6)] == [4, 0]


# ---- streamers


class Recorder:
    """A streamer that keeps its input."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.ends = 0

    def put(self, value: Any) -> None:
        assert self.ends == 0
        self.steps.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


def test_a_streamer_gets_what_plain_decoding_puts(adapter: Any, transformers: Any) -> None:
    """In a batch step by step, with padding after rows that have ended."""
    model = build(transformers, "Llama", *SERVED["Llama"])
    whole = model.generate(**padded(PROMPTS), max_new_tokens=20, do_sample=False)
    ends = sorted({int(whole[0, 12]), int(whole[1, 18])})
    how = {**padded(PROMPTS), "max_new_tokens": 20, "do_sample": False, "eos_token_id": ends, "pad_token_id": 39}
    plain, ours = Recorder(), Recorder()
    texts = model.generate(**how, streamer=plain).tolist()
    drafter = truth_and_lies([row[8 - len(p) :] for row, p in zip(texts, PROMPTS, strict=True)])
    model.generate(**how, streamer=ours, custom_generate=adapter.generate, drafter=drafter)
    assert any(39 in step for step in plain.steps[1:])
    assert (ours.steps, ours.ends) == (plain.steps, 1)


def test_the_stream_of_assisted_decoding(adapter: Any, transformers: Any) -> None:
    model, ours = build(transformers, "Llama", *SERVED["Llama"]), Recorder()
    how = {**padded(PROMPTS[:1]), "max_new_tokens": 20, "do_sample": False}
    out = model.generate(**how, streamer=ours, custom_generate=adapter.assisted_generate)
    new = np.concatenate([np.ravel(step) for step in ours.steps[1:]])
    assert (new.tolist(), ours.ends) == (out[0, 8:].tolist(), 1)


@pytest.mark.parametrize("ours", ["generate", "assisted_generate"])
def test_a_stream_ends_where_a_call_is_refused(adapter: Any, transformers: Any, ours: str) -> None:
    model, streamer = build(transformers, "Mamba", *REFUSED["Mamba"][:2]), Recorder()
    with pytest.raises(UnsupportedError, match="MambaForCausalLM"):
        how = {"streamer": streamer, "custom_generate": getattr(adapter, ours)}
        model.generate(**padded(PROMPTS[:1]), max_new_tokens=4, **how)
    assert (streamer.steps, streamer.ends) == ([PROMPTS[:1]], 1)
