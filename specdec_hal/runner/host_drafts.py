"""Drafts of a proposer that works on the host."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from specdec_hal.errors import PluginError
from specdec_hal.plugin.proposer import SlotView, StepView
from specdec_hal.runner.metrics import TimedStep
from specdec_hal.runner.plan import CompiledStep, StepCompiler
from specdec_hal.runner.report import StepReport
from specdec_hal.runner.sequence import Sequence

_log = logging.getLogger("specdec_hal")


def slot_views(running: Mapping[int, Sequence], report: StepReport, limits: list[int]) -> list[SlotView]:
    """Continuing requests with their whole prompt in the cache; `limits`: most drafts by slot."""
    views = []
    for slot, sequence in running.items():
        if sequence.prefilling or not sequence.token_ids:
            continue
        request = sequence.request
        left = sequence.stay - len(sequence.token_ids) - 1
        most = max(min(limits[slot], left), 0)
        prompt, tokens, accepted = request.prompt_token_ids, sequence.token_ids, report.tokens(slot)
        views.append(SlotView(slot, request.request_id, prompt, tokens, accepted, most))
    return views


def propose(compiler: StepCompiler, plan: CompiledStep, slots: list[SlotView], record: TimedStep) -> int:
    """Let the proposer draft for these requests; after a failure, for halves of them.

    A request that it fails on continues without drafts. Returns the number of failed calls. PluginError is raised.
    """

    def view_of(slots: list[SlotView]) -> StepView:
        view = plan.view(compiler.state.device.stream())
        view.slots, view.vocab_size = slots, compiler.model.config.vocab_size
        return view

    try:
        view = view_of(slots)
        compiler.propose(view)
        record.dropped_drafts += view.dropped
        return 0
    except PluginError:
        raise
    except Exception:
        if len(slots) <= 1:
            _log.exception("the proposer failed on %s; decoding without drafts", [slot.request_id for slot in slots])
            view_of(slots).draft({})
            return 1
        _log.exception("the proposer failed on %d requests", len(slots))
        half = len(slots) // 2
        return 1 + propose(compiler, plan, slots[:half], record) + propose(compiler, plan, slots[half:], record)
