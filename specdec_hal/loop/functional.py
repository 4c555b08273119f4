"""Sampling and verification as functions of logits, for callers with their own decode loop.

:func:`sample` draws one token per row, :func:`verify` verifies drafts. Tensors of NumPy, PyTorch or Paddle go in and
come out; a token depends only on the arguments. The runner uses the same ops, so a request gets the same tokens in
both, with or without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from specdec_hal.loop.logit_batch import Logprobs, logit_batch
from specdec_hal.ops import Strategy
from specdec_hal.plugin.backend import Backend


class SampleOutput(NamedTuple):
    """`token_ids` int64 [B]. `logprobs` [B, N] if asked for.

    `seeds`: given ones, or int64 [B] drawn ones, to repeat the call; None if none were needed.
    """

    token_ids: Any
    logprobs: Logprobs | None
    seeds: Any


class VerifyOutput(NamedTuple):
    """`token_ids` int64 [B, S]: the accepted drafts and one token more, -1 after them. `counts` int32 [B]: how many.

    `logprobs` [B, S, N] if asked for. `seeds`: as a :class:`SampleOutput` has them.
    """

    token_ids: Any
    counts: Any
    logprobs: Logprobs | None
    seeds: Any


def sample(
    logits: Any,
    *,
    temperature: Any = 0.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    seeds: Any = None,
    positions: Any = None,
    logprobs: int | None = None,
    backend: str | Backend | None = None,
) -> SampleOutput:
    """Draw a token from each row of `logits` [B, V] (float32, float16 or bfloat16; copied if not contiguous).

    Sampling parameters are numbers, or one per request [B]: `temperature` 0 means argmax, `top_k` 0 all. `seeds`:
    constant per request; None: drawn for this call and reported. `positions`, needed for sampling: number of tokens
    before the drawn one. `logprobs`: how many of the most likely tokens to report besides the one drawn, at temperature
    1. `backend` None: the best one on the device of `logits`. Raises ArgumentError.

    A row with NaN, or of -inf only, has no distribution: NoDistributionError, an ArgumentError, names it. On a GPU
    nothing is read, and its token is -1.

    >>> import numpy as np, specdec_hal as sd
    >>> logits = np.array([[0, 2, 1], [3, 0, 0]], np.float32)
    >>> sd.sample(logits, backend="reference").token_ids
    array([1, 0])
    >>> sd.sample(logits, temperature=[0, 1.5], seeds=[0, 8], positions=[4, 9], backend="reference").token_ids
    array([1, 1])
    """
    with logit_batch("sample", logits, 2, (), backend) as batch:
        seeds = batch.set_sampling(temperature, top_k, top_p, min_p, seeds, positions)
        tokens = batch.target_tokens()
        batch.check_rows(tokens)
        return SampleOutput(batch.give(tokens), batch.logprobs(tokens, logprobs, (batch.size,)), seeds)


def verify(
    logits: Any,
    drafts: Any,
    draft_lens: Any = None,
    *,
    strategy: Strategy | str = Strategy.TARGET_MATCH,
    temperature: Any = 0.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    seeds: Any = None,
    positions: Any = None,
    draft_probs: Any = None,
    end_tokens: Sequence[int] = (),
    max_new_tokens: Any = None,
    verify_window: int = 2,
    candidates: int = 8,
    logprobs: int | None = None,
    backend: str | Backend | None = None,
) -> VerifyOutput:
    """Accept a prefix of each request's drafts and emit one more token, by op `verify_draft_tokens`.

    `logits` [B, S, V], S = K + 1: row i of a request follows its last token and i drafts. `drafts` [B, K] integers with
    `draft_lens` [B] (None: all K count), or B lists such as `Drafter.propose` returns. Rows after the drafts of a
    request are ignored.

    `positions` [B], needed for sampling: number of tokens before the first emitted one. They and `seeds` determine
    the random numbers: under `strategy` "target_match" and "greedy", tokens equal those of :func:`sample` called token
    by token. "rejection" takes `draft_probs` [B, K, V] (None: one-hot drafts), "topp" `verify_window` and `candidates`.
    Nothing is emitted after one of `end_tokens`, or beyond `max_new_tokens`. The other arguments are those of
    :func:`sample`. Raises ArgumentError, and for a row that decides a token, NoDistributionError as there; on a GPU
    such a row gives -1, and 0 under "rejection" and "topp".

    >>> import numpy as np, specdec_hal as sd
    >>> logits = np.zeros((2, 3, 10), np.float32)
    >>> logits[:, [0, 1, 2], [7, 8, 9]] = 1
    >>> sd.verify(logits, [[7, 8], [7, 1]], backend="reference")
    VerifyOutput(token_ids=array([[ 7,  8,  9],
           [ 7,  8, -1]]), counts=array([3, 2], dtype=int32), logprobs=None, seeds=None)
    """
    with logit_batch("verify", logits, 3, end_tokens, backend) as batch:
        seeds = batch.set_sampling(temperature, top_k, top_p, min_p, seeds, positions)
        how = batch.strategy(strategy)
        batch.set_drafts(drafts, draft_lens)
        batch.set_limit(max_new_tokens)
        batch.verify(how, draft_probs, verify_window, candidates)
        tokens, counts = batch.state["accept_tokens"], batch.state["accept_num"]
        batch.check_rows(tokens, counts)
        emitted = batch.logprobs(tokens.reshape((-1,)), logprobs, (batch.size, batch.width))
        return VerifyOutput(batch.give(tokens), batch.give(counts), emitted, seeds)
