"""Whole steps of FastDeploy's XPU runner on a toy model, whose hidden rows say which token at which position they are.

As in FastDeploy, what an op returns is used, also of ops that work in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from tests.fastdeploy.batches import tensor, tensors, values
from tests.fastdeploy.kernels_rows import INFER_LISTS

pytestmark = pytest.mark.parametrize("layer", ["reference", "cpu", "xpu_sim"], indirect=True)

SLOTS, WIDTH, LENGTH, VOCABULARY = 4, 2, 32, 23
END, FORBIDDEN = VOCABULARY - 1, 5
PROMPTS = ([3, 1, 4], [2], [7, 1, 8, 2, 8], [6, 6])
NEW, ARRIVALS = 9, (0, 2, 1, 3)
"""Tokens of each text, and the step in which it comes: prompts are fed beside texts that go on."""


def next_token(token: int, position: int) -> int:
    """The rule of the target model."""
    drawn = (3 * token + position) % (VOCABULARY - 2)
    return drawn + 1 if drawn == FORBIDDEN else drawn


def text_of(prompt: list[int]) -> list[int]:
    text = list(prompt)
    while len(text) < len(prompt) + NEW:
        text.append(next_token(text[-1], len(text) - 1))
    return text


def logits_of(rows: Any) -> Any:
    """The rule's token first, without regard to the forbidden one, and the others in order after it."""
    first = (3 * rows[:, :1] + rows[:, 1:]) % (VOCABULARY - 2)
    behind = (np.arange(VOCABULARY, dtype=np.float32) - values(first)) % (VOCABULARY - 2)
    behind[:, VOCABULARY - 2 :] = 99
    return tensor(-behind)


class Chain:
    """Buffers of all slots under FastDeploy's names, and what both runners do around the model."""

    def __init__(self, ops: Any) -> None:
        self.ops, self.step = ops, 0
        n = SLOTS
        self.t: dict[str, Any] = {
            "stop_flags": tensor(np.full((n, 1), True)), "not_need_stop": tensor(np.zeros(1, bool)),
            "input_ids": tensor(np.zeros((n, LENGTH), np.int64)), "end_tokens": tensor(np.array([[END]])),
            "draft_tokens": tensor(np.full((n, WIDTH), -1)), "accept_tokens": tensor(np.full((n, WIDTH), -1)),
            "is_block_step": tensor(np.zeros(n, bool)), "limit": tensor(np.full((n, 1), NEW)),
            "reasoning_status": tensor(np.zeros(n, np.int32)),
        }  # fmt: skip
        self.t |= {name: tensor(np.full((n, LENGTH), -1)) for name in ("text", "pre_ids")}
        self.t |= {name: tensor(np.zeros(n, np.int32)) for name in ("tt", "enc", "dec", "accept_num")}
        self.t |= {name: tensor(np.zeros((n, 1), np.int64)) for name in ("prompt_lens", "step_idx", "none")}

    def get(self, *names: str) -> list[Any]:
        return [self.t[name] for name in names]

    def write(self, name: str, at: Any, value: Any) -> None:
        """The host's write to a buffer, which stays where it is."""
        array = values(self.t[name]).copy()
        array[at] = value
        paddle.assign(tensor(array), self.t[name])

    def insert(self) -> None:
        """What has arrived at this step."""
        for slot, (prompt, arrival) in enumerate(zip(PROMPTS, ARRIVALS, strict=True)):
            if arrival == self.step:
                self.begin(slot, prompt)
        self.step += 1

    def begin(self, slot: int, prompt: list[int]) -> None:
        size = len(prompt)
        for name in ("input_ids", "text"):
            self.write(name, (slot, slice(size)), prompt)
        for name, value in {"enc": size, "tt": size, "prompt_lens": size, "stop_flags": False}.items():
            self.write(name, slot, value)

    def adjusted(self, ids: Any, lens: Any, enc: Any, dec: Any) -> tuple[Any, list[Any]]:
        """The batch with prompts first, [T, 2] of tokens and positions, and its description for `gather_next_token`."""
        sizes = [SLOTS + name.endswith("lod") for name in INFER_LISTS]
        on_device, on_host = ([tensor(np.zeros(n, np.int32)) for n in sizes] for _ in range(2))
        tables = tensors(*[np.zeros((SLOTS, 4), np.int32)] * 2)
        info = tensor(np.zeros(7, np.int32))
        self.ops.get_infer_param(enc, dec, lens, tables[0], *on_device, tables[1], *on_host, info, 16, WIDTH - 1)

        def lod(which: str) -> list[Any]:
            names = ("encoder_seq_lod", "decoder_seq_lod", f"encoder_batch_{which}", f"decoder_batch_{which}")
            return [place[INFER_LISTS.index(name)] for place in (on_device, on_host) for name in names] + [info]

        positions = np.concatenate([np.arange(n) + d for n, d in zip(values(lens), values(dec), strict=True)])
        columns = [self.ops.adjust_batch(column.reshape([-1, 1]), *lod("idx"), None, -1)
                   for column in (ids, tensor(positions))]  # fmt: skip
        return paddle.concat(columns, 1).astype("float32"), lod("map")

    def penalties(self, logits: Any, *rows: Any) -> Any:
        """Neutral ones, with a forbidden token."""
        op = self.ops.speculate_get_token_penalty_multi_scores if rows else self.ops.get_token_penalty_multi_scores
        one = np.ones((SLOTS, 1), np.float32)
        scores = tensors(one, 0 * one, 0 * one, one, np.array([[FORBIDDEN]]))
        more = self.get("step_idx", "none", "end_tokens")
        return paddle.nn.functional.softmax(op(self.t["pre_ids"], logits, *scores, *more, *rows))

    def texts(self) -> list[list[int]]:
        return [values(self.t["text"])[b, : len(p) + NEW].tolist() for b, p in enumerate(PROMPTS)]


