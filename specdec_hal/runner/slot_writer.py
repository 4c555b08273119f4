"""What the host decides about slots: written on its side, and sent to the device before a step."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import RequestError
from specdec_hal.ops import SlotAction
from specdec_hal.runner.state import DecodeState
from specdec_hal.text import one_line, short

if TYPE_CHECKING:
    from specdec_hal.request import SamplingParams
    from specdec_hal.runner import sequence as running
    from specdec_hal.runner.scheduler import Schedule

_REASONED = 3
"""The `reasoning_status` of an unconstrained request."""


class SlotWriter:
    """Writes parameters of requests and decisions of a scheduler into a state, for `schedule_slots`.

    It fills `request`, `request_lists` and `schedule` of the state (NumPy) and uploads them as a whole: the lists only
    if a request has lists, or its slot's previous request had.
    """

    def __init__(self, state: DecodeState) -> None:
        self.state = state
        self._listed = set(range(state.symbols["M"]))  # a slot's first request writes them, whatever it has
        self._lists_changed = self._uploaded = False

    def admit(self, slot: int, prompt: Sequence[int] | NDArray[Any], params: SamplingParams) -> int:
        """Give a slot to a request: the next step feeds the first chunk of its prompt. Returns that chunk's end.

        The request that had the slot before is forgotten. RequestError, with nothing changed, if :func:`room` refuses
        the request or there is no such slot.
        """
        if not 0 <= slot < self.state.symbols["M"]:
            raise RequestError(f"slot {slot}: expected one in [0, {self.state.symbols['M']}); raise max_num_seqs")
        if params.bad_words or params.forbids_sequences:
            raise RequestError(f"slot {slot}: bad_words and bad_sequences of several tokens need a ModelRunner")
        limit = room(self.state, f"slot {slot}", prompt, params)
        self.state.write("token_ids_all", (slot, slice(len(prompt))), np.asarray(prompt, np.int64))
        self.fill_request(slot, len(prompt), params, limit)
        if params.limits_thinking:
            self.state.write("limit_status", slot, 0)
        self.start_reasoning(slot, params)
        return self.feed(slot, 0)

    def start_reasoning(self, slot: int, params: SamplingParams) -> None:
        """Enable `reasoning_constraint` for a request from its first token, if requested and supported."""
        spared = self.state.symbols["H"] and not params.constrains_answer
        self.state.write("reasoning_status", slot, _REASONED if spared else 0)
        self.state.write("reasoning_seen", slot, -1)

    def feed(self, slot: int, start: int) -> int:
        """Let the next step feed a slot its prompt from token `start` on, one chunk of it. Returns the chunk's end."""
        count = min(int(self.state.request.host["prompt_lens"][slot]) - start, self.state.symbols["I_cap"])
        self._decide()
        self.fill_chunk(slot, start, count)
        return start + count

    def free(self, slot: int) -> None:
        """Make a slot idle in the next step."""
        self._decide()
        self.state.schedule.host["slot_actions"][slot] = SlotAction.STOP

    def apply(self, step: Schedule) -> None:
        """Carry out a scheduler's decisions, once."""
        host = self.state.schedule.host
        host["slot_actions"][:] = step.actions
        for slot, blocks in step.grown.items():
            host["block_tables"][slot, : len(blocks)] = blocks
        for slot, sequence in step.filled.items():
            self._install(slot, sequence, step.work[slot].end)
        changed = bool(step.filled)
        for slot in step.chunks:
            sequence, count, _, end = step.work[slot]
            self.fill_chunk(slot, end - count, count, max(0, end - sequence.prompt_len))
            if slot not in step.filled and sequence.generated:
                # A token drawn after the previous chunk is already counted, and may have ended the request there.
                self._write_generated(slot, sequence, end)
                self.state.request.host["max_dec_len"][slot] = sequence.stay
                changed = True
        if step.changes:
            self.state.schedule.upload()
        if changed:
            self.upload_requests()

    def _install(self, slot: int, owner: running.Sequence, end: int) -> None:
        """Set the device's state for a request with a new slot: context and limits of thinking."""
        self.fill_request(slot, owner.prompt_len, owner.request.params, owner.stay)
        self.state.write("token_ids_all", (slot, slice(owner.prompt_len)), owner.prompt)
        self._write_generated(slot, owner, end)
        if self.state.symbols["H"]:  # else no answer is constrained: two launches less
            self.start_reasoning(slot, owner.request.params)

    def _write_generated(self, slot: int, owner: running.Sequence, end: int) -> None:
        """`end`: of the chunk, after which the known next token is drawn again, if there is one."""
        if owner.wants.thinking:
            self.state.write("limit_status", slot, owner.limit_status_at(end, self.state.think_end_text))
        if owner.token_ids:
            where = slot, slice(owner.prompt_len, owner.length)
            self.state.write("token_ids_all", where, np.array(owner.token_ids, np.int64))

    def _decide(self) -> None:
        """Reset the previous step's decisions."""
        if self._uploaded:
            self.state.schedule.host["slot_actions"][:] = SlotAction.KEEP
            self._uploaded = False

    def upload(self) -> None:
        """Before every step and `schedule_slots`: send new decisions."""
        self._decide()
        self.upload_requests()
        self.state.schedule.upload()
        self._uploaded = True

    def upload_requests(self) -> None:
        """Send request parameters."""
        self.state.request.upload()
        if self._lists_changed:
            self.state.request_lists.upload()
            self._lists_changed = False
        self.state.bias.upload()

    def fill_request(self, slot: int, prompt_len: int, params: SamplingParams, max_new_tokens: int) -> None:
        """Write a request's parameters to the host's `request`, `request_lists` and `bias`, and to `slot_masks`."""
        host, k = self.state.request.host, self.state.symbols["S"] - 1
        wanted, (max_think, max_reply) = params.num_speculative_tokens, params.thinking_limits
        values = {
            "prompt_lens": prompt_len,
            "max_dec_len": max_new_tokens,
            "min_dec_len": params.min_new_tokens,
            "ignore_end": params.ignore_eos,
            "draft_token_num": k if wanted is None else wanted,
            "enable_thinking": params.thinking is None or params.thinking.enabled,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "seed": params.seed or 0,
            "repetition": params.repetition_penalty,
            "frequency": params.frequency_penalty,
            "presence": params.presence_penalty,
            "stop_seqs_lens": 0,
            "max_think_lens": max_think,
            "max_reply_lens": max_reply,
        }
        for name, value in values.items():
            host[name][slot] = value
        self.state.bias.fill(slot, params.logit_bias)
        self.state.slot_masks.fill(slot, params.allowed_token_ids, params.forbidden_token_ids)
        stops = params.stop_token_sequences
        for i, tokens in enumerate(stops):
            host["stop_seqs_lens"][slot, i] = len(tokens)
        wanted_lists = bool(stops or params.bad_token_ids)
        if wanted_lists or slot in self._listed:
            lists = self.state.request_lists.host
            lists["bad_tokens"][slot] = -1
            lists["bad_tokens"][slot, : len(params.bad_token_ids)] = params.bad_token_ids
            for i, tokens in enumerate(stops):
                lists["stop_seqs"][slot, i, : len(tokens)] = tokens
            (self._listed.add if wanted_lists else self._listed.discard)(slot)
            self._lists_changed = True

    def fill_chunk(self, slot: int, start: int, count: int, step_idx: int = 0) -> None:
        """Write into the host's side of :attr:`schedule` that a slot takes `count` tokens of its context from `start`.

        `step_idx`: how many of its generated tokens the chunk completes, for a request that resumes.
        """
        host = self.state.schedule.host
        host["slot_actions"][slot] = SlotAction.PREFILL
        host["chunk_lens"][slot], host["chunk_starts"][slot] = count, start
        host["chunk_step_idx"][slot] = step_idx


