"""DFlash drafters: written in both formats, and computed slot by slot in float64 without a cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.drafters import Doubles, Head, look_back, random_tensors


@dataclass
class Drafter:
    """Sizes and tensors; `taps`: residuals after this many layers of the target."""

    vocab_size: int
    hidden_size: int
    taps: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 6
    intermediate_size: int = 20
    layers: int = 2
    block_size: int = 5
    mask: int = 1
    rope_theta: float = 10000.0
    eps: float = 1e-6
    draft_vocab_size: int | None = None
    window: int = 0
    """Of the first layer; 0: none."""
    causal: bool = True
    """Whether rows of a block in that layer do not see those after them."""
    anchored: bool = False
    """Whether the window counts from the block's first row, as in `speculators`, which the format must say."""
    markov: dict[str, Any] = field(default_factory=dict)
    """Of DSpark: what stands in its config.json."""
    domino: dict[str, Any] = field(default_factory=dict)
    """Of Domino: the same."""
    second: dict[str, Any] = field(default_factory=dict)
    """Of DFlash 2: the same."""
    xpress: dict[str, Any] = field(default_factory=dict)
    """Of XPress: the same."""
    tensors: dict[str, Doubles] = field(default_factory=dict)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, ffn, q, kv = (
            self.hidden_size, self.intermediate_size, self.heads * self.head_dim, self.kv_heads * self.head_dim,
        )  # fmt: skip
        found: dict[str, tuple[int, ...]] = {
            "fc.weight": (d, len(self.taps) * d), "hidden_norm.weight": (d,), "norm.weight": (d,)
        }  # fmt: skip
        for i in range(self.layers):
            for name, shape in {
                "input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_proj": (q, d),
                "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q),
                "self_attn.q_norm": (self.head_dim,), "self_attn.k_norm": (self.head_dim,),
                "mlp.gate_proj": (ffn, d), "mlp.up_proj": (ffn, d), "mlp.down_proj": (d, ffn),
            }.items():  # fmt: skip
                found[f"layers.{i}.{name}.weight"] = shape
        if self.markov:
            rank, kind = self.markov["markov_rank"], self.markov.get("markov_head_type")
            vocabulary = self.draft_vocab_size or self.vocab_size
            found |= {"markov_head.markov_w1.weight": (self.vocab_size, rank)}
            found |= {"markov_head.markov_w2.weight": (vocabulary, rank)}
            for name, out, width in (("gate", rank, d + rank), ("joint", 3 * rank, d + 2 * rank)):
                if kind == {"gate": "gated", "joint": "rnn"}[name]:
                    found |= {f"markov_head.{name}_proj.weight": (out, width), f"markov_head.{name}_proj.bias": (out,)}
            if self.markov.get("enable_confidence_head"):
                width = d + rank * self.markov.get("confidence_head_with_markov", False)
                found |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
        if self.domino:
            emb, hidden = self.domino["emb_dim"], self.domino["gru_hidden_dim"]
            found |= {"prefix_gru.weight_ih_l0": (3 * hidden, d), "prefix_gru.weight_hh_l0": (3 * hidden, hidden)}
            found |= {"embed_proj.0.weight": (emb, d + hidden), "embed_proj.2.weight": (self.vocab_size, emb)}
        if rank := self.xpress.get("xpress_rank"):
            wide = rank * self.xpress["xpress_mlp_ratio"]
            for name, out, width in (("token_embed", self.vocab_size, rank), ("down_h", rank, d), ("down_g", rank, d),
                                     ("in_proj", rank, 3 * rank), ("mlp_gate", wide, rank), ("mlp_up", wide, rank),
                                     ("mlp_down", rank, wide)):  # fmt: skip
                found[f"refiner_head.{name}.weight"] = (out, width)
            found["refiner_head.mix_l"] = (rank, self.block_size, self.block_size)
            found["refiner_head.readout.weight"] = (self.draft_vocab_size or self.vocab_size, rank)
        if taps := self.second.get("conv_kernel_size"):
            groups = d // self.second["conv_group_size"]
            for name in [f"layers.{i}.{part}_conv" for i in range(self.layers) for part in ("attention", "mlp")]:
                found[f"{name}.base_kernel"] = (2, taps, d)
                found[f"{name}.kernel_projection.weight"] = (2 * taps * groups, d)
        if rank := self.second.get("selector_rank"):
            for name in ("predecessor_codebook", "successor_codebook"):
                found[f"candidate_selector.{name}"] = (self.vocab_size, rank)
            found["candidate_selector.hidden_projection.weight"] = (rank, d)
        if self.draft_vocab_size is not None:
            found |= {"lm_head.weight": (self.draft_vocab_size, d), "embed_tokens.weight": (self.vocab_size, d)}
        return found

    def randomize(self, seed: int) -> Drafter:
        self.tensors |= random_tensors(self.shapes(), self.vocab_size, self.draft_vocab_size, seed)
        return self

    # ---- as files

    def _layer_config(self) -> dict[str, Any]:
        windows = {"layer_types": ["sliding_attention", *["full_attention"] * (self.layers - 1)]}
        windows |= {"sliding_window": self.window, "use_sliding_window": True}  # type: ignore[dict-item]
        found = {
            "model_type": "qwen3", "vocab_size": self.vocab_size, "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "rms_norm_eps": self.eps, "rope_theta": self.rope_theta, "hidden_act": "silu", "attention_bias": False,
            "layer_types": ["full_attention"] * self.layers, "max_position_embeddings": 64, "use_sliding_window": False,
            "sliding_window": 4096, "tie_word_embeddings": False,
        }  # fmt: skip
        return found | (windows if self.window else {})

    def write_zlab(
        self, folder: Path, target_layers: int, nested: dict[str, Any] | None = None, **changes: Any
    ) -> Path:
        """z-lab's format: outputs of layers. `nested`, `changes`: keys of dflash_config, and beside it."""
        own = {"mask_token_id": self.mask, "target_layer_ids": [tap - 1 for tap in self.taps], **self.second}
        own |= {"projector_type": "domino", **self.domino} if self.domino else {}
        raw = {
            "architectures": ["DFlash2DraftModel" if self.second else "DFlashDraftModel"], **self._layer_config(),
            "block_size": self.block_size, "num_target_layers": target_layers,
            "dflash_config": {**own, **(nested or {})}, **({} if self.causal else {"is_causal": False}),
        }  # fmt: skip
        return self._write(folder, {**raw, **changes})

    def write_speculators(self, folder: Path, **changes: Any) -> Path:
        """The format of `speculators`: residuals after this many layers."""
        raw = {
            "architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash", "speculators_version": "0.5.0",
            "transformer_layer_config": self._layer_config(), "draft_vocab_size": self.draft_vocab_size,
            "block_size": self.block_size, "aux_hidden_state_layer_ids": list(self.taps), "mask_token_id": self.mask,
            "sliding_window_non_causal": not self.causal, "sample_from_anchor": False,
        }  # fmt: skip
        if self.markov:
            raw |= {"architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark", **self.markov}
        if self.second:
            raw |= {"architectures": ["DFlash2DraftModel"], "speculators_model_type": "dflash2", **self.second}
        if self.xpress:
            raw |= {"architectures": ["XPressSpeculator"], "speculators_model_type": "xpress", **self.xpress}
        return self._write(folder, {**raw, **changes})

    def _write(self, folder: Path, raw: dict[str, Any]) -> Path:
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(raw))
        tensors = {k: v.astype(np.int64 if k == "d2t" else np.float32) for k, v in self.tensors.items()}
        save_file(tensors, folder / "model.safetensors")
        return folder

    # ---- computed

    def select(self, features: Doubles, token: int, drafts: int, embedding: Doubles, head: Doubles) -> list[int]:
        """Greedy drafts of DFlash 2, each after the previous one. Arguments as `logits`."""
        w, named, ids = self.tensors, "candidate_selector.", list[int]()
        base, rows = self.logits(features, token, drafts, embedding, head, with_rows=True)
        for logits, h in zip(base * self.second.get("output_multiplier", 1.0), rows, strict=True):
            cap = self.second.get("final_logit_softcapping")
            capped = cap * np.tanh(logits / cap) if cap else logits
            best = sorted(range(self.vocab_size), key=lambda i: (-capped[i], i))[: self.second["selector_top_k"]]
            before = w[f"{named}predecessor_codebook"][ids[-1] if ids else token]
            context = before * (w[f"{named}hidden_projection.weight"] @ h)
            ids.append(max(best, key=lambda i: capped[i] + context @ w[f"{named}successor_codebook"][i]))
        return ids

    def corrected(self, features: Doubles, token: int, drafts: int, embedding: Doubles, head: Doubles) -> list[int]:
        """Greedy drafts of Domino, each after the previous one. Arguments as `logits`."""
        w, ids, state = self.tensors, list[int](), np.zeros(self.domino["gru_hidden_dim"])
        shifted = self.domino.get("shift_label", False)
        base, rows = self.logits(features, token, drafts, embedding, head, shifted, with_rows=True)
        for i, (logits, h) in enumerate(zip(base, rows, strict=True)):
            given = np.split(w["prefix_gru.weight_ih_l0"] @ embedding[ids[-1] if ids else token], 3)
            own = np.split(w["prefix_gru.weight_hh_l0"] @ state, 3)
            reset, keep = _sigmoid(given[0] + own[0]), _sigmoid(given[1] + own[1])
            state = (1 - keep) * np.tanh(given[2] + reset * own[2]) + keep * state
            x = w["embed_proj.0.weight"] @ np.concatenate([h, state])
            added = w["embed_proj.2.weight"] @ (x * _sigmoid(x))
            ids.append(int((logits + added * (i >= self.domino["pure_draft_prefix_len"])).argmax()))
        return ids

    def refined(self, features: Doubles, text: list[int], drafts: int, embedding: Doubles, head: Doubles) -> list[int]:
        """Greedy drafts of XPress after a text, each after the previous one. Other arguments as `logits`."""
        w, ids = {name.removeprefix("refiner_head."): x for name, x in self.tensors.items()}, list[int]()
        shift = not self.xpress.get("sample_from_anchor", False)  # slot 0 gives no draft
        base, rows = self.logits(features, text[-1], drafts + shift, embedding, head, True, with_rows=True)
        inputs = list[Doubles]()
        for i, h in enumerate(rows):
            token = ids[-1] if ids else text[-1 if i == shift or len(text) < 3 else -2]
            parts = w["down_h.weight"] @ h, w["down_g.weight"] @ rows.mean(0), w["token_embed.weight"][token]
            inputs.append(w["in_proj.weight"] @ np.concatenate(parts))
            x = inputs[i] + sum(w["mix_l"][:, i, j] * a for j, a in enumerate(inputs))
            gate = w["mlp_gate.weight"] @ x
            x = x + w["mlp_down.weight"] @ (gate * _sigmoid(gate) * (w["mlp_up.weight"] @ x))
            if i >= shift:
                logits = base[i].copy()
                logits[self.ids] += w["readout.weight"] @ x
                ids.append(int(logits.argmax()))
        return ids

    def _convolved(self, name: str, side: int, y: Doubles, n: Doubles) -> Doubles:
        """A convolution of a block's rows, before (0) or after (1) a sublayer; n decides on the kernels."""
        taps = self.second.get("conv_kernel_size", 0)
        if not taps:
            return y
        kernels = (n @ self.tensors[f"{name}.kernel_projection.weight"].T).reshape(len(n), 2, taps, -1)[:, side]
        base, group, out = self.tensors[f"{name}.base_kernel"][side], self.second["conv_group_size"], np.zeros_like(y)
        for i in range(len(y)):
            for t in range(min(taps, i + 1)):
                out[i] += (base[t] + np.repeat(kernels[i, t], group)) * y[i - t]
        return out

    def chain(self, features: Doubles, token: int, drafts: int, embedding: Doubles, head: Doubles) -> Any:
        """Greedy drafts of DSpark, each after the previous one, and their confidences. Arguments as `logits`."""
        w, ids, found = self.tensors, list[int](), list[float]()
        skipped = not self.markov.get("sample_from_anchor", True)  # slot 0 gives no draft
        base, rows = self.logits(features, token, drafts + skipped, embedding, head, True, with_rows=True)
        kind, memory = self.markov.get("markov_head_type"), np.zeros(self.markov["markov_rank"])
        for i, h in enumerate(rows):
            e = w["markov_head.markov_w1.weight"][ids[-1] if ids else token]
            m = e
            if kind == "gated":
                m = e * _sigmoid(self._linear("markov_head.gate_proj", h, e))
            elif kind == "rnn":
                gate, fresh, out = np.split(self._linear("markov_head.joint_proj", memory, e, h), 3)
                memory = _sigmoid(gate) * memory + (1 - _sigmoid(gate)) * np.tanh(fresh)
                m = np.tanh(out)
            if skipped and i == 0:
                continue
            logits = base[i].copy()
            logits[self.ids] += w["markov_head.markov_w2.weight"] @ m
            ids.append(int(logits.argmax()))
            if self.markov.get("enable_confidence_head"):
                both = (h, e) if self.markov.get("confidence_head_with_markov") else (h,)
                found.append(float(_sigmoid(self._linear("confidence_head.proj", *both))[0]))
        return ids, found

    def _linear(self, name: str, *parts: Doubles) -> Doubles:
        return self.tensors[f"{name}.weight"] @ np.concatenate(parts) + self.tensors[f"{name}.bias"]

    @property
    def ids(self) -> Any:
        """The target's id of each draft id."""
        offsets: Any = self.tensors.get("d2t", 0)
        return np.arange(self.draft_vocab_size or self.vocab_size) + np.asarray(offsets, np.int64)

    def logits(
        self, features: Doubles, token: int, drafts: int, embedding: Doubles, head: Doubles, from_anchor: bool = False,
        with_rows: bool = False,
    ) -> Any:  # fmt: skip
        """[drafts, V], after features [P, F] of the text and the token at P. `embedding`, `head`: the target's.

        `from_anchor`: a draft in every row; `with_rows`: the rows [drafts, D] too.
        """
        w, own = self.tensors, self.draft_vocab_size is not None
        context = self._norm(features @ w["fc.weight"].T, "hidden_norm")
        start = len(context)
        x = (w["embed_tokens.weight"] if own else embedding)[[token, *[self.mask] * (drafts - from_anchor)]]
        x = x * self.second.get("input_embedding_scale", 1.0)
        for i in range(self.layers):
            layer = f"layers.{i}"
            normed = self._norm(x, f"{layer}.input_layernorm")
            n = self._convolved(f"{layer}.attention_conv", 0, normed, normed)
            rows = np.concatenate([context, n])
            out = np.zeros((len(x), self.heads * self.head_dim))
            for h in range(self.heads):
                mine, group = self._slice(h), self._slice(h // (self.heads // self.kv_heads))
                a = f"{layer}.self_attn"
                keys = [
                    self._turned(self._norm(row @ w[f"{a}.k_proj.weight"][group].T, f"{a}.k_norm"), position)
                    for position, row in enumerate(rows)
                ]
                values = rows @ w[f"{a}.v_proj.weight"][group].T
                for slot in range(len(x)):
                    query = self._norm(n[slot] @ w[f"{a}.q_proj.weight"][mine].T, f"{a}.q_norm")
                    query = self._turned(query, start + slot)
                    shares = np.exp(np.array([query @ key for key in keys]) / np.sqrt(self.head_dim))
                    if self.window and i == 0:
                        shares *= self._seen(start, start + slot, len(keys))
                    out[slot, mine] = shares / shares.sum() @ values
            y = out @ w[f"{layer}.self_attn.o_proj.weight"].T
            x = x + self._convolved(f"{layer}.attention_conv", 1, y, normed)
            normed = self._norm(x, f"{layer}.post_attention_layernorm")
            n = self._convolved(f"{layer}.mlp_conv", 0, normed, normed)
            gate = n @ w[f"{layer}.mlp.gate_proj.weight"].T
            y = (gate / (1 + np.exp(-gate)) * (n @ w[f"{layer}.mlp.up_proj.weight"].T)) @ w[
                f"{layer}.mlp.down_proj.weight"
            ].T
            x = x + self._convolved(f"{layer}.mlp_conv", 1, y, normed)
        normed = self._norm(x if from_anchor else x[1:], "norm")
        found = np.full((drafts, self.vocab_size), -np.inf)
        found[:, self.ids] = normed @ (w["lm_head.weight"] if own else head).T
        return (found, normed) if with_rows else found

    def _seen(self, start: int, at: int, context: int) -> Any:
        """Which positions the first layer's query at `at` sees, of a block from `start` on."""
        position = np.arange(context)
        before = position >= start - self.window if self.anchored else position > at - self.window
        after = position <= at if self.causal else (position < at + self.window) | self.anchored
        return before & after

    def _slice(self, head: int) -> slice:
        return slice(head * self.head_dim, (head + 1) * self.head_dim)

    def _norm(self, x: Doubles, name: str) -> Doubles:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * self.tensors[f"{name}.weight"]

    def _turned(self, x: Doubles, position: int) -> Doubles:
        half = self.head_dim // 2
        angle = position * self.rope_theta ** (-np.arange(half) / half)
        return np.concatenate(
            [x[:half] * np.cos(angle) - x[half:] * np.sin(angle), x[half:] * np.cos(angle) + x[:half] * np.sin(angle)]
        )


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def perfect_second(head: Head, drafts: int) -> Drafter:
    """The same as `perfect` by DFlash 2, whose convolutions and selector change nothing."""
    made = perfect(head, drafts)
    made.draft_vocab_size = None
    made.second = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 3, "selector_top_k": 2}
    for name, shape in made.shapes().items():
        if name not in made.tensors:
            made.tensors[name] = np.zeros(shape)
        if name.endswith("base_kernel"):
            made.tensors[name][:, 0] = 1
    return made


