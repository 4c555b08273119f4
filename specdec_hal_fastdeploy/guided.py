"""FastDeploy's `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar` and `structural_tag` with drafts, which
FastDeploy itself refuses: masks for the sampler's rows and the slots' drafts.

    guided = GuidedDecoding(tokenizer, vocab_size, end_tokens, max_num_seqs, num_speculative_tokens)
    guided.begin(slot, guided_json=schema)                              # when a request takes a slot
    guided.prepare(draft_tokens, seq_lens_this_time, seq_lens_encoder)  # after pre_process, while the model computes
    guided.apply(logits)                                                # in the sampler, after its penalties
    lens = guided.truncate(draft_tokens, seq_lens_this_time, seq_lens_encoder, cu_seqlens_q_output)   # for the verifier
    guided.commit(accept_tokens, accept_num, seq_lens_decoder, prompt_lens)   # after unified_update_model_status

No name of FastDeploy's is replaced: its interface for guided decoding has one row per request and no rollback.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from pydantic import ValidationError

from specdec_hal.config.problems import problems
from specdec_hal.config.schema import StructuredOutput, StructuredSettings
from specdec_hal.errors import RequestError
from specdec_hal.runner.row_masks import RowMasks
from specdec_hal.structured.backend import Grammar, GrammarFailedError, Vocabulary
from specdec_hal.structured.compiler import Grammars
from specdec_hal.structured.state import GrammarState
from specdec_hal.tensors.device import get_device
from specdec_hal_fastdeploy.adaptor import backend_of
from specdec_hal_fastdeploy.plan import Tensor

_FORMS = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""FastDeploy's keys, and ours."""


