"""Right results got in a wrong way: memory, state, and how calls are taken."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.errors import ArgumentError, UnsupportedError
from specdec_hal.ops import MatchPolicy, Strategy, get_op
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Backend, BoundOp, Capability, Launch
from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import Arrays, Mutant, around, edited, in_32_bits

_Launch = Callable[[], None]


def _beyond(array: np.ndarray[Any, Any], index: int) -> np.ndarray[Any, Any]:
    """One element outside the array, at `index` counted from its start; the suite's margins make that safe."""
    flat = array.reshape(-1)
    start = flat.__array_interface__["data"][0] + index * array.itemsize
    buffer = (ctypes.c_char * array.itemsize).from_address(start)
    return np.frombuffer(buffer, array.dtype)


def _writes_behind(arrays: Arrays, launch: _Launch) -> None:
    launch()
    _beyond(arrays["token_ids"], arrays["token_ids"].size)[:] = 0


def _writes_before(arrays: Arrays, launch: _Launch) -> None:
    launch()
    _beyond(arrays["cu_seqlens_k"], -1)[:] = 0


def _writes_its_input(arrays: Arrays, launch: _Launch) -> None:
    launch()
    arrays["probs"][arrays["probs"] < 0.25] = 0


def _clamps_in_place(arrays: Arrays, launch: _Launch) -> None:
    launch()
    np.maximum(arrays["accept_num"], 0, out=arrays["accept_num"])
    arrays["accept_num"][arrays["seq_lens_this_time"].size :] = 0


def _sometimes_wrong(numbers: itertools.count[int], arrays: Arrays, launch: _Launch) -> None:
    launch()
    if next(numbers) % 5 == 4:
        arrays["target_tokens"][:1] ^= 1


def _remembers(memory: dict[bytes, Any], arrays: Arrays, launch: _Launch) -> None:
    """Results are kept by the logits alone."""
    launch()
    kept = memory.setdefault(arrays["logits"].tobytes(), arrays["target_tokens"].copy())
    np.copyto(arrays["target_tokens"], kept)


class _ReadsWhenBound(ReferenceBackend):
    """Reads step_idx on the host while it plans."""

    def plan(self, call: Call) -> Launch:
        launch = super().plan(call)
        step_idx = self.arrays(call)["step_idx"] if call.op.name == "build_sampling_params" else None
        if step_idx is None:
            return launch
        then = step_idx.copy()

        def run(stream: int) -> None:
            now = step_idx.copy()
            np.copyto(step_idx, then)
            launch(stream)
            np.copyto(step_idx, now)

        return run


class _SwallowsErrors(ReferenceBackend):
    def bind(self, op: str, /, *args: Any, **kwargs: Any) -> BoundOp:
        try:
            return super().bind(op, *args, **kwargs)
        except ArgumentError:
            return BoundOp(self, Call(get_op(op), {}, {}, {}, {}), lambda stream: None)


class _Casts(ReferenceBackend):
    """Makes a wrong dtype right by copying: the caller's output is never written."""

    def bind(self, op: str, /, *args: Any, **kwargs: Any) -> BoundOp:
        cast = dict(kwargs)
        for operand in get_op(op).operands:
            value = cast.get(operand.name)
            if isinstance(value, np.ndarray) and value.dtype == np.float64:
                cast[operand.name] = value.astype(operand.tensor.dtypes[0])
        return super().bind(op, *args, **cast)


class _OtherErrors(ReferenceBackend):
    def bind(self, op: str, /, *args: Any, **kwargs: Any) -> BoundOp:
        try:
            return super().bind(op, *args, **kwargs)
        except ArgumentError as error:
            raise ValueError("bad argument") from error


class _WritesFirst(ReferenceBackend):
    """Clears the outputs before it looks at the rest of the call."""

    def bind(self, op: str, /, *args: Any, **kwargs: Any) -> BoundOp:
        if isinstance(kwargs.get("num_tokens"), np.ndarray):
            kwargs["num_tokens"].fill(0)
        return super().bind(op, *args, **kwargs)


class _ReplacesAStrategy(ReferenceBackend):
    """Claims two strategies and runs another as something else, instead of refusing it."""

    capabilities: Mapping[str, Capability] = {
        **ReferenceBackend.capabilities,
        "verify_draft_tokens": Capability(attrs={"strategy": frozenset(Strategy) - {Strategy.TOPP}}),
    }

    def _server(self, call: Call) -> Backend:
        return self


class _RefusesWhatItClaims(ReferenceBackend):
    def plan(self, call: Call) -> Launch:
        if call.attrs.get("match_policy") is MatchPolicy.LATEST:
            raise UnsupportedError(f"{call.op.name}: LATEST is not implemented")
        return super().plan(call)


class _NoColumns(ReferenceBackend):
    def plan(self, call: Call) -> Launch:
        for name, tensor in call.tensors.items():
            if tensor is not None and tensor.ndim != len(call.op.by_name[name].dims(call.attrs)):
                raise TypeError(f"'{name}' has {tensor.ndim} dimensions")
        return super().plan(call)


class _NeedsASlot(ReferenceBackend):
    def plan(self, call: Call) -> Launch:
        if call.symbols.get("B") == 0:
            raise ZeroDivisionError("a grid of 0 blocks")
        return super().plan(call)


