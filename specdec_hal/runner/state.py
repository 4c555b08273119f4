"""The tensors of a decode loop, by their names in the op vocabulary (FastDeploy's ``share_inputs``).

Shapes and dtypes come from the vocabulary, memory from a :class:`~specdec_hal.tensors.device.Device`. Ops are bound to
these tensors once and see every later change.

Each tensor has one writer. What a request asks for and what the scheduler decides are the host's: it fills
:attr:`DecodeState.request` and :attr:`DecodeState.schedule` (NumPy) and uploads them as a whole, and
:attr:`DecodeState.request_lists` where a request has such or the slot's last one had. Everything else is the device's;
the host reads of it what :attr:`DecodeState.report` holds, when a step has been fetched.

:class:`specdec_hal.ModelRunner` is one loop on them; docs/use/own_decode_loop.md builds another with
:meth:`DecodeState.admit`, :meth:`~DecodeState.feed`, :meth:`~DecodeState.free` and :meth:`~DecodeState.upload`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import RequestError
from specdec_hal.ops import SlotAction, get_op
from specdec_hal.ops.vocabulary import names, tensor
from specdec_hal.runner.logit_bias import LogitBias
from specdec_hal.runner.slot_masks import SlotMasks
from specdec_hal.tensors.device import Device
from specdec_hal.tensors.on_host import HostDevice
from specdec_hal.tensors.transfer import Field
from specdec_hal.text import one_line, short

if TYPE_CHECKING:
    from specdec_hal.runner.request import SamplingParams

REQUEST = (
    "prompt_lens",
    "max_dec_len",
    "min_dec_len",
    "enable_thinking",
    "draft_token_num",
    "stop_seqs_lens",
    "max_think_lens",
    "max_reply_lens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition",
    "frequency",
    "presence",
)
"""What a request asks for, by slot: written when a request takes the slot."""
REQUEST_LISTS = ("bad_tokens", "stop_seqs")
"""The same: what is nearly all of the bytes, and what few requests have."""
SCHEDULE = ("slot_actions", "chunk_lens", "chunk_starts", "chunk_step_idx", "block_tables")
"""What the scheduler decides for a step."""
REPORT = (
    "accept_tokens",
    "accept_num",
    "stop_flags",
    "limit_status",
    "cu_seqlens_q",
    "cu_seqlens_q_output",
    "ids_remove_padding",
)
"""What the host learns of a step."""
ROW_SCORES = {"row_logprobs": "logprobs", "row_ranks": "ranks"}
"""What it learns besides where `sample_target` tells log-probabilities [R_cap], by that op's names for them."""
_ELSEWHERE = (
    "reset_slots",
    "candidate_lens",
    "inter_next_tokens",
    "output_token_num",
    "infer_seed",
    "next_tokens",
    "next_token_num",
    "batch_token_num",
    "cu_next_token_offset",
    "pre_ids",
    "bitmask_rows",
)
"""What those allocate that need it: the proposer, the strategy, a caller with a loop of its own."""
_REASONED = 3
"""The `reasoning_status` of a request that nothing constrains."""
_BASE_MODEL = "base_model_"
"""How the names of the target's tensors begin in the ops of a draft model."""


