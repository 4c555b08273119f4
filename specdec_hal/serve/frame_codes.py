"""Codes of FastDeploy's messages and of our frames (contract, section 7). Requires nothing of the extra `serve`."""

from __future__ import annotations

from enum import IntEnum

RECOVERY, PREEMPTED = -3, -9
"""Special counts: the request's step failed and is repeated, or it lost its slot."""


class FrameKind(IntEnum):
    """The `flags` of a frame: tokens of the target model, or drafts."""

    TARGET = 3
    DRAFT = 4
