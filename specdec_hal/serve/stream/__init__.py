"""The way from a runner's steps to text that is made elsewhere; the extra `serve` installs what it needs.

`writer` makes frames of steps, `frame` is their format and order, `processor` makes request streams of them, and
`channel` carries them between processes.
"""

from __future__ import annotations

from specdec_hal.serve.stream.frame import FrameKind, FrameReader, OutputFrame
from specdec_hal.serve.stream.processor import OutputDelta, TokenProcessor
from specdec_hal.serve.stream.writer import FrameWriter

__all__ = ["FrameKind", "FrameReader", "FrameWriter", "OutputDelta", "OutputFrame", "TokenProcessor"]
