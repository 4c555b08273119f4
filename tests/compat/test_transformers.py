"""The adapter for `transformers`: tokens equal to its plain decoding, one row or many, whatever is drafted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specdec_hal as sd
from specdec_hal.errors import RequestError, UnsupportedError
from tests.support.scripted import END, Scripted, V, padded, passes, watched

pytestmark = pytest.mark.torch


def small(transformers: Any, attention: str, **config: Any) -> Any:
    """A Llama with random weights, large enough that logits lie far apart and rounding decides nothing."""
    import torch

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        vocab_size=V, num_key_value_heads=2, max_position_embeddings=256, eos_token_id=END, pad_token_id=END,
        bos_token_id=1, initializer_range=0.5, attn_implementation=attention, **sizes, **config,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def tiny(transformers: Any) -> dict[str, Any]:
    return {attention: small(transformers, attention) for attention in ("sdpa", "eager")}


PROMPTS = st.lists(st.lists(st.integers(1, V - 1), min_size=1, max_size=8), min_size=1, max_size=4)
ONCE = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ONCE
@given(PROMPTS, st.sampled_from(["sdpa", "eager"]), st.integers(1, 5), st.data())
def test_whatever_is_drafted_the_tokens_are_those_of_plain_decoding(
    adapter: Any, tiny: Any, prompts: list[list[int]], attention: str, k: int, data: st.DataObject
) -> None:
    import torch

    model, inputs = tiny[attention], padded(prompts)
    how = {"max_new_tokens": 24, "do_sample": False}
    plain = model.generate(**inputs, **how)
    texts = [[t for t in row if t != END] for row in plain.tolist()]

    def propose(text: list[int]) -> list[int]:
        if data.draw(st.booleans()):  # the truth, up to some place
            whole = next((t for t in texts if t[: len(text)] == text), [])
            return [*whole[len(text) :][: data.draw(st.integers(0, k))], 7][:k]
        return data.draw(st.lists(st.integers(0, V - 1), max_size=k))

    drafter = Scripted(k, propose)
    ours = model.generate(**inputs, **how, custom_generate=adapter.generate, drafter=drafter)
    assert torch.equal(ours, plain)
    assert not drafter.kept


def test_all_prompts_of_the_embedded_model_alone_and_together(adapter: Any, model: Any, prompts: Any) -> None:
    import torch

    how = {"max_new_tokens": 40, "do_sample": False}
    for batch in ([ids] for ids in prompts.values()):
        inputs = padded(batch)
        plain = model.generate(**inputs, **how)
        for ours, watch in ((adapter.generate, passes()), (adapter.assisted_generate, watched(model))):
            with watch as shapes:
                assert torch.equal(model.generate(**inputs, **how, custom_generate=ours), plain)
            assert 0 < len(shapes) < 0.8 * 40
    together = padded(list(prompts.values()))
    plain = model.generate(**together, **how)
    with passes() as shapes:
        assert torch.equal(model.generate(**together, **how, custom_generate=adapter.generate), plain)
    assert 0 < len(shapes) < 0.9 * 40


SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "max_new_tokens": 20}


def test_sampled_tokens_depend_on_the_seed_alone(adapter: Any, tiny: Any) -> None:
    """Not on drafts, batch, padding or order; another seed gives another text."""
    import torch

    model, prompts = tiny["sdpa"], [[3, 4, 5, 3, 4], [9], [7, 8, 7, 8, 7, 8, 7]]
    seeds = [11, 12, 13]

    def decode(rows: list[int], **how: Any) -> list[list[int]]:
        inputs = padded([prompts[row] for row in rows])
        arguments = {"custom_generate": adapter.generate, "seeds": [seeds[row] for row in rows], **SAMPLED, **how}
        out = model.generate(**inputs, **arguments)[:, inputs["input_ids"].shape[1] :]
        return [[*row, END][: [*row, END].index(END)] for row in out.tolist()]

    plain = [decode([row], num_speculative_tokens=0)[0] for row in range(3)]
    assert decode([0, 1, 2]) == plain
    assert decode([2, 0]) == [plain[2], plain[0]]
    assert decode([0, 1], drafter=Scripted(3, lambda text: [5, 5, 5])) == plain[:2]
    assert decode([0], seeds=[99]) != plain[:1]
    torch.manual_seed(1)
    one = decode([0, 1], seeds=None)
    torch.manual_seed(1)
    assert decode([0, 1], seeds=None) == one
    assert decode([0, 1], seeds=None) != one


def test_sampling_is_done_by_the_op(adapter: Any, tiny: Any) -> None:
    """The first token of many seeds: `sample` on the model's logits gives the same."""
    import torch

    model, prompt = tiny["sdpa"], [3, 4, 5]
    seeds = list(range(50))
    inputs = padded([prompt] * 50)
    out = model.generate(**inputs, custom_generate=adapter.generate, seeds=seeds, **{**SAMPLED, "max_new_tokens": 1})
    with torch.no_grad():
        logits = model(inputs["input_ids"]).logits[:, -1].float()
    params = {name: SAMPLED[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    expected = sd.sample(logits, **params, seeds=seeds, positions=3).token_ids
    assert out[:, -1].tolist() == expected.tolist()
    assert len(set(out[:, -1].tolist())) > 3


@pytest.mark.parametrize(
    "how",
    [
        {"repetition_penalty": 1.3},
        {"prefix_allowed_tokens_fn": lambda row, ids: range(1 + row, V, 2)},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 12, "eos_token_id": 18},
        {"bad_words_ids": [[18], [31, 33]]},
        {"suppress_tokens": [3, 9]},
        {"forced_eos_token_id": 2},
        {"exponential_decay_length_penalty": (3, 1.5)},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 5},
    ],
    ids=lambda how: "+".join(how),
)
def test_logits_processors_see_what_they_see_in_plain_decoding(adapter: Any, tiny: Any, how: dict[str, Any]) -> None:
    import torch

    model, inputs = tiny["sdpa"], padded([[3, 4, 3, 4, 3], [9, 8], [2, 2, 2, 2]])
    how = {**how, "max_new_tokens": 20, "do_sample": False}
    plain = model.generate(**inputs, **how)
    ends = how.get("eos_token_id", END)
    without = model.generate(**inputs, max_new_tokens=20, do_sample=False, eos_token_id=ends)
    assert plain.shape != without.shape or not torch.equal(plain, without)  # the processor does something
    drafter = Scripted(4, lambda text: text[-2:] * 2)
    assert torch.equal(model.generate(**inputs, **how, custom_generate=adapter.generate), plain)
    assert torch.equal(model.generate(**inputs, **how, custom_generate=adapter.generate, drafter=drafter), plain)


