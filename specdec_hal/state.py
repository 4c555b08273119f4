"""The runner's tensors, by their names in the op vocabulary (FastDeploy's ``share_inputs``).

Shapes and dtypes come from the vocabulary, memory from a :class:`~specdec_hal.device.Device`. Ops are bound to these
tensors once and see every later change.

Each tensor has one writer. What a request asks for and what the scheduler decides are the host's: it fills
:attr:`DecodeState.request` and :attr:`DecodeState.schedule` (NumPy) and uploads them as a whole. Everything else is the
device's; the host reads of it what :attr:`DecodeState.report` holds, when a step has been fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from specdec_hal.device import Device, HostDevice
from specdec_hal.ops import get_op
from specdec_hal.ops.vocabulary import tensor
from specdec_hal.staging import Field

REQUEST = (
    "prompt_lens",
    "max_dec_len",
    "min_dec_len",
    "reasoning_status",
    "draft_token_num",
    "bad_tokens",
    "stop_seqs",
    "stop_seqs_lens",
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
SCHEDULE = ("slot_actions", "chunk_lens", "chunk_starts", "chunk_step_idx", "block_tables")
"""What the scheduler decides for a step."""
REPORT = ("accept_tokens", "accept_num", "stop_flags", "cu_seqlens_q", "ids_remove_padding")
"""What the host learns of a step."""
_DEVICE = (
    "input_ids",
    "draft_tokens",
    "seq_lens_this_time",
    "seq_lens_encoder",
    "seq_lens_decoder",
    "token_ids_all",
    "step_idx",
    "is_block_step",
    "end_tokens",
    "has_running",
    "batch_id_per_token",
    "cu_seqlens_k",
    "cu_seqlens_q_output",
    "batch_id_per_token_output",
    "num_tokens",
    "row_temperature",
    "row_top_p",
    "row_top_k",
    "row_min_p",
    "row_seed",
    "position",
    "target_tokens",
    "cu_batch_token_offset",
)


class DecodeState:
    """All slots of one runner. ``state["seq_lens_encoder"]`` is the tensor itself; every slot starts out free.

    M = `max_num_seqs`, S = `num_speculative_tokens` + 1, L = `max_model_len`, I_cap = `prefill_chunk`, T_cap =
    `max_num_batched_tokens`, W = `max_bad_tokens`, Q and Z = `max_stop_sequences` (how many, how long), G =
    `max_blocks` (KV blocks a slot; 0 where the model keeps no block tables).
    `ids_remove_padding` is a column [T_cap, 1], which ops take for [T_cap] as well as for rows of width 1.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        num_speculative_tokens: int,
        max_model_len: int,
        prefill_chunk: int,
        end_tokens: Iterable[int],
        max_bad_tokens: int,
        max_num_batched_tokens: int | None = None,
        max_stop_sequences: tuple[int, int] = (0, 0),
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
            "G": max_blocks,
        }
        self.request = self.device.inputs({name: self.field(name) for name in REQUEST})
        self.schedule = self.device.inputs({name: self.field(name) for name in SCHEDULE})
        self.report = self.device.outputs({name: self.field(name) for name in REPORT})
        self._tensors: dict[str, Any] = {
            **{name: self.allocate(name) for name in _DEVICE},
            **self.request.tensors,
            **self.schedule.tensors,
            **self.report.tensors,
        }
        if ends:
            self.write("end_tokens", slice(None), ends)
        self.write("stop_flags", slice(None), True)

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

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def read(self, name: str) -> NDArray[Any]:
        """The tensor's values now; waits for the device. On a host, the tensor itself."""
        return self.device.download(self._tensors[name])

    def write(self, name: str, index: Any, values: Any) -> None:
        """``state[name][index] = values``, ordered behind what the device was told before."""
        self.device.write(self._tensors[name], index, values)

    def args(self, op: str, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """The op's operands that the state holds, by name.

        `sizes` are smaller extents for the symbols that lead a shape: ``{"B": 8, "R_cap": 40}`` passes the first 8
        slots and 40 rows.
        """
        return {name: self.part(name, sizes or {}) for name in get_op(op).by_name if name in self._tensors}

    def part(self, name: str, sizes: Mapping[str, int]) -> Any:
        """The tensor, cut along its first axis as `sizes` says."""
        whole, dim = self._tensors[name], tensor(name).dims[0]
        if dim.symbol is None or dim.symbol not in sizes:
            return whole
        return whole[: dim.value(sizes)]
