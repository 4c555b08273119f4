"""Speculative decoding inside ``generate`` of Hugging Face `transformers`.

``model.generate(**inputs, custom_generate=specdec_hal.compat.transformers.generate)`` decodes with this project's
proposers and verifier: any batch size, greedy or sampled, one seed per request. `assisted_generate` keeps the decode
loop of `transformers` (batch 1, its random numbers) and only supplies drafts (:class:`DraftCandidates`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from specdec_hal.plugin.versions import require

KNOWN_VERSIONS = tuple(f"5.{minor}" for minor in range(17, 25))
VERSION = require("transformers", KNOWN_VERSIONS, ["transformers"])

from transformers.generation import (  # noqa: E402
    CandidateGenerator,
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    GenerationMixin,
    MaxLengthCriteria,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdec_hal.compat.cached_model import CachedModel, check_keys_and_values, check_rotary  # noqa: E402
from specdec_hal.compat.defaults import default_drafter  # noqa: E402
from specdec_hal.errors import NoDistributionError, RequestError, UnsupportedError  # noqa: E402
from specdec_hal.loop.drafter import Drafter  # noqa: E402
from specdec_hal.loop.functional import verify  # noqa: E402

_WARPERS = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
}
"""Processors that the verifier replaces, in this order."""
_NEVER = {
    "ClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
}
"""Logits processors that count their calls or run the model."""


def generate(
    model: Any,
    input_ids: Any,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    seeds: int | Sequence[int] | None = None,
    num_speculative_tokens: int = 8,
    drafter: Drafter | None = None,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode a batch with drafts: ``model.generate(..., custom_generate=generate, num_speculative_tokens=8)``.

    Greedy tokens equal those of plain ``model.generate``, provided that the logits' bits do not depend on the number of
    tokens in a forward pass. With ``do_sample`` they depend only on `seeds`, one per row (an int: for all; None: drawn
    from PyTorch's generator), not on drafts, batch or padding. `drafter` None: n-gram look-up with at most
    `num_speculative_tokens` drafts; 0 decodes plainly.

    Prompts of a batch are padded on the left, as in `generate`. Logits processors see the same texts as in plain
    decoding, stopping criteria each token. A cache that was passed in holds the prompts afterwards. The streamer of
    ``model.generate(streamer=...)`` gets the same tokens as in plain decoding, and its end on errors too.
    `transformers` does not pass the tokenizer to a custom `generate`: give stop strings as a ``StopStringCriteria``.

    Raises UnsupportedError, before the first token, for unsupported features: beams, encoder-decoder models, caches
    other than the dynamic one with full attention, flash attention, scores and hidden states in the output, and models
    whose tokens would differ (:class:`~specdec_hal.compat.cached_model.CachedModel`).
    """
    streamer = _streamer_of_caller() if streamer is None else streamer
    run = object()  # makes request names unique to this run
    with _ending(streamer):
        _check(model, generation_config, logits_processor, model_kwargs)
        drafter = drafter or default_drafter(num_speculative_tokens)
        batch = _Batch(input_ids, model_kwargs.get("attention_mask"), stopping_criteria, generation_config)
        sampling = _Sampling(logits_processor, generation_config, seeds, len(input_ids))
        cached = CachedModel(model, model_kwargs, batch.pads, batch.prompt, batch.end)
        outputs = model._prefill(input_ids, generation_config, model_kwargs, is_first_iteration=True)
        cache = cached.start(input_ids, outputs)
        logits = outputs.logits[:, -1:]
        drafts: list[list[int]] = [[] for _ in range(len(input_ids))]
        try:
            while True:
                rows = batch.running
                out = sampling.verify(logits, drafts, batch)
                batch.extend(out.token_ids.tolist(), out.counts.tolist())
                if streamer is not None:
                    batch.stream(streamer)
                for row in set(rows).difference(batch.running):
                    drafter.forget((run, row))
                if not batch.running:
                    break
                if len(batch.running) < len(rows):
                    cache.keep([rows.index(row) for row in batch.running])
                drafts = batch.draft(drafter, run)
                starts = [batch.lengths[row] - 1 for row in batch.running]
                logits = cached.logits(cache, batch.inputs(drafts).to(model.device), batch.running, starts)
        finally:
            for row in batch.running:
                drafter.forget((run, row))
    if streamer is not None:
        streamer.end()
    return batch.output(generation_config.return_dict_in_generate)


