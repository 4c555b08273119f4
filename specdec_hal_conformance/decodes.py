"""Decode runs of ops with states by position: drafts, prompts in chunks, idle slots, preemption and slots used again
change no bit of what plain decoding computes, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import get_op
from specdec_hal.ops.bits import same_bits
from specdec_hal.ops.inputs.generate import generate, poison
from specdec_hal.ops.inputs.rows import numpy_dtype
from specdec_hal.ops.spec import Role
from specdec_hal.tensors.views import numpy_dtype_name
from specdec_hal_conformance.subject import Subject

Array = NDArray[Any]

SLOTS, TOKENS, STEPS = 3, 40, 60
_WIDTHS = {"D": 5, "H_k": 2, "H_v": 4, "D_k": 9, "D_v": 6}
_RULES = {"causal_conv1d": ("step", "ring", "zero", "stored", "idle", "position")}
_STATE_RULES = ("state", "sequence", "zero", "stored", "idle", "position")


@dataclass(frozen=True)
class Decode:
    """Requests of random lengths on `SLOTS` slots, with up to `drafts` drafts a step, of which a random number is
    accepted. `options`: of the generator.
    """

    op: str
    name: str
    drafts: int
    options: Mapping[str, Any]

    @property
    def rules(self) -> tuple[str, ...]:
        """Those of the op that it tests."""
        return _RULES.get(self.op, _STATE_RULES)

    def refusal(self, subject: Subject) -> str | None:
        """Why the backend does not claim the calls, or None."""
        return subject.refusal(self.op, _Run(self, subject).first_call())

    def wrong(self, subject: Subject) -> str | None:
        """What is wrong, or None. Raises CallFailed."""
        return _Run(self, subject).wrong()


@dataclass
class _Request:
    tokens: int  # the row of the run's tokens
    prompt: int
    length: int
    done: int = 0  # tokens accepted


class _Run:
    """One decode run, its random decisions, and what plain decoding gives."""

    def __init__(self, decode: Decode, subject: Subject) -> None:
        self.decode, self.subject, self.spec = decode, subject, get_op(decode.op)
        self.rng = np.random.default_rng([len(decode.name), decode.drafts])
        taps = 4 if decode.op == "causal_conv1d" else 2  # a recurrence looks back as two taps do
        size: dict[str, Any] = {
            "M": SLOTS + 1,
            "B": SLOTS,
            "T_cap": 2 * TOKENS,
            "R": decode.drafts + taps,
            "Taps": taps,
            **_WIDTHS,
        }
        self.given = generate(decode.op, 7, **size, **decode.options)
        of_tokens = [o.name for o in self.spec.operands if o.role is Role.IN and str(o.dims(self.given)[0]) == "T_cap"]
        # Each row of the generated tensors is a token: TOKENS of one request, TOKENS of the other, which both appear
        # again and again. Rejected drafts are tokens of neither.
        self.tokens = {name: self.given[name] for name in of_tokens}
        self.noise = {name: generate(decode.op, 8, **size, **decode.options)[name] for name in of_tokens}
        self.ring = next(o.name for o in self.spec.operands if o.role is Role.INOUT)
        self.out = next(o.name for o in self.spec.operands if o.role is Role.OUT)

    def _stale(self) -> Array:
        """Rings that hold nothing of use."""
        ring: Array = self.given[self.ring]
        return np.full_like(ring, poison(numpy_dtype_name(ring.dtype)))

    def first_call(self) -> dict[str, Any]:
        """A call that stands for those of the run."""
        return self._call([(0, [self._token(self.tokens, 0)]), *[None] * (SLOTS - 1)], self._stale())

    def _call(self, rows: Sequence[tuple[int, list[Mapping[str, Array]]] | None], state: Array) -> dict[str, Any]:
        """Arguments of a step: for each slot its position and its tokens, or None."""
        tokens = [token for slot in rows if slot for token in slot[1]]
        lens = [len(slot[1]) if slot else 0 for slot in rows]
        call = dict(self.given)
        for name, like in self.tokens.items():
            call[name] = np.array([token[name] for token in tokens], like.dtype).reshape(-1, *like.shape[1:])
        shape = (len(tokens), *self.given[self.out].shape[1:])
        dtype = numpy_dtype_name(self.given[self.out].dtype)
        call[self.out] = np.full(shape, poison(dtype), numpy_dtype(dtype))
        call["cu_seqlens_q"] = np.cumsum([0, *lens]).astype(np.int32)
        call["seq_lens_decoder"] = np.array([*(slot[0] if slot else 5 for slot in rows), 7], np.int32)
        call[self.ring] = state
        return call

    def _token(self, source: Mapping[str, Array], row: int) -> dict[str, Array]:
        return {name: value[row % len(value)] for name, value in source.items()}

    def _plain(self) -> list[tuple[Array, Array]]:
        """For both requests' tokens: outputs and, per position, the ring's entry, one token a step."""
        state = self._stale()
        outs: list[list[Array]] = [[], []]
        entries: list[list[Array]] = [[], []]
        for p in range(TOKENS):
            rows: list[Any] = [(p, [self._token(self.tokens, r * TOKENS + p)]) for r in range(2)]
            done = self.subject.run(self.decode.op, self._call([*rows, *[None] * (SLOTS - 2)], state)).outputs
            state = done[self.ring]
            for r in range(2):
                outs[r].append(done[self.out][r])
                entries[r].append(state[r, p % state.shape[1]])
        return [(np.array(outs[r]), np.array(entries[r])) for r in range(2)]

    def wrong(self) -> str | None:
        """The first difference, or None."""
        plain, state = self._plain(), self._stale()
        slots: list[_Request | None] = [None] * SLOTS
        for step in range(STEPS):
            rows: list[Any] = [None] * SLOTS
            accepted = [0] * SLOTS
            for b in range(SLOTS):
                before = slots[b]
                slots[b] = request = self._scheduled(before)
                if request is not None and request is not before:
                    self._resume(state[b], request, plain[request.tokens][1])
                if request is not None and self.rng.random() > 0.15:
                    accepted[b], fed = self._fed(request)
                    rows[b] = (request.done, fed)
            done = self.subject.run(self.decode.op, self._call(rows, state)).outputs
            state, first = done[self.ring], 0
            for b, request in enumerate(slots):
                if request is None or rows[b] is None:
                    continue
                out, entries = plain[request.tokens]
                for i in range(accepted[b]):
                    p = request.done + i
                    if not same_bits(done[self.out][first + i], out[p]).all():
                        return f"step {step}: the output of slot {b} at position {p} is not that of plain decoding"
                request.done += accepted[b]
                last = request.done - 1
                if not same_bits(state[b, last % state.shape[1]], entries[last]).all():
                    return f"step {step}: slot {b} does not hold what plain decoding has at position {last}"
                first += len(rows[b][1])
        return None

    def _scheduled(self, request: _Request | None) -> _Request | None:
        """Goes on, is preempted (recomputed from position 0), or makes place for another request."""
        if request is not None and request.done >= request.length:
            request = None
        if request is None and self.rng.random() < 0.8:
            length = int(self.rng.integers(3, TOKENS))
            prompt = int(self.rng.integers(1, length))
            known = int(self.rng.integers(0, prompt)) if self.rng.random() < 0.3 else 0
            return _Request(int(self.rng.integers(2)), prompt, length, known)
        if request is not None and self.rng.random() < 0.06:
            request.done, request.prompt = 0, max(request.prompt, request.done)
        return request

    def _resume(self, ring: Array, request: _Request, entries: Array) -> None:
        """What a prefix cache does with the first `done` tokens of a prompt; for none, the ring stays as it is."""
        for j in range(max(request.done - len(ring), 0), request.done):
            ring[j % len(ring)] = entries[j]

    def _fed(self, request: _Request) -> tuple[int, list[Mapping[str, Array]]]:
        """How many tokens of the step count, and the step's tokens."""
        rng, p, drafts = self.rng, request.done, self.decode.drafts
        right = [self._token(self.tokens, request.tokens * TOKENS + j) for j in range(p, request.length)]
        if p < request.prompt:  # a chunk, often of one token
            count = int(rng.choice([1, int(rng.integers(1, request.prompt - p + 1)), request.prompt - p]))
            return count, list(right[:count])
        proposed = int(rng.integers(0, drafts + 1))
        accepted = 1 + int(rng.choice([0, proposed, int(rng.integers(0, proposed + 1))]))
        fed: list[Mapping[str, Array]] = list(right[:accepted])
        rows = drafts + 1 if rng.random() < 0.3 else proposed + 1  # padded to the largest step
        while len(fed) < rows:
            fed.append(self._token(self.noise, int(rng.integers(2 * TOKENS))))
        return min(accepted, len(right)), fed


def decodes(op: str) -> Iterator[Decode]:
    """The decode runs of one op."""
    if get_op(op).section != 12:
        return
    variants: list[dict[str, Any]] = [{"dtype": "float32"}, {"dtype": "bfloat16"}]
    if op == "gated_delta_rule":
        variants = [{"dtype": "float32", "decay_per_channel": True}, {"dtype": "bfloat16", "decay_per_channel": False}]
    for drafts in (0, 1, 4):
        for options in variants:
            shown = ", ".join(f"{name} {value}" for name, value in options.items())
            yield Decode(op, f"up to {drafts} drafts, {shown}", drafts, options)
