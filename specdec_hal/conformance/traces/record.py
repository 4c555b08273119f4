"""Record the traces: ``python -m specdec_hal.conformance.traces.record`` in a clone, with the embedded model.

Runs the decode loop on the reference, with every strategy, and keeps each op's inputs and outputs. Logits are rounded
to sixteenths, which makes them compress well and tie often. Ops outside the loop run beside it.
`recover_batch` undoes each `adjust_batch`, `hybrid_mtp_ngram` extends the first draft of each look-up.
`eagle_gather_hidden_states` packs the rows of all slots where `eagle_get_self_hidden_states` packs those that go on.
`write_accepted` and `clear_accept_num` follow each `update_model_status`, `gather_draft_logits` and
`insert_first_token` each `gather_accepted`, with the target's rows in place of a draft model's. `reasoning_constraint`
and `apply_token_bitmask` follow each `apply_penalties`, on a part of the vocabulary, and `truncate_drafts` each
`verify_draft_tokens`. `prepare_block_inputs` follows each `eagle_get_hidden_states`, `map_draft_logits` each
`apply_penalties`, and `truncate_by_confidence` each `draft_model_postprocess`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.backends.reference.backend import ReferenceBackend
from specdec_hal.conformance.traces import FILE, VERSION, recorded_outputs
from specdec_hal.ops import TokenOrder, get_op
from specdec_hal.ops.spec import Role
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch
from specdec_hal.tensors.views import as_numpy

Array = NDArray[Any]

LARGEST = 4 << 20
"""Most bytes of the file."""
RUNS: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "greedy": (("speculative.verify_strategy=greedy",), {"logprobs": 2, "stop_sequences": [[320, 590]]}),
    "sampled": (
        ("speculative.verify_strategy=target_match", "speculative.ngram.match_policy=leftmost"),
        {
            "temperature": 0.9,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.25,
            "stop_sequences": [[310, 67]],
        },
    ),
    "rejection": (("speculative.verify_strategy=rejection",), {"temperature": 0.8, "top_k": 12}),
    "topp": (
        ("speculative.verify_strategy=topp", "speculative.ngram.pad_to_max=true"),
        {"temperature": 0.7, "top_p": 0.8},
    ),
    "thinking": (
        ("speculative.verify_strategy=target_match", "model.think_end_id=320", "model.think_end_text=[590,320,310]"),
        {"temperature": 0.4, "thinking": {"max_tokens": 5, "max_reply_tokens": 6}},
    ),
    "hybrid": (
        ("speculative.method=hybrid", "speculative.hybrid.num_model_steps=2", "runner.prefill_chunk=16"),
        {"temperature": 0.5, "max_new_tokens": 8},
    ),
}
"""Overrides of the configuration, and sampling parameters, by name. Stop sequences end some requests."""


_PART = 24
"""A part of the vocabulary, for ops with large rows."""
_COUNTS = ("next_token_num", "batch_token_num")


def _masks(rows: int, words: int) -> dict[str, Array]:
    """Three masks that allow about half of the tokens, and each row's mask or none."""
    bits = np.arange(3 * words, dtype=np.uint32) * np.uint32(0x9E3779B1)
    return {
        "bitmask": bits.view(np.int32).reshape(3, words),
        "bitmask_rows": np.arange(rows, dtype=np.int32) % 4 - 1,
    }


class Recording:
    """Calls, and their distinct arrays."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.arrays: list[Array] = []
        self._known: dict[bytes, int] = {}

    def keep(self, array: Array) -> int:
        """The array's number."""
        mark = hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).digest()
        if mark not in self._known:
            self._known[mark] = len(self.arrays)
            self.arrays.append(array.copy())
        return self._known[mark]

    def data(self) -> bytes:
        """The file."""
        header = json.dumps(
            {
                "version": VERSION,
                "arrays": [(str(array.dtype), array.shape) for array in self.arrays],
                "calls": self.calls,
            }
        ).encode()
        raw = b"".join([len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in self.arrays)])
        return lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)


