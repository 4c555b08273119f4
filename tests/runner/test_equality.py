"""Whatever is drafted, batched, chunked or reordered: each request gets the tokens of plain decoding on its own."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from specdec_hal.config.schema import StructuredOutput
from specdec_hal.errors import RequestError
from specdec_hal.runner import Request, RequestOutput, SamplingParams
from tests.runner.conftest import make_runner
from tests.support.decoding import THINK_END, THINKS_WITH, outputs_of, plain_decoding, prompts, scored_prompt, tokens
from tests.support.history_model import CONTEXT, END, VOCABULARY, DeviceHistoryModel, HistoryModel

limits = st.none() | st.integers(0, 12)
floats = lambda low, high: st.floats(low, high, width=32)  # noqa: E731


words = st.lists(st.text("bcdef", min_size=1, max_size=7), min_size=1, max_size=4)
structures = st.builds(StructuredOutput, choice=words, after_thinking=st.booleans()) | st.builds(
    lambda found: StructuredOutput(regex=f"({'|'.join(found)})+"), words
)


@st.composite
def sampling(draw: st.DrawFn) -> SamplingParams:
    greedy, min_new_tokens = draw(st.booleans()), draw(st.sampled_from([0, 0, 6]))
    structured = draw(st.none() | st.none() | structures)
    enabled = st.booleans() if structured is None else st.just(True)
    thinking = draw(
        st.none()
        | st.fixed_dictionaries(
            {
                "max_tokens": limits,
                "max_reply_tokens": limits,
                "enabled": enabled,
                "constrain_answer": st.booleans(),
            }
        )
    )
    return SamplingParams(
        temperature=0.0 if greedy else draw(floats(0.25, 1.5)),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.5])),
        top_k=draw(st.sampled_from([0, 0, 1, 5])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.25])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, -0.2])),
        max_new_tokens=draw(st.integers(max(min_new_tokens, 1), 40)),
        min_new_tokens=min_new_tokens,
        stop_token_ids=draw(st.lists(tokens, max_size=1)) if draw(st.integers(0, 3)) == 0 else [],
        stop_sequences=draw(st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=2)),
        stop=draw(st.lists(st.text("bcdefgh", min_size=1, max_size=3), max_size=2)),
        bad_token_ids=draw(st.lists(tokens, max_size=3)),
        bad_sequences=draw(st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3), max_size=6)),
        allowed_token_ids=draw(
            st.none() | st.none() | st.lists(st.integers(0, VOCABULARY - 1), min_size=6, max_size=12, unique=True)
        ),
        logit_bias=draw(st.just({}) | st.dictionaries(st.integers(0, VOCABULARY - 1), floats(-4, 4), max_size=9)),
        num_speculative_tokens=draw(st.none() | st.just(0)),
        prompt_logprobs=draw(st.none() | st.integers(0, 4)),
        structured=structured,
        thinking=thinking,
        ignore_eos=draw(st.booleans()) and (thinking is None or thinking["max_reply_tokens"] is None),
    )


NO_TOKEN = "the model gave no distribution for the next token (NaN, or all logits -inf)"
NOTHING_LEFT = "leave no token; change one of them"


@settings(max_examples=60)
@given(
    requests=st.lists(st.tuples(prompts, sampling(), st.integers(0, 12)), min_size=1, max_size=5),
    slots=st.integers(1, 4),
    k=st.integers(0, 6),
    chunk=st.integers(1, 9),
    prefill_first=st.booleans(),
    device=st.booleans(),
    overlap=st.booleans(),
    budget=st.none() | st.integers(1, 20),
    blocks=st.tuples(st.integers(1, 9), st.integers(0, 12)),
    cancelled=st.sets(st.integers(0, 4), max_size=2),
    failing=st.sets(st.integers(0, 30), max_size=2),
    method=st.sampled_from(["ngram", "mtp", "hybrid", "suffix", "auto"]),
    mtp_drafts=st.integers(1, 6),
    switch=st.none() | st.integers(1, CONTEXT),
    think_end_text=st.sampled_from(
        [[], [THINK_END], [4, THINK_END, 2], [2, THINK_END, 2, 2], [THINK_END, THINK_END, 5, 6]]
    ),
    ngram=st.fixed_dictionaries(
        {
            "max_ngram_size": st.integers(2, 4),
            "min_ngram_size": st.integers(1, 2),
            "match_policy": st.sampled_from(["latest", "leftmost"]),
            "token_budget": st.none() | st.integers(1, 12),
            "use_index": st.booleans(),
        }
    ),
)
def test_every_request_decodes_as_if_alone_and_plain(
    requests: list[tuple[list[int], SamplingParams, int]], slots: int, k: int, chunk: int, prefill_first: bool,
    device: bool, overlap: bool, budget: int | None, blocks: tuple[int, int], cancelled: set[int], failing: set[int],
    method: str, mtp_drafts: int, switch: int | None, think_end_text: list[int], ngram: dict[str, object],
) -> None:  # fmt: skip
    model = DeviceHistoryModel(switch) if device else HistoryModel(switch)
    if switch is not None:
        method = "ngram"
    size, spare = blocks
    longest = max(min(len(prompt) + params.max_new_tokens, CONTEXT) for prompt, params, _ in requests)
    runner = make_runner(
        prefill_first=prefill_first, model=model, model_settings={**THINKS_WITH, "think_end_text": think_end_text},
        runner={
            "max_num_seqs": slots, "prefill_chunk": chunk,
            "max_num_batched_tokens": None if budget is None else slots * (k + 1) + budget, "block_size": size,
            "num_kv_blocks": -(-longest // size) + spare, "overlap": overlap and method != "suffix", "debug": True,
        },
        speculative={
            "method": method, "adaptive": method == "auto", "num_speculative_tokens": k, "ngram": ngram,
            "hybrid": {**ngram, "num_model_steps": mtp_drafts},
        },
    )  # fmt: skip
    late = sorted(enumerate(requests), key=lambda item: item[1][2])
    outputs: dict[str, RequestOutput] = {}
    step = 0
    while late or runner.has_requests:
        while late and (late[0][1][2] <= step or not runner.has_requests):
            number, (prompt, params, _) = late.pop(0)
            try:
                runner.add_request(Request(str(number), prompt, params))
            except RequestError as error:
                assert re.search("allowed_token_ids|at the beginning .* leave no token", str(error))
                reject()
        if step in failing:
            model.failures.append(MemoryError("out of memory"))
        runner.step()
        if step % 7 == 5:
            for number in cancelled:
                runner.cancel(str(number))
        step += 1
        assert step < 2000, "no progress"
    outputs = runner.take_finished()
    # After a row without an allowed token nothing can be drafted. A request may have ended before that.
    dead = any(p.structured and (p.bad_token_ids or p.bad_sequences or p.allowed_token_ids) for _, p, _ in requests)
    if not dead and all(
        NO_TOKEN not in output.error and NOTHING_LEFT not in output.error for output in outputs.values()
    ):
        assert runner.summary()["failed_proposals"] == 0
    for number, (prompt, params, _) in enumerate(requests):
        output = outputs[str(number)]
        expected = plain_decoding(prompt, params, think_end_text, switch)
        scored = scored_prompt(prompt, params.prompt_logprobs, switch)
        if output.finish_reason == "cancelled":
            assert list(output.token_ids) == expected.tokens[: len(output.token_ids)]
            assert output.prompt_logprobs in ((), scored)
            continue
        if output.finish_reason == "error" and len(failing) > 1 and "MemoryError" in output.error:
            continue
        assert list(output.token_ids) == expected.tokens
        assert output.finish_reason == expected.finish_reason
        if expected.finish_reason == "error":  # the thought's limit is another restriction
            assert NOTHING_LEFT in output.error or (params.thinking is not None and output.error == NO_TOKEN)
        else:
            assert output.error == ""
        assert output.prompt_logprobs == scored
        if params.num_speculative_tokens == 0:
            assert output.drafted == 0


def test_padded_drafts_change_nothing_but_the_room() -> None:
    params = SamplingParams(temperature=0.5, seed=3, max_new_tokens=200)
    prompt = [3, 4, 5] * 4
    texts = []
    for pad in (False, True):
        ngram = {"pad_to_max": pad}
        runner = make_runner(
            runner={"max_model_len": CONTEXT - 4},
            speculative={"method": "ngram", "num_speculative_tokens": 4, "ngram": ngram},
        )
        texts.append(outputs_of(runner, (prompt, params))[0].token_ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("strategy", ["greedy", "target_match", "rejection", "topp"])
def test_biased_logits_decide_under_every_strategy(strategy: str, device: bool) -> None:
    """A request's bias is its own: slots beside it have none, another one, or had one before."""
    runner = make_runner(
        model=DeviceHistoryModel() if device else HistoryModel(),
        runner={"max_num_seqs": 2},
        speculative={"method": "ngram", "num_speculative_tokens": 4, "verify_strategy": strategy, "candidates": 1},
    )
    biases: list[dict[int, float]] = [{}, {5: 2.5}, {4: -100.0, END: -100.0}, {}, {t: 0.25 * t for t in range(9)}, {}]
    params = [SamplingParams(max_new_tokens=24, logit_bias=bias) for bias in biases]
    outputs = outputs_of(runner, *(([3, 4, 5] * 5, one) for one in params))
    assert sum(output.accepted for output in outputs) > 20
    texts = [list(output.token_ids) for output in outputs]
    assert texts == [plain_decoding([3, 4, 5] * 5, one).tokens for one in params]
    assert len({tuple(text) for text in texts}) > 2
