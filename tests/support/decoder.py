"""A decode loop over nothing but ops, around a model made of a hash: what a runner does, in a page."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from specdec_hal.ops import OPS, Strategy
from specdec_hal.ops.vocabulary import tensor
from tests.support.running import BACKEND

V, L, E = 12, 48, 1


def hash_model(text: list[int]) -> np.ndarray:
    """Logits after a text: they depend on its last two tokens, so that texts repeat themselves."""
    return np.random.default_rng(zlib.crc32(bytes(t % 251 for t in text[-2:]))).normal(size=V).astype(np.float32) * 2


class Decoder:
    """Requests in slots, from prompt to end. `propose(decoder)` sets drafts and seq_lens_this_time of decode slots."""

    def __init__(self, prompts: list[list[int]], k: int, propose: Callable[[Decoder], None], **options: Any) -> None:
        m = len(prompts) + 1  # one slot of padding
        size = {"M": m, "B": len(prompts), "S": k + 1, "L": L, "V": V, "E": E, "W": 1, "I_cap": L}
        size |= {"T_cap": m * L, "R_cap": m * (k + 1), "A_cap": m * (k + 1)}
        self.size, self.propose, self.options = size, propose, options
        self.chunk = options.pop("chunk", L)
        self.prompts = prompts
        self.emitted: list[list[int]] = [[] for _ in prompts]
        self.cache: list[list[int]] = [[] for _ in prompts]  # what a KV cache would hold
        self.steps = 0
        names = {operand.name for op in OPS.values() for operand in op.operands}
        self.state = {
            name: np.zeros([d.value(size) for d in tensor(name).dims], tensor(name).dtypes[0])
            for name in names
            if all(d.symbol is None or d.symbol in size for d in tensor(name).dims)
        }
        s = self.state
        s["repetition"][:] = s["top_p"][:] = 1
        s["max_dec_len"][:] = 24
        s["bad_tokens"][:] = -1
        s["draft_token_num"][:] = k
        s["seed"][:] = np.arange(m) * 7919 - 3
        for name in options.keys() & s.keys():
            s[name][:] = options.pop(name)
        for b, prompt in enumerate(prompts):
            s["prompt_lens"][b] = len(prompt)
            s["token_ids_all"][b, : len(prompt)] = prompt
            self._next_chunk(b)

    def _next_chunk(self, b: int) -> None:
        done = int(self.state["seq_lens_decoder"][b])
        chunk = self.prompts[b][done : done + self.chunk]
        self.state["input_ids"][b, : len(chunk)] = chunk
        self.state["seq_lens_encoder"][b] = self.state["seq_lens_this_time"][b] = len(chunk)

    def call(self, op: str, **attrs: Any) -> None:
        """Run an op on the state's tensors."""
        tensors = {name: self.state[name] for name in OPS[op].by_name if name in self.state}
        for operand in OPS[op].operands:
            if operand.when is not None and not operand.wanted(attrs):
                tensors.pop(operand.name, None)
        getattr(BACKEND, op)(**tensors, **attrs)

    def step(self) -> bool:
        """One step of the unified path; whether any slot still runs."""
        s = self.state
        self.call("prepare_inputs")
        before = s["seq_lens_decoder"].copy()
        s["logits"][:] = 0
        for t, b in enumerate(s["batch_id_per_token"][: int(s["num_tokens"][0])]):
            position = int(before[b]) + t - int(s["cu_seqlens_q"][b])
            assert position <= len(self.cache[b]), "a hole in the KV cache"
            self.cache[b][position:] = [int(s["ids_remove_padding"][t])]
            i = position - int(before[b])
            last = i == int(s["seq_lens_this_time"][b]) - 1
            if s["seq_lens_encoder"][b] == 0 or last:
                row = int(s["cu_seqlens_q_output"][b]) + (0 if s["seq_lens_encoder"][b] > 0 else i)
                s["logits"][row] = hash_model(self.cache[b])
        self.call("apply_penalties")
        self.call("build_sampling_params")
        self.call("sample_target")
        self.call("verify_draft_tokens", strategy=Strategy.TARGET_MATCH, **self.options)
        self.call("update_model_status")
        for b, tokens in enumerate(self.emitted):
            tokens += s["accept_tokens"][b, : s["accept_num"][b]].tolist()
            if s["stop_flags"][b]:
                s["seq_lens_decoder"][b] = s["seq_lens_this_time"][b] = 0
            elif s["seq_lens_decoder"][b] < s["prompt_lens"][b]:
                self._next_chunk(b)
        self.propose(self)
        self.steps += 1
        return bool(s["has_running"][0])

    def run(self) -> list[list[int]]:
        """All tokens of all requests."""
        while self.step():
            assert self.steps < 1000
        return self.emitted
