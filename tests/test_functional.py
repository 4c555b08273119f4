"""`sample` and `verify` as functions: the same tokens as the ops, the runner and plain decoding give."""

from __future__ import annotations

import doctest
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec_hal as sd
from specdec_hal.errors import ArgumentError, NoDistributionError
from specdec_hal.loop import functional
from specdec_hal.ops import Strategy
from tests.runner.conftest import make_runner
from tests.support.history_model import END, VOCABULARY, logits_after

V, BACKENDS = 50, ("reference", "cpu")


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(functional).attempted >= 6
    assert doctest.testmod(functional).failed == 0


# ---- a loop of one's own


def plain(prompt: list[int], how: dict[str, Any], backend: str) -> list[int]:
    """One token after the other, with `sample`."""
    text = list(prompt)
    while len(text) < 40:
        one = sd.sample(logits_after(text)[None], **how, positions=len(text), backend=backend)
        text.append(int(one.token_ids[0]))
        if text[-1] == END:
            break
    return text[len(prompt) :]


def drafted(prompts: list[list[int]], how: dict[str, Any], backend: str, data: st.DataObject) -> list[list[int]]:
    """All at once, with whatever drafts come."""
    texts, k = [list(prompt) for prompt in prompts], 4
    alive = list(range(len(texts)))
    while alive:
        drafts = [data.draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=k)) for _ in alive]
        if data.draw(st.booleans()):
            drafts = sd.Drafter(backend=backend, num_speculative_tokens=k).propose([texts[b] for b in alive])
        logits = np.full((len(alive), k + 1, VOCABULARY), np.nan, np.float32)  # rows after the drafts are not looked at
        for row, b, ids in zip(logits, alive, drafts, strict=True):
            for i in range(len(ids) + 1):
                row[i] = logits_after(texts[b] + ids[:i])
        out = sd.verify(
            logits, drafts, **{name: np.array(values)[alive] for name, values in how.items()},
            positions=[len(texts[b]) for b in alive], end_tokens=[END],
            max_new_tokens=[40 - len(texts[b]) for b in alive], backend=backend,
        )  # fmt: skip
        for b, tokens, count in zip(alive, out.token_ids.tolist(), out.counts.tolist(), strict=True):
            assert tokens[count:] == [-1] * (k + 1 - count)
            texts[b] += tokens[:count]
        alive = [b for b in alive if texts[b][-1] != END and len(texts[b]) < 40]
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_seeds_each_row_draws_its_own_and_the_output_repeats_them(backend: str) -> None:
    rows = np.zeros((8, V), np.float32)
    how: dict[str, Any] = {"temperature": 1.0, "positions": [3] * 8, "backend": backend}
    one, two = (sd.sample(rows, **how) for _ in range(2))
    assert one.seeds.dtype == np.int64 and one.seeds.shape == (8,)
    assert len({*one.seeds.tolist(), *two.seeds.tolist()}) == 16 and len(set(one.token_ids.tolist())) > 2
    assert sd.sample(rows, **how, seeds=one.seeds).token_ids.tolist() == one.token_ids.tolist()
    assert sd.sample(rows, **how, seeds=two.seeds).token_ids.tolist() == two.token_ids.tolist()
    drafts = [[7], []] * 4
    verified = sd.verify(np.zeros((8, 2, V), np.float32), drafts, **how)
    again = sd.verify(np.zeros((8, 2, V), np.float32), drafts, **how, seeds=verified.seeds)
    assert len(set(verified.seeds.tolist())) == 8 and again.token_ids.tolist() == verified.token_ids.tolist()


def test_given_seeds_are_reported_as_they_are_and_greedy_rows_draw_none() -> None:
    rows = np.zeros((2, V), np.float32)
    assert sd.sample(rows).seeds is None is sd.verify(rows[:, None], [[], []]).seeds
    assert sd.sample(rows, temperature=[0, 1], positions=3).seeds.shape == (2,)
    assert sd.sample(rows, temperature=1, positions=3, seeds=7).seeds == 7
    assert sd.sample(rows, seeds=[1, 2]).seeds == [1, 2]


PROMPTS = st.lists(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=9), min_size=1, max_size=3)