def assisted_generate(
    model: Any,
    input_ids: Any,
    *,
    num_speculative_tokens: int = 8,
    drafter: Drafter | None = None,
    generation_config: Any,
    streamer: Any = None,
    **arguments: Any,
) -> Any:
    """The assisted decoding of `transformers` with drafts of this project: ``custom_generate=assisted_generate``.

    During the call the model's factory of candidate generators is replaced. UnsupportedError for a model whose state
    cannot be rolled back, or whose rotary embedding changes with the length of this text.
    """
    streamer = _streamer_of_caller() if streamer is None else streamer
    with _ending(streamer):
        check_keys_and_values(model)
        check_rotary(model, input_ids, generation_config.max_length)
        drafter = drafter or default_drafter(num_speculative_tokens)
        candidates = DraftCandidates(drafter, generation_config.max_length)
        model._get_candidate_generator = lambda **_: candidates
        try:
            return model._assisted_decoding(
                input_ids, generation_config=generation_config, streamer=streamer, **arguments
            )
        finally:
            del model._get_candidate_generator
            candidates.forget()


def _streamer_of_caller() -> Any:
    """The streamer of ``model.generate``, which does not pass it on to a custom one, or None."""
    code, frame = inspect.unwrap(GenerationMixin.generate).__code__, sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_locals["streamer"]


@contextmanager
def _ending(streamer: Any) -> Iterator[None]:
    """End the stream on errors too, so that its reader does not wait forever."""
    try:
        yield
    except BaseException:
        if streamer is not None:
            streamer.end()
        raise


class DraftCandidates(CandidateGenerator):  # type: ignore[misc]
    """Drafts for the assisted decoding of `transformers`, for one text of up to `max_length` tokens."""

    requires_model_outputs = False

    def __init__(self, drafter: Drafter, max_length: int) -> None:
        self._drafter, self._max_length = drafter, max_length

    def get_candidates(self, input_ids: Any, **kwargs: Any) -> tuple[Any, None]:
        """`input_ids` [1, n] followed by the drafts, without logits: drafts are compared exactly."""
        text = input_ids[0]
        room = min(self._max_length - len(text) - 1, self._drafter.num_speculative_tokens)
        (drafts,) = self._drafter.propose([text], [self], num_speculative_tokens=max(room, 0))
        return torch.cat((input_ids, input_ids.new_tensor([drafts], dtype=input_ids.dtype)), dim=1), None

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> None:
        """Keep the number of drafts."""

    def forget(self) -> None:
        """Free the drafter's state for the text."""
        self._drafter.forget(self)


class _Batch:
    """The rows' texts and which rows still run."""

    def __init__(self, input_ids: Any, attention_mask: Any, criteria: Any, config: Any) -> None:
        size, self.prompt = input_ids.shape
        self.pads = [0] * size if attention_mask is None else (attention_mask == 0).sum(1).tolist()
        if attention_mask is not None and not (attention_mask.cumsum(1)[:, -1:] >= 1).all():
            raise RequestError("attention_mask: expected at least one token in every row, got a row of padding")
        if attention_mask is not None and (attention_mask.diff(dim=1) < 0).any():
            raise RequestError("attention_mask: expected prompts padded on the left only; use padding_side='left'")
        self.end = min([c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)], default=config.max_length)
        ends = [c.eos_token_id.tolist() for c in criteria if isinstance(c, EosTokenCriteria)]
        self.end_tokens = sorted({token for tokens in ends for token in tokens})
        self._criteria = [c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))]
        self._pad_token = int(config._pad_token_tensor) if config._pad_token_tensor is not None else 0
        self._device = input_ids.device
        self._texts = np.zeros((size, self.end), np.int64)
        self._texts[:, : self.prompt] = input_ids.cpu().numpy()
        self.lengths = [self.prompt] * size
        self.running = list(range(size))
        self._streamed = self.prompt

    def text(self, row: int, length: int | None = None) -> Any:
        """A row so far, padding included, for processors and criteria: [1, length]."""
        return torch.from_numpy(self._texts[row : row + 1, : length or self.lengths[row]]).to(self._device)

    def extend(self, tokens: list[list[int]], counts: list[int]) -> None:
        """Append each running row's new tokens, up to its end."""
        running = []
        for row, emitted, count in zip(self.running, tokens, counts, strict=True):
            if min(emitted[:count], default=-1) < 0:  # on a GPU; `verify` raises on the host
                raise _no_distribution(row)
            ended = emitted[count - 1] in self.end_tokens
            for token in emitted[:count]:
                self._texts[row, self.lengths[row]] = token
                self.lengths[row] += 1
                if any(bool(criterion(self.text(row), None).all()) for criterion in self._criteria):
                    ended = True
                    break
            if not ended and self.lengths[row] < self.end:
                running.append(row)
        self.running = running

    def stream(self, streamer: Any) -> None:
        """Put the tokens [B] of each completed step of plain decoding, with padding after a row's end."""
        now = min((self.lengths[row] for row in self.running), default=max(self.lengths))
        for column in range(self._streamed, now):
            ended = column >= np.array(self.lengths)
            streamer.put(torch.from_numpy(np.where(ended, self._pad_token, self._texts[:, column])))
        self._streamed = now

    def draft(self, drafter: Drafter, run: object) -> list[list[int]]:
        """Drafts for the running rows."""
        rows = self.running
        histories = [self._texts[row, self.pads[row] : self.lengths[row]] for row in rows]
        wanted = [min(drafter.num_speculative_tokens, self.end - self.lengths[row] - 1) for row in rows]
        return drafter.propose(histories, [(run, row) for row in rows], num_speculative_tokens=wanted)

    def inputs(self, drafts: list[list[int]]) -> Any:
        """The model's input: tokens [B, 1 + most drafts]."""
        width = 1 + max(map(len, drafts))
        fed = np.zeros((len(drafts), width), np.int64)
        for at, (row, ids) in enumerate(zip(self.running, drafts, strict=True)):
            fed[at, : len(ids) + 1] = self._texts[row, self.lengths[row] - 1], *ids
        return torch.from_numpy(fed)

    def output(self, as_dict: bool) -> Any:
        """All texts, padded to the longest."""
        longest = max(self.lengths)
        texts = self._texts[:, :longest]
        for row, length in enumerate(self.lengths):
            texts[row, length:] = self._pad_token
        sequences = torch.from_numpy(texts.copy()).to(self._device)
        return GenerateDecoderOnlyOutput(sequences=sequences) if as_dict else sequences