class RecordingBackend(ReferenceBackend):
    """The reference, recording its calls."""

    token_order = TokenOrder.PREFILL_FIRST

    def __init__(self, recording: Recording, run: str) -> None:
        super().__init__()
        self.recording, self.run, self.busy = recording, run, False

    def plan(self, call: Call) -> Launch:
        """Record around the launch."""
        launch = super().plan(call)

        def recorded(stream: int) -> None:
            arrays = {name: as_numpy(t) for name, t in call.tensors.items() if t is not None}
            self._record(call, arrays, lambda: launch(stream))
            if not self.busy:
                self.busy = True
                self._besides(call, arrays)
                self.busy = False

        return recorded

    def _record(self, call: Call, arrays: Mapping[str, Array], launch: Any) -> None:
        by_name = call.op.by_name
        read = {n: a for n, a in arrays.items() if by_name[n].role is not Role.OUT and n != "index"}
        entry: dict[str, Any] = {
            "run": self.run,
            "op": call.op.name,
            "inputs": {name: self.recording.keep(array) for name, array in read.items()},
            "poisoned": {
                n: (call.dtypes[n], a.shape) for n, a in arrays.items() if by_name[n].role is Role.OUT and n != "index"
            },
            "attrs": {name: v.name if isinstance(v, Enum) else v for name, v in call.attrs.items()},
        }
        if "index" in arrays:
            sizes = {"max_ngram_size": 4, "min_ngram_size": 2}
            entry["index"] = {"M": len(arrays["index"]), "L": call.symbols.get("L", 1), **sizes}
        launch()
        outputs = [name for name in recorded_outputs(call.op.name) if name in arrays]
        entry["outputs"] = {name: self.recording.keep(arrays[name]) for name in outputs}
        self.recording.calls.append(entry)

    def _besides(self, call: Call, arrays: Mapping[str, Array]) -> None:
        if call.op.name == "adjust_batch":
            names = ("cu_seqlens_q", "seq_lens_this_time", "seq_lens_encoder")
            x = arrays["out"].copy()
            self.recover_batch(x, **{n: arrays[n].copy() for n in names}, out=np.zeros_like(x), **call.attrs)
        elif call.op.name == "ngram_match":
            copies = {name: array.copy() for name, array in arrays.items() if name != "index"}
            copies["seq_lens_this_time"] = np.minimum(copies["seq_lens_this_time"], 2)
            self.hybrid_mtp_ngram(**copies, **call.attrs)
        elif call.op.name == "eagle_get_self_hidden_states":
            results = {name: np.zeros_like(arrays[name]) for name in ("last_hidden", "output_token_num")}
            self.eagle_gather_hidden_states(arrays["x"].copy(), arrays["cu_seqlens_q"].copy(), **results)
        elif call.op.name == "eagle_get_hidden_states":
            for anchor_only in (False, True):
                self._blocks(arrays["cu_seqlens_q"], len(arrays["out"]), anchor_only)
        elif call.op.name == "draft_model_postprocess":
            slots, s = arrays["draft_tokens"].shape
            confidence = (np.arange(slots * (s - 1), dtype=np.float32) % 7 / 7).reshape(slots, s - 1)
            lengths = {name: arrays[name].copy() for name in ("seq_lens_encoder", "seq_lens_this_time")}
            self.truncate_by_confidence(confidence, np.full(slots, 0.25, np.float32), **lengths)
        elif call.op.name == "update_model_status":
            for op in ("write_accepted", "clear_accept_num"):
                own = [name for name in get_op(op).by_name if name in arrays]
                getattr(self, op)(**{name: arrays[name].copy() for name in own})
        elif call.op.name == "gather_accepted":
            self._draft_rows({name: array.copy() for name, array in arrays.items()})
        elif call.op.name == "apply_penalties":
            self._reasoning({name: array.copy() for name, array in arrays.items()})
            logits = arrays["logits"][:, :_PART].copy()
            self.apply_token_bitmask(logits, **_masks(len(logits), 1))
            columns = np.arange(_PART, dtype=np.int32) * 2 - 9
            self.map_draft_logits(np.zeros_like(logits), arrays["logits"][:, :_PART].copy(), columns)
        elif call.op.name == "verify_draft_tokens":
            own = [name for name in get_op("truncate_drafts").by_name if name in arrays]
            self.truncate_drafts(**{name: arrays[name].copy() for name in own}, **_masks(call.symbols["R_cap"], 128))

    def _blocks(self, starts: Array, tokens: int, anchor_only: bool) -> None:
        """Three masks after each slot's tokens, which are their own places, as are the slots' positions."""
        slots, rows = len(starts) - 1, tokens + 3 * (len(starts) - 1)
        sizes = {"block_batch_ids": rows, "block_source_rows": rows, "block_cu_seqlens_q": slots + 1}
        self.prepare_block_inputs(
            np.arange(tokens),
            starts.copy(),
            np.arange(slots, dtype=np.int32),
            block_token_ids=np.zeros(rows, np.int64),
            **{name: np.zeros(size, np.int32) for name, size in sizes.items()},
            block_seq_lens_decoder=np.zeros(slots, np.int32),
            mask_token_id=1,
            num_masks=3,
            anchor_only=anchor_only,
        )

    def _draft_rows(self, arrays: Mapping[str, Array]) -> None:
        logits, slots = arrays["logits"][:, :_PART].copy(), len(arrays["accept_num"])
        lengths = {name: arrays[name] for name in ("seq_lens_this_time", "seq_lens_encoder")}
        capacity = len(logits) + slots
        self.gather_draft_logits(
            logits,
            first_token_logits=np.resize(logits[::-1], (slots, _PART)),
            **lengths,
            draft_logits=np.zeros((capacity, _PART), np.float32),
            **{name: np.zeros(len(lengths["seq_lens_this_time"]), np.int32) for name in _COUNTS},
            **{f"cu_{name}_token_offset": np.zeros_like(arrays["cu_seqlens_q_output"]) for name in ("next", "batch")},
        )
        drawn = logits.argmax(axis=1)
        self.insert_first_token(arrays["accept_tokens"], drawn, **lengths, draft_token_ids=np.full(capacity, -1))

    def _reasoning(self, arrays: Mapping[str, Array]) -> None:
        """The second newest token ends thinking; the first slot starts without one."""
        slots = len(arrays["prompt_lens"])
        arrays["step_idx"][0] = 0
        column = int((arrays["prompt_lens"] + arrays["step_idx"]).max()) - 2
        names = ("token_ids_all", "prompt_lens", "step_idx", "cu_seqlens_q_output")
        self.reasoning_constraint(
            arrays["logits"][:, :_PART].copy(),
            **{name: arrays[name] for name in names},
            stop_flags=np.zeros(slots, np.bool_),
            seq_lens_encoder=np.ones(slots, np.int32),
            allowed_tokens=np.arange(3),
            reasoning_status=np.arange(slots, dtype=np.int32) % 4,
            enable_thinking=np.arange(slots) > 0,
            think_end_id=int(arrays["token_ids_all"][:, column].max()),
            line_break_id=0,
        )


