"""The runner's tensors, by their names in the op vocabulary (FastDeploy's ``share_inputs``).

Shapes and dtypes come from the vocabulary, memory from a :class:`~specdec_hal.device.Device`. Ops are bound to these
tensors once and see every later change, so the host writes into them in place, through :meth:`DecodeState.write`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from specdec_hal.device import Device, HostDevice
from specdec_hal.ops import get_op
from specdec_hal.ops.vocabulary import tensor

_SLOT_STATE = (
    "input_ids",
    "draft_tokens",
    "seq_lens_this_time",
    "seq_lens_encoder",
    "seq_lens_decoder",
    "token_ids_all",
    "prompt_lens",
    "step_idx",
    "max_dec_len",
    "min_dec_len",
    "stop_flags",
    "is_block_step",
    "reasoning_status",
    "draft_token_num",
    "end_tokens",
    "bad_tokens",
    "has_running",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition",
    "frequency",
    "presence",
    "accept_tokens",
    "accept_num",
)
_STEP_BUFFERS = (
    "ids_remove_padding",
    "batch_id_per_token",
    "cu_seqlens_q",
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

    All slots count as in use (B = M): an idle one costs a few comparisons, and bound plans never change shape.
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
            "T_cap": max_num_seqs * max(s, prefill_chunk),
            "R_cap": max_num_seqs * s,
            "E": len(ends),
            "W": max_bad_tokens,
        }
        self._tensors = {name: self.allocate(name) for name in (*_SLOT_STATE, *_STEP_BUFFERS)}
        if ends:
            self.write("end_tokens", slice(None), ends)
        self.write("stop_flags", slice(None), True)

    def allocate(self, name: str, **symbols: int) -> Any:
        """A new zeroed tensor as the vocabulary declares it; `symbols` adds to or overrides the state's own."""
        spec = tensor(name)
        known = {**self.symbols, **symbols}
        column = [1] if name == "ids_remove_padding" else []
        return self.device.zeros([dim.value(known) for dim in spec.dims] + column, spec.dtypes[0])

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def read(self, name: str) -> NDArray[Any]:
        """The tensor's values now; waits for the device. On a host, the tensor itself."""
        return self.device.download(self._tensors[name])

    def write(self, name: str, index: Any, values: Any) -> None:
        """``state[name][index] = values``, ordered behind what the device was told before."""
        self.device.write(self._tensors[name], index, values)

    def args(self, op: str, rows: int | None = None) -> dict[str, Any]:
        """The op's operands that the state holds, by name; those with one entry a row cut to `rows`."""
        cut = slice(rows)
        return {
            name: self._tensors[name][cut] if str(operand.tensor.dims[0]) == "R_cap" else self._tensors[name]
            for name, operand in get_op(op).by_name.items()
            if name in self._tensors
        }

    def free(self, slot: int) -> None:
        """Make a slot idle and available."""
        self.write("stop_flags", slot, True)
        for name in ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "draft_token_num"):
            self.write(name, slot, 0)
