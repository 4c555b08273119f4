"""Record the traces: ``python -m specdec_hal_conformance.traces.record`` in a clone, with the embedded model.

Runs the decode loop on the reference, with every strategy, and keeps each op's inputs and outputs. Logits are rounded
to sixteenths, which makes them compress well and tie often. Ops outside the loop have no trace.
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
from specdec_hal.ops import TokenOrder
from specdec_hal.ops.spec import Role
from specdec_hal.ops.validate import Call
from specdec_hal.plugin.backend import Launch
from specdec_hal.tensors.views import as_numpy
from specdec_hal_conformance.traces import FILE, VERSION, recorded_outputs

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
        self.recording, self.run = recording, run

    def plan(self, call: Call) -> Launch:
        """Record around the launch."""
        launch = super().plan(call)

        def recorded(stream: int) -> None:
            arrays = {name: as_numpy(t) for name, t in call.tensors.items() if t is not None}
            self._record(call, arrays, lambda: launch(stream))

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