class Coarse:
    """A model whose logits are rounded to sixteenths."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def compute_logits(self, hidden: Any) -> Array:
        """As NumPy."""
        logits: Array = np.rint(as_numpy(self._model.compute_logits(hidden)) * np.float32(16)) / np.float32(16)
        return logits


def record(config: Path, prompts: list[Path]) -> Recording:
    """Every run, from prompts to ends."""
    import specdec_hal as sd
    from specdec_hal.runner import Request, SamplingParams, build_runner

    recording = Recording()
    common = ("runner.max_num_seqs=3", "runner.prefill_chunk=24", "runner.max_model_len=96", "backend.name=reference")
    drafts = ("speculative.num_speculative_tokens=4", "speculative.ngram.use_index=true")
    runtime = sd.load(config)
    model, tokenizer = runtime.load_model(), runtime.load_tokenizer()
    for name, (overrides, sampling) in RUNS.items():
        settings = sd.load(config, (*common, *drafts, *overrides)).config
        runner = build_runner(settings, RecordingBackend(recording, name), Coarse(model), tokenizer)
        for number, prompt in enumerate(prompts[:2]):
            ids = tokenizer.encode(prompt.read_text())[: 30 + 20 * number]
            params = SamplingParams(**{"max_new_tokens": 14 + 8 * number, "seed": number, **sampling})
            runner.add_request(Request(f"{name} {number}", ids, params))
        runner.run()
    return recording


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/reference.yaml"))
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts"))
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    recording = record(args.config, sorted(args.prompts.glob("*.txt")))
    data = recording.data()
    print(f"{len(recording.calls)} calls, {len(recording.arrays)} arrays, {len(data) / 2**20:.2f} MiB")
    if len(data) > LARGEST:
        raise SystemExit(f"more than {LARGEST / 2**20:.0f} MiB; ask for fewer tokens")
    args.out.write_bytes(data)


if __name__ == "__main__":
    main()
