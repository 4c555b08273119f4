"""Drafts of a second, smaller model, token by token (Leviathan et al. 2022).

If both models take device tensors, drafting is a chain of ops captured with the step (:class:`ChainedDraftModel`).
Otherwise, or with another vocabulary or a shorter context, the host runs it (:class:`HostDraftModel`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from specdec_hal.config.schema import CheckpointPath, Section
from specdec_hal.errors import SpecDecError, UnsupportedError
from specdec_hal.models.checkpoint import CONFIG, read_json
from specdec_hal.models.drafter import drafter_kind
from specdec_hal.models.loader import load_tokenizer
from specdec_hal.ops import Strategy
from specdec_hal.plugin.model import (
    FINAL_NORM,
    DeviceModel,
    ForwardBatch,
    ModelConfig,
    RecurrentModel,
    Segment,
    TargetModel,
)
from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, Settings, SlotView, StepBounds, StepView
from specdec_hal.proposers.draft_chain import SLOTS, Call, ChainPlan, DraftChain
from specdec_hal.proposers.draft_sampler import DraftSampler
from specdec_hal.proposers.vocabulary import Vocabulary, intersection, padded, same_tokens
from specdec_hal.tensors.memory import require

_log = logging.getLogger("specdec_hal")


class DraftModelSettings(Section):
    """`path`: the draft model's checkpoint; null: `speculative.path`. One with the target's tokenizer drafts best."""

    path: CheckpointPath | None = None


def whole_model(config: Settings) -> str:
    """The draft model's checkpoint; UnsupportedError for a drafter, which is no model of its own."""
    path = config.drafter_path
    if Path(path).is_dir() and (kind := drafter_kind(path)) != "draft_model":
        raise UnsupportedError(
            f"speculative.method draft_model: expected a whole model in {path}, got a drafter of the kind '{kind}'; "
            "set speculative.method auto"
        )
    return path


def draft_model_proposer(context: ProposerContext) -> Proposer:
    """Loads the model. UnsupportedError for one that cannot draft for this target."""
    path = whole_model(context.config)
    if Path(path).is_dir() and "pard_token" in read_json(path, CONFIG):
        _log.warning(
            "speculative.method draft_model: %s was trained to draft several tokens in one pass (PARD: its config.json "
            "has pard_token); here it drafts one token a pass, which takes longer", path,
        )  # fmt: skip
    model = context.load_model(path)
    vocabulary = _vocabulary(context, path, model.config)
    length, longest = context.state.symbols["L"], model.config.max_position_embeddings
    if length > longest:
        _log.warning(
            "speculative.method draft_model: %s has %d positions; requests get no drafts beyond them "
            "(runner.max_model_len is %d)", path, longest, length,
        )  # fmt: skip
    on_device = model.capabilities.device_lengths and context.model.capabilities.device_lengths
    if on_device and vocabulary is None and length <= longest:
        return ChainedDraftModel(context, cast(DeviceModel, model))
    return HostDraftModel(context, model, vocabulary)


