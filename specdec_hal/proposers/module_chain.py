"""A chain of drafts by a module that reads the target's hidden states, then its own: MTP modules and EAGLE-3 heads.

The module reads every token that the target reads, prompt chunks and accepted tokens, each with the target's state,
which replaces its own earlier drafts. After the last it predicts the first draft, and after each draft the next. A
request without drafts (`draft_token_num` 0) is not fed, unless `speculative.adaptive` may enable drafts again. A
parallel module gives the rows of all drafts at once; each substep then takes its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from specdec_hal.ops import TokenOrder
from specdec_hal.plugin.model import DeviceBatch, ForwardBatch, Segment
from specdec_hal.plugin.proposer import ProposerContext, StepBounds, StepView
from specdec_hal.proposers.draft_chain import Call, ChainPlan, DraftChain
from specdec_hal.proposers.vocabulary import target_to_draft
from specdec_hal.tensors.views import download

_BLOCK = ("block_token_ids", "block_batch_ids", "block_source_rows", "block_cu_seqlens_q", "block_seq_lens_decoder")


class ModuleChain(DraftChain):
    """Chains a module: row p of its cache belongs to the token at p + 1 and the target's hidden state of p.

    `module`: an MTPModule, or a DeviceMTPModule where the target has `device_lengths`. `width`: of the states that it
    reads; those that it gives may be wider (`given`). One with `block` is parallel, one with `draft_ids` has another
    vocabulary (:class:`~specdec_hal.models.draft_pass.DraftPass`).
    """

    cache_lookahead = 1

    def __init__(
        self,
        context: ProposerContext,
        module: Any,
        drafts: int,
        *,
        width: int,
        dtype: str,
        given: int | None = None,
        certain: bool = False,
    ) -> None:
        size = context.state.symbols
        self._static = context.model.capabilities.device_lengths
        self._adaptive, self._fed_slots = context.config.speculative.adaptive, context.fed
        self.draft_positions = max(drafts - 1, 0)
        self._module: Any = module
        self._block: Any = getattr(module, "block", None)
        super().__init__(context, drafts, width=width if given is None else given, dtype=dtype, certain=certain)
        self._own_logits: Any = None
        if (ids := getattr(module, "draft_ids", None)) is not None:
            columns = target_to_draft(context.model.config.vocab_size, ids, range(len(ids)))
            self._columns = self._device.upload(columns)
            self._own_logits = self._device.zeros((size["M"], len(ids)), "float32")
        if self._block is not None:
            capacity = self._block_rows(size)
            self._own |= {name: context.state.allocate(name, F_cap=capacity) for name in _BLOCK}
            self._tensors = context.state.of_draft_model(self._own)

        def rows(count: int) -> Any:
            return self._device.zeros((count, width), dtype)

        # The target's rows, those that the module is fed, and those of slots that go on.
        self._raw, self._hidden = (rows(0 if self._static else size["T_cap"]) for _ in range(2))
        self._fed, self._next = rows(size["T_cap"]), rows(size["M"] if self._block is None else 0)
        if not self._static:
            self._every = StepBounds(size["M"], size["T_cap"], size["I_cap"], size["L"])
            self._plans[self._every] = self._plan(self._every, self._hidden)

    @abstractmethod
    def _states(self, features: Mapping[int, Any]) -> Any:
        """The states [T, D] that the module reads, from the target's hidden states by layer.

        In the same memory every time where the target has `device_lengths`.
        """

    def _plan_of(self, step: StepView) -> ChainPlan:
        hidden = self._states(step.input_hidden_states)
        if self._static:
            plan = self._plans.get(step.bounds)
            if plan is None:
                self._plans[step.bounds] = plan = self._plan(step.bounds, hidden)
        else:
            plan = self._plans[self._every]
            self._device.assign(self._raw[: len(hidden)], hidden)
        return plan

    # ---- the calls

    def _head(self, bounds: StepBounds) -> list[Call]:
        sizes = {"B": bounds.slots}
        ordered = [] if self._static else [self._in_slot_order()]
        every = self._every_request if self._fed_slots is None else self._fed_slots
        fed = {"draft_token_num": every} if self._adaptive else {}
        return [self._bind("schedule_slots", sizes), *ordered, self._bind("draft_model_preprocess", sizes, **fed)]

    def _in_slot_order(self) -> Call:
        if self._backend.token_order is TokenOrder.SLOT:
            return lambda stream: self._device.assign(self._hidden, self._raw)
        # Of the target's step: the module shares its chunks, of all slots that may draft.
        starts, lengths = self._state["cu_seqlens_q"], self._state.allocate("seq_lens_this_time")
        encoder = self._tensors["seq_lens_encoder"]
        recover = self._backend.bind(
            "recover_batch", self._raw, starts, lengths, encoder, out=self._hidden,
            token_order=TokenOrder.PREFILL_FIRST,
        )  # fmt: skip

        def call(stream: int) -> None:
            # The target's lengths are already 0 for a slot fed after its stop.
            self._device.write(lengths, slice(None), np.diff(self._device.download(starts)))
            recover(stream)

        return call

    def _read(self, number: int, bounds: StepBounds, sizes: dict[str, int], hidden: Any) -> list[Call]:
        given, prepare = self._given[: sizes["T_cap"]], self._bind("prepare_inputs", sizes)
        if number == 0:
            fed = self._fed[: sizes["T_cap"]]
            calls = [prepare, self._bind("eagle_get_hidden_states", sizes, hidden, out=fed)]
            if self._block is not None:
                sizes = {**sizes, "F_cap": self._block_rows(sizes)}
                calls.append(self._bind("prepare_block_inputs", sizes, **self._block))
        elif self._block is not None:
            calls, fed = [prepare], given
        else:
            before, fed = bounds.tokens if number == 1 else bounds.slots, self._next[: bounds.slots]
            go_on = self._bind("eagle_get_self_hidden_states", sizes, self._given[:before], last_hidden=fed)
            calls = [go_on, prepare]
        if not self._static:
            return [*calls, partial(self._forward, number, fed)]
        batch = self._batch(bounds, sizes, 1 if number else bounds.query, self._tensors["seq_lens_decoder"])
        if self._block is None:
            return [*calls, lambda stream: self._module.forward_device(batch, fed, given)]
        if number:
            return [*calls, lambda stream: self._module.further(number, batch, given)]
        block, source = self._block_batch(bounds, sizes), self._tensors.part("block_source_rows", sizes)
        return [*calls, lambda stream: self._module.forward_block_device(batch, fed, given, block, source)]

    def _block_rows(self, sizes: Mapping[str, int]) -> int:
        """The most rows of a step's blocks."""
        tokens = sizes["B"] if self._block["anchor_only"] else sizes["T_cap"]
        return tokens + sizes["B"] * int(self._block["num_masks"])

    def _block_batch(self, bounds: StepBounds, sizes: dict[str, int]) -> DeviceBatch:
        part, tokens = self._tensors.part, 1 if self._block["anchor_only"] else min(bounds.query, sizes["T_cap"])
        return DeviceBatch(
            token_ids=part("block_token_ids", sizes)[:, None],
            batch_id_per_token=part("block_batch_ids", sizes),
            cu_seqlens_q=part("block_cu_seqlens_q", sizes),
            seq_lens_decoder=part("block_seq_lens_decoder", sizes),
            block_tables=self._state["block_tables"],
            max_seq_len=bounds.context,
            max_query_len=tokens + self._block["num_masks"],
        )

    def _logits(self, number: int, last: Any) -> list[Call]:
        slots, own, module = len(last), self._own_logits, self._module
        logits = (self._sampler.logits if own is None else own)[:slots]
        if not self._static:
            calls: list[Call] = [lambda stream: self._compute_logits(number, logits)]
        elif self._block is None:
            calls = [lambda stream: module.compute_logits_device(last, logits)]
        else:
            calls = [lambda stream: module.draft_logits(number, None, last, logits)]
        if own is not None:
            mapped = self._sampler.logits[:slots]
            calls.append(self._backend.bind("map_draft_logits", mapped, logits, self._columns))
        return calls

    # ---- modules that take lists

    def _goes_on(self) -> bool:
        return self._static or bool(self._values("has_running")[0])

    def _any_drafts(self) -> bool:
        return self._static or bool((self._values("draft_token_num") > 0).any())

    def _values(self, name: str) -> Any:
        return self._device.download(self._tensors[name])

    def _forward(self, number: int, fed: Any, stream: int) -> None:
        """The module's rows of substep `number` go to `_given`."""
        batch, end = self._fed_rows("ids_remove_padding", self._values("seq_lens_this_time"), "seq_lens_decoder")
        if not end:
            return
        if self._block is None:
            given = self._module.forward(batch, fed[:end])
        elif number:
            given = self._module.forward_further(number, batch)
        else:
            lengths = np.diff(self._values("block_cu_seqlens_q"))
            block, rows = self._fed_rows("block_token_ids", lengths, "block_seq_lens_decoder")
            source = self._values("block_source_rows")[:rows]
            given = self._module.forward_block(batch, fed[:end], block, source)
        self._device.assign(self._given[:end], given)

    def _fed_rows(self, ids: str, lengths: Any, positions: str) -> tuple[ForwardBatch, int]:
        """What active slots feed, in slot order, and how many rows that is."""
        at, segments, end = self._values(positions).tolist(), list[Segment](), 0
        for slot, length in enumerate(lengths.tolist()):
            if length > 0:
                segments.append(Segment(slot, end, length, at[slot]))
                end += length
        return ForwardBatch(self._values(ids)[:end].reshape(-1), segments), end

    def _compute_logits(self, number: int, logits: Any) -> None:
        slots = np.flatnonzero(self._values("seq_lens_this_time") > 0)
        rows, module = self._last[slots], self._module
        chained = self._block is None
        given = module.compute_logits(rows) if chained else module.host_draft_logits(number, slots, rows)
        self._device.write(logits, slots, download(given))
