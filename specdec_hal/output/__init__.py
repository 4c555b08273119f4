"""What a runner hands to a token processor. `frame` is the binary format of one step's output."""

from __future__ import annotations

from specdec_hal.output.frame import FrameKind, FrameReader, OutputFrame

__all__ = ["FrameKind", "FrameReader", "OutputFrame"]
