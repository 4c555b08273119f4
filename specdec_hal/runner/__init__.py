"""Driving a model through the one decode path, speculative or not.

`runner` is the public ModelRunner, `build` what it is made of; `admission` validates requests
(:mod:`specdec_hal.request`). A step: `scheduler` (slots, and chunks of prompts), `prefill_budget` (how many of their
tokens beside requests that decode), `blocks` (the KV pool), `plan` (the ops in order, bound). Its results: `report`,
and `prompt_logprobs` (what chunks say of their prompts). A request: `sequence` (its tokens, slot and end),
`host_drafts` (a proposer on the host), `draft_length` and `step_cost` (how many drafts pay). Around it: `delivery`
(deltas, with text from :mod:`specdec_hal.output`, to callbacks), `recovery` (steps that fail), `deadlines`, `guard`
(one thread at a time), `watchdog`, `journal` (resuming after a crash), `footprint` (memory) and `metrics`.
"""

from __future__ import annotations

from specdec_hal.plugin.step_record import StepRecord
from specdec_hal.request import Request, RequestOutput, SamplingParams, StreamDelta, TokenLogprobs
from specdec_hal.runner.metrics import Counts, Metrics
from specdec_hal.runner.runner import ModelRunner, build_runner

__all__ = [
    "Counts",
    "Metrics",
    "ModelRunner",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "StepRecord",
    "StreamDelta",
    "TokenLogprobs",
    "build_runner",
]
