"""From a runner's steps to text in another process. Requires the extra `serve`.

`writer` turns steps into frames, `frame` defines their format and order, `processor` turns them into request streams,
and `channel` transports them.
"""

from __future__ import annotations

from specdec_hal.serve.frame_codes import FrameKind
from specdec_hal.serve.stream.frame import FrameReader, OutputFrame
from specdec_hal.serve.stream.processor import OutputDelta, TokenProcessor
from specdec_hal.serve.stream.writer import FrameWriter

__all__ = ["FrameKind", "FrameReader", "FrameWriter", "OutputDelta", "OutputFrame", "TokenProcessor"]