def test_without_drafts(xpu: Any) -> None:
    chain = Chain(xpu)
    for _ in range(NEW + max(ARRIVALS)):
        chain.insert()
        tt, enc, dec = chain.get("tt", "enc", "dec")
        ids, *_ = xpu.get_padding_offset(chain.t["input_ids"], tt, None, None, int(values(tt).sum()))
        hidden, maps = chain.adjusted(ids, tt, enc, dec)
        probs = chain.penalties(logits_of(xpu.gather_next_token(hidden, *maps, False, SLOTS)))
        tokens = values(probs.argmax(1))
        for b in np.flatnonzero(values(tt)).tolist():  # FastDeploy's own update
            step = int(values(chain.t["step_idx"])[b, 0]) + 1
            cached = int(values(dec)[b] + values(tt)[b])
            chain.write("text", (b, len(PROMPTS[b]) + step - 1), tokens[b])
            chain.write("pre_ids", (b, step), tokens[b])
            chain.write("input_ids", (b, 0), tokens[b])
            ended = {"step_idx": step, "enc": 0, "dec": 0, "tt": 0, "stop_flags": True}
            going = {"step_idx": step, "enc": 0, "dec": cached, "tt": 1}
            for name, value in (ended if step == NEW else going).items():
                chain.write(name, b, value)
    assert chain.texts() == [text_of(prompt) for prompt in PROMPTS]