class ChainedDraftModel(DraftChain):
    """The model over device tensors, with the target's block numbers.

    The chain feeds tokens at their positions in the text, one more than the chain's count. The text's first token is
    not in the chain: in steps with prompt chunks an extra substep feeds it, and repeats the last token ahead of every
    later chunk.

    Requests without drafts are fed too, so that their cache stays complete.
    """

    hidden_layers: tuple[int, ...] = ()
    cache_lookahead: int | None = 0

    def __init__(self, context: ProposerContext, model: DeviceModel) -> None:
        config, state, size = context.config, context.state, context.state.symbols
        blocks, block_size = context.kv_blocks, config.runner.block_size
        need = {"KV cache": blocks * model.bytes_per_block(block_size)}
        if model.capabilities.recurrent:
            need["recurrent states"] = size["M"] * cast(RecurrentModel, model).bytes_per_slot(size["S"] - 1)
        hint = f"lower runner.num_kv_blocks ({blocks}) or runner.max_num_seqs ({size['M']})"
        require("speculative.draft_model", need, state.device.name, state.device.free_bytes(), hint)
        model.allocate_blocks(blocks, block_size, size["L"])  # no draft stands after the last position of a request
        drafts = size["S"] - 1
        if model.capabilities.recurrent:
            cast(RecurrentModel, model).allocate_states(size["M"], drafts, context.backend)
            self.cache_lookahead = None  # shared blocks hold no states
        # After a step's tokens: the last one that it emitted, and all drafts but the last.
        self.draft_positions = drafts
        super().__init__(context, drafts, width=model.config.hidden_size, dtype=model.capabilities.hidden_dtype)
        self._model = model
        self._positions = state.allocate("seq_lens_decoder")
        self._nothing, self._at_most_one = state.allocate("seq_lens_this_time"), state.allocate("chunk_lens")
        first = {name: state.allocate(name, I_cap=1) for name in SLOTS}
        shared = {name: tensor for name, tensor in self._own.items() if name != "token_ids_all"}
        self._first = state.of_draft_model({**shared, **first})

    def _plan_of(self, step: StepView) -> ChainPlan:
        plan = self._plans.get(step.bounds)
        if plan is None:
            self._plans[step.bounds] = plan = self._plan(step.bounds, None)
        return plan

    def _head(self, bounds: StepBounds) -> list[Call]:
        sizes, symbols = {"B": bounds.slots}, self._state.symbols
        only_decodes = bounds.query <= symbols["S"] < symbols["I_cap"]
        preprocess = self._bind("draft_model_preprocess", sizes, draft_token_num=self._every_request)
        return [
            self._bind("schedule_slots", sizes),
            *([] if only_decodes else self._lead(bounds)),
            preprocess,
        ]

    def _lead(self, bounds: StepBounds) -> list[Call]:
        """Feed the token in front of each chunk."""
        slots, first = bounds.slots, self._first
        sizes = {"B": slots, "T_cap": slots, "R_cap": slots}

        def begin(stream: int) -> None:
            for name in ("seq_lens_this_time", "seq_lens_encoder"):
                self._device.assign(first[name], self._nothing)
            self._device.assign(self._at_most_one, self._state["chunk_lens"].clip(max=1))

        args = {**first.args("schedule_slots", sizes), "chunk_lens": self._at_most_one}
        schedule = self._backend.bind("schedule_slots", **args)
        prepare = self._backend.bind("prepare_inputs", **first.args("prepare_inputs", sizes))
        return [begin, schedule, prepare, self._forward(bounds, sizes, 1, first["seq_lens_decoder"])]

    def _read(self, number: int, bounds: StepBounds, sizes: dict[str, int], hidden: Any) -> list[Call]:
        def advance(stream: int) -> None:
            self._device.assign(self._positions, self._tensors["seq_lens_decoder"] + 1)

        query = 1 if number else bounds.query
        return [self._bind("prepare_inputs", sizes), advance, self._forward(bounds, sizes, query, self._positions)]

    def _forward(self, bounds: StepBounds, sizes: dict[str, int], query: int, positions: Any) -> Call:
        batch = self._batch(bounds, sizes, query, positions)
        given = {FINAL_NORM: self._given[: sizes["T_cap"]]}
        return lambda stream: self._model.forward_device(batch, given)

    def _logits(self, number: int, last: Any) -> list[Call]:
        logits = self._sampler.logits[: len(last)]
        return [lambda stream: self._model.compute_logits_device(last, logits)]


@dataclass
class _Cache:
    """What the model has `read` of a slot: the request's tokens, then drafts.

    `text`: the request's first `seen` tokens in the model's ids, of which it has read `known`.
    """

    text: list[int] = field(default_factory=list)
    seen: int = 0
    known: int = 0
    read: list[int] = field(default_factory=list)

    def unread(self, view: SlotView, vocabulary: Vocabulary | None) -> list[int]:
        """The unread tokens of a request, at least its last; forgets rejected drafts."""
        prompt = view.prompt_token_ids
        new = [*prompt[self.seen :], *view.token_ids[max(self.seen - len(prompt), 0) :]]
        self.text += new if vocabulary is None else vocabulary.read(new)
        self.seen += len(new)
        most = min(len(self.read), len(self.text) - 1)
        while self.known < most and self.read[self.known] == self.text[self.known]:
            self.known += 1
        del self.read[self.known :]
        return self.text[self.known :]


@dataclass
class _Drafting:
    """A slot's drafts of this step, and its model's unread tokens."""

    view: SlotView
    unread: list[int]
    drafts: list[int] = field(default_factory=list)


