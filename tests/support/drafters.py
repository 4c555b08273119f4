"""EAGLE-3 heads: written in both formats of a checkpoint, computed row by row without a cache, and one that is perfect.

`Head` has the names of `speculators`; nothing here comes from the package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def random_tensors(
    shapes: dict[str, tuple[int, ...]], vocab_size: int, draft_vocab_size: int | None, seed: int
) -> dict[str, Doubles]:
    """Float16 values that keep activations near 1, and some draft vocabulary if it is smaller."""
    generator = np.random.default_rng(seed)
    tensors: dict[str, Doubles] = {}
    for name, shape in shapes.items():
        values = generator.standard_normal(shape)
        values = 1 + 0.1 * values if len(shape) == 1 else values / (1 if "embed" in name else np.sqrt(shape[-1]))
        tensors[name] = values.astype(np.float16).astype(np.float64)
    if draft_vocab_size is not None and draft_vocab_size < vocab_size:
        ids = np.sort(generator.choice(vocab_size, draft_vocab_size, replace=False))
        tensors["d2t"] = ids - np.arange(len(ids))
    return tensors


@dataclass
class Head:
    """Sizes, options and tensors of a head, float64. `taps`: residuals after this many layers."""

    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    taps: tuple[int, ...]
    draft_vocab_size: int
    layers: int = 1
    target_hidden_size: int | None = None
    rope_theta: float = 10000.0
    eps: float = 1e-5
    head_norms: bool = False
    window: int = 0
    """Of every layer; 0: none."""
    options: dict[str, bool] = field(default_factory=dict)
    tensors: dict[str, Doubles] = field(default_factory=dict)

    @property
    def features(self) -> int:
        return len(self.taps) * (self.target_hidden_size or self.hidden_size)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, ffn, q, kv = (
            self.hidden_size, self.intermediate_size, self.heads * self.head_dim, self.kv_heads * self.head_dim,
        )  # fmt: skip
        found: dict[str, tuple[int, ...]] = {
            "fc.weight": (d, self.features), "norm.weight": (d,), "lm_head.weight": (self.draft_vocab_size, d),
            "embed_tokens.weight": (self.vocab_size, d), "layers.0.hidden_norm.weight": (d,),
        }  # fmt: skip
        for i in range(self.layers):
            wide = d if i else 2 * d
            for name, shape in {
                "input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_proj": (q, wide),
                "self_attn.k_proj": (kv, wide), "self_attn.v_proj": (kv, wide), "self_attn.o_proj": (d, q),
                "mlp.gate_proj": (ffn, d), "mlp.up_proj": (ffn, d), "mlp.down_proj": (d, ffn),
            }.items():  # fmt: skip
                found[f"layers.{i}.{name}.weight"] = shape
            found |= {f"layers.{i}.self_attn.{n}_norm.weight": (self.head_dim,) for n in "qk" if self.head_norms}
        if self.options.get("norm_before_fc"):
            found["input_norm.weight"] = (self.features,)
        if self.options.get("fc_norm"):
            width = self.target_hidden_size or d
            found |= {f"fc_norm.{i}.weight": (width,) for i in range(len(self.taps))}
        return found

    def randomize(self, seed: int) -> Head:
        self.tensors |= random_tensors(self.shapes(), self.vocab_size, self.draft_vocab_size, seed)
        return self

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The target's id of each draft id."""
        offsets: Any = self.tensors.get("d2t", np.zeros(self.draft_vocab_size))
        return np.arange(self.draft_vocab_size) + offsets.astype(np.int64)

    # ---- as files

    def layer_config(self) -> dict[str, Any]:
        windows = {"layer_types": ["sliding_attention"] * self.layers, "sliding_window": self.window}
        return {
            **(windows if self.window else {}),
            "model_type": "qwen3" if self.head_norms else "llama", "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "rms_norm_eps": self.eps, "rope_theta": self.rope_theta, "hidden_act": "silu",
            "max_position_embeddings": 64, "initializer_range": 0.02, "use_cache": True,
        }  # fmt: skip

    def stored(self, leave_out: tuple[str, ...] = ()) -> dict[str, npt.NDArray[Any]]:
        found: dict[str, npt.NDArray[Any]] = {
            name: value.astype(np.int64 if name == "d2t" else np.float32) for name, value in self.tensors.items()
        }
        if "d2t" in found:
            found["t2d"] = np.isin(np.arange(self.vocab_size), self.ids)
        return {name: value for name, value in found.items() if name not in leave_out}

    def write_speculators(self, folder: Path, leave_out: tuple[str, ...] = (), **changes: Any) -> Path:
        """The format of `speculators`. `changes`: keys of its config.json."""
        raw = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
            "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3}]},
            "transformer_layer_config": self.layer_config(), "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_hidden_size, "tie_word_embeddings": False,
            "eagle_aux_hidden_state_layer_ids": list(self.taps), **self.options,
        }  # fmt: skip
        return _write(folder, {**raw, **changes}, self.stored(leave_out))

    def write_original(
        self, folder: Path, leave_out: tuple[str, ...] = (), pickled: bool = False, **changes: Any
    ) -> Path:
        """SafeAILab's format."""
        raw = {
            "architectures": ["LlamaForCausalLMEagle3"], **self.layer_config(), "torch_dtype": "float16",
            "draft_vocab_size": self.draft_vocab_size, "target_hidden_size": self.target_hidden_size, **self.options,
            "eagle_config": {
                "use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in self.taps]
            },
        }  # fmt: skip
        tensors = {name.replace("layers.0.", "midlayer."): value for name, value in self.stored(leave_out).items()}
        return _write(folder, {**raw, **changes}, tensors, pickled)

    # ---- computed

    def states(self, features: Doubles) -> Doubles:
        """The fused states of rows of features [T, F]."""
        w = self.tensors
        if self.options.get("norm_before_fc"):
            features = self._norm(features, w["input_norm.weight"])
        if self.options.get("fc_norm"):
            parts = np.split(features, len(self.taps), -1)
            norms = (w[f"fc_norm.{i}.weight"] for i in range(len(parts)))
            features = np.concatenate([self._norm(p, n) for p, n in zip(parts, norms, strict=True)], -1)
        return features @ w["fc.weight"].T

    def _norm(self, x: Doubles, weight: Doubles) -> Doubles:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * weight

    def run(self, tokens: npt.NDArray[np.int64], states: Doubles) -> tuple[Doubles, Doubles]:
        """Logits [T, V] over the target's ids, and the states for further drafts, of rows 0 .. T-1."""
        w, x = self.tensors, states
        for i in range(self.layers):
            layer = f"layers.{i}."

            def at(name: str, layer: str = layer) -> Doubles:
                return w[f"{layer}{name}.weight"]

            if i == 0:
                e, g = (
                    self._norm(w["embed_tokens.weight"][tokens], at("input_layernorm")),
                    self._norm(x, at("hidden_norm")),
                )
                c = np.concatenate([e, g], -1)
                x = g if self.options.get("norm_before_residual") else x
            else:
                c = self._norm(x, at("input_layernorm"))
            y = x + self._attention(c, at) @ at("self_attn.o_proj").T
            n = self._norm(y, at("post_attention_layernorm"))
            gate = n @ at("mlp.gate_proj").T
            x = y + (gate / (1 + np.exp(-gate)) * (n @ at("mlp.up_proj").T)) @ at("mlp.down_proj").T
        normed = self._norm(x, w["norm.weight"])
        logits = np.full((len(x), self.vocab_size), -np.inf)
        logits[:, self.ids] = normed @ w["lm_head.weight"].T
        return logits, normed if self.options.get("norm_output") else x

    def _attention(self, c: Doubles, at: Any) -> Doubles:
        size, half = self.head_dim, self.head_dim // 2
        out = np.zeros((len(c), self.heads * size))
        frequencies = self.rope_theta ** (-np.arange(half) / half)

        def turned(x: Doubles, position: int) -> Doubles:
            cos, sin = np.cos(position * frequencies), np.sin(position * frequencies)
            return np.concatenate([x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin])

        for h in range(self.heads):
            own = slice(h * size, (h + 1) * size)
            group = h // (self.heads // self.kv_heads)
            other = slice(group * size, (group + 1) * size)
            q, k, v = (
                c @ at("self_attn.q_proj")[own].T,
                c @ at("self_attn.k_proj")[other].T,
                c @ at("self_attn.v_proj")[other].T,
            )
            if self.head_norms:
                q, k = self._norm(q, at("self_attn.q_norm")), self._norm(k, at("self_attn.k_norm"))
            for t in range(len(c)):
                first = max(t + 1 - self.window, 0) if self.window else 0
                scores = np.array([turned(q[t], t) @ turned(k[j], j) for j in range(first, t + 1)]) / np.sqrt(size)
                shares = np.exp(scores - scores.max())
                out[t, own] = shares / shares.sum() @ v[first : t + 1]
        return out

    def parallel(self, tokens: list[int], features: Doubles, count: int, mask: int) -> list[int]:
        """The same of a parallel head: all drafts from one pass, over rows of the mask token and `mask_hidden`."""
        more = count - 1
        masked = np.repeat(self.tensors["mask_hidden"].reshape(1, -1), more, 0)
        text = np.array([*tokens[1:], *[mask] * more])
        logits, _ = self.run(text, self.states(np.concatenate([features, masked])))
        return logits[len(tokens) - 2 :].argmax(-1).tolist()  # type: ignore[no-any-return]

    def chain(self, tokens: list[int], features: Doubles, count: int) -> list[int]:
        """Greedy drafts after `tokens`, from the target's features [len(tokens) - 1, F] of all but the last."""
        text, states = list(tokens), self.states(features)
        for _ in range(count):
            logits, after = self.run(np.array(text[1:]), states)
            text.append(int(logits[-1].argmax()))
            states = np.concatenate([states, after[-1:]])
        return text[len(tokens) :]


