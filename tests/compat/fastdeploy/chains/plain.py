"""Plain decoding: one request by itself, one token after the other, without slots, caches or drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains.kernels_tokens import TOPP, limited_token, next_phase
from tests.compat.fastdeploy.chains.scenes import ALLOWED, ENDS, NEWLINE, THINK_END, Request, Scene
from tests.compat.fastdeploy.chains.toy_model import START, advance

Array = NDArray[Any]


def _nucleus(scene: Scene, logits: Array) -> list[int]:
    """The tokens of which TOPP may draw any."""
    if scene.strategy != TOPP:
        return []
    probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    order = np.argsort(-probs, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    return [int(token) for token in order[before < scene.top_p + 1e-5][: scene.candidates]]


def plain(scene: Scene, request: Request) -> list[int]:
    """The tokens that the request must get, up to an end token; where chance decides, those that it may have.

    FastDeploy forgets what it has generated when it reads a preempted request again (its history has a hole there):
    stop sequences, counts for penalties, and the state of thinking begin again at `request.recomputed`.
    """
    hidden, out = START, []
    for token in request.prompt:
        hidden = advance(hidden, token)
    known, status, reply, phase = 0, 0, request.reply, 0
    while True:
        if len(out) in request.recomputed:
            known, status, reply, phase = len(out), 0, request.reply, 0
        seen = out[known:]
        logits = scene.model.logits(hidden[None])[0]
        if len(out) < request.min_dec_len:
            logits[list(ENDS)] = -np.inf
        for token in set(seen):
            logits[token] -= seen.count(token) * request.frequency + request.presence
        logits /= request.temperature
        logits[request.bad] = -np.inf
        if scene.reasoning:
            last = [seen[-1 - k] if k < len(seen) else -1 for k in range(4)]
            phase = next_phase(phase, last, request.enable_thinking, not out, len(out), THINK_END, NEWLINE)
            if phase == 2:
                logits[[v for v in range(len(logits)) if v not in ALLOWED]] = -np.inf
        number = len(out)
        token = int(logits.argmax())
        if scene.draws:
            token = int(scene.model.drawn(logits[None], [request.seed], [hidden[3]])[0])
        elif number < len(request.output) and request.output[number] in _nucleus(scene, logits):
            token = request.output[number]
        if number + 1 >= request.max_dec_len and token not in ENDS:
            token = ENDS[0]
        if scene.thinking and (request.think >= 0 or request.reply >= 0):
            token, status, reply = limited_token(
                token, number, request.think, reply, status, scene.inject, list(ENDS), THINK_END
            )
        if any(seen[-len(stop) :] == stop for stop in request.stops):
            token = ENDS[0]
        if number + 1 >= request.max_dec_len and token not in ENDS:
            token = ENDS[0]
        out.append(token)
        if token in ENDS:
            return out
        hidden = advance(hidden, token)