@pytest.mark.parametrize("how", [{"typical_p": 0.8}, {"epsilon_cutoff": 0.01}, {"renormalize_logits": True}], ids=str)
def test_warpers_that_the_op_does_not_know_are_applied_before_it(adapter: Any, tiny: Any, how: Any) -> None:
    model, inputs = tiny["sdpa"], padded([[3, 4, 3, 4, 3], [9, 8]])
    arguments = {"custom_generate": adapter.generate, "seeds": [1, 2], **SAMPLED, **how}
    plain = model.generate(**inputs, **arguments, num_speculative_tokens=0)
    ours = model.generate(**inputs, **arguments, drafter=Scripted(4, lambda text: text[-2:] * 2))
    assert ours.tolist() == plain.tolist()


class StopAfter:
    """A custom stopping criterion: the text ends with one of these tokens."""

    def __init__(self, tokens: set[int]) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        import torch

        return torch.tensor([int(row[-1]) in self.tokens for row in input_ids])


def test_stopping_criteria_are_asked_at_every_token(adapter: Any, tiny: Any, transformers: Any) -> None:
    import torch

    model, inputs = tiny["sdpa"], padded([[3, 4, 3, 4, 3], [9, 8], [2, 2, 2, 2]])
    whole = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    how = {
        "max_new_tokens": 20,
        "do_sample": False,
        "stopping_criteria": transformers.StoppingCriteriaList([StopAfter({int(whole[0, 8]), int(whole[1, 12])})]),
    }
    plain = model.generate(**inputs, **how)
    assert plain.shape != whole.shape or not torch.equal(plain, whole)
    texts = [row.tolist() for row in whole]
    truth = Scripted(5, lambda text: next(([*t[t.index(3) :]] for t in texts if t[-1] == -1), [])[:5] or text[-5:])
    assert torch.equal(model.generate(**inputs, **how, custom_generate=adapter.generate, drafter=truth), plain)