def _write(folder: Path, raw: dict[str, Any], tensors: dict[str, Any], pickled: bool = False) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    if pickled:
        import torch

        torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def perfect(folder: Path, vocabulary: int = 12, seed: int = 0) -> tuple[Path, Head]:
    """A target whose next token depends on the last alone, and a head with its logits: (the target's folder, the head).

    The target's residuals are a constant and a place for each token, which its second and its third layer permute; the
    others add nothing. The head's state is that of the previous token, as the second layer left it. Its first attention
    head reads its own row and adds the embedding of the row's token. The second reads the previous row and subtracts
    the embedding of that token: rotary embeddings, turned by a row's distance, choose the row. So a wrong feature,
    row or position, or a row of the cache that is missing, gives other logits.
    """
    from safetensors.numpy import save_file

    generator = np.random.default_rng(seed)
    before, after = (np.eye(vocabulary)[generator.permutation(vocabulary)] for _ in range(2))
    size, layers, head_dim, ffn = vocabulary + 4, 4, 2 * (vocabulary + 4), vocabulary
    embedding = np.concatenate([np.ones((vocabulary, 1)), np.eye(vocabulary), np.zeros((vocabulary, 3))], 1)
    lm_head = np.zeros((vocabulary, size))
    columns = slice(1, vocabulary + 1)
    lm_head[:, columns] = generator.normal(0, 1, (vocabulary, vocabulary))
    raw = {
        "vocab_size": vocabulary, "hidden_size": size, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": head_dim, "max_position_embeddings": 256,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "bos_token_id": None,
        "eos_token_id": None, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    head = Head(vocabulary, size, 2, 2, head_dim, ffn, (1, 2, 4), vocabulary)
    zeros = {name: np.zeros(shape) for name, shape in head.shapes().items()}
    zeros |= {name: np.ones(value.shape) for name, value in zeros.items() if value.ndim == 1}
    target = {f"model.{name}": value for name, value in zeros.items() if name == "norm.weight"}
    for i in range(layers):
        for name, value in zeros.items():
            if name.startswith("layers.0.") and "hidden_norm" not in name:
                narrow = (
                    value[:, :size] if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else value
                )
                target[f"model.layers.{i}.{name.removeprefix('layers.0.')}"] = narrow
    norm = np.sqrt(2 / size + head.eps)  # of every residual: what its RMSNorm divides by
    for i, turn in ((1, before.T - np.eye(vocabulary)), (2, after - np.eye(vocabulary))):
        gate, up, down = (np.zeros((vocabulary, size)) for _ in range(3))
        gate[:, 0], up[:, columns], down[:, columns] = 20 * norm, turn * norm / 20, np.eye(vocabulary)  # silu(20) is 20
        mlp = f"model.layers.{i}.mlp."
        target |= {f"{mlp}gate_proj.weight": gate, f"{mlp}up_proj.weight": up, f"{mlp}down_proj.weight": down.T.copy()}
    first, final = embedding.copy(), lm_head.copy()
    first[:, columns], final[:, columns] = before.T, lm_head[:, columns] @ after.T
    target |= {"model.embed_tokens.weight": first, "lm_head.weight": final}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file({k: np.ascontiguousarray(v, np.float32) for k, v in target.items()}, folder / "model.safetensors")

    w = {**zeros, "embed_tokens.weight": embedding, "lm_head.weight": lm_head}
    w["fc.weight"][:, size : 2 * size] = np.eye(size)  # the second feature
    look_back(w, "layers.0", size, norm, own=1)
    head.tensors = w
    return folder, head


def look_back(w: dict[str, Doubles], layer: str, size: int, norm: float, *, own: int) -> None:
    """Attention of two heads: `own` times the row's own, and the row before with the other sign.

    `norm`: what the RMSNorm before it divides by.
    """
    head_dim = len(w[f"{layer}.self_attn.q_proj.weight"]) // 2
    half, sharp = head_dim // 2, 30.0
    for h, angle in enumerate((0.0, -1.0)):  # own row; the row before: what a position turns the first pair by
        q, k, v, o = (w[f"{layer}.self_attn.{n}_proj.weight"] for n in "qkvo")
        first = h * head_dim
        for pair in range(2):
            turn = angle * 10000.0 ** (-pair / half)
            q[first + pair, 0], q[first + half + pair, 0] = sharp * np.cos(turn), sharp * np.sin(turn)
            k[first + pair, 0] = sharp
        v[first : first + size, :size] = np.eye(size) * norm
        o[:, first : first + size] = np.eye(size) * own * (1 - 2 * h)