@settings(max_examples=25)
@given(PROMPTS, st.data(), st.sampled_from(BACKENDS))
def test_whatever_is_drafted_the_tokens_are_those_of_plain_decoding(
    prompts: list[list[int]], data: st.DataObject, backend: str
) -> None:
    b = len(prompts)
    how = {
        "temperature": data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=b, max_size=b)),
        "top_p": data.draw(st.lists(st.sampled_from([0.7, 1.0]), min_size=b, max_size=b)),
        "top_k": data.draw(st.lists(st.sampled_from([0, 5]), min_size=b, max_size=b)),
        "min_p": data.draw(st.lists(st.sampled_from([0.0, 0.1]), min_size=b, max_size=b)),
        "seeds": data.draw(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=b, max_size=b)),
    }
    got = drafted(prompts, how, backend, data)
    for i, prompt in enumerate(prompts):
        mine = {name: values[i] for name, values in how.items()}
        assert got[i] == plain(prompt, mine, backend)


def test_the_tokens_are_those_of_the_runner() -> None:
    runner = make_runner()
    params = {"temperature": 0.7, "top_p": 0.9, "top_k": 9, "seed": 1234}
    runner.add_request(sd.Request("a", [3, 4, 5], sd.SamplingParams(**params, max_new_tokens=37)))
    how = {"temperature": 0.7, "top_p": 0.9, "top_k": 9, "seeds": 1234}
    assert list(runner.run()["a"].token_ids) == plain([3, 4, 5], how, "reference")


# ---- the ops, called with packed rows


