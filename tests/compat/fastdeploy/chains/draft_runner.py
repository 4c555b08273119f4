"""FastDeploy's proposers that run beside the target: `MTPProposer`, and `SuffixProposer`, which drafts on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains.engine import Runner
from tests.compat.fastdeploy.chains.lockstep import Buffer
from tests.compat.fastdeploy.chains.scenes import MODEL_LEN, Request
from tests.compat.fastdeploy.chains.toy_model import HIDDEN, advance

Array = NDArray[Any]


def suffix_drafts(runner: Runner) -> None:
    """Write what may well come next, with errors, into draft_tokens and the lengths, from the host."""
    scene, s = runner.scene, runner.share
    stop, enc, dec = (runner.array(name) for name in ("stop_flags", "seq_lens_encoder", "seq_lens_decoder"))
    drafts, lens = s["draft_tokens"], s["seq_lens_this_time"]
    for b in range(runner.in_use):
        drafts.array[b, 1:] = -1
        if stop[b]:
            lens.flat[b] = 0
            drafts.array[b] = -1
            continue
        assert enc[b] == 0 and dec[b] > 0
        hidden = advance(runner.cache.rows[b, dec[b] - 1], int(drafts.array[b, 0]))
        count = int(scene.rng.integers(0, scene.drafts + 1))
        for i in range(count):
            token = int(scene.model.draft_logits(hidden[None])[0].argmax())
            if scene.draws:
                logits = scene.model.logits(hidden[None]) / runner.array("temperature")[b]
                token = int(scene.model.drawn(logits, runner.seeds[b : b + 1], hidden[3:])[0])
            if scene.rng.random() < 0.2:
                token = int(scene.rng.integers(1, scene.model.vocabulary))
            drafts.array[b, i + 1] = token
            hidden = advance(hidden, token)
        lens.flat[b] = 1 + count
    drafts.flush()
    lens.flush()


class DraftRunner:
    """The draft model's state and step; a platform's runner gives the substep."""

    def __init__(self, runner: Runner, substep: Callable[[DraftRunner, int, Array], Array]) -> None:
        self.runner, self._substep, scene = runner, substep, runner.scene
        n = scene.slots
        lens = (n, 1) if scene.columns else (n,)
        arrays: dict[str, Any] = {
            "draft_tokens": np.full((n, scene.drafts + 1 + scene.wider), -1),
            "input_ids": np.zeros((n, scene.chunk), np.int64), "pre_ids": np.full((n, MODEL_LEN), -1),
            "stop_flags": np.full((n, 1), True), "seq_lens_this_time": np.zeros(lens, np.int32),
            "seq_lens_encoder": np.zeros(lens, np.int32), "seq_lens_decoder": np.zeros(lens, np.int32),
            "step_idx": np.zeros((n, 1), np.int64), "not_need_stop": np.full(1, False),
        }  # fmt: skip
        self.buffers = {name: Buffer(array) for name, array in arrays.items()}

    def insert(self, slot: int, request: Request, start: int, count: int) -> None:
        """A part of a prompt, shifted by one: a position's row meets the token after it."""
        tokens = request.prompt + request.output
        shifted = [*tokens[1:], 0][start : start + count]
        is_last = start + count == len(tokens)
        inputs = self.buffers["input_ids"].array[slot].copy()
        inputs[:count] = shifted
        values: dict[str, Any] = {"input_ids": inputs, "pre_ids": -1, "draft_tokens": -1, "stop_flags": False}
        values |= {"seq_lens_this_time": count, "seq_lens_encoder": count, "seq_lens_decoder": start}
        values["step_idx"] = len(request.output) if is_last else 0
        for name, value in values.items():
            self.buffers[name].array[slot] = value
            self.buffers[name].flush()

    def run(self, hidden: Buffer) -> None:
        """Draft for every slot that goes on, from the target's hidden rows of this step."""
        d, s, ops, steps = self.buffers, self.runner.share, self.runner.ops, self.runner.scene.model_steps
        own = ("draft_tokens", "input_ids", "stop_flags", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
        targets = ("accept_tokens", "accept_num", "seq_lens_encoder", "seq_lens_decoder", "step_idx", "stop_flags")
        ops.run("draft_model_preprocess", *(d[name] for name in own), d["step_idx"], d["not_need_stop"], d["pre_ids"],
                *(s[name] for name in targets), s["max_dec_len"], s["draft_tokens"], steps, False)  # fmt: skip
        mine = (d[name] for name in ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "stop_flags"))
        given = ops.run("eagle_get_hidden_states", hidden, *mine, s["accept_num"], s["seq_lens_this_time"],
                        s["seq_lens_encoder"], steps)  # fmt: skip
        rows: Array = (given[0] if isinstance(given, list) else given).array
        if d["not_need_stop"].array[0]:
            for substep in range(steps):
                rows = self._substep(self, substep, rows)
        ops.run("draft_model_postprocess", s["draft_tokens"], s["seq_lens_this_time"], s["seq_lens_encoder"],
                s["stop_flags"])  # fmt: skip

    def forward(self, ids: Array, owners: Array, cu_q: Array, hidden: Array, substep: int) -> Array:
        """The draft model's rows: for each token, that after it. Its rows must be those of its positions."""
        dec = self.buffers["seq_lens_decoder"].flat
        out = np.zeros((len(ids), HIDDEN), np.float32)
        for row, (token, b) in enumerate(zip(ids.tolist(), owners.tolist(), strict=True)):
            if substep == 0:
                assert hidden[row, 3] == dec[b] + row - cu_q[b], "a hidden row goes with the token after its own"
            out[row] = advance(hidden[row], token)
        return out

    def update(self, tokens: Array, cu_out: Buffer, substep: int) -> None:
        """Take the drafted tokens."""
        d, s = self.buffers, self.runner.share
        names = ("draft_tokens", "pre_ids", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "step_idx")
        self.runner.ops.run("draft_model_update", Buffer(tokens[:, None]), *(d[name] for name in names), cu_out,
                            d["stop_flags"], d["not_need_stop"], s["max_dec_len"], s["eos_token_id"], s["draft_tokens"],
                            MODEL_LEN, substep)  # fmt: skip
