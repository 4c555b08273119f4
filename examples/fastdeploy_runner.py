"""A runner in FastDeploy's vocabulary, `share_inputs`, that decodes the embedded model on the layer's ops alone.

``python examples/fastdeploy_runner.py [backend]`` needs Paddle. Each strategy of FastDeploy's verifier decodes the
prompts of examples/prompts together, and the tokens are those of this project's own runner.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import paddle

import specdec_hal as sd
import specdec_hal_fastdeploy as layer
from specdec_hal.models import load_model, load_tokenizer
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment

ROOT = Path(__file__).parents[1]
TOPP, GREEDY, TARGET_MATCH = 0, 1, 2
STRATEGIES = {"TOPP": TOPP, "GREEDY": GREEDY, "TARGET_MATCH": TARGET_MATCH, "NAIVE": GREEDY}


class Runner:
    """FastDeploy's step, from `speculate_pre_process` to its n-gram proposer, on tensors under FastDeploy's names."""

    def __init__(self, model: Any, slots: int, max_model_len: int, drafts: int, method: str) -> None:
        # As FastDeploy's modules do, once the layer is installed.
        from fastdeploy.model_executor.ops import gpu

        self.ops, self.model, self.slots, self.max_model_len = gpu, model, slots, max_model_len
        self.method, self.drafts = method, 0 if method == "NAIVE" else drafts
        model.allocate(slots, max_model_len)
        n, s, long = slots, self.drafts + 1, max_model_len
        ends = model.config.eos_token_ids
        self.share_inputs = {
            "token_ids_all": paddle.full([n, long], -1, "int64"),
            "input_ids": paddle.zeros([n, long], "int64"),
            "draft_tokens": paddle.full([n, s], -1, "int64"),
            "accept_tokens": paddle.zeros([n, s], "int64"),
            "accept_num": paddle.zeros([n], "int32"),
            "actual_draft_token_num": paddle.full([n], self.drafts, "int32"),
            "seq_lens_this_time": paddle.zeros([n], "int32"),
            "seq_lens_encoder": paddle.zeros([n], "int32"),
            "seq_lens_decoder": paddle.zeros([n], "int32"),
            "stop_flags": paddle.full([n, 1], True, "bool"),
            "is_block_step": paddle.zeros([n], "bool"),
            "not_need_stop": paddle.zeros([1], "bool"),
            "reasoning_status": paddle.zeros([n, 1], "int32"),
            "eos_token_id": paddle.to_tensor(ends, "int64").reshape([-1, 1]),
            "temperature": paddle.ones([n, 1], "float32"),
            "top_p": paddle.full([n, 1], 1e-6, "float32"),
            "bad_tokens": paddle.full([n, 1], -1, "int64"),
            "bad_tokens_len": paddle.ones([n, 1], "int64"),
            **{
                name: paddle.zeros([n, 1], "int64")
                for name in ("prompt_lens", "step_idx", "max_dec_len", "min_dec_len")
            },
            **{name: paddle.zeros([n, 1], "float32") for name in ("frequency_score", "presence_score")},
            "penalty_score": paddle.ones([n, 1], "float32"),
        }

    def insert(self, slot: int, prompt: list[int], max_dec_len: int) -> None:
        """Give a slot a request, as `insert_tasks_v1` does."""
        share, count = self.share_inputs, len(prompt)
        for name in ("token_ids_all", "input_ids"):
            share[name][slot, :count] = paddle.to_tensor(prompt)
        values = {"prompt_lens": count, "step_idx": 0, "max_dec_len": max_dec_len, "stop_flags": False}
        values |= {"seq_lens_this_time": count, "seq_lens_encoder": count, "seq_lens_decoder": 0}
        for name, value in values.items():
            share[name][slot] = value

    def step(self) -> list[list[int]]:
        """Run the model once; the tokens that each slot has gained."""
        share, ops = self.share_inputs, self.ops
        lens = [share[name] for name in ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")]
        tokens = int(lens[0].sum())
        packed = ops.speculate_pre_process(tokens, share["input_ids"], lens[0], share["draft_tokens"], *lens[1:])
        ids, _, cu_seqlens_q, _, cu_seqlens_q_output, batch_id_per_token_output, output_token_num = packed
        hidden = self._forward(ids, cu_seqlens_q)
        row_slots = batch_id_per_token_output[: output_token_num.item()]
        rows = ops.rebuild_padding(
            hidden, cu_seqlens_q, lens[0], lens[2], lens[1], row_slots, cu_seqlens_q_output, None, False
        )
        self._sample(self.model.compute_logits(rows), row_slots, cu_seqlens_q_output)
        ops.unified_update_model_status(
            lens[1], lens[2], share["not_need_stop"], share["draft_tokens"], share["accept_tokens"],
            share["accept_num"], share["stop_flags"], lens[0], share["is_block_step"], share["token_ids_all"],
            share["prompt_lens"], share["step_idx"], share["eos_token_id"], share["max_dec_len"],
        )  # fmt: skip
        gained = [row[:n] for row, n in zip(share["accept_tokens"].tolist(), share["accept_num"].tolist(), strict=True)]
        if self.drafts:
            names = ("token_ids_all", "prompt_lens", "step_idx", "actual_draft_token_num", "draft_tokens")
            ops.ngram_match(*(share[name] for name in names), *lens, share["max_dec_len"], 4, self.drafts)
        return gained

    def _forward(self, ids: Any, cu_seqlens_q: Any) -> Any:
        """Hidden states of the packed tokens."""
        ends, cached = cu_seqlens_q.tolist(), self.share_inputs["seq_lens_decoder"].tolist()
        slots = zip(range(self.slots), ends, ends[1:], cached, strict=False)
        segments = [Segment(b, start, end - start, position) for b, start, end, position in slots if end > start]
        return self.model.forward(ForwardBatch(ids.numpy(), segments))[FINAL_NORM]

    def _sample(self, logits: Any, row_slots: Any, cu_seqlens_q_output: Any) -> None:
        """What `SpeculativeSampler.forward_cuda` does between logits and accepted tokens."""
        share, ops = self.share_inputs, self.ops
        names = ("penalty_score", "frequency_score", "presence_score", "temperature", "bad_tokens", "bad_tokens_len")
        ops.speculate_get_token_penalty_multi_scores(
            share["token_ids_all"], share["prompt_lens"], logits, *(share[name] for name in names), share["step_idx"],
            share["min_dec_len"], share["eos_token_id"], share["seq_lens_this_time"], row_slots, cu_seqlens_q_output,
            self.max_model_len,
        )  # fmt: skip
        probs = paddle.nn.functional.softmax(logits)
        accepted = share["accept_tokens"], share["accept_num"]
        if self.method == "NAIVE":
            drawn = probs.argmax(-1, keepdim=True)
            ops.naive_update_model_status(*accepted, share["seq_lens_this_time"], drawn, cu_seqlens_q_output)
            return
        compared: list[Any] = [probs.argmax(-1), None, None, None]
        if self.method == "TOPP":  # one candidate: with a second one, TOPP may keep drafts that are not the likeliest
            scores, ids, lens = ops.top_p_candidates(probs, share["top_p"], row_slots, 1, self.max_model_len)
            compared = [None, ids, scores, lens]
        names = ("stop_flags", "seq_lens_encoder", "seq_lens_this_time", "eos_token_id", "is_block_step")
        ops.verify_draft_tokens(
            *accepted, share["draft_tokens"], *compared, share["top_p"], *(share[name] for name in names),
            cu_seqlens_q_output, share["reasoning_status"], share["max_dec_len"], share["step_idx"],
            self.max_model_len, 2, STRATEGIES[self.method], False, False,
        )  # fmt: skip

    def run(self, prompts: list[list[int]], max_new_tokens: int) -> tuple[list[list[int]], int]:
        """Decode prompts together, one per slot; returns their tokens and the number of steps.

        FastDeploy replaces the last token of a request by an end token, so one more is requested.
        """
        for slot, prompt in enumerate(prompts):
            self.insert(slot, prompt, max_new_tokens + 1)
        texts: list[list[int]] = [[] for _ in range(self.slots)]
        steps, running = 0, True
        while running:
            for text, gained in zip(texts, self.step(), strict=True):
                text += gained
            steps, running = steps + 1, bool(self.share_inputs["not_need_stop"])
        return [text[:max_new_tokens] for text in texts[: len(prompts)]], steps


def main(backend: str = "reference", max_new_tokens: int = 64) -> bool:
    """Decode with every strategy; whether all tokens are those of this project's runner."""
    report = layer.install(backend, platforms=("gpu",))
    print(f"{len(report.taken['gpu'])} ops served by {backend}: {report.how['gpu']}")
    folder = ROOT / "models/tiny-py-lm"
    model, tokenizer = load_model(folder, "paddle"), load_tokenizer(folder)
    texts = [path.read_text().removesuffix("\n") for path in sorted((ROOT / "examples/prompts").glob("*.txt"))]
    prompts = [tokenizer.encode(text) for text in texts]
    own = sd.load(ROOT / "configs/reference.yaml").naive().runner(model=model, tokenizer=tokenizer)
    for i, prompt in enumerate(prompts):
        own.add_request(sd.Request(str(i), prompt, sd.SamplingParams(max_new_tokens=max_new_tokens)))
    wanted = [own_output.token_ids for _, own_output in sorted(own.run().items(), key=lambda item: int(item[0]))]
    same = True
    try:
        for method in STRATEGIES:
            longest = max(map(len, prompts)) + max_new_tokens + 16
            tokens, steps = Runner(model, len(prompts), longest, 5, method).run(prompts, max_new_tokens)
            equal = tokens == [list(ids) for ids in wanted]
            same = same and equal
            counted = f"{sum(map(len, tokens))} tokens in {steps} steps"
            print(f"{method}: {counted}: {'the tokens of our runner' if equal else 'OTHER TOKENS'}")
    finally:
        layer.uninstall()
    return same


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:2]) else 1)
