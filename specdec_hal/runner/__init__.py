"""Driving a model through the one decode path, speculative or not.

`request` what a caller asks for and gets; `runner` the public ModelRunner; `scheduler` which request sits in which
slot and which chunk of its prompt comes next; `step` the ops of one decode step in order; `plan` these ops, bound;
`sequence` a running request's tokens, text and stop rules; `metrics` what is counted.
"""

from __future__ import annotations

from specdec_hal.runner.metrics import Metrics, StepRecord
from specdec_hal.runner.request import Request, RequestOutput, SamplingParams, StreamDelta, TokenLogprobs
from specdec_hal.runner.runner import ModelRunner

__all__ = [
    "Metrics",
    "ModelRunner",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "StepRecord",
    "StreamDelta",
    "TokenLogprobs",
]
