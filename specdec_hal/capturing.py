"""Whether a step is being captured in a device graph, and what may not happen meanwhile.

An op launched on another stream than the captured one raises nothing by itself and silently stays out of the graph; a
read waits for work that has not been submitted. Both are refused by name instead.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from specdec_hal.errors import CaptureError

_stream: int | None = None


@contextmanager
def capturing(stream: int) -> Iterator[None]:
    """Mark that work on `stream` is being captured.

    The collector of cycles rests meanwhile: a graph that it found could not be released, and would stay for ever.
    """
    global _stream
    before, _stream = _stream, stream
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _stream = before
        if collecting:
            gc.enable()


def refuse_in_capture(what: str) -> None:
    """CaptureError if a step is being captured: the host neither reads nor writes tensors then."""
    if _stream is not None:
        raise CaptureError(
            f"expected launches only while a step is captured, got a tensor {what} by the host; do it before the step"
        )


def check_stream(op: str, stream: int) -> None:
    """CaptureError if a step is being captured on another stream than the one that `op` is launched on."""
    if _stream is not None and stream != _stream:
        raise CaptureError(
            f"{op}: expected a launch on the captured stream {_stream:#x}, got stream {stream:#x}; launch it on the "
            "framework's current stream, or it stays out of the graph"
        )
