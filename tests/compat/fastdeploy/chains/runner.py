"""FastDeploy's step where both platforms agree: sampler, post-processing, proposers, and the order of all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.compat.fastdeploy.chains.draft_runner import DraftRunner, suffix_drafts
from tests.compat.fastdeploy.chains.engine import Runner
from tests.compat.fastdeploy.chains.kernels_tokens import GREEDY, TARGET_MATCH
from tests.compat.fastdeploy.chains.lockstep import Buffer, Lockstep
from tests.compat.fastdeploy.chains.scenes import ENDS, MODEL_LEN, NEWLINE, THINK_END, Request, Scene

Array = NDArray[Any]

PREEMPTED = -9
"""A message's count for a slot whose request has been preempted."""


class Rows(NamedTuple):
    """The target model's results in a step."""

    all_hidden: Buffer
    """Rows of all tokens, in slot order."""
    hidden: Array
    """Rows that predict a token."""
    owners: Buffer
    cu_out: Buffer

    @property
    def count(self) -> int:
        return len(self.hidden)


class ChainRunner(Runner):
    """A step, as `execute_model` runs it; what differs by platform is left to subclasses."""

    def __init__(self, scene: Scene, lockstep: Lockstep) -> None:
        super().__init__(scene, lockstep)
        self.receive: Callable[[], Any] | None = None
        """Reads the message of a step: stop flag, counts and tokens by slot."""
        self.draft_runner = DraftRunner(self, self.propose_substep) if scene.method == "mtp" else None

    # ---- what differs by platform

    def target_rows(self) -> Rows:
        """Pack the tokens, run the target, pick the rows, with drafts."""
        raise NotImplementedError

    def plain_rows(self) -> Array:
        """The same without drafts: a row a slot."""
        raise NotImplementedError

    def penalise(self, logits: Buffer, rows: Rows) -> None:
        raise NotImplementedError

    def plain_penalise(self, logits: Buffer) -> None:
        raise NotImplementedError

    def sampling_params(self, rows: Rows) -> None:
        """Parameters by row; the seeds advance."""
        raise NotImplementedError

    def take_one(self, tokens: Array, rows: Rows) -> None:
        """Each slot's newest token is its only one."""
        raise NotImplementedError

    def update_status(self) -> None:
        raise NotImplementedError

    def propose(self, all_hidden: Buffer) -> None:
        raise NotImplementedError

    def propose_substep(self, drafter: DraftRunner, substep: int, hidden: Array) -> Array:
        """One token of the draft model a slot; the hidden rows that feed the next substep."""
        raise NotImplementedError

    # ---- the step

    def insert(self, slot: int, request: Request, start: int, count: int) -> None:
        super().insert(slot, request, start, count)
        if self.draft_runner is not None:
            self.draft_runner.insert(slot, request, start, count)

    def step(self) -> dict[int, list[int]]:
        self._recover()
        if not self.lens.array.any():
            return {}
        return self._speculative_step() if self.scene.method else self._plain_step()

    def given(self, *names: str) -> list[Buffer]:
        """Buffers of `share_inputs`; lengths are cut to the slots in use."""
        return [self.lens if name == "seq_lens_this_time" else self.share[name] for name in names]

    def _recover(self) -> None:
        scene, drafts = self.scene, ("draft_tokens", "step_draft_tokens", "step_seq_lens_this_time")
        lens = (self.share[f"seq_lens_{name}"] for name in ("this_time", "encoder", "decoder"))
        self.ops.fastdeploy(
            "recover_decode_task", self.share["stop_flags"], *lens,
            *self.given("step_seq_lens_decoder", "block_tables", "is_block_step"),
            *(self.given(*drafts) if scene.method else [None] * 3), scene.block_size, scene.drafts,
        )  # fmt: skip

    def _speculative_step(self) -> dict[int, list[int]]:
        scene = self.scene
        rows = self.target_rows()
        logits = Buffer(scene.model.logits(rows.hidden))
        self._sample(logits, rows)
        if scene.logprobs and scene.drafts:
            self._gather_accepted(logits, rows)
        self._limit_and_stop()
        self.update_status()
        gained = self._saved()
        self.save_output(gained)
        self.propose(rows.all_hidden)
        self.ops.fastdeploy(
            "speculate_schedule_cache",
            *self.given(
                "draft_tokens", "block_tables", "stop_flags", "prompt_lens", "seq_lens_this_time", "seq_lens_encoder",
                "seq_lens_decoder", "step_seq_lens_decoder", "step_draft_tokens", "step_seq_lens_this_time",
                "accept_num", "accept_tokens", "is_block_step", "not_need_stop",
            ),
            scene.block_size, scene.drafts,
        )  # fmt: skip
        return gained

    def _saved(self) -> dict[int, list[int]]:
        """What `speculate_save_output` sends: the tokens of slots that have read their whole prompt."""
        tokens, counts = self.array("accept_tokens"), self.array("accept_num")
        dec, prompts = self.array("seq_lens_decoder"), self.array("prompt_lens")
        tokens = tokens.reshape(len(counts), -1)
        return {
            b: tokens[b, : counts[b]].tolist() for b in range(self.in_use) if counts[b] > 0 and dec[b] >= prompts[b]
        }

    def save_output(self, gained: dict[int, list[int]]) -> None:
        """`speculate_save_output`, where messages are read: they say what the step has gained."""
        if self.receive is None:
            return
        preempted = self.share["preempted_idx"]
        names = ("accept_tokens", "accept_num", "not_need_stop", "seq_lens_decoder", "prompt_lens")
        self.ops.run("speculate_save_output", *self.given(*names), preempted, 0, False, False)
        _, counts, tokens = self.receive()
        for b, count in enumerate(counts[: self.in_use]):  # the others are not needed
            wanted = PREEMPTED if preempted.flat[b] == 1 else len(gained.get(b, []))
            assert count == wanted, f"slot {b}: a message of {count} tokens, not of {wanted}"
            assert count <= 0 or tokens[b] == gained[b]
        preempted.array[:] = 0
        preempted.flush()

    # ---- `SpeculativeSampler`

    def _sample(self, logits: Buffer, rows: Rows) -> None:
        scene = self.scene
        self.penalise(logits, rows)
        if scene.reasoning:
            self.ops.run(
                "reasoning_phase_token_constraint", logits,
                *self.given(
                    "token_ids_all", "prompt_lens", "stop_flags", "seq_lens_this_time", "seq_lens_encoder", "step_idx",
                    "reasoning_allowed_tokens", "reasoning_status",
                ),
                rows.owners, rows.cu_out, self.share["enable_thinking"], THINK_END, NEWLINE,
            )  # fmt: skip
        if scene.method == "naive":
            self.take_one(self._next_tokens(logits.array, rows.hidden, rows.owners.array[: rows.count]), rows)
        else:
            self._verify(logits, rows)

    def _verify(self, logits: Buffer, rows: Rows) -> None:
        scene = self.scene
        judged: list[Buffer | None] = [None] * 4
        if scene.strategy == TARGET_MATCH:
            self.sampling_params(rows)
            judged[0] = Buffer(self._drawn(logits.array, rows.hidden, rows.owners.array[: rows.count])[:, None])
        elif scene.strategy == GREEDY:
            judged[0] = Buffer(logits.array.argmax(1))
        else:
            exps = np.exp(logits.array - logits.array.max(1, keepdims=True))
            probs = Buffer((exps / exps.sum(1, keepdims=True)).astype(np.float32))
            scores, ids, lens = self.ops.run(
                "top_p_candidates", probs, self.share["top_p"], rows.owners, scene.candidates, MODEL_LEN
            )
            judged[1:] = [ids, scores, lens]
        self.ops.run(
            "verify_draft_tokens", *self.given("accept_tokens", "accept_num", "draft_tokens"), *judged,
            *self.given(
                "top_p", "stop_flags", "seq_lens_encoder", "seq_lens_this_time", "eos_token_id", "is_block_step"
            ),
            rows.cu_out, *self.given("reasoning_status", "max_dec_len", "step_idx"), MODEL_LEN, scene.window,
            scene.strategy, scene.reject_all, False,
        )  # fmt: skip
        if judged[1] is not None:
            self._check_drawn(judged[1].array, lens.array, rows)

    def _check_drawn(self, candidates: Array, lens: Array, rows: Rows) -> None:
        """Each slot's last token is one of those that top_p allows, or the end token in its place."""
        tokens, counts = self.share["accept_tokens"].array, self.array("accept_num")
        for b in np.flatnonzero(counts):
            row = rows.cu_out.flat[b] + counts[b] - 1
            assert tokens[b, counts[b] - 1] in {*candidates[row, : lens[row]].tolist(), ENDS[0]}

    def _drawn(self, logits: Array, hidden: Array, owners: Array) -> Array:
        """Paddle's sampler, which no backend replaces: by the request's seed and the position."""
        return self.scene.model.drawn(logits, self.seeds[owners], hidden[:, 3].astype(np.int64))

    def _next_tokens(self, logits: Array, hidden: Array, owners: Array) -> Array:
        return self._drawn(logits, hidden, owners) if self.scene.draws else logits.argmax(1)

    def _gather_accepted(self, logits: Buffer, rows: Rows) -> None:
        count = self.in_use * (self.scene.drafts + 1)
        token_ids, packed = np.zeros(count, np.int64), np.zeros((count, logits.array.shape[1]), np.float32)
        self.ops.run(
            "speculate_get_accept_tokens_and_logits", Buffer(token_ids), Buffer(packed), logits,
            self.share["cu_batch_token_offset"], rows.cu_out,
            *self.given("seq_lens_this_time", "seq_lens_encoder", "accept_num", "accept_tokens"),
        )  # fmt: skip

    # ---- `post_process_specualate`

    def _limit_and_stop(self) -> None:
        if self.scene.thinking:
            self.ops.run(
                "speculate_limit_thinking_content_length",
                *self.given(
                    "accept_tokens", "max_think_lens", "max_reply_lens", "step_idx", "limit_think_status", "accept_num",
                    "stop_flags", "eos_token_id", "inject_token_ids",
                ),
                THINK_END, False,
            )  # fmt: skip
        self.ops.run(
            "speculate_set_stop_value_multi_seqs",
            *self.given(
                "accept_tokens", "accept_num", "token_ids_all", "prompt_lens", "step_idx", "stop_flags",
                "seq_lens_this_time", "stop_seqs", "stop_seqs_len", "eos_token_id", "min_dec_len",
            ),
        )  # fmt: skip

    def update(self) -> None:
        """`unified_update_model_status` with 14 arguments."""
        self.ops.run(
            "unified_update_model_status",
            *self.given(
                "seq_lens_encoder", "seq_lens_decoder", "not_need_stop", "draft_tokens", "accept_tokens", "accept_num",
                "stop_flags", "seq_lens_this_time", "is_block_step", "token_ids_all", "prompt_lens", "step_idx",
                "eos_token_id", "max_dec_len",
            ),
        )  # fmt: skip

    # ---- proposers

    def propose_common(self, all_hidden: Buffer) -> None:
        """Those of both platforms."""
        if self.scene.method == "suffix":
            suffix_drafts(self)
        elif self.draft_runner is not None:
            self.draft_runner.run(all_hidden)

    # ---- without drafts: `Sampler`, `post_process_normal`

    def _plain_step(self) -> dict[int, list[int]]:
        hidden = self.plain_rows()
        logits = Buffer(self.scene.model.logits(hidden))
        self.plain_penalise(logits)
        drawn = self._next_tokens(logits.array, hidden, np.arange(len(hidden)))
        tokens = Buffer(np.where(self.lens.flat > 0, drawn, -1)[:, None])
        if self.scene.thinking:
            state = ("max_think_lens", "max_reply_lens", "step_idx", "limit_think_status", "stop_flags", "eos_token_id")
            self.ops.fastdeploy("limit_thinking_content_length", tokens, *self.given(*state, "inject_token_ids"),
                                THINK_END, False)  # fmt: skip
        texts = ("token_ids_all", "prompt_lens", "step_idx", "max_dec_len", "stop_seqs", "stop_seqs_len")
        ends = self.given("stop_flags", "seq_lens_this_time", "eos_token_id", "next_tokens", *texts)
        self.ops.fastdeploy("set_stop_value_multi_ends", tokens, *ends)
        self.ops.fastdeploy("set_value_by_flags_and_idx", tokens, *self.given("seq_lens_this_time", *texts[:3]))
        read = self.array("seq_lens_decoder")[: self.in_use] + self.lens.flat
        done = read >= self.array("prompt_lens")[: self.in_use]
        gained = {b: [int(token)] for b, token in enumerate(tokens.flat) if token >= 0 and done[b]}
        self.ops.fastdeploy(
            "update_inputs_v1", tokens,
            *self.given(
                "stop_flags", "not_need_stop", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder",
                "step_seq_lens_decoder", "prompt_lens", "input_ids", "block_tables", "next_tokens", "is_block_step",
            ),
            self.scene.block_size,
        )  # fmt: skip
        return gained
