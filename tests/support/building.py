"""Inputs written out by hand: the conformance suite's."""

from specdec_hal.conformance.building import build, logits

__all__ = ["build", "logits"]