def perfect(head: Head, drafts: int) -> Drafter:
    """A drafter for the target of :func:`tests.support.drafters.perfect`, whose greedy drafts are all the target's.

    A layer replaces the token of a row by the one that the target says after the previous row's token. So the first row
    is the emitted token again if the last row of the context is right, and each layer makes one more row right.
    """
    size, vocabulary = head.hidden_size, head.vocab_size
    made = Drafter(
        vocabulary, size, head.taps, 2, 2, head.head_dim, vocabulary, drafts, drafts + 1, eps=head.eps,
        draft_vocab_size=vocabulary,
    )  # fmt: skip
    w = {name: np.ones(shape) if len(shape) == 1 else np.zeros(shape) for name, shape in made.shapes().items()}
    places, norm = slice(1, vocabulary + 1), np.sqrt(2 / size + made.eps)
    w["fc.weight"][:, size : 2 * size] = np.eye(size)
    w["embed_tokens.weight"] = head.tensors["embed_tokens.weight"]
    w["lm_head.weight"][:, places] = np.eye(vocabulary)
    after = np.eye(vocabulary)[head.tensors["lm_head.weight"][:, places].argmax(0)].T
    for i in range(drafts):
        layer = f"layers.{i}"
        look_back(w, layer, size, norm, own=-1)
        w[f"{layer}.self_attn.q_norm.weight"] *= 100.0
        gate, up, down = (w[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        gate[:, 0], up[:, places], down[places] = (
            20 * norm,
            (after - np.eye(vocabulary)) * norm / 20,
            np.eye(vocabulary),
        )
    made.tensors = w
    return made