class OpTensors:
    """Tensors by their names in the op vocabulary, of which ops get their operands."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def args(self, op: str, sizes: Mapping[str, int] | None = None, **attrs: Any) -> dict[str, Any]:
        """The op's operands that the state holds, by name, and `attrs`, attributes of the op.

        `sizes` are smaller extents for the symbols that lead a shape: ``{"B": 8, "R_cap": 40}`` passes the first 8
        slots and 40 rows. Operands that the op refuses under `attrs` are left out.
        """
        spec = get_op(op)
        known = spec.attr_by_name
        values = {name: known[name].named(value) if name in known else value for name, value in attrs.items()}
        held = {
            name: self.part(name, sizes or {})
            for name, operand in spec.by_name.items()
            if name in self._tensors
            and (operand.when is None or operand.when.attr not in values or operand.wanted(values))
        }
        return {**held, **attrs}

    def part(self, name: str, sizes: Mapping[str, int]) -> Any:
        """The tensor, cut along its first axis as `sizes` says."""
        whole, dim = self._tensors[name], tensor(name).dims[0]
        if dim.symbol is None or dim.symbol not in sizes:
            return whole
        return whole[: dim.value(sizes)]


class DecodeState(OpTensors):
    """All slots of one decode loop. ``state["seq_lens_encoder"]`` is the tensor itself; every slot starts out free.

    M = `max_num_seqs`, S = `num_speculative_tokens` + 1, L = `max_model_len`, I_cap = `prefill_chunk`, T_cap =
    `max_num_batched_tokens`, W = `max_bad_tokens`. Q and Z = `max_stop_sequences` (how many, how long), J and H =
    the lengths of `think_end_text` and `answer_start_ids`, G = `max_blocks` (KV blocks a slot; 0 where the model
    keeps no block tables). No tensors of ops are what requests add to logits, :attr:`bias` (`max_logit_bias` tokens a
    slot), and :attr:`slot_masks` (which tokens they may generate, of `vocab_size`). `ids_remove_padding` is a column
    [T_cap, 1], which ops take for [T_cap] as well as for rows of width 1.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        num_speculative_tokens: int,
        max_model_len: int,
        prefill_chunk: int,
        end_tokens: Iterable[int] = (),
        max_bad_tokens: int = 0,
        max_logit_bias: int = 0,
        vocab_size: int = 0,
        max_num_batched_tokens: int | None = None,
        max_stop_sequences: tuple[int, int] = (0, 0),
        think_end_text: Sequence[int] = (),
        answer_start_ids: Sequence[int] = (),
        max_blocks: int = 0,
        device: Device | None = None,
    ) -> None:
        self.device = device or HostDevice()
        ends = sorted(set(end_tokens))
        s = num_speculative_tokens + 1
        self.symbols = {
            "M": max_num_seqs,
            "B": max_num_seqs,
            "S": s,
            "L": max_model_len,
            "I_cap": prefill_chunk,
            "T_cap": max_num_batched_tokens or max_num_seqs * max(s, prefill_chunk),
            "R_cap": max_num_seqs * s,
            "E": len(ends),
            "W": max_bad_tokens,
            "Q": max_stop_sequences[0],
            "Z": max_stop_sequences[1],
            "J": len(think_end_text),
            "H": len(answer_start_ids),
            "G": max_blocks,
        }
        self.request = self.device.inputs({name: self.field(name) for name in REQUEST})
        self.request_lists = self.device.inputs({name: self.field(name) for name in REQUEST_LISTS})
        self._listed = set(range(max_num_seqs))  # a slot's first request writes them, whatever it has
        self._lists_changed = False
        self.schedule = self.device.inputs({name: self.field(name) for name in SCHEDULE})
        scores = {
            name: Field((self.symbols["R_cap"],), tensor(output).dtypes[0]) for name, output in ROW_SCORES.items()
        }
        self.report = self.device.outputs({**{name: self.field(name) for name in REPORT}, **scores})
        self.bias = LogitBias(self.device, max_num_seqs, max_logit_bias)
        self.slot_masks = SlotMasks(self.device, max_num_seqs, vocab_size)
        own = {name: self.allocate(name) for name in self._device_names()}
        groups = self.request, self.request_lists, self.schedule, self.report
        super().__init__(own | {name: tensor for group in groups for name, tensor in group.tensors.items()})
        if ends:
            self.write("end_tokens", slice(None), ends)
        if think_end_text:
            self.write("inject_token_ids", slice(None), list(think_end_text))
        if answer_start_ids:
            self.write("allowed_tokens", slice(None), list(answer_start_ids))
        self.write("stop_flags", slice(None), True)
        self._uploaded = False

    def _device_names(self) -> list[str]:
        """What only the device writes: all tensors whose sizes the state knows that are in no other group."""
        known, others = {None, *self.symbols}, {*REQUEST, *REQUEST_LISTS, *SCHEDULE, *REPORT, *_ELSEWHERE}
        return [
            name
            for name in names()
            if name not in others
            and not name.startswith(_BASE_MODEL)
            and {dim.symbol for dim in tensor(name).dims} <= known
        ]

    def field(self, name: str, **symbols: int) -> Field:
        """Shape and dtype as the vocabulary declares them; `symbols` adds to or overrides the state's own."""
        spec = tensor(name)
        known = {**self.symbols, **symbols}
        column = (1,) if name == "ids_remove_padding" else ()
        return Field(tuple(dim.value(known) for dim in spec.dims) + column, spec.dtypes[0])

    def allocate(self, name: str, **symbols: int) -> Any:
        """A new zeroed tensor with the shape and dtype of :meth:`field`."""
        field = self.field(name, **symbols)
        return self.device.zeros(field.shape, field.dtype)

    def of_draft_model(self, own: Mapping[str, Any]) -> OpTensors:
        """The tensors for ops of a draft model: `own` by name, the target's under base_model_..., all others shared."""
        base = {f"{_BASE_MODEL}{name}": tensor for name, tensor in self._tensors.items()}
        return OpTensors({**self._tensors, **{n: t for n, t in base.items() if n in names()}, **own})

    def read(self, name: str) -> NDArray[Any]:
        """The tensor's values now; waits for the device. On a host, the tensor itself."""
        return self.device.download(self._tensors[name])

    def write(self, name: str, index: Any, values: Any) -> None:
        """``state[name][index] = values``, ordered after earlier work of the device."""
        self.device.write(self._tensors[name], index, values)

    # ---- requests: what the host decides, which the op `schedule_slots` carries out

    def room(self, request: str, prompt: Sequence[int] | NDArray[Any], params: SamplingParams) -> int:
        """The most tokens that a slot lets this request generate; RequestError, which names `request`, if none."""
        length, width, k = self.symbols["L"], self.symbols["W"], self.symbols["S"] - 1
        tokens = prompt_array(request, prompt)
        if len(tokens) >= length:
            raise RequestError(
                f"{request}: prompt of {len(tokens)} tokens leaves no room in a context of {length}; shorten it or "
                "raise max_model_len"
            )
        if (count := len(params.bad_token_ids)) > width:
            raise RequestError(f"{request}: at most {width} bad_token_ids, got {count}; forbid fewer")
        if (count := len(params.logit_bias)) > self.bias.width:
            raise RequestError(f"{request}: at most {self.bias.width} tokens in logit_bias, got {count}; bias fewer")
        size, bad = self.slot_masks.vocab_size, chain.from_iterable(params.bad_sequences)
        for what, named in (("allowed_token_ids", params.allowed_token_ids or ()), ("bad_sequences", bad)):
            if (largest := max(named, default=-1)) >= size:
                raise RequestError(f"{request}: {what}: token {largest} is outside the vocabulary [0, {size})")
        many, long = self.symbols["Q"], self.symbols["Z"]
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

    def admit(self, slot: int, prompt: Sequence[int] | NDArray[Any], params: SamplingParams) -> int:
        """Give a slot to a request: the next step feeds the first chunk of its prompt. Returns that chunk's end.

        The request that had the slot before is forgotten. RequestError, with nothing changed, if :meth:`room` refuses
        the request or there is no such slot.
        """
        if not 0 <= slot < self.symbols["M"]:
            raise RequestError(f"slot {slot}: expected one in [0, {self.symbols['M']}); raise max_num_seqs")
        if params.bad_words or params.forbids_sequences:
            raise RequestError(f"slot {slot}: bad_words: a ModelRunner alone minds more than single bad_sequences")
        limit = self.room(f"slot {slot}", prompt, params)
        self.write("token_ids_all", (slot, slice(len(prompt))), np.asarray(prompt, np.int64))
        self.fill_request(slot, len(prompt), params, limit)
        if params.limits_thinking:
            self.write("limit_status", slot, 0)
        self.start_reasoning(slot, params)
        return self.feed(slot, 0)

    def start_reasoning(self, slot: int, params: SamplingParams) -> None:
        """Let `reasoning_constraint` follow a request from its first token on, if it asks for that where it can."""
        spared = self.symbols["H"] and not params.constrains_answer
        self.write("reasoning_status", slot, _REASONED if spared else 0)
        self.write("reasoning_seen", slot, -1)

    def feed(self, slot: int, start: int) -> int:
        """Let the next step feed a slot its prompt from token `start` on, one chunk of it. Returns the chunk's end."""
        count = min(int(self.request.host["prompt_lens"][slot]) - start, self.symbols["I_cap"])
        self._decide()
        self.fill_chunk(slot, start, count)
        return start + count

    def free(self, slot: int) -> None:
        """Let the next step make a slot idle, whatever it was doing."""
        self._decide()
        self.schedule.host["slot_actions"][slot] = SlotAction.STOP

    def _decide(self) -> None:
        """What was decided for the step before does not count for the next one."""
        if self._uploaded:
            self.schedule.host["slot_actions"][:] = SlotAction.KEEP
            self._uploaded = False

    def upload(self) -> None:
        """Before every step, ahead of `schedule_slots`: send what was decided since the step before."""
        self._decide()
        self.upload_requests()
        self.schedule.upload()
        self._uploaded = True

    def upload_requests(self) -> None:
        """Send what requests ask for."""
        self.request.upload()
        if self._lists_changed:
            self.request_lists.upload()
            self._lists_changed = False
        self.bias.upload()

    def fill_request(self, slot: int, prompt_len: int, params: SamplingParams, max_new_tokens: int) -> None:
        """Write what a request asks for into the host's side of `request`, `request_lists` and `bias`, and into
        `slot_masks`."""
        host, k = self.request.host, self.symbols["S"] - 1
        wanted, (max_think, max_reply) = params.num_speculative_tokens, params.thinking_limits
        values = {
            "prompt_lens": prompt_len,
            "max_dec_len": max_new_tokens,
            "min_dec_len": params.min_new_tokens,
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
        self.bias.fill(slot, params.logit_bias)
        self.slot_masks.fill(slot, params.allowed_token_ids, params.forbidden_token_ids)
        stops = params.stop_token_sequences
        for i, tokens in enumerate(stops):
            host["stop_seqs_lens"][slot, i] = len(tokens)
        wanted_lists = bool(stops or params.bad_token_ids)
        if wanted_lists or slot in self._listed:
            lists = self.request_lists.host
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
        host = self.schedule.host
        host["slot_actions"][slot] = SlotAction.PREFILL
        host["chunk_lens"][slot], host["chunk_starts"][slot] = count, start
        host["chunk_step_idx"][slot] = step_idx


def prompt_array(request: str, prompt: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    """A prompt as an array; RequestError, which names `request`, if it is not a flat list of token ids.

    The memory is the prompt's own where that is an array, else new.
    """
    if len(prompt) == 0:
        raise RequestError(f"{request}: empty prompt; give at least one token (the model's bos token, say)")
    if isinstance(prompt, (list, tuple)) and type(prompt[0]) is int:  # a list of nothing but bools is refused below
        try:
            return np.frombuffer(array("q", prompt), np.int64)  # one pass; asarray makes two, to find a dtype first
        except (TypeError, OverflowError):  # not integers, or large ones: said below
            pass
    if isinstance(prompt, np.ma.MaskedArray) and np.ma.is_masked(prompt):
        raise _no_list(request, "a masked array; its compressed() has what is not masked")
    listed = isinstance(prompt, (list, tuple, dict))
    try:
        tokens = np.asarray(prompt)
    except (ValueError, TypeError) as error:  # of lists of different lengths, and of tensors on a GPU
        raise _no_list(request, short(prompt) if listed else one_line(error)) from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise _no_list(request, short(prompt) if listed else f"{tokens.dtype} {list(tokens.shape)}")
    return tokens


def _no_list(request: str, got: str) -> RequestError:
    return RequestError(f"{request}: prompt: expected a flat list of integers, got {got}; pass token ids")
