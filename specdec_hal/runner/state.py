"""The tensors of a decode loop, by their names in the op vocabulary (FastDeploy's ``share_inputs``).

Shapes and dtypes come from the vocabulary, memory from a :class:`~specdec_hal.tensors.device.Device`. Ops are bound to
these tensors once and see every later change.

Each tensor has one writer. What a request asks for and what the scheduler decides are the host's, and written by
:class:`~specdec_hal.runner.slot_writer.SlotWriter`. Everything else is the device's; the host reads of it what
:attr:`DecodeState.report` holds, when a step has been fetched.

:class:`specdec_hal.ModelRunner` is one loop on them; docs/use/own_decode_loop.md builds another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from numpy.typing import NDArray

from specdec_hal.ops import get_op
from specdec_hal.ops.vocabulary import names, tensor
from specdec_hal.runner.logit_bias import LogitBias
from specdec_hal.runner.slot_masks import SlotMasks
from specdec_hal.tensors.device import Device
from specdec_hal.tensors.on_host import HostDevice
from specdec_hal.tensors.transfer import Field

REQUEST = (
    "prompt_lens",
    "max_dec_len",
    "min_dec_len",
    "ignore_end",
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
"""Request parameters by slot, written when a request takes the slot."""
REQUEST_LISTS = ("bad_tokens", "stop_seqs")
"""The same for large, rarely used ones."""
SCHEDULE = ("slot_actions", "chunk_lens", "chunk_starts", "chunk_step_idx", "block_tables")
"""The scheduler's decisions for a step."""
REPORT = (
    "accept_tokens",
    "accept_num",
    "stop_flags",
    "limit_status",
    "cu_seqlens_q",
    "cu_seqlens_q_output",
    "ids_remove_padding",
)
"""Results read by the host."""
ROW_SCORES = {"row_logprobs": "logprobs", "row_ranks": "ranks"}
"""What it learns besides where `sample_target` writes log-probabilities [R_cap], by that op's names for them."""
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
    "block_cu_seqlens_q",
    "block_seq_lens_decoder",
    "draft_confidence",
    "min_confidence",
)
"""Tensors allocated by their users: the proposer, the strategy, or a custom loop."""
_BASE_MODEL = "base_model_"
"""Prefix of the target's tensors in ops of a draft model."""


class OpTensors:
    """Tensors by their names in the op vocabulary, used as operands."""

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
    the lengths of `think_end_text` and `answer_start_ids`, G = `max_blocks` (KV blocks per slot; 0 without block
    tables). Outside the vocabulary: :attr:`bias` on logits (`max_logit_bias` tokens per slot), and :attr:`slot_masks`
    (allowed tokens of `vocab_size`). `ids_remove_padding` is a column [T_cap, 1], which ops accept for [T_cap] and for
    rows of width 1. `end_tokens`: ids that end every request. `device`: where the tensors are; None: NumPy arrays.
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
        self.device: Device = device or HostDevice()
        ends = sorted(set(end_tokens))
        s = num_speculative_tokens + 1
        self.symbols: Mapping[str, int] = {
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
        self.think_end_text = list(think_end_text)
        if think_end_text:
            self.write("inject_token_ids", slice(None), list(think_end_text))
        if answer_start_ids:
            self.write("allowed_tokens", slice(None), list(answer_start_ids))
        self.write("stop_flags", slice(None), True)

    def _device_names(self) -> list[str]:
        """Tensors written by the device: all of known size in no other group."""
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

    def replacing(self, tensors: Mapping[str, Any]) -> DecodeState:
        """The same state for ops that read or write other tensors by these names."""
        other = copy(self)
        other._tensors = {**self._tensors, **tensors}
        return other

    def read(self, name: str) -> NDArray[Any]:
        """The tensor's values now; waits for the device. On a host, the tensor itself."""
        return self.device.download(self._tensors[name])

    def write(self, name: str, index: Any, values: Any) -> None:
        """``state[name][index] = values``, ordered after earlier work of the device."""
        self.device.write(self._tensors[name], index, values)