class HostDraftModel(Proposer):
    """Runs the draft model over its own KV cache.

    The cache keeps drafts: accepted ones are not read again, rejected ones are overwritten. Unread tokens, such as a
    prompt, are fed in chunks of `runner.prefill_chunk`. A request beyond the model's context gets no drafts.
    `vocabulary`: None for the target's own ids.
    """

    runs_on: RunsOn = "host"
    hidden_layers: tuple[int, ...] = ()

    def __init__(self, context: ProposerContext, model: TargetModel, vocabulary: Vocabulary | None = None) -> None:
        state, size = context.state, context.state.symbols
        self.gives_draft_probs = context.config.speculative.verify_strategy is Strategy.REJECTION
        self._model, self._vocabulary = model, vocabulary
        # No draft stands after the last position of a request; its tokens may be more of the draft model's.
        self._longest = model.config.max_position_embeddings
        if vocabulary is None:
            self._longest = min(size["L"], self._longest)
        model.allocate(size["M"], self._longest)
        if model.capabilities.recurrent:
            cast(RecurrentModel, model).allocate_states(size["M"], size["S"] - 1, context.backend)
        self._chunk = size["I_cap"]
        self._state, self._device = state, state.device
        self._sampler = DraftSampler(context)
        if vocabulary is not None:
            self._own_logits = self._device.zeros((size["M"], model.config.vocab_size), "float32")
            columns = self._device.upload(vocabulary.target_to_draft)
            self._map = context.backend.bind("map_draft_logits", self._sampler.logits, self._own_logits, columns)
        self._caches = [_Cache() for _ in range(size["M"])]

    def reset(self, slots: list[int]) -> None:
        """Reset the slots' state."""
        for slot in slots:
            self._caches[slot] = _Cache()

    def propose(self, step: StepView) -> Any:
        """Draft for every slot that takes drafts; the tensor of their distributions for REJECTION, else None."""
        going = [
            _Drafting(view, self._caches[view.slot].unread(view, self._vocabulary))
            for view in step.slots
            if view.max_drafts > 0
        ]
        going = everything = [one for one in going if len(self._caches[one.view.slot].text) <= self._longest]
        index = 0
        while going:
            self._read(going)
            if self._vocabulary is not None:
                self._map(step.stream)
            drawn = self._device.download(self._sampler.draw(index, 1 + max(d.view.slot for d in going), step.stream))
            index += 1
            for one in going:
                token = int(drawn[one.view.slot])
                one.unread = [token] if self._vocabulary is None else self._vocabulary.read([token])
                if token >= 0:
                    one.drafts.append(token)
            going = [
                one
                for one in going
                if len(one.drafts) == index < one.view.max_drafts
                and len(self._caches[one.view.slot].read) < self._longest
            ]
        step.draft({one.view.slot: one.drafts for one in everything})
        return self._sampler.probs

    def _read(self, going: list[_Drafting]) -> None:
        """Feed each slot what it has not read, and keep the logits after its last token."""
        kept = self._sampler.logits if self._vocabulary is None else self._own_logits
        while any(one.unread for one in going):
            segments, tokens, last = [], list[int](), list[tuple[int, int]]()
            for one in going:
                slot, part = one.view.slot, one.unread[: self._chunk]
                if not part:
                    continue
                cache = self._caches[slot]
                segments.append(Segment(slot, len(tokens), len(part), len(cache.read), outputs=1))
                tokens += part
                cache.read += part
                one.unread = one.unread[self._chunk :]
                if not one.unread:
                    last.append((slot, len(tokens) - 1))
            try:
                hidden = self._model.forward(ForwardBatch(np.array(tokens, np.int64), segments))[FINAL_NORM]
            except BaseException:
                self.reset([segment.slot for segment in segments])  # its writes are unknown
                raise
            if last:
                slots, rows = map(list, zip(*last, strict=True))
                logits = self._model.compute_logits(hidden if len(rows) == len(tokens) else hidden[rows])
                self._device.write(kept, slots, self._device.copy(logits))


def _vocabulary(context: ProposerContext, path: str, own: ModelConfig) -> Vocabulary | None:
    """The mapping of the draft model's ids to the target's; None if equal.

    UnsupportedError if it is unknown or no token is common.
    """
    target = context.model.config
    if context.tokenizer is None:
        if own.vocab_size == target.vocab_size:
            return None
        raise UnsupportedError(
            f"speculative.draft_model.path: expected the target's vocabulary of {target.vocab_size} tokens without a "
            f"tokenizer to compare, got {own.vocab_size} in {path}; choose a draft model of the target's family"
        )
    try:
        other = load_tokenizer(path)
    except SpecDecError as error:
        raise UnsupportedError(f"speculative.draft_model.path: the tokenizer cannot be compared: {error}") from error
    if same_tokens(context.tokenizer, other):
        return None if own.vocab_size == target.vocab_size else padded(target, own)
    found = intersection(target, own, context.tokenizer, other)
    if not len(found):
        raise UnsupportedError(
            f"speculative.draft_model.path: expected tokens that target and draft model both have, got none in {path}; "
            "choose another draft model"
        )
    _log.log(
        logging.INFO if len(found) >= target.vocab_size // 2 else logging.WARNING,
        "speculative.method draft_model: %s has another vocabulary; it drafts the %d of the target's %d tokens that it "
        "has too", path, len(found), target.vocab_size,
    )  # fmt: skip
    return found