class Drafting(Chain):
    """Steps of a target whose drafts come from a model that reads the target's hidden rows."""

    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        own = ("stop_flags", "input_ids", "draft_tokens", "pre_ids", "tt", "enc", "dec", "step_idx", "not_need_stop")
        self.m = {name: tensor(values(self.t[name])) for name in own}
        self.accepted = 0

    def begin(self, slot: int, prompt: list[int]) -> None:
        super().begin(slot, prompt)
        of_target = self.t
        self.t = self.m  # its prompt is the target's without the first token; the last cell comes with it
        self.write("input_ids", (slot, slice(len(prompt) - 1)), prompt[1:])
        for name, value in {"enc": len(prompt), "tt": len(prompt), "dec": 0, "stop_flags": False}.items():
            self.write(name, slot, value)
        self.t = of_target

    def run_target(self) -> Any:
        """Verify, advance the slots, and give the hidden rows."""
        ops, (tt, enc, dec) = self.ops, self.get("tt", "enc", "dec")
        given = (int(values(tt).sum()), *self.get("input_ids", "tt", "draft_tokens", "enc", "dec"))
        ids, _, _, _, cu_out, row_slots, rows = ops.speculate_pre_process(*given)
        hidden, maps = self.adjusted(ids, tt, enc, dec)
        logits = logits_of(ops.gather_next_token(hidden, *maps, True, -1))
        probs = self.penalties(logits, tt, row_slots[: rows.item()], cu_out, LENGTH)
        targets = [probs.argmax(1), None, None, None]
        one = tensor(np.ones((SLOTS, 1), np.float32))
        state = self.get("stop_flags", "enc", "tt", "end_tokens", "is_block_step")
        limits = self.get("reasoning_status", "limit", "step_idx")
        tokens, num = ops.verify_draft_tokens(
            *self.get("accept_tokens", "accept_num", "draft_tokens"), *targets, one, *state, cu_out, *limits,
            LENGTH, 2, 1, False, False,
        )  # fmt: skip
        self.accepted += int((values(num) - (values(num) > 0)).sum())
        ops.unified_update_model_status(
            enc, dec, *self.get("not_need_stop", "draft_tokens"), tokens, num, *self.get("stop_flags", "tt"),
            *self.get("is_block_step", "text", "prompt_lens", "step_idx", "end_tokens", "limit"),
        )  # fmt: skip
        history = ops.speculate_set_value_by_flags_and_idx(
            self.t["pre_ids"], tokens, num, *self.get("stop_flags", "tt", "enc", "dec", "step_idx")
        )
        assert history is self.t["pre_ids"]
        return hidden

    def draft(self, hidden: Any, ran: Any) -> None:
        """One draft of each slot, by a model that errs at every third position."""
        ops, m = self.ops, self.m
        own = [m[name] for name in ("draft_tokens", "input_ids", "stop_flags", "tt", "enc", "dec", "step_idx")]
        own += [m["not_need_stop"], m["pre_ids"]]
        ops.draft_model_preprocess(
            *own, *self.get("accept_tokens", "accept_num", "enc", "dec", "step_idx", "stop_flags", "limit"),
            self.t["draft_tokens"], 1, False,
        )  # fmt: skip
        slots = [m[name] for name in ("tt", "enc", "dec", "stop_flags")]
        fed = ops.eagle_get_hidden_states(hidden, *slots, self.t["accept_num"], ran, self.t["enc"], 1)
        given = [m[name] for name in ("input_ids", "tt", "draft_tokens", "enc", "dec")]
        ids, _, _, _, cu_out, _, _ = ops.speculate_pre_process(int(values(m["tt"]).sum()), *given)
        rows, maps = self.adjusted(ids, m["tt"], m["enc"], m["dec"])
        assert values(fed)[:, 1].tolist() == values(rows)[:, 1].tolist(), "each token beside the row before it"
        if rows.shape[0]:
            last = values(ops.gather_next_token(rows, *maps, True, -1)).astype(int)
            drawn = [next_token(token, at + 1) if at % 3 else 0 for token, at in last.tolist()]
            more = [m[name] for name in ("draft_tokens", "pre_ids", "tt", "enc", "dec", "step_idx")]
            ops.draft_model_update(
                tensor(np.array(drawn)), *more, cu_out, m["stop_flags"], m["not_need_stop"],
                *self.get("limit", "end_tokens", "draft_tokens"), LENGTH, 0,
            )  # fmt: skip
        ops.draft_model_postprocess(*self.get("draft_tokens", "tt", "enc", "stop_flags"))


def test_drafts_of_a_model_in_mixed_batches(xpu: Any) -> None:
    chain, steps = Drafting(xpu), 0
    while steps < 40 and (steps <= max(ARRIVALS) or values(chain.t["not_need_stop"])[0]):
        chain.insert()
        ran = chain.t["tt"].clone()
        hidden = chain.run_target()
        chain.draft(hidden, ran)
        steps += 1
    assert chain.texts() == [[*text_of(prompt)[:-1], END] for prompt in PROMPTS], "at the limit, an end token"
    assert chain.accepted >= 8 and steps < NEW + max(ARRIVALS), "drafts are accepted"