def packed(seed: int, strategy: Strategy, with_draft_probs: bool) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Arguments of `verify`, and what the ops make of the same requests, packed by `prepare_inputs`."""
    rng = np.random.default_rng(seed)
    b, k = 5, 3
    lens = rng.integers(0, k + 1, b)
    logits = rng.normal(0, 2, (b, k + 1, V)).astype(np.float32)
    drafts = np.where(rng.random((b, k)) < 0.6, logits[:, :k].argmax(-1), rng.integers(0, V, (b, k)))
    probs = rng.random((b, k, V)).astype(np.float32)
    probs /= probs.sum(-1, keepdims=True)
    positions = rng.integers(1, 100, b)
    given = {
        "temperature": rng.choice([0.0, 0.3, 1.0], b) if strategy is not Strategy.GREEDY else 0.0,
        "top_p": rng.choice([0.5, 0.9, 1.0], b),
        "seeds": rng.integers(0, 99, b),
        "max_new_tokens": rng.integers(1, 6, b),
    }
    state = sd.DecodeState(
        max_num_seqs=b, num_speculative_tokens=k, max_model_len=128, prefill_chunk=1, end_tokens=[3, 4]
    )
    for name, values in {
        "draft_tokens": np.column_stack([np.zeros(b, np.int64), drafts]), "seq_lens_this_time": lens + 1,
        "seq_lens_decoder": positions, "prompt_lens": positions, "step_idx": 0, "max_dec_len": given["max_new_tokens"],
        "stop_flags": False, "temperature": given["temperature"], "top_p": given["top_p"], "seed": given["seeds"],
    }.items():  # fmt: skip
        state.write(name, slice(None), values)
    backend = sd.get_backend("reference")
    backend.prepare_inputs(**state.args("prepare_inputs"))
    backend.build_sampling_params(**state.args("build_sampling_params"))
    rows = int(state["num_tokens"][1])
    flat = np.concatenate([logits[i, : lens[i] + 1] for i in range(b)])
    verified_by: dict[str, Any] = {}
    if strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH):
        backend.sample_target(flat, **state.args("sample_target", {"R_cap": rows}))
    else:
        target = state.allocate("probs", R_cap=rows, V=V)
        args = state.args("processed_probs", {"R_cap": rows})
        if strategy is Strategy.TOPP:
            args["row_top_p"] = np.ones(rows, np.float32)
        backend.processed_probs(flat, probs=target, **args)
        verified_by = {"target_probs": target, "draft_probs": probs if with_draft_probs else None}
        if strategy is Strategy.TOPP:
            names = ("candidate_ids", "candidate_scores", "candidate_lens")
            verified_by = {name: state.allocate(name, R_cap=rows, C=6) for name in names}
            backend.top_p_candidates(target, **verified_by, **state.args("top_p_candidates", {"R_cap": rows}))
    backend.verify_draft_tokens(**state.args("verify_draft_tokens", strategy=strategy, verify_window=1), **verified_by)
    given |= {"logits": logits, "drafts": drafts, "draft_lens": lens, "positions": positions, "strategy": strategy}
    given |= {"end_tokens": [3, 4], "verify_window": 1, "candidates": 6}
    if with_draft_probs:
        given["draft_probs"] = probs
    return given, state["accept_tokens"], state["accept_num"]


CASES = [(strategy, False) for strategy in Strategy] + [(Strategy.REJECTION, True)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("strategy", "with_draft_probs"), CASES)
def test_padded_rows_give_what_packed_rows_give(strategy: Strategy, with_draft_probs: bool, backend: str) -> None:
    emitted = set()
    for seed in range(20):
        given, tokens, counts = packed(seed, strategy, with_draft_probs)
        out = sd.verify(**given, backend=backend)
        assert out.token_ids.tolist() == tokens.tolist()
        assert out.counts.tolist() == counts.tolist()
        emitted.update(counts.tolist())
    assert emitted >= {1, 2, 3}


# ---- log-probabilities


@pytest.mark.parametrize("backend", BACKENDS)
def test_logprobs_are_those_of_the_rows_that_predict_the_tokens(backend: str) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (3, 4, V)).astype(np.float32)
    best = logits.argmax(-1)
    drafts = [best[0, :3].tolist(), [int(best[1, 0]), (int(best[1, 1]) + 1) % V], []]
    out = sd.verify(logits, drafts, logprobs=2, backend=backend)
    assert out.counts.tolist() == [4, 2, 1]
    assert out.logprobs is not None
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    for b, count in enumerate(out.counts):
        for i in range(4):
            ids = out.logprobs.ids[b, i].tolist()
            if i >= count:
                assert (ids, out.logprobs.ranks[b, i]) == ([-1, -1, -1], -1)
                assert not out.logprobs.logprobs[b, i].any()
                continue
            assert ids == [out.token_ids[b, i], *np.argsort(-exact[b, i])[:2]]
            np.testing.assert_allclose(out.logprobs.logprobs[b, i], exact[b, i, ids], rtol=1e-6)
            assert out.logprobs.ranks[b, i] == 1
    tokens = sd.sample(logits[:, 0], temperature=1.0, seeds=[1, 2, 3], positions=9, logprobs=0, backend=backend)
    assert tokens.logprobs is not None
    assert tokens.logprobs.ids.tolist() == tokens.token_ids[:, None].tolist()
    rank = [1 + int((exact[b, 0] > exact[b, 0, t]).sum()) for b, t in enumerate(tokens.token_ids)]
    assert tokens.logprobs.ranks.tolist() == rank


# ---- frameworks


def same(out: Any, expected: Any, framework: str) -> None:
    tensors = [out.token_ids, out.counts, *out.logprobs]
    assert {type(tensor).__module__.partition(".")[0] for tensor in tensors} == {framework}
    for tensor, array in zip(tensors, [expected.token_ids, expected.counts, *expected.logprobs], strict=True):
        assert np.asarray(tensor).tolist() == array.tolist()
        assert str(tensor.dtype).rpartition(".")[2] == str(array.dtype)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_pytorch_in_pytorch_out(dtype: str) -> None:
    import torch

    given, _, _ = packed(3, Strategy.TARGET_MATCH, False)
    wide = torch.from_numpy(given["logits"]).to(getattr(torch, dtype))
    bits = wide.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else wide.numpy()
    expected = sd.verify(**{**given, "logits": bits}, logprobs=1, backend="reference")
    tensors = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in given.items()
    }
    strided = torch.cat([wide, wide], 1)[:, : wide.shape[1]]
    assert not strided.is_contiguous()
    for logits in (wide, strided, wide.clone().requires_grad_()):
        out = sd.verify(**{**tensors, "logits": logits}, logprobs=1, backend="reference")
        same(out, expected, "torch")
    one = sd.sample(wide[:, 0], temperature=0.5, positions=torch.arange(5), logprobs=0)
    assert isinstance(one.token_ids, torch.Tensor) and isinstance(one.logprobs.logprobs, torch.Tensor)


def test_paddle_in_paddle_out() -> None:
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed (pip install 'specdec-hal[paddle]')")
    given, _, _ = packed(3, Strategy.TARGET_MATCH, False)
    expected = sd.verify(**given, logprobs=1, backend="reference")
    tensors = {
        name: paddle.to_tensor(value) if isinstance(value, np.ndarray) else value for name, value in given.items()
    }
    same(sd.verify(**tensors, logprobs=1, backend="reference"), expected, "paddle")


# ---- what stays, and what does not


def test_results_are_the_callers_and_logits_are_not_kept() -> None:
    given, tokens, _ = packed(5, Strategy.TARGET_MATCH, False)
    first = sd.verify(**given)
    other, others, _ = packed(6, Strategy.TARGET_MATCH, False)
    assert sd.verify(**other).token_ids.tolist() == others.tolist() != tokens.tolist()
    assert first.token_ids.tolist() == tokens.tolist()

    logits = np.zeros((2, 3, V), np.float32)
    gone = weakref.ref(logits)
    sd.verify(logits, [[1], [2]])
    del logits
    gc.collect()
    assert gone() is None


def test_threads_do_not_share_buffers() -> None:
    cases = [packed(seed, Strategy.TARGET_MATCH, False) for seed in range(8)]

    def many(case: Any) -> bool:
        given, tokens, _ = case
        return all(sd.verify(**given).token_ids.tolist() == tokens.tolist() for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, cases))


def test_what_one_call_set_does_not_reach_the_next() -> None:
    logits = np.zeros((2, 3, V), np.float32)
    logits[..., 7] = 1
    sd.verify(logits, [[7], []], temperature=1.0, top_k=1, positions=3, max_new_tokens=1)
    sd.verify(logits, np.full((2, 2), 7), [0, 1])
    assert sd.verify(logits, np.full((2, 2), 7)).counts.tolist() == [3, 3]
    assert sd.verify(logits[:, :1], [[], []]).token_ids.tolist() == [[7], [7]]


GOOD: dict[str, Any] = {"logits": np.zeros((2, 3, V), np.float32), "drafts": [[1, 2], [3]]}


@pytest.mark.parametrize(
    ("wrong", "named", "message"),
    [
        ({"logits": np.zeros((2, V), np.float32)}, "logits", r"[B, S, V], not empty, got float32 [2, 50]"),
        ({"logits": np.zeros((2, 3, V))}, "logits", "float32 | float16 | bfloat16"),
        ({"logits": np.zeros((0, 3, V), np.float32)}, "logits", "not empty"),
        ({"logits": [[1.0]]}, "logits", "got list"),
        ({"drafts": [[1, 2, 3], [1]]}, "drafts", "2 lists of at most 2 drafts"),
        ({"drafts": [[1]]}, "drafts", "2 lists of at most 2 drafts, for logits with S = 3, got 1"),
        ({"drafts": np.zeros((2, 3), np.int64)}, "drafts", "integers [2, 2], got int64 [2, 3]"),
        ({"drafts": np.zeros((2, 2), np.float32)}, "drafts", "got float32"),
        ({"drafts": [[1.5], [2]]}, "drafts", "integers"),
        ({"drafts": np.zeros((2, 2), np.int64), "draft_lens": [3, 0]}, "draft_lens", "values in [0, 2]"),
        ({"drafts": np.zeros((2, 2), np.int64), "draft_lens": [-1, 0]}, "draft_lens", "values in [0, 2]"),
        ({"drafts": np.zeros((2, 2), np.int64), "draft_lens": [1]}, "draft_lens", "integers [2]"),
        ({"strategy": "greddy"}, "strategy", "greedy | target_match | topp | rejection"),
        ({"strategy": "greedy", "temperature": 0.5, "positions": 1}, "temperature", "use strategy 'target_match'"),
        ({"temperature": [0, 0.5]}, "positions", "one for each request where tokens are sampled"),
        ({"temperature": [0, 0, 0]}, "temperature", "numbers [2]"),
        ({"temperature": "hot"}, "temperature", "numbers [2]"),
        ({"temperature": None}, "temperature", "numbers [2]"),
        ({"seeds": 1.5}, "seeds", "integers [2]"),
        ({"seeds": 1 << 63}, "seeds", "integers [2]"),
        ({"top_k": [1, 2.5]}, "top_k", "integers [2]"),
        ({"positions": [[1], [2]]}, "positions", "integers [2]"),
        ({"max_new_tokens": [1]}, "max_new_tokens", "integers [2]"),
        ({"logprobs": -1}, "logprobs", "at least 0"),
        ({"logprobs": True}, "logprobs", "at least 0"),
        ({"draft_probs": np.zeros((2, 2, V), np.float32)}, "draft_probs", "strategy 'rejection'"),
        (
            {"draft_probs": np.zeros((2, 1, V), np.float32), "strategy": "rejection", "positions": 0},
            "draft_probs",
            "[M, S-1, V]",
        ),
        ({"end_tokens": ["a"]}, "end_tokens", "integers"),
    ],
)
def test_wrong_arguments_are_one_clear_error_and_change_nothing(wrong: Any, named: str, message: str) -> None:
    before = sd.verify(**GOOD)
    with pytest.raises(ArgumentError) as error:
        sd.verify(**{**GOOD, **wrong})
    assert error.value.argument == named
    assert message in str(error.value)
    after = sd.verify(**GOOD)
    assert after.token_ids.tolist() == before.token_ids.tolist()


def test_a_number_is_written_again_after_other_values() -> None:
    logits = np.tile(np.linspace(0, 1, 64, dtype=np.float32), (8, 1))
    seeds, positions = np.arange(8), np.full(8, 5)

    def draw(temperature: Any, top_k: Any) -> list[int]:
        out = sd.sample(logits, temperature=temperature, top_k=top_k, seeds=seeds, positions=positions)
        tokens: list[int] = out.token_ids.tolist()
        return tokens

    free = draw(1.0, 0)
    assert len(set(free)) > 1
    for temperature, top_k in ((np.zeros(8), 0), (0, 0), (1.0, [1] * 8), (1.0, 1)):
        assert draw(temperature, top_k) == [63] * 8
        assert draw(1.0, 0) == free


def test_an_unknown_backend_is_the_registrys_error() -> None:
    with pytest.raises(sd.SpecDecError, match="unknown backend 'cudaa'; did you mean 'cuda'"):
        sd.sample(GOOD["logits"][:, 0], backend="cudaa")


# ---- rows without a distribution


def peaked() -> np.ndarray:
    """Logits [2, 3, 10] that agree with the drafts 7 and 8."""
    logits = np.zeros((2, 3, 10), np.float32)
    logits[:, [0, 1, 2], [7, 8, 9]] = 60
    return logits


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("values", [np.nan, -np.inf, [0, np.nan, *[0] * 8]], ids=["nan", "-inf", "one nan"])
def test_a_row_without_a_distribution_is_an_error_that_names_it(strategy: Strategy, values: Any, backend: str) -> None:
    how: dict[str, Any] = {"strategy": strategy, "backend": backend}
    if strategy is not Strategy.GREEDY:
        how |= {"temperature": 1.0, "positions": 3, "seeds": [1, 2]}
    good = sd.verify(peaked(), [[7, 8]] * 2, **how)
    assert good.token_ids.tolist() == [[7, 8, 9]] * 2
    for row in range(3):
        logits = peaked()
        logits[1, row] = values
        with pytest.raises(NoDistributionError, match=rf"argument 'logits': .* at \[1, {row}\]; see") as error:
            sd.verify(logits, [[7, 8]] * 2, **how)
        assert error.value.requests == (1,)
        assert sd.verify(peaked(), [[7, 8]] * 2, **how).token_ids.tolist() == good.token_ids.tolist()


@pytest.mark.parametrize("strategy", list(Strategy))
def test_rows_after_a_rejected_draft_need_no_distribution(strategy: Strategy) -> None:
    logits = peaked()
    logits[:, 1:] = np.nan
    out = sd.verify(logits, [[5, 8], [6]], strategy=strategy, backend="reference")
    assert out.token_ids.tolist() == [[7, -1, -1]] * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampling_names_every_row_without_a_distribution(temperature: float, backend: str) -> None:
    logits = np.zeros((12, V), np.float32)
    how: dict[str, Any] = {"temperature": temperature, "positions": 3, "seeds": 1, "backend": backend}
    for wrong, message in (([4], r"at \[4\];"), (range(2, 12), r"at \[2\], \[3\], .*\[9\] and 2 more;")):
        logits[wrong] = np.nan
        with pytest.raises(NoDistributionError, match=message) as error:
            sd.sample(logits, **how, logprobs=1)
        assert error.value.requests == tuple(wrong)
        logits[:] = 0
    assert (sd.sample(logits, **how).token_ids >= 0).all()