class GuidedDecoding:
    """The grammars of a runner's slots.

    Tensors are FastDeploy's, [N] or [N, 1]. Only :meth:`prepare` and :meth:`commit` read lengths and drafts on the
    host, and only if a slot has a grammar.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        end_tokens: Iterable[int],
        max_num_seqs: int,
        num_speculative_tokens: int,
        **settings: Any,
    ) -> None:
        """`tokenizer`: a :class:`~specdec_hal.models.Tokenizer`; `vocab_size`: the width of the logits.

        `settings`: keys of the configuration's section `structured`, such as ``backend="llguidance"``.
        """
        self._ends, self._vocab_size = frozenset(end_tokens), vocab_size
        vocabulary = partial(Vocabulary.of, tokenizer, vocab_size, self._ends)
        self._grammars = Grammars(StructuredSettings(**settings), vocabulary)
        self._rows = max_num_seqs * (num_speculative_tokens + 1)
        self._states: dict[int, GrammarState] = {}
        self._tokens: dict[int, list[int]] = {}
        self._masks: RowMasks | None = None
        self._masked = False

    def compile(self, **guided: Any) -> Grammar | None:
        """Compile for :meth:`begin` in advance, on any thread; hold the result until then."""
        output = wanted(**guided)
        return None if output is None else self._grammars.get(output)

    def begin(self, slot: int, **guided: Any) -> None:
        """Start a request in the slot, with its FastDeploy keys. RequestError for an invalid grammar, or two."""
        grammar = self.compile(**guided)
        self.end(slot)
        if grammar is not None:
            words = -(-self._vocab_size // 32)
            self._states[slot] = GrammarState(grammar.matcher(), None, words, self._ends, lambda position, text: True)
            self._tokens[slot] = []

    def prepare(self, draft_tokens: Tensor, seq_lens_this_time: Tensor, seq_lens_encoder: Tensor) -> None:
        """Build the masks of the step's rows, as packed by `speculate_pre_process`."""
        self._masked = False
        if not self._states:
            return
        masks = self._row_masks(draft_tokens)
        masks.forget()
        drafts, lens, enc = map(_host, (draft_tokens, seq_lens_this_time, seq_lens_encoder))
        first = 0
        for slot, slt in enumerate(lens.reshape(-1).tolist()):
            prompt = enc.reshape(-1)[slot] > 0
            if slt > 0 and slot in self._states:
                verified = [] if prompt else drafts[slot, 1:slt].tolist()
                self._states[slot].fill(verified, lambda at, first=first: masks.row(first + at))  # type: ignore[misc]
                self._masked = True
            first += min(slt, 1) if prompt else max(slt, 0)
        if self._masked:
            masks.upload()

    def apply(self, logits: Tensor) -> None:
        """Mask the packed rows [R, V] by their grammars, in place."""
        if self._masked:
            backend_of((logits,)).bind("apply_token_bitmask", logits, **self._operands(logits.shape[0]))()

    def truncate(
        self, draft_tokens: Tensor, seq_lens_this_time: Tensor, seq_lens_encoder: Tensor, cu_seqlens_q_output: Tensor
    ) -> Tensor:
        """`seq_lens_this_time` up to the first draft that a slot's grammar refuses: a copy, as the proposer needs the
        lengths that were fed."""
        if not self._masked:
            return seq_lens_this_time
        lens = seq_lens_this_time.clone()
        backend_of((lens,)).bind(
            "truncate_drafts",
            draft_tokens,
            cu_seqlens_q_output=cu_seqlens_q_output[: lens.shape[0] + 1],
            seq_lens_encoder=seq_lens_encoder,
            seq_lens_this_time=lens,
            **self._operands(self._rows),
        )()
        return lens

    def commit(
        self, accept_tokens: Tensor, accept_num: Tensor, seq_lens_decoder: Tensor, prompt_lens: Tensor
    ) -> dict[int, str]:
        """Process the step's tokens, except of unfinished prompts; returns errors by slot.

        Such a request cannot continue. Tokens after an end token are ignored.
        """
        failed: dict[int, str] = {}
        if not self._states:
            return failed
        tokens, counts, dec, prompts = map(_host, (accept_tokens, accept_num, seq_lens_decoder, prompt_lens))
        inside = dec.reshape(-1) < prompts.reshape(-1)
        for slot, state in self._states.items():
            if inside[slot]:
                continue
            self._tokens[slot] += tokens[slot, : max(int(counts.reshape(-1)[slot]), 0)].tolist()
            try:
                state.commit(self._tokens[slot])
            except GrammarFailedError as error:
                failed[slot] = str(error)
        return failed

    def end(self, slot: int) -> None:
        """The slot's request has ended."""
        self._states.pop(slot, None)

    def _row_masks(self, like: Tensor) -> RowMasks:
        if self._masks is None:
            device = "cpu" if like.place.is_cpu_place() else f"cuda:{like.place.gpu_device_id()}"
            self._masks = RowMasks(get_device(device, "paddle"), self._rows, self._vocab_size)
        return self._masks

    def _operands(self, rows: int) -> dict[str, Any]:
        assert self._masks is not None
        return {"bitmask": self._masks.tensors["bitmask"], "bitmask_rows": self._masks.tensors["bitmask_rows"][:rows]}


def wanted(**guided: Any) -> StructuredOutput | None:
    """The structured output for these FastDeploy keys; None if all are None. RequestError for two."""
    given = {key: value for key, value in guided.items() if value is not None}
    if unknown := [key for key in given if key not in _FORMS]:
        raise RequestError(f"expected {', '.join(_FORMS)}, got {', '.join(unknown)}; leave it out")
    if len(given) > 1:
        raise RequestError(f"expected one of {', '.join(_FORMS)}, got {' and '.join(given)}; leave out one of them")
    for key, value in given.items():
        try:
            return StructuredOutput(**{_FORMS[key]: value})
        except ValidationError as error:
            found = "; ".join(message for _, message in problems(error, StructuredOutput))
            raise RequestError(f"{key}: {found}") from error
    return None


def _host(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(tensor.numpy())