_LARGE = "a large batch of a large vocabulary"
_ROW = "[{0} * {1}.shape[1] % 2**31 // {1}.shape[1]]"
_LOGITS = "to_f32(logits[r])", f"to_f32(logits{_ROW.format('r', 'logits')})"
_PROBS = "row = np.where(np.isnan(probs[r]), np.float32(0), probs[r])"
_NARROW = (
    (
        "gather_next_token", "the hidden states of a long prompt",
        Edit("step_index", "x[token_row_of[row]]", "x" + _ROW.format("token_row_of[row]", "x")),
    ),
    ("sample_target", _LARGE, Edit("sampling", *_LOGITS, "sample_target")),
    ("token_logprobs", _LARGE, Edit("output", *_LOGITS)),
    ("apply_penalties", _LARGE, Edit("sampling", "row = logits[r]\n", f"row = logits{_ROW.format('r', 'logits')}\n")),
    (
        "top_p_candidates", _LARGE,
        Edit("sampling", _PROBS, f"row = probs{_ROW.format('r', 'probs')}\n{_PROBS.replace('probs[r]', 'row')}"),
    ),
    (
        "verify_draft_tokens", "the draft model's probabilities",
        Edit("verify", "self.draft_probs[slot.b, i, draft]",
             "self.draft_probs[slot.b % (2**31 // self.draft_probs[0].size), i, draft]"),
    ),
    (
        "ngram_index_update", "the index of many long requests",
        Edit("ngram", "index[b]", "index[b % (2**31 // index.shape[1])]", "ngram_index_update"),
    ),
)  # fmt: skip

_HALVES = (
    ("apply_penalties", "end_tokens"),
    ("verify_draft_tokens", "draft_tokens candidate_ids step_idx max_dec_len end_tokens"),
    ("update_model_status", "end_tokens max_dec_len"),
    ("ngram_match", "prompt_lens step_idx max_dec_len pre_ids"),
    ("hybrid_mtp_ngram", "prompt_lens step_idx max_dec_len pre_ids"),
    ("ngram_index_update", "token_ids_all step_idx"),
    ("insert_first_token", "accept_tokens"),
    ("set_stop_sequences", "prompt_lens"),
    ("write_accepted", "accept_tokens step_idx"),
    ("limit_thinking", "end_tokens"),
    ("reasoning_constraint", "step_idx draft_tokens"),
)
"""Inputs of 64 bits whose upper halves few cases look at."""

MUTANTS = (
    around("writes-one-element-behind", "gather_accepted",
           "a grid rounded up to whole blocks writes the element after the last", _writes_behind),
    around("writes-one-element-before", "prepare_inputs", "an exclusive prefix sum stores to index -1", _writes_before),
    around("writes-its-input", "top_p_candidates",
           "probabilities are sorted or filtered where they stand, and the verifier then reads them",
           _writes_its_input),
    around("clamps-its-input", "gather_accepted", "bad counts are repaired in the caller's tensor", _clamps_in_place),
    around("sometimes-another-result", "sample_target", "a race: one launch in five gives another token",
           partial(_sometimes_wrong, itertools.count())),
    around("remembers-results", "sample_target", "results are cached under a key that lacks a parameter",
           partial(_remembers, {})),
    edited("depends-on-the-batch-size", "sample_target",
           "batches of more than 8 rows take a second kernel that counts positions from 1",
           Edit("sampling", "philox_u64(row_seed, position, purpose)",
                "philox_u64(row_seed, position + (len(logits) > 8), purpose)", "sample_target")),
    edited("lengths-not-clamped", "apply_penalties update_model_status ngram_match",
           "a prompt length beyond the row is used as it is",
           Edit("history", "min(max(int(prompt_len), 0), row_width)", "int(prompt_len)")),
    *(
        edited(f"{op}-in-32-bits", op, f"a row times a width is computed in 32 bits: {what}", edit)
        for op, what, edit in _NARROW
    ),
    *(in_32_bits(op, operand) for op, operands in _HALVES for operand in operands.split()),
    Mutant("reads-when-bound", ("build_sampling_params",),
           "a plan keeps what a tensor held when it was bound: replays of a graph draw the same numbers again",
           _ReadsWhenBound),
    Mutant("swallows-malformed-arguments", ("gather_accepted",), "a malformed call does nothing and says nothing",
           _SwallowsErrors),
    Mutant("casts-malformed-arguments", ("build_sampling_params",),
           "a tensor of the wrong dtype is copied, and results go into the copy (nanobind's default)", _Casts),
    Mutant("errors-without-a-name", ("gather_accepted",), "'bad argument': which one, nobody knows", _OtherErrors),
    Mutant("writes-before-it-checks", ("prepare_inputs",), "outputs are cleared before the arguments are looked at",
           _WritesFirst),
    Mutant("runs-what-it-does-not-claim", ("verify_draft_tokens",),
           "a strategy outside the capabilities runs all the same", _ReplacesAStrategy),
    Mutant("refuses-what-it-claims", ("ngram_match",),
           "a policy inside the capabilities is refused when it comes to running it", _RefusesWhatItClaims),
    Mutant("no-columns", ("update_model_status",),
           "[N, 1] is refused where [N] is declared; FastDeploy's tensors have both shapes", _NoColumns),
    Mutant("no-empty-batch", ("prepare_inputs",),
           "a batch without slots is an error: a grid of 0 blocks cannot be launched", _NeedsASlot),
)  # fmt: skip
