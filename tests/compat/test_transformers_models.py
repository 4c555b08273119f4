"""The adapter for `transformers` over many architectures: the tokens of plain decoding, or refused by name."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from specdec_hal.errors import UnsupportedError
from tests.support.scripted import Scripted, padded, passes

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
DELTA = {
    "head_dim": 8, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip

SERVED = {
    "Llama": ("LlamaForCausalLM", LLAMA), "Qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}),
    "Mixtral": ("MixtralForCausalLM", {**LLAMA, **EXPERTS}), "Granite": ("GraniteForCausalLM", LLAMA),
    "Cohere": ("CohereForCausalLM", LLAMA), "StableLm": ("StableLmForCausalLM", LLAMA),
    "Phi": ("PhiForCausalLM", LLAMA), "GPTNeoX": ("GPTNeoXForCausalLM", NEOX), "GPT2": ("GPT2LMHeadModel", GPT2),
    "OPT": ("OPTForCausalLM", {**NEOX, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.5}),
    "Mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 8}),
    "Qwen3_5Text": ("Qwen3_5ForCausalLM", {**LLAMA, **DELTA}), "GPTNeo": ("GPTNeoForCausalLM", NEO),
    "Falcon": ("FalconForCausalLM", FALCON), "Falcon, ALiBi": ("FalconForCausalLM", {**FALCON, "alibi": True}),
    "DiffLlama": ("DiffLlamaForCausalLM", LLAMA), "Mpt": ("MptForCausalLM", MPT), "Bloom": ("BloomForCausalLM", GPT2),
}  # fmt: skip
ALONE: dict[str, tuple[str, dict[str, Any], str]] = {
    "GPTNeoXJapanese": (
        "GPTNeoXJapaneseForCausalLM",
        {**NEOX, "intermediate_multiple_size": 2},
        "does not go through the attention",
    ),
}
BY_VERSION: dict[str, tuple[str, dict[str, Any], str]] = {
    "Bart": ("BartForCausalLM", BART, "cannot drop rejected drafts"),
    "RoFormer": ("RoFormerForCausalLM", {**NEOX, "is_decoder": True}, "others when several tokens follow its cache"),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "Mamba": ("MambaForCausalLM", {**NEOX, "state_size": 8}, "has no cache"),
    "Rwkv": ("RwkvForCausalLM", NEOX, "has no cache"),
    "OpenAIGPT": ("OpenAIGPTLMHeadModel", GPT2, "has no cache"),
    "MiniMax": ("MiniMaxForCausalLM", {**LLAMA, **EXPERTS}, "a cache of its own|MiniMaxCache|has no cache"),
    "XLM": ("XLMWithLMHeadModel", {"vocab_size": V, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, "XLMWithLMHeadModel"),
}


def build(transformers: Any, kind: str, name: str, config: dict[str, Any]) -> Any:
    """A model with random weights, large enough that logits lie far apart and rounding decides nothing."""
    import torch

    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, f"{kind.partition(',')[0]}Config")(**config)).eval()


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
def test_models_over_the_engines_cache(adapter: Any, transformers: Any, kind: str) -> None:
    model = build(transformers, kind, *SERVED[kind])
    for prompts in (PROMPTS[2:], PROMPTS):
        with passes() as found:
            compare(model, adapter, prompts)
        assert found[0] == (len(prompts), sum(map(len, prompts)))


@pytest.mark.parametrize("kind", ["Llama", "Mixtral", "Mistral", "OPT", "Qwen3_5Text", "Bloom"])
def test_models_over_a_pool_of_blocks(
    adapter: Any, transformers: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with PyTorch's operators."""
    from specdec_hal.models.transformers import device, host

    monkeypatch.setattr(host, "HostTransformers", device.DeviceTransformers)
    compare(build(transformers, kind, *SERVED[kind]), adapter, PROMPTS)