def test_rows_end_by_themselves(adapter: Any, tiny: Any) -> None:
    """Each at its own end token; those that have ended leave the batch."""
    model, inputs = tiny["sdpa"], padded([[3, 4, 3, 4, 3], [9, 8], [2, 2, 2, 2]])
    whole = model.generate(**inputs, max_new_tokens=30, do_sample=False)
    ends = sorted({int(whole[0, 7]), int(whole[1, 15])})
    how = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": ends, "pad_token_id": 39}
    plain = model.generate(**inputs, **how)
    with passes() as shapes:
        ours = model.generate(**inputs, **how, custom_generate=adapter.generate)
    assert ours.tolist() == plain.tolist()
    assert 39 in ours[:, -1].tolist()
    assert shapes[0][0] == 3 > shapes[-1][0]


@pytest.mark.parametrize("ours", ["generate", "assisted_generate"])
def test_a_cache_that_is_passed_in(adapter: Any, tiny: Any, transformers: Any, ours: str) -> None:
    """It is filled as in assisted decoding if it is empty; with a text it is refused, since those tokens are wrong."""
    import torch

    model, ids = tiny["sdpa"], torch.tensor([[3, 4, 3, 4, 3, 9]])
    how = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    plain = model.generate(ids, **how)
    cache = transformers.DynamicCache(config=model.config)
    how |= {"past_key_values": cache, "custom_generate": getattr(adapter, ours)}
    assert model.generate(ids, **how).tolist() == plain.tolist()
    assert cache.get_seq_length() == plain.shape[1] - 1
    with pytest.raises(UnsupportedError, match="expected an empty cache, got one of 17 tokens; leave past_key_values"):
        model.generate(plain, **{**how, "attention_mask": torch.ones_like(plain)})


def test_outputs_as_transformers_gives_them(adapter: Any, tiny: Any) -> None:
    model, inputs = tiny["sdpa"], padded([[3, 4, 3], [9]])
    how = {"max_new_tokens": 9, "custom_generate": adapter.generate}
    tensor = model.generate(**inputs, **how, do_sample=False)
    wrapped = model.generate(**inputs, **how, do_sample=False, return_dict_in_generate=True)
    assert wrapped.sequences.tolist() == tensor.tolist()
    assert tensor.dtype == inputs["input_ids"].dtype
    two = model.generate(**inputs, **how, do_sample=True, num_return_sequences=2, seeds=[1, 2, 1, 2])
    assert two.shape[0] == 4
    assert two[0].tolist() != two[1].tolist()


def refused(transformers: Any, tiny: Any) -> dict[str, tuple[Any, dict[str, Any], str]]:
    class Guidance(transformers.LogitsProcessor):  # type: ignore[misc,name-defined]
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return scores

    Guidance.__name__ = "UnbatchedClassifierFreeGuidanceLogitsProcessor"
    model = tiny["sdpa"]
    return {
        "beams": (model, {"num_beams": 2}, "num_beams 2"),
        "no cache": (model, {"use_cache": False}, "use_cache=False"),
        "static cache": (model, {"cache_implementation": "static"}, "a cache of type StaticCache"),
        "scores": (model, {"return_dict_in_generate": True, "output_scores": True}, "scores, logits"),
        "guidance": (
            model,
            {"logits_processor": transformers.LogitsProcessorList([Guidance()])},
            "UnbatchedClassifierFreeGuidanceLogitsProcessor",
        ),
    }


