"""What requests get when decoded plainly, one token a step; requests that think, and scores of prompts."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.config.schema import StructuredOutput
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, TokenLogprobs
from tests.runner.conftest import make_runner
from tests.support.history_model import CONTEXT, END, LONG, VOCABULARY, logits_after
from tests.support.oracle_phases import ThinkingRequest, awaits_answer

THINK_END, LINE_BREAK, ANSWER_STARTS = 3, 2, [5, 6]


THINKS_WITH = {"think_end_id": THINK_END, "line_break_id": LINE_BREAK, "answer_start_ids": ANSWER_STARTS}


@dataclass(frozen=True)
class Expected:
    tokens: list[int]
    finish_reason: str


def kept(text: list[int], switch: int | None) -> list[int]:
    """What a model with that `rope_switch` has in its cache."""
    return [token + LONG for token in text] if switch is not None and len(text) > switch else text


def plain_decoding(
    prompt: list[int], params: SamplingParams, think_end_text: Sequence[int] = (), switch: int | None = None
) -> Expected:
    """One token after the other, with nothing but `sample_target` of the project."""
    thinking = ThinkingRequest(list(think_end_text), THINK_END, [END], *params.thinking_limits)
    backend = ReferenceBackend()
    generated: list[int] = []
    limit = min(params.max_new_tokens, CONTEXT - len(prompt))
    f32 = lambda value: np.array([value], np.float32)  # noqa: E731
    while True:
        logits = logits_after(kept(prompt + generated, switch)).copy()
        for token, bias in params.logit_bias.items():
            logits[token] += np.float32(bias)
        for token in set(prompt + generated):
            repetition = np.float32(params.repetition_penalty)
            value = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
            count = Counter(generated)[token]
            if count:
                value = value - np.float32(count) * np.float32(params.frequency_penalty)
                value = value - np.float32(params.presence_penalty)
            logits[token] = value
        logits[params.bad_token_ids] = -np.inf
        if len(generated) < params.min_new_tokens:
            logits[END] = -np.inf
        thinks = params.thinking is None or params.thinking.enabled
        if params.constrains_answer and awaits_answer(generated, thinks, THINK_END, LINE_BREAK):
            logits[[token for token in range(VOCABULARY) if token not in ANSWER_STARTS]] = -1e10
        for *before, last in params.bad_sequences:
            if generated[len(generated) - len(before) :] == before:
                logits[last] = -np.inf
        if params.allowed_token_ids is not None:
            logits[[token for token in range(VOCABULARY) if token not in params.allowed_token_ids]] = -np.inf
        allowed = None if params.structured is None else allowed_tokens(params.structured, generated, params, thinking)
        if allowed is not None:
            if params.ignore_eos:
                logits[END] = -np.inf
            if allowed == {END} and logits[END] == -np.inf:  # complete, and it may not end: nothing can follow
                return Expected(generated, "stop")
            logits[[token for token in range(VOCABULARY) if token not in allowed]] = -np.inf
        if (logits == -np.inf).all():
            # A limit of thinking or of the answer may replace whatever is sampled.
            following = {copy.deepcopy(thinking).next(token, len(generated)) for token in (0, 9)}
            if not params.limits_thinking or len(following) > 1:
                return Expected(generated, "error")
        target = np.zeros(1, np.int64)
        backend.sample_target(
            logits[None], f32(params.temperature), f32(params.top_p), np.array([params.top_k], np.int32),
            f32(params.min_p), np.array([params.seed or 0]), np.array([len(prompt) + len(generated)]), target,
        )  # fmt: skip
        generated.append(thinking.next(int(target[0]), len(generated)) if params.limits_thinking else int(target[0]))
        text = "".join(chr(ord("a") + token) for token in generated if token != END)
        ends = [[token] for token in params.stop_token_ids] + params.stop_sequences
        stopped = any(generated[-len(end) :] == end for end in ends) or any(map(text.endswith, params.stop))
        if (generated[-1] == END and not params.ignore_eos) or (stopped and len(generated) >= params.min_new_tokens):
            return Expected(generated, "stop")
        if len(generated) == limit:
            return Expected(generated, "length")


class Allowed(NamedTuple):
    """The letters that may follow, and whether the text may end."""

    letters: set[str]
    end: bool


def allowed_after(wanted: StructuredOutput, text: str) -> Allowed | None:
    """After a text of one of the words of `choice`, or of some of those of a `regex` (one|two)+; None: it is wrong."""
    kind, value = wanted.kind
    words = value if kind == "choice" else value.removeprefix("(").removesuffix(")+").split("|")
    rests = set(words)
    for letter in text:
        rests = {rest[1:] for rest in rests if rest[:1] == letter}
        if kind == "regex" and "" in rests:
            rests |= set(words)
    if not rests:
        return None
    return Allowed({rest[0] for rest in rests if rest}, "" in rests)


def allowed_tokens(
    wanted: StructuredOutput, generated: list[int], params: SamplingParams, thinking: ThinkingRequest
) -> set[int] | None:
    """None before the answer."""
    answer = generated
    if params.limits_thinking:
        if thinking.thinking or thinking.left:
            return None
        answer = generated[len(generated) - thinking.answered :]
    elif wanted.after_thinking or (params.thinking is not None and params.thinking.enabled):
        if THINK_END not in generated:
            return None
        answer = generated[generated.index(THINK_END) + 1 :]
    found = allowed_after(wanted, "".join(chr(ord("a") + token) for token in answer))
    assert found is not None
    return {ord(letter) - ord("a") for letter in found.letters} | ({END} if found.end else set())


def scored_prompt(prompt: list[int], top: int | None, switch: int | None = None) -> tuple[TokenLogprobs | None, ...]:
    """Each token by the logits after those before it, with nothing but `token_logprobs` of the project."""
    if top is None:
        return ()
    count, n = len(prompt) - 1, top + 1
    logits = np.stack([logits_after(kept(prompt, switch)[: at + 1]) for at in range(len(prompt))])
    ids, scores, ranks = np.zeros((count, n), np.int64), np.zeros((count, n), np.float32), np.zeros(count, np.int64)
    end = np.array([0, count], np.int32)
    ReferenceBackend().token_logprobs(
        logits, np.arange(count, dtype=np.int32), np.array(prompt[1:], np.int64), end, ids, scores, ranks
    )
    return (None, *TokenLogprobs.rows(ids.tolist(), scores.tolist(), ranks.tolist(), top))


tokens = st.integers(1, VOCABULARY - 1)


prompts = st.lists(tokens, min_size=1, max_size=24) | st.builds(
    lambda unit, times: unit * times, st.lists(tokens, min_size=1, max_size=4), st.integers(2, 6)
)


BYSTANDER = Request("bystander", [7, 8, 9, 7, 8], SamplingParams(temperature=0.6, seed=4, max_new_tokens=24))


def outputs_of(runner: ModelRunner, *asked: tuple[Any, SamplingParams]) -> list[RequestOutput]:
    """Of prompts and their parameters, decoded together under the names "0", "1", ..."""
    for number, (prompt, params) in enumerate(asked):
        runner.add_request(Request(str(number), prompt, params))
    outputs = runner.run()
    return [outputs[str(number)] for number in range(len(asked))]


def alone(request: Request = BYSTANDER) -> RequestOutput:
    runner = make_runner()
    runner.add_request(request)
    return runner.run()[request.request_id]