@pytest.mark.parametrize("kind", ALONE)
def test_models_that_are_decoded_one_prompt_at_a_time(
    adapter: Any, transformers: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By assisted decoding, and the log says why; a batch is refused."""
    name, config, message = ALONE[kind]
    model = build(transformers, kind, name, config)
    for prompt in PROMPTS:
        compare(model, adapter, [prompt])
    assert message in caplog.text and "it goes through the assisted decoding" in caplog.text
    refused(model, adapter, PROMPTS, f"{name}: .*{message}.*one prompt at a time")


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_drop_a_draft(adapter: Any, transformers: Any, kind: str) -> None:
    name, config, message = REFUSED[kind]
    model = build(transformers, kind, name, config)
    refused(model, adapter, PROMPTS[2:], message)
    refused(model, adapter, PROMPTS, "generate: ")
    refused(model, adapter, PROMPTS[2:], name, custom_generate=adapter.assisted_generate)


@pytest.mark.parametrize("kind", BY_VERSION)
def test_models_that_the_librarys_assisted_decoding_gets_wrong(adapter: Any, transformers: Any, kind: str) -> None:
    """5.17 does, and they are refused; 5.24 does not, and gives the tokens of plain decoding."""
    name, config, message = BY_VERSION[kind]
    model = build(transformers, kind, name, config)
    if transformers.__version__.startswith("5.17."):
        return refused(model, adapter, PROMPTS[2:], message)
    try:
        compare(model, adapter, PROMPTS[2:])
    except UnsupportedError as error:
        assert message in str(error)


def test_the_model_stays_as_it_is(adapter: Any, transformers: Any) -> None:
    """Its attention, modules, hooks and tensors; a change to it counts in the next call."""
    import torch

    model = build(transformers, "Mistral", *SERVED["Mistral"]).train()

    def state() -> Any:
        return model.config.to_json_string(use_diff=False), [
            (part, {name: value for name, value in vars(part).items() if not name.startswith("_")}, dict(vars(part)))
            for part in model.modules()
        ]

    model.model.layers[0].register_forward_hook(lambda module, args, output: output * 1.5)
    before, tensors = state(), [x.clone() for x in (*model.parameters(), *model.buffers())]
    compare(model.eval(), adapter, PROMPTS)
    model.train()
    model.generate(**padded(PROMPTS), max_new_tokens=4, do_sample=False, custom_generate=adapter.generate)
    assert state() == before and model.training
    now = (*model.parameters(), *model.buffers())
    assert all(torch.equal(*pair) and not pair[0].is_inference() for pair in zip(now, tensors, strict=True))
    model.eval()
    with torch.no_grad():
        model.lm_head.weight.add_(model.model.embed_tokens.weight.roll(1, 0) * 3)
        model.model.layers[1].mlp.down_proj = torch.nn.Linear(48, 32, bias=False)
    compare(model, adapter, PROMPTS)
    model.config.sliding_window = 3
    compare(model, adapter, PROMPTS)


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
    """LongRoPE has one set of frequencies there, also for the other rows of a batch with a prompt beyond it."""
    model = build(transformers, "Phi3", *ROTARY["Phi3"])
    beyond = [prompt * 8 for prompt in PROMPTS]
    compare(model, adapter, beyond[:1])
    compare(model, adapter, beyond)
    compare(model, adapter, [beyond[0], PROMPTS[1]], max_new_tokens=8)


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
    refused(
        model, adapter, PROMPTS, "position_ids of GPT2LMHeadModel are not 0", position_ids=position_ids.repeat(3, 1)
    )


def test_arguments_that_every_step_needs(adapter: Any, transformers: Any) -> None:
    import torch

    model, ids = build(transformers, "GPT2", *SERVED["GPT2"]), torch.full((3, 8), 5)
    compare(model, adapter, PROMPTS[:1], token_type_ids=ids[:1])
    refused(model, adapter, PROMPTS, "GPT2LMHeadModel needs token_type_ids", token_type_ids=ids)


def test_a_cache_that_holds_more_than_the_text(adapter: Any, transformers: Any) -> None:
    import torch

    model, ids = build(transformers, "Llama", *SERVED["Llama"]), torch.tensor([[3, 4, 3, 4, 3, 9]])
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :4], past_key_values=cache, use_cache=True)
    how = {"attention_mask": torch.ones_like(ids), "past_key_values": cache, "custom_generate": adapter.generate}
    with pytest.raises(UnsupportedError, match="expected an empty cache, got one of 4 tokens"):
        model.generate(ids[:, 4:], **how, max_new_tokens=4)


def test_a_model_is_tried_once(adapter: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again only after a change."""
    from specdec_hal.models.transformers import loaded, survey

    tried: list[Any] = []

    def trying(*args: Any) -> Any:
        tried.append(args)
        return survey.survey(*args)

    monkeypatch.setattr(loaded, "survey", trying)
    model = build(transformers, "Mistral", *SERVED["Mistral"])
    for prompts in (PROMPTS, PROMPTS[:1], PROMPTS):
        compare(model, adapter, prompts)
    assert len(tried) == 1
    model.config.sliding_window = 5
    compare(model, adapter, PROMPTS)
    assert len(tried) == 2
    freed = weakref.ref(model)
    del model
    tried.clear()
    gc.collect()
    assert freed() is None


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