@pytest.mark.parametrize("case", ["beams", "no cache", "static cache", "scores", "guidance"])
def test_what_cannot_be_served_is_refused_by_name(adapter: Any, tiny: Any, transformers: Any, case: str) -> None:
    model, how, message = refused(transformers, tiny)[case]
    with pytest.raises(UnsupportedError, match=message):
        model.generate(**padded([[3, 4], [5]]), max_new_tokens=4, custom_generate=adapter.generate, **how)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": [1, 2, 3], "do_sample": True}, "seeds: expected one number, or 2, got 3"),
        ({"attention_mask": [[1, 0], [1, 1]]}, "padded on the left"),
        ({"attention_mask": [[0, 0], [1, 1]]}, "at least one token in every row"),
    ],
)
def test_bad_requests_are_one_clear_error(adapter: Any, tiny: Any, change: dict[str, Any], message: str) -> None:
    import torch

    inputs = padded([[3, 4], [5, 6]])
    change = {name: torch.tensor(v) if name == "attention_mask" else v for name, v in change.items()}
    with pytest.raises(RequestError, match=message):
        tiny["sdpa"].generate(**{**inputs, "max_new_tokens": 4, "custom_generate": adapter.generate, **change})


def test_logits_without_a_distribution_end_the_call_and_leave_nothing(adapter: Any, tiny: Any) -> None:
    import torch

    model, drafter = tiny["sdpa"], Scripted(2, lambda text: [5, 6])

    def broken(module: Any, args: Any, logits: Any) -> Any:
        return torch.full_like(logits, np.nan) if drafter.calls == 2 else logits

    hook = model.lm_head.register_forward_hook(broken)
    try:
        with pytest.raises(RequestError, match="row 0: the model gave no distribution"):
            model.generate(**padded([[3], [4]]), max_new_tokens=9, custom_generate=adapter.generate, drafter=drafter)
    finally:
        hook.remove()
    assert drafter.calls == 2 and not drafter.kept


def test_assisted_decoding_gets_its_own_factory_back(adapter: Any, tiny: Any) -> None:
    model, drafter = tiny["sdpa"], Scripted(3, lambda text: [5])
    how = {"max_new_tokens": 9, "do_sample": False, "custom_generate": adapter.assisted_generate, "drafter": drafter}
    model.generate(**padded([[3, 4]]), **how)
    assert "_get_candidate_generator" not in vars(model)
    assert drafter.calls > 0 and not drafter.kept
    with pytest.raises(ValueError, match="batch_size"):
        model.generate(**padded([[3, 4], [5, 6]]), **how)
    assert "_get_candidate_generator" not in vars(model)


@pytest.mark.parametrize("ours", ["generate", "assisted_generate"])
def test_assisted_decoding_ends_where_plain_decoding_does(
    adapter: Any, tiny: Any, transformers: Any, ours: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At an end token, and where a criterion applies, in the middle of accepted drafts too; scores are its own."""
    model, inputs = tiny["sdpa"], padded([[3, 4, 3, 4, 3]])
    whole = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0].tolist()
    how = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    criteria = transformers.StoppingCriteriaList([StopAfter({whole[13]})])
    for end in ({"eos_token_id": whole[13]}, {"stopping_criteria": criteria}):
        plain = model.generate(**inputs, **how, **end)
        drafter = Scripted(8, lambda text: whole[len(text) :])
        out = model.generate(**inputs, **how, **end, custom_generate=getattr(adapter, ours), drafter=drafter)
        assert out.sequences.tolist() == plain.sequences.tolist() != [whole]
        assert drafter.calls < 5 and len(out.scores) == len(plain.scores)
    wanted = "scores, logits, attentions or hidden states are wanted as output; it goes through the assisted decoding"
    assert (wanted in caplog.text) == (ours == "generate")


def test_seeds_are_not_for_assisted_decoding(adapter: Any, tiny: Any) -> None:
    how = {**padded([[3, 4]]), "custom_generate": adapter.generate, "do_sample": True}
    how |= {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 4}
    with pytest.raises(UnsupportedError, match="output: expected one prompt without seeds"):
        tiny["sdpa"].generate(**how, seeds=3)
    assert len(tiny["sdpa"].generate(**how).scores) > 0


def test_candidates_leave_room_for_one_token(adapter: Any) -> None:
    import torch

    candidates = adapter.DraftCandidates(sd.Drafter(num_speculative_tokens=4), max_length=8)
    text = torch.tensor([[1, 2, 3, 1, 2]])
    ids, logits = candidates.get_candidates(text)
    assert (ids.tolist(), logits) == ([[1, 2, 3, 1, 2, 3, 1]], None)
    full = torch.tensor([[1, 2, 3, 1, 2, 1, 2]])
    assert candidates.get_candidates(full)[0].tolist() == full.tolist()
