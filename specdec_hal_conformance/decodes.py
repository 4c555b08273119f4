"""Decode runs of ops with states by position: drafts, prompts in chunks, idle slots, preemption and slots used again
change no bit of what plain decoding computes, token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import Storage, get_op
from specdec_hal.ops.bits import same_bits
from specdec_hal.ops.inputs.generate import generate, poison
from specdec_hal.ops.inputs.rows import numpy_dtype
from specdec_hal.ops.spec import Role
from specdec_hal.tensors.views import numpy_dtype_name
from specdec_hal_conformance.subject import Subject

Array = NDArray[Any]

_Rows = Sequence[tuple[int, list[Mapping[str, Array]]] | None]

SLOTS, TOKENS, STEPS = 3, 40, 60
_WIDTHS = {"D": 5, "H_k": 2, "H_v": 4, "D_k": 9, "D_v": 6}
_RULES = {"causal_conv1d": ("step", "ring", "zero", "stored", "idle", "position")}
_STATE_RULES = ("state", "sequence", "zero", "stored", "idle", "position")
_REPLAY_RULES = ("checkpoint", "fold", "recorded", "moved", "long")


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
        replays = self.options.get("storage") is Storage.REPLAY
        return _REPLAY_RULES if replays else _RULES.get(self.op, _STATE_RULES)

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
        self.given = self._generated(7, decode.options)
        self.replays = self.given.get("storage") is Storage.REPLAY
        of_tokens = [o.name for o in self.spec.operands if o.role is Role.IN and str(o.dims(self.given)[0]) == "T_cap"]
        # Each row of the generated tensors is a token: TOKENS of one request, TOKENS of the other, which both appear
        # again and again. Rejected drafts are tokens of neither.
        self.tokens = {name: self.given[name] for name in of_tokens}
        self.noise = {name: self._generated(8, decode.options)[name] for name in of_tokens}
        self.out = next(o.name for o in self.spec.operands if o.role is Role.OUT)

    def _generated(self, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
        drafts = self.decode.drafts
        taps = 4 if self.decode.op == "causal_conv1d" else 2  # a recurrence looks back as two taps do
        replays = options.get("storage") is Storage.REPLAY
        size = {"M": SLOTS + 1, "B": SLOTS, "T_cap": 2 * TOKENS, "Taps": taps, **_WIDTHS}
        size["R"] = 2 * (drafts + 1) + drafts % 3 if replays else drafts + taps
        return generate(self.decode.op, seed, **{**size, **options})

    def _kept(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """What a step leaves to the next, with nothing of use in it."""
        names = [o.name for o in self.spec.operands if o.role is Role.INOUT and o.name in given]
        kept = {name: np.full_like(given[name], poison(numpy_dtype_name(given[name].dtype))) for name in names}
        if given.get("storage") is Storage.REPLAY:
            kept["checkpoint_lens"] = np.full(SLOTS + 1, 9, np.int32)
        return kept

    def first_call(self) -> dict[str, Any]:
        """A call that stands for those of the run."""
        rows: _Rows = [(0, [self._token(self.tokens, 0)]), *[None] * (SLOTS - 1)]
        return self._call(self.given, rows, self._kept(self.given))

    def _call(self, given: Mapping[str, Any], rows: _Rows, kept: Mapping[str, Array]) -> dict[str, Any]:
        """Arguments of a step: for each slot its position and its tokens, or None."""
        tokens = [token for slot in rows if slot for token in slot[1]]
        lens = [len(slot[1]) if slot else 0 for slot in rows]
        call = {**given, **kept}
        for name, like in self.tokens.items():
            call[name] = np.array([token[name] for token in tokens], like.dtype).reshape(-1, *like.shape[1:])
        shape = (len(tokens), *given[self.out].shape[1:])
        dtype = numpy_dtype_name(given[self.out].dtype)
        call[self.out] = np.full(shape, poison(dtype), numpy_dtype(dtype))
        call["cu_seqlens_q"] = np.cumsum([0, *lens]).astype(np.int32)
        call["seq_lens_decoder"] = np.array([*(slot[0] if slot else 5 for slot in rows), 7], np.int32)
        return call

    def _stepped(self, given: Mapping[str, Any], rows: _Rows, kept: dict[str, Array]) -> Array:
        """The outputs of a step; updates what is kept."""
        call = self._call(given, rows, kept)
        done = self.subject.run(self.decode.op, call).outputs
        kept.update({name: done[name] for name in kept if name in done})
        if "checkpoint_lens" in kept:
            advance = {name: call[name] for name in ("cu_seqlens_q", "seq_lens_decoder", "checkpoint_lens")}
            sizes = {"ring": given["replay_u"].shape[1], "num_rows": len(call[self.out])}
            kept.update(self.subject.run("advance_checkpoints", {**advance, **sizes}).outputs)
        return done[self.out]

    def _token(self, source: Mapping[str, Array], row: int) -> dict[str, Array]:
        return {name: value[row % len(value)] for name, value in source.items()}

    def _plain(self) -> list[tuple[Array, Array]]:
        """For both requests' tokens: outputs and, per position, the ring's entry, one token a step; of STATES."""
        given = self._generated(7, {**self.decode.options, "storage": Storage.STATES}) if self.replays else self.given
        kept = self._kept(given)
        (name,) = kept
        outs: list[list[Array]] = [[], []]
        entries: list[list[Array]] = [[], []]
        for p in range(TOKENS):
            rows: list[Any] = [(p, [self._token(self.tokens, r * TOKENS + p)]) for r in range(2)]
            done = self._stepped(given, [*rows, *[None] * (SLOTS - 2)], kept)
            for r in range(2):
                outs[r].append(done[r])
                entries[r].append(kept[name][r, p % kept[name].shape[1]])
        return [(np.array(outs[r]), np.array(entries[r])) for r in range(2)]

    def wrong(self) -> str | None:
        """The first difference, or None."""
        plain, kept = self._plain(), self._kept(self.given)
        slots: list[_Request | None] = [None] * SLOTS
        for step in range(STEPS):
            rows: list[Any] = [None] * SLOTS
            accepted = [0] * SLOTS
            for b in range(SLOTS):
                before = slots[b]
                slots[b] = request = self._scheduled(before)
                if request is not None and request is not before:
                    self._resume(kept, b, request, plain[request.tokens][1])
                if request is not None and self.rng.random() > 0.15:
                    accepted[b], fed = self._fed(request)
                    rows[b] = (request.done, fed)
            done, first = self._stepped(self.given, rows, kept), 0
            for b, request in enumerate(slots):
                if request is None or rows[b] is None:
                    continue
                out, entries = plain[request.tokens]
                for i in range(accepted[b]):
                    p = request.done + i
                    if not same_bits(done[first + i], out[p]).all():
                        return f"step {step}: the output of slot {b} at position {p} is not that of plain decoding"
                request.done += accepted[b]
                last, entry = self._held(kept, b, request)
                if last >= 0 and not same_bits(entry, entries[last]).all():
                    return f"step {step}: slot {b} does not hold what plain decoding has at position {last}"
                first += len(rows[b][1])
        return None

    def _held(self, kept: Mapping[str, Array], b: int, request: _Request) -> tuple[int, Array]:
        """A position of which slot b should hold the state (-1: none), and what it holds."""
        if self.replays:
            return int(kept["checkpoint_lens"][b]) - 1, kept["checkpoint"][b]
        (ring,) = kept.values()
        return request.done - 1, ring[b, (request.done - 1) % ring.shape[1]]

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

    def _resume(self, kept: Mapping[str, Array], b: int, request: _Request, entries: Array) -> None:
        """What a prefix cache does with the first `done` tokens of a prompt; for none, all stays as it is."""
        if self.replays and request.done > 0:
            kept["checkpoint"][b], kept["checkpoint_lens"][b] = entries[request.done - 1], request.done
        elif not self.replays:
            (ring,) = kept.values()
            for j in range(max(request.done - ring.shape[1], 0), request.done):
                ring[b, j % ring.shape[1]] = entries[j]

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
    if not any(operand.name in ("conv_ring", "states") for operand in get_op(op).operands):
        return
    variants: list[dict[str, Any]] = [{"dtype": "float32"}, {"dtype": "bfloat16"}]
    if op != "causal_conv1d":
        variants = [{"dtype": "bfloat16", "storage": storage} for storage in Storage]
    if op == "gated_delta_rule":
        variants = [{**options, "decay_per_channel": False} for options in variants]
        variants += [{"dtype": "float32", "storage": storage, "decay_per_channel": True} for storage in Storage]
    for drafts in (0, 1, 4):
        for options in variants:
            named = {name: value.name if isinstance(value, Storage) else value for name, value in options.items()}
            shown = ", ".join(f"{name} {value}" for name, value in named.items())
            yield Decode(op, f"up to {drafts} drafts, {shown}", drafts, options)