class _Sampling:
    """How tokens are drawn: the verifier's parameters, and the logits processors before it."""

    def __init__(self, processors: Any, config: Any, seeds: Any, size: int) -> None:
        self._before = list(processors)
        self._params: dict[str, Any] = {"temperature": 1.0 if config.do_sample else 0.0}
        order = list(_WARPERS)
        while config.do_sample and self._before and type(self._before[-1]) in order:
            last = self._before[-1]
            if getattr(last, "min_tokens_to_keep", 1) != 1:
                break
            del order[order.index(type(last)) :]
            self._params[_WARPERS[type(last)]] = getattr(last, _WARPERS[type(last)])
            self._before.pop()
        if seeds is None:
            seeds = torch.randint(1 << 62, (size,)).tolist() if config.do_sample else 0
        self._seeds = np.broadcast_to(np.asarray(seeds), (size,)) if np.ndim(seeds) == 0 else np.asarray(seeds)
        if self._seeds.shape != (size,):
            raise RequestError(f"seeds: expected one number, or {size}, got {len(self._seeds)}")

    def verify(self, logits: Any, drafts: list[list[int]], batch: _Batch) -> Any:
        """Verify the drafts of the running rows."""
        rows = batch.running
        if self._before:
            logits = self._processed(logits, drafts, batch)
        elif logits.dtype == torch.float64:
            logits = logits.float()
        try:
            return verify(
                logits,
                drafts,
                seeds=self._seeds[rows],
                positions=[batch.lengths[row] - batch.pads[row] for row in rows],
                end_tokens=batch.end_tokens,
                max_new_tokens=[batch.end - batch.lengths[row] for row in rows],
                **self._params,
            )
        except NoDistributionError as error:
            raise _no_distribution(rows[error.requests[0]]) from error

    def _processed(self, logits: Any, drafts: list[list[int]], batch: _Batch) -> Any:
        """Float32 logits after each draft, as in plain decoding.

        Rows differ in length and processors may index rows, so each processor call replicates one row.
        """
        logits, size = logits.float().clone(), len(batch.lengths)
        for at, (row, ids) in enumerate(zip(batch.running, drafts, strict=True)):
            text = torch.cat((batch.text(row), batch.text(row).new_tensor([ids], dtype=torch.long)), dim=1)
            for i in range(len(ids) + 1):
                history = text[:, : batch.lengths[row] + i].repeat(size, 1)
                scores = logits[at, i].repeat(size, 1)
                for processor in self._before:
                    scores = processor(history, scores)
                logits[at, i] = scores[row]
        return logits


def _no_distribution(row: int) -> RequestError:
    return RequestError(f"row {row}: the model gave no distribution for the next token (NaN, or all -inf)")


def _check(model: Any, config: Any, processors: Any, model_kwargs: dict[str, Any]) -> None:
    """UnsupportedError for features that these loops lack."""
    names = {type(processor).__name__ for processor in processors}
    refused = names & _NEVER
    attention = model.config._attn_implementation
    wrong = {
        "an encoder-decoder model": model.config.is_encoder_decoder,
        f"num_beams {config.num_beams}": (config.num_beams or 1) > 1,
        "use_cache=False": not model_kwargs.get("use_cache"),
        "inputs_embeds": model_kwargs.get("inputs_embeds") is not None,
        f"attention '{attention}'": attention not in ("sdpa", "eager"),
        "scores, logits, attentions or hidden states as output": config.return_dict_in_generate
        and (config.output_scores or config.output_logits or config.output_attentions or config.output_hidden_states),
        ", ".join(sorted(refused)): refused,
    }
    for what, here in wrong.items():
        if here:
            raise UnsupportedError(
                f"generate: {what} cannot be decoded speculatively here; expected a decoder-only model with a cache, "
                "attention 'sdpa' or 'eager', and sequences as output; leave custom_generate out for the rest"
            )