def room(state: DecodeState, request: str, prompt: Sequence[int] | NDArray[Any], params: SamplingParams) -> int:
    """The most tokens that the request can generate in a slot; RequestError, naming `request`, if none."""
    length, width, k = state.symbols["L"], state.symbols["W"], state.symbols["S"] - 1
    tokens = prompt_array(request, prompt)
    if len(tokens) >= length:
        raise RequestError(
            f"{request}: prompt of {len(tokens)} tokens leaves no room in a context of {length}; shorten it or "
            "raise max_model_len"
        )
    if (count := len(params.bad_token_ids)) > width:
        raise RequestError(f"{request}: at most {width} bad_token_ids, got {count}; forbid fewer")
    if (count := len(params.logit_bias)) > state.bias.width:
        raise RequestError(f"{request}: at most {state.bias.width} tokens in logit_bias, got {count}; bias fewer")
    size, bad = state.slot_masks.vocab_size, chain.from_iterable(params.bad_sequences)
    for what, named in (("allowed_token_ids", params.allowed_token_ids or ()), ("bad_sequences", bad)):
        if (largest := max(named, default=-1)) >= size:
            raise RequestError(f"{request}: {what}: token {largest} is outside the vocabulary [0, {size})")
    many, long = state.symbols["Q"], state.symbols["Z"]
    stops = params.stop_token_sequences
    if (count := len(stops)) > many:
        raise RequestError(
            f"{request}: at most {many} stop_token_ids and stop_sequences together, got {count}; drop some"
        )
    if (longest := max(map(len, stops), default=0)) > long:
        raise RequestError(f"{request}: stop_sequences of at most {long} tokens, got one of {longest}; shorten it")
    if params.num_speculative_tokens is not None and params.num_speculative_tokens > k:
        raise RequestError(
            f"{request}: num_speculative_tokens {params.num_speculative_tokens} exceeds {k}, the most that a slot "
            "takes; raise speculative.num_speculative_tokens"
        )
    return min(params.max_new_tokens, length - len(tokens))


def prompt_array(request: str, prompt: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    """A prompt as an array; RequestError, which names `request`, if it is not a flat list of token ids.

    An array prompt is not copied.
    """
    if len(prompt) == 0:
        raise RequestError(f"{request}: empty prompt; give at least one token (the model's bos token, say)")
    if isinstance(prompt, (list, tuple)) and type(prompt[0]) is int:  # a list of nothing but bools is refused below
        try:
            if type(sum(prompt)) is int:  # packing also takes arrays of one number
                return np.frombuffer(struct.pack(f"{len(prompt)}q", *prompt), np.int64)  # a fifth of asarray's time
        except (struct.error, TypeError):  # not integers, or large ones: said below
            pass
    if isinstance(prompt, np.ma.MaskedArray) and np.ma.is_masked(prompt):
        raise _no_list(request, "a masked array; its compressed() has what is not masked")
    listed = isinstance(prompt, (list, tuple, dict))
    try:
        tokens = np.asarray(prompt)
    except (ValueError, TypeError) as error:  # of lists of different lengths, and of tensors on a GPU
        raise _no_list(request, short(prompt) if listed else one_line(error)) from error
    numbers = not listed or all(isinstance(token, (int, np.integer)) for token in prompt)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not numbers:
        raise _no_list(request, short(prompt) if listed else f"{tokens.dtype} {list(tokens.shape)}")
    return tokens


def _no_list(request: str, got: str) -> RequestError:
    return RequestError(f"{request}: prompt: expected a flat list of integers, got {got}; pass token ids")
