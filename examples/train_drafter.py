"""Train an EAGLE-3 head, a DFlash or a DFlash 2 drafter for a checkpoint, in the format of `speculators`.

    python examples/train_drafter.py --target models/tiny-py-lm --text /path/to/cpython/Lib --out DIR [--kind dflash]

It runs in PyTorch, on a CPU or a GPU. The target is frozen, and the drafter shares its embedding and head. The text is
cut into windows. A share of those in a batch was written by the target but for its beginning (`--generated`), which is
taken from anywhere in the text, since the target's own text is what will be drafted.

EAGLE-3 (Li et al., arXiv:2503.01840) trains with its training-time test. The head runs `--steps` times over each
window, from the second time on with its own states instead of the target's. Each time it is compared with the target's
distribution over the draft vocabulary. The third feature is the target's last residual stream, with `fc_norm`, and
normed states are recycled (`norm_output`). A target with a multi-token-prediction module (DeepSeek-V3's tensor names)
gives the head its first weights; `--random` starts without.

DFlash (z-lab) trains on `--anchors` random positions of each window: a block of `--block` rows begins with the token
there, and the masked rows after it are compared with the target's distributions, with weights exp(-(k - 1) / 4). With
`--from-anchor` the first row gives a draft too.

DFlash 2 begins as a DFlash drafter: its convolutions change nothing at first. The same loss is taken a second time,
with what the selector adds after the text's previous token. It learns this for the whole vocabulary; when it drafts, it
chooses among `--candidates`.

`--minutes` bounds everything by the clock: at most a tenth of it reads text, and at most four tenths have passed when
the target stops writing. The rest trains and evaluates; only a step or an evaluation that has begun is finished late.
`--max-steps` bounds the optimizer's steps instead, or as well; alone, two runs on the same machine are equal.

Writes config.json, model.safetensors, training.json and loss.svg; the card of a drafter is written by hand. At every
evaluation, at the end, and at SIGINT or SIGTERM it also writes checkpoint.pt, from which `--resume` continues: a larger
`--minutes` or `--max-steps` extends the training, and the budget counts from the first start.
"""

# ruff: noqa: E402
from __future__ import annotations

import time

STARTED = time.monotonic()  # the minutes of a command contain its imports

import argparse
import json
import math
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, Cache
from transformers.cache_utils import DynamicLayer

from specdec_hal.bench.chart import Panel, drawing
from specdec_hal.engine.progress import progress_bar

HELD = 12
"""Files that are not trained on, to measure agreement."""
READ, OWN, CONTINUED = 0.1, 0.15, 0.4
"""Shares of the minutes that have passed at most when the text is read, and when the target stops writing the windows
of evaluations and those of the training."""
BUDGET = ("minutes", "max_steps", "every", "resume", "out", "device")
"""Arguments that a resumed training may change."""
CHECKPOINT = "checkpoint.pt"
LINE_SECONDS, BUCKET = 10.0, 10
"""Seconds between lines of progress where there is no terminal; steps of a point of the loss curve."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder of a Llama-style model")
    parser.add_argument("--text", type=Path, required=True, help="a folder of *.py, *.md and *.txt files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=tuple(KINDS), default="eagle3")
    parser.add_argument("--layers", type=int, nargs="+", help="taps: residuals after so many layers")
    parser.add_argument(
        "--draft-vocab", type=int, default=2048, help="most frequent tokens of the text; DFlash and DFlash 2 have all"
    )
    parser.add_argument("--tokens", type=int, default=1_500_000, help="most tokens of text that are read")
    parser.add_argument("--generated", type=float, default=0.5, help="share of windows that the target continues")
    parser.add_argument("--pool", type=int, default=1024, help="windows that the target continues in all")
    parser.add_argument("--write-batch", type=int, help="of them at once (16 on a CPU, 512 on a GPU)")
    parser.add_argument("--kept", type=int, help="tokens of the text that such a window begins with (an eighth)")
    parser.add_argument("--minutes", type=float, help="of everything, by the clock (20 without --max-steps)")
    parser.add_argument("--max-steps", type=int, help="optimizer's steps, which then set the learning rate")
    parser.add_argument("--every", type=int, help="steps between evaluations (100 on a CPU, 1000 on a GPU)")
    parser.add_argument("--resume", action="store_true", help=f"continue from {CHECKPOINT} in --out")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3, help="iterations of the training-time test")
    parser.add_argument("--decay", type=float, default=0.8, help="weight of an iteration over that of the previous one")
    parser.add_argument("--depth", type=int, default=4, help="layers of a DFlash drafter")
    parser.add_argument("--ffn", type=int, help="width of a drafter's MLP (the target's)")
    parser.add_argument("--heads", type=int, nargs=2, help="of attention, and of its keys and values (the target's)")
    parser.add_argument("--no-lm-head", action="store_true", help="leave out rows that the target lends, to save space")
    parser.add_argument("--dtype", default="float32", help="of the target, such as bfloat16")
    parser.add_argument("--block", type=int, default=8, help="rows of a block, the known token included")
    parser.add_argument("--anchors", type=int, default=32, help="blocks in a window")
    parser.add_argument("--from-anchor", action="store_true", help="the known token's row gives a draft too")
    parser.add_argument("--rank", type=int, default=64, help="of DFlash 2's selector")
    parser.add_argument("--candidates", type=int, default=16, help="tokens that DFlash 2's selector chooses from")
    parser.add_argument("--mask-token", type=int, help="an id that no text has (the token of byte 0xFF)")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--random", action="store_true", help="ignore the target's multi-token-prediction module")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    for name in ("minutes", "max_steps", "every", "window", "batch"):
        if (value := getattr(args, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}: expected a number above 0, got {value}")
    args.kept = min(args.kept or args.window // 8, args.window)
    if args.kind != "eagle3" and args.anchors > args.window - args.block:
        most = args.window - args.block
        parser.error(f"--anchors: expected at most --window - --block = {most} blocks in a window, got {args.anchors}")
    return args


class Budget:
    """The minutes of a training that began at `started`, after `used` seconds of earlier runs; its request to stop."""

    def __init__(self, minutes: float | None, started: float, used: float = 0.0) -> None:
        self.began, self.seconds, self.stopped = started - used, 60 * (minutes or math.inf), False

    def spent(self) -> float:
        """Seconds since the first start."""
        return time.monotonic() - self.began

    def over(self, share: float = 1.0, ahead: float = 0.0) -> bool:
        """Whether this share of the time will have passed in `ahead` seconds, or the training is to stop."""
        return self.stopped or self.spent() + ahead >= share * self.seconds

    def stop(self, *_: Any) -> None:
        """Signal handler: end at the next step. The second signal ends the process at once."""
        self.stopped = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


Drafted = tuple[Tensor, Tensor, float]


class RMSNorm(nn.Module):
    """Zhang and Sennrich, arXiv:1910.07467."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Rows of `x`, normed."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def linear(inner: int, outer: int) -> nn.Linear:
    """A projection without bias."""
    layer = nn.Linear(inner, outer, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


def decoder_layer(config: Any, width: int, norms: tuple[str, ...], head_norms: tuple[str, ...] = ()) -> nn.ModuleDict:
    """A Llama layer under the names of checkpoints, whose attention reads rows of `width`."""
    d, ffn, eps, size = config.hidden_size, config.intermediate_size, config.rms_norm_eps, head_dim(config)
    q, kv = config.num_attention_heads * size, config.num_key_value_heads * size
    projections = {"q_proj": linear(width, q), "k_proj": linear(width, kv), "v_proj": linear(width, kv)}
    attention = nn.ModuleDict(
        projections | {"o_proj": linear(q, d)} | {name: RMSNorm(size, eps) for name in head_norms}
    )
    mlp = nn.ModuleDict({"gate_proj": linear(d, ffn), "up_proj": linear(d, ffn), "down_proj": linear(ffn, d)})
    return nn.ModuleDict({name: RMSNorm(d, eps) for name in norms} | {"self_attn": attention, "mlp": mlp})


def head_dim(config: Any) -> int:
    """Width of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


class Drafter(nn.Module):
    """What all kinds share; parameters have their names in the checkpoint."""

    def __init__(self, config: Any, ids: Tensor, lm_head: Tensor) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            config.num_attention_heads, config.num_key_value_heads, head_dim(config),
        )  # fmt: skip
        self.theta = float((getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0))
        self.register_buffer(
            "inverse", self.theta ** -(torch.arange(0, self.head_dim, 2) / self.head_dim), persistent=False
        )
        self.register_buffer("ids", ids, persistent=False)
        self.register_buffer("lm_head", lm_head[ids].clone(), persistent=False)

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x` [..., rows, head_dim], rotated by positions that broadcast to its rows."""
        angle = positions[..., None] * self.inverse
        cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        half = self.head_dim // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def _mlp(self, layer: Any, x: Tensor) -> Tensor:
        n, after = self._around(layer, "mlp_conv", layer["post_attention_layernorm"](x))
        mlp = layer["mlp"]
        return x + after(mlp["down_proj"](F.silu(mlp["gate_proj"](n)) * mlp["up_proj"](n)))

    def _around(self, layer: Any, name: str, n: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """What a sublayer reads for rows `n`, and a function of its output."""
        return n, lambda y: y


class Eagle3(Drafter):
    """An EAGLE-3 head."""

    def __init__(self, config: Any, ids: Tensor, lm_head: Tensor, args: argparse.Namespace) -> None:
        super().__init__(config, ids, lm_head)
        d, eps, features = config.hidden_size, config.rms_norm_eps, len(args.layers)
        self.steps, self.decay = args.steps, args.decay
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        self.layers = nn.ModuleList([decoder_layer(config, 2 * d, norms)])
        self.fc, self.norm = linear(features * d, d), RMSNorm(d, eps)
        self.fc_norm = nn.ModuleList([RMSNorm(d, eps) for _ in range(features)])

    def fuse(self, taps: list[Tensor]) -> Tensor:
        """The state of a row from the target's features [B, T, D]."""
        return self.fc(torch.cat([norm(tap) for norm, tap in zip(self.fc_norm, taps, strict=True)], -1))

    def rows(self, embedded: Tensor, u: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """States [B, T, D] of one iteration; `cache` holds keys and values of earlier ones, and gets its own."""
        layer = self.layers[0]
        attention = layer["self_attn"]
        x = torch.cat([layer["input_layernorm"](embedded), layer["hidden_norm"](u)], -1)
        (size, length, _), step = x.shape, len(cache)
        positions = torch.arange(step, step + length, device=x.device)

        def split(name: str, heads: int) -> Tensor:
            part = attention[name](x).view(size, length, heads, self.head_dim).transpose(1, 2)
            return part.repeat_interleave(self.heads // heads, 1)

        q = self._turned(split("q_proj", self.heads), positions)
        cache.append((self._turned(split("k_proj", self.kv_heads), positions), split("v_proj", self.kv_heads)))
        scale = self.head_dim**-0.5
        hidden = torch.full((length, length), -math.inf, device=x.device).triu(1)
        scores = [q @ cache[0][0].mT * scale + hidden]
        scores += [(q * key).sum(-1, keepdim=True) * scale for key, _ in cache[1:]]  # a row's own later iterations
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., :length] @ cache[0][1]
        for i, (_, value) in enumerate(cache[1:]):
            out = out + weights[..., length + i : length + i + 1] * value
        return self.norm(self._mlp(layer, u + attention["o_proj"](out.transpose(1, 2).reshape(size, length, -1))))

    def forward(self, embedded: Tensor, taps: list[Tensor], steps: int) -> Iterator[Tensor]:
        """Draft logits [B, T-1, Vd] of each iteration; row t of iteration i predicts the token at t + 2 + i."""
        u, tokens, cache = self.fuse([tap[:, :-1] for tap in taps]), embedded[:, 1:], []
        for _ in range(steps):
            u = self.rows(tokens, u, cache)
            yield F.linear(u, self.lm_head)
            tokens = torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], 1)

    def compared(self, embed: nn.Module, x: Tensor, taps: list[Tensor], training: bool) -> Iterator[Drafted]:
        """Draft logits, the positions whose target distribution they should have, and their weight."""
        for i, drafts in enumerate(self(embed(x).float(), taps, self.steps if training else 4)):
            length = x.shape[1] - 1 - i
            positions = torch.arange(1 + i, x.shape[1], device=x.device).expand(len(x), length)
            yield drafts[:, :length], positions, self.decay**i

    def start(
        self, stored: dict[str, Tensor], module: str, final: Tensor, embedded: Tensor, taps: list[Tensor]
    ) -> bool:
        """First weights from a multi-token-prediction module, as near as the head's form allows.

        The module adds its projections of embedding and state, which is its layer's residual; the head's is the fused
        state alone, and the embedding comes in by attention.
        """
        own = {k.removeprefix(module): v for k, v in stored.items() if k.startswith(module)}
        if "eh_proj.weight" not in own:
            return False
        by_embedding, by_state = own["eh_proj.weight"].chunk(2, 1)
        d, eps = by_state.shape[0], self.norm.eps

        def normed(x: Tensor, weight: Tensor) -> Tensor:
            return F.rms_norm(x, weight.shape, weight, eps)

        def size(x: Tensor) -> Tensor:
            return x.pow(2).mean(-1).sqrt().mean()

        with torch.no_grad():
            self.fc_norm[-1].weight.copy_(final * own["hnorm.weight"] / size(normed(taps[-1], final)))
            self.fc.weight[:, -d:].copy_(by_state)
            self.fc.weight[:, :-d].mul_(0.1)
            u = self.fuse(taps)[:, :-1]
            x = u + normed(embedded, own["enorm.weight"])[:, 1:] @ by_embedding.T
            layer, first = self.layers[0], own["input_layernorm.weight"]
            layer["input_layernorm"].weight.copy_(own["enorm.weight"])
            layer["hidden_norm"].weight.copy_(first * size(u) / size(x))
            for name in "qkv":
                weight = own[f"self_attn.{name}_proj.weight"]
                joined = torch.cat([(weight * first) @ by_embedding / size(x), weight], 1)
                layer["self_attn"][f"{name}_proj"].weight.copy_(joined)
            layer["self_attn"]["o_proj"].weight.copy_(own["self_attn.o_proj.weight"])
            layer["post_attention_layernorm"].weight.copy_(own["post_attention_layernorm.weight"])
            for name in ("gate_proj", "up_proj", "down_proj"):
                layer["mlp"][name].weight.copy_(own[f"mlp.{name}.weight"])
            self.norm.weight.copy_(own["shared_head.norm.weight"])
        return True

    def described(self, taps: list[int]) -> dict[str, Any]:
        """Keys of config.json that only this kind has."""
        return {
            "norm_before_residual": False, "norm_before_fc": False, "fc_norm": True, "norm_output": True,
            "eagle_aux_hidden_state_layer_ids": taps, "target_hidden_size": None,
        }  # fmt: skip


class DFlash(Drafter):
    """A DFlash drafter."""

    def __init__(self, config: Any, ids: Tensor, lm_head: Tensor, args: argparse.Namespace) -> None:
        super().__init__(config, ids, lm_head)
        d, eps = config.hidden_size, config.rms_norm_eps
        self.block, self.anchors, self.mask = args.block, args.anchors, args.mask_token
        self.from_anchor = args.from_anchor
        norms = ("input_layernorm", "post_attention_layernorm")
        self.layers = nn.ModuleList([decoder_layer(config, d, norms, ("q_norm", "k_norm")) for _ in range(args.depth)])
        self.fc, self.hidden_norm, self.norm = linear(len(args.layers) * d, d), RMSNorm(d, eps), RMSNorm(d, eps)

    def _heads(self, attention: Any, name: str, x: Tensor, positions: Tensor | None) -> Tensor:
        """Queries, keys or values [B, heads, rows, head_dim], the first two normed and rotated."""
        heads = attention[f"{name}_proj"](x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
        if positions is not None:
            heads = self._turned(attention[f"{name}_norm"](heads), positions[:, None])
        return heads.repeat_interleave(self.heads // heads.shape[1], 1)

    def compared(self, embed: nn.Module, x: Tensor, taps: list[Tensor], training: bool) -> Iterator[Drafted]:
        """Logits of a slot of every block, the positions whose target distribution they should have, their weight."""
        size, length = x.shape
        block, context = self.block, self.hidden_norm(self.fc(torch.cat(taps, -1)))
        anchors = torch.rand(size, length - block, device=x.device).topk(self.anchors, -1).indices  # [B, A]
        rows = torch.arange(block, device=x.device)
        positions = (anchors[..., None] + rows).flatten(1)  # [B, A * block]
        ids = torch.where(rows == 0, x.gather(1, positions).view(size, -1, block), self.mask).flatten(1)
        y, seen = embed(ids).float(), torch.arange(length, device=x.device).expand(size, length)
        hidden = torch.where(seen[:, None] < anchors.repeat_interleave(block, 1)[..., None], 0.0, -math.inf)[:, None]
        for layer in self.layers:
            attention = layer["self_attn"]
            n, after = self._around(layer, "attention_conv", layer["input_layernorm"](y))
            q, k, v = (self._heads(attention, name, n, None if name == "v" else positions) for name in "qkv")
            known = self._heads(attention, "k", context, seen), self._heads(attention, "v", context, None)
            blocks = [part.reshape(size, self.heads, -1, block, self.head_dim) for part in (q, k, v)]
            inside = (blocks[0] @ blocks[1].mT).flatten(2, 3)
            scores = torch.cat([q @ known[0].mT + hidden, inside], -1).float() * self.head_dim**-0.5
            weights = scores.softmax(-1).to(v.dtype)
            out = weights[..., :length] @ known[1]
            out = out + (weights[..., length:].unflatten(2, (-1, block)) @ blocks[2]).flatten(2, 3)
            y = self._mlp(layer, y + after(attention["o_proj"](out.transpose(1, 2).flatten(2))))
        y = self.norm(y).view(size, -1, block, y.shape[-1])
        for slot, number in zip(range(not self.from_anchor, block), count()):
            at, weight = anchors + number, math.exp(-number / 4)
            for logits in self._scored(y[:, :, slot], x.gather(1, at), training):
                yield logits, at, weight

    def _scored(self, rows: Tensor, before: Tensor, training: bool) -> Iterator[Tensor]:
        """Logits of rows [B, A, D] whose previous tokens are `before` [B, A]."""
        yield F.linear(rows, self.lm_head)

    def start(
        self, stored: dict[str, Tensor], module: str, final: Tensor, embedded: Tensor, taps: list[Tensor]
    ) -> bool:
        """Features of every depth count alike at first."""
        with torch.no_grad():
            sizes = torch.cat([tap.pow(2).mean().rsqrt().expand(tap.shape[-1]) for tap in taps])
            self.fc.weight.mul_(sizes)
        return False

    def described(self, taps: list[int]) -> dict[str, Any]:
        """Keys of config.json that only this kind has."""
        return {
            "block_size": self.block, "aux_hidden_state_layer_ids": taps, "mask_token_id": self.mask,
            "sliding_window_non_causal": False, "sample_from_anchor": self.from_anchor,
        }  # fmt: skip


class Convolution(nn.Module):
    """Two convolutions over the rows of a block, before and after a sublayer, whose kernels depend on the row."""

    TAPS, GROUP = 2, 16

    def __init__(self, width: int) -> None:
        super().__init__()
        base = torch.zeros(2, self.TAPS, width)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = linear(width, 2 * self.TAPS * width // self.GROUP)
        nn.init.zeros_(self.kernel_projection.weight)

    def sides(self, rows: Tensor) -> list[Callable[[Tensor], Tensor]]:
        """Both, with the kernels of rows [B, A, block, D]."""
        return [partial(self._convolved, *both) for both in zip(self.base_kernel, self._kernels(rows), strict=True)]

    def _kernels(self, rows: Tensor) -> Tensor:
        """[2, B, A, block, T, groups]."""
        return self.kernel_projection(rows).unflatten(-1, (2, self.TAPS, -1)).movedim(3, 0)

    def _convolved(self, base: Tensor, own: Tensor, rows: Tensor) -> Tensor:
        x, base = rows.to(own.dtype).unflatten(-1, (-1, self.GROUP)), base.to(own.dtype)
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for tap, kernel in enumerate(base.unflatten(-1, x.shape[3:])):
            earlier = F.pad(x, (0, 0, 0, 0, tap, 0))[:, :, : x.shape[2]]
            total = total + earlier * (kernel + own[..., tap, :, None])
        return total.flatten(3)


class DFlash2(DFlash):
    """A DFlash 2 drafter."""

    def __init__(self, config: Any, ids: Tensor, lm_head: Tensor, args: argparse.Namespace) -> None:
        super().__init__(config, ids, lm_head, args)
        d, vocabulary, self.candidates = config.hidden_size, len(ids), args.candidates
        for layer in self.layers:
            layer["attention_conv"], layer["mlp_conv"] = Convolution(d), Convolution(d)
        selector = nn.Module()
        selector.predecessor_codebook, selector.successor_codebook = (
            nn.Parameter(torch.randn(vocabulary, args.rank) * scale) for scale in (1.0, 0.02)
        )
        selector.hidden_projection = linear(d, args.rank)
        self.candidate_selector = selector

    def _around(self, layer: Any, name: str, n: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        def blocks(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, self.block))

        first, last = layer[name].sides(blocks(n))
        return first(blocks(n)).flatten(1, 2), lambda y: last(blocks(y)).flatten(1, 2)

    def _scored(self, rows: Tensor, before: Tensor, training: bool) -> Iterator[Tensor]:
        selector: Any = self.candidate_selector
        (logits,) = super()._scored(rows, before, training)
        if training:
            yield logits
        added = F.linear(
            F.embedding(before, selector.predecessor_codebook) * selector.hidden_projection(rows),
            selector.successor_codebook,
        )
        if not training:
            added = added.masked_fill(logits < logits.topk(self.candidates).values[..., -1:], -math.inf)
        yield logits + added

    def described(self, taps: list[int]) -> dict[str, Any]:
        """Keys of config.json that only this kind has."""
        return super().described(taps) | {
            "conv_kernel_size": Convolution.TAPS, "conv_group_size": Convolution.GROUP,
            "selector_rank": self.candidate_selector.hidden_projection.out_features,
            "selector_top_k": self.candidates,
        }  # fmt: skip


KINDS = {
    "eagle3": (Eagle3, "Eagle3Speculator"), "dflash": (DFlash, "DFlashSpeculator"),
    "dflash2": (DFlash2, "DFlash2DraftModel"),
}  # fmt: skip
"""By `--kind`: the drafter, and the name of its class in `speculators`."""


class Reserved(DynamicLayer):
    """Keys and values of a layer, written into memory for `size` positions: no token copies those before it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.memory = size, list[Tensor]()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """All keys and values [B, heads, positions, head_dim], with the new ones."""
        new, begin, self.is_initialized = (key_states, value_states), self.get_seq_length(), True
        self.memory = self.memory or [x.new_empty(*x.shape[:2], self.size, x.shape[3]) for x in new]
        for memory, rows in zip(self.memory, new, strict=True):
            memory[:, :, begin : begin + rows.shape[2]] = rows
        self.keys, self.values = (memory[:, :, : begin + key_states.shape[2]] for memory in self.memory)
        return self.keys, self.values


class Trainer:
    """A frozen target, its drafter, and windows of text."""

    def __init__(self, args: argparse.Namespace, started: float | None = None) -> None:
        self.args = args
        stored = self._stored() if args.resume else None
        if args.minutes is None and args.max_steps is None:
            args.minutes = 20.0
        self.budget = Budget(
            args.minutes, time.monotonic() if started is None else started, stored["seconds"] if stored else 0.0
        )
        torch.manual_seed(args.seed)
        self.device = torch.device(args.device)
        args.every = args.every or (100 if self.device.type == "cpu" else 1000)
        torch.set_float32_matmul_precision("high")
        self.tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
        config = AutoConfig.from_pretrained(args.target)
        if stored is None:
            self.train, self.held = self._windows([] if config.bos_token_id is None else [config.bos_token_id])
        else:
            self.train, self.held = (part.long() for part in stored["text"])
        self.target = AutoModelForCausalLM.from_pretrained(args.target, dtype=args.dtype).to(self.device).eval()
        self.target.requires_grad_(False)
        config = self.target.config
        depth = config.num_hidden_layers
        self.last: list[Tensor] = []
        self.target.model.layers[-1].register_forward_hook(self._keep_last)
        args.layers = args.layers or (
            [2, depth // 2, depth] if args.kind == "eagle3" else [depth // 4 * i for i in (1, 2, 3, 4)]
        )
        if args.mask_token is None:
            args.mask_token = self.tokenizer.token_to_id("\u00ff")  # byte-level BPE writes byte 0xFF so
        counts = torch.bincount(self.train.flatten(), minlength=config.vocab_size)
        size = min(args.draft_vocab if args.kind == "eagle3" else config.vocab_size, config.vocab_size)
        ids = counts.argsort(descending=True, stable=True)[:size].sort().values.to(self.device)
        self.covered = float(counts[ids.cpu()].sum() / counts.sum())
        # Of a new layer; the target is loaded.
        config.intermediate_size, config.head_dim = args.ffn or config.intermediate_size, head_dim(config)
        heads = args.heads or (config.num_attention_heads, config.num_key_value_heads)
        config.num_attention_heads, config.num_key_value_heads = heads
        self.head = KINDS[args.kind][0](config, ids, self.target.lm_head.weight.float(), args).to(self.device)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.step, self.history, self.losses = 0, list[dict[str, Any]](), list[tuple[int, float]]()
        self.share = self.own = self.train[:0]
        self.sum, self.cost = torch.zeros((), device=self.device), 0.0
        if stored is not None:
            self._restore(stored)

    def _stored(self) -> dict[str, Any]:
        """The checkpoint in --out; SystemExit if there is none or if it is of a training with other arguments."""
        args, path = self.args, self.args.out / CHECKPOINT
        if not path.exists():
            raise SystemExit(f"--resume: expected {path}, found none; start without --resume")
        stored: dict[str, Any] = torch.load(path, map_location=args.device, weights_only=True)
        given = described(args)
        for name, value in stored["arguments"].items():
            # Taps and mask token are chosen when they are not given.
            if name not in BUDGET and given[name] != value and given[name] is not None:
                option = name.replace("_", "-")
                raise SystemExit(f"--resume: expected --{option} {value} as in {path}, got {given[name]}")
        for name in ("layers", "mask_token"):
            setattr(args, name, stored["arguments"][name])
        for name in ("minutes", "max_steps", "every"):
            if getattr(args, name) is None:
                setattr(args, name, stored["arguments"][name])
        return stored

    def _restore(self, stored: dict[str, Any]) -> None:
        self.head.load_state_dict(stored["head"])
        self.optimizer.load_state_dict(stored["optimizer"])
        self.step, self.history, self.losses = stored["step"], stored["history"], stored["losses"]
        self.share, self.own = (part.long() for part in stored["written"])
        self.sum = stored["sum"]
        torch.set_rng_state(stored["random"].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(stored["random_device"].cpu(), self.device)

    def checkpoint(self) -> None:
        """Everything that the next step depends on, in one file that is replaced as a whole."""
        state: dict[str, Any] = {
            "arguments": described(self.args), "seconds": self.budget.spent(), "step": self.step,
            "head": self.head.state_dict(), "optimizer": self.optimizer.state_dict(), "sum": self.sum,
            "history": self.history, "losses": self.losses, "random": torch.get_rng_state(),
            "text": [part.int() for part in (self.train, self.held)],
            "written": [part.int() for part in (self.share, self.own)],
        }  # fmt: skip
        if self.device.type == "cuda":
            state["random_device"] = torch.cuda.get_rng_state(self.device)
        path = self.args.out / CHECKPOINT
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)

    def _keep_last(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.last = [output[0] if isinstance(output, tuple) else output]

    def _windows(self, start: list[int]) -> tuple[Tensor, Tensor]:
        """Windows [n, window] to train on, and held-out ones, of other files. A file begins with the tokens `start`."""
        args = self.args
        files = sorted(f for kind in ("py", "md", "txt") for f in args.text.rglob(f"*.{kind}"))
        files = [f for f in files if "site-packages" not in f.parts and f.stat().st_size < 1 << 20]
        random.Random(args.seed).shuffle(files)
        held, text = self._ids(files[:HELD], 32 * args.window, start), self._ids(files[HELD:], args.tokens, start)
        if min(len(held), len(text)) < args.window:
            raise SystemExit(
                f"--text {args.text}: expected a window of {args.window} tokens in {HELD} held-out files, "
                f"and one in the others, got {len(files)} files (*.py, *.md, *.txt) with {len(held)} and {len(text)} "
                "tokens; give a folder with more text, or a smaller --window"
            )
        return tuple(part[: len(part) // args.window * args.window].view(-1, args.window) for part in (text, held))

    def _ids(self, files: list[Path], limit: int, start: list[int]) -> Tensor:
        out: list[int] = []
        for first in range(0, len(files), 64):
            texts = [file.read_bytes().decode(errors="ignore") for file in files[first : first + 64]]
            for encoded in self.tokenizer.encode_batch(texts, add_special_tokens=False):
                out += start + encoded.ids
            if len(out) > limit or (len(out) >= 8 * self.args.window and self.budget.over(READ)):
                break
        return torch.tensor(out[:limit])

    @torch.no_grad()
    def continued(self, starts: Tensor, share: float, progress: Progress) -> Tensor:
        """Windows that begin with these tokens [n, kept], the rest written by the target: half of them greedily.

        A text that ends goes on after its end. Fewer windows if this share of the time passes first.
        """
        args, parts = self.args, [starts.new_empty(0, self.args.window)]
        for i, start in enumerate(starts.split(args.write_batch or (16 if self.device.type == "cpu" else 512))):
            cache = Cache(layers=[Reserved(args.window) for _ in self.target.model.layers])
            made = [start.to(self.device)]
            for _ in range(args.window - args.kept):
                if self.budget.over(share):
                    return torch.cat(parts)
                logits = self.target(made[-1], past_key_values=cache, logits_to_keep=1).logits[:, -1]
                sampled = i % 2 and (logits.float() / 0.8).softmax(-1).multinomial(1)
                made.append(sampled if i % 2 else logits.argmax(-1, keepdim=True))
            parts.append(torch.cat(made, 1).cpu())
            progress(sum(map(len, parts)), len(starts), "windows written by the target")
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The tapped residual streams and the logits, all [B, T, ...]."""
        out = self.target(x, use_cache=False, output_hidden_states=True)
        streams = [*out.hidden_states[:-1], self.last[0]]  # the last of transformers' is normed
        return [streams[b].float() for b in self.args.layers], out.logits

    def agreement(self, windows: Tensor) -> list[float]:
        """Share of rows whose best draft token is the target's, by draft, on the tokens of the windows.

        Over fewer windows, but at least eight, if the time is over.
        """
        hits: list[list[float]] = []
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            for x in windows.to(self.device).split(8):
                if hits and self.budget.over():
                    break
                taps, logits = self.features(x)
                wanted = logits.argmax(-1)
                drafted = self.head.compared(self.target.get_input_embeddings(), x, taps, False)
                hits.append(
                    [
                        (self.head.ids[d.argmax(-1)] == wanted.gather(1, at)).float().mean().item()
                        for d, at, _ in drafted
                    ]
                )
        return [round(sum(column) / len(hits), 4) for column in zip(*hits, strict=True)]

    def loss(self, x: Tensor) -> Tensor:
        """Cross-entropy against the target's distribution, over rows whose target token the draft vocabulary has."""
        taps, logits = self.features(x)
        known = torch.isin(logits.argmax(-1), self.head.ids)
        every = len(self.head.ids) == logits.shape[-1]
        wanted = (logits if every else logits[..., self.head.ids]).float().softmax(-1)
        total = torch.zeros((), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            for drafts, at, weight in self.head.compared(self.target.get_input_embeddings(), x, taps, True):
                log_q = drafts.float().log_softmax(-1)
                cost = -(wanted.gather(1, at[..., None].expand(log_q.shape)) * log_q).sum(-1)
                counts = known.gather(1, at)
                total = total + weight * (cost * counts).sum() / counts.sum()
        return total

    def run(self) -> None:
        """Train until the budget ends."""
        self.args.out.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.budget.stop)
        with Progress() as progress:
            if self.step == 0:
                self._prepare(progress)
            else:
                say(f"resumed after step {self.step} and {self.budget.spent():.0f} s")
            began, last, evaluated = self.step, 0.0, time.monotonic()
            while not self._finished(last):
                started = time.monotonic()
                loss = self.train_batch()
                last = time.monotonic() - started
                progress(*self._position(loss))
                due = self.step % self.args.every == 0 or self.step == 1
                # With a clock, evaluations take at most a tenth of it.
                if due and (self.args.minutes is None or time.monotonic() - evaluated >= 9 * self.cost):
                    self._record(loss)
                    evaluated = time.monotonic()
        if self.step == began:
            raise SystemExit(
                f"expected time for a step, got none in {self.budget.spent():.0f} s; give more --minutes or --max-steps"
            )
        if not self.history or self.history[-1]["step"] != self.step:
            self._record(loss)
        if self.budget.stopped:
            raise SystemExit(f"stopped after step {self.step}; continue with --resume")

    def _prepare(self, progress: Progress) -> None:
        """The target's own text, and first weights."""
        args, text = self.args, self.train.numel()
        say(f"text {text} tokens, draft vocabulary covers {self.covered:.4f} of them")
        if args.generated:
            self.own = self.continued(self.held[:16, : args.kept], OWN, progress)
            if len(self.own):  # else the target is too slow to write more
                begins = torch.randint(text - args.kept + 1, (args.pool, 1))
                starts = self.train.flatten()[begins + torch.arange(args.kept)]
                self.share = self.continued(starts, CONTINUED, progress)
            if len(self.share) == 0:
                say("the target wrote no window in its share of the time: the text alone is trained on")
        warm = self._start()
        say(f"continued {self.share.numel()} tokens; start {'from the MTP module' if warm else 'at random'}")

    def _finished(self, last: float) -> bool:
        """Whether another step, as long as the last, and the last evaluation do not fit."""
        most = self.args.max_steps
        return (most is not None and self.step >= most) or self.budget.over(ahead=last + self.cost)

    def train_batch(self) -> Tensor:
        """One step of the optimizer; its loss."""
        args, head = self.args, self.head
        progress = self.step / args.max_steps if args.max_steps else self.budget.spent() / self.budget.seconds
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        for group in self.optimizer.param_groups:
            group["lr"] = args.lr * min(1, (self.step + 1) / 20) * (0.02 + 0.98 * cosine)
        made = round(args.batch * args.generated) if len(self.share) else 0
        picks = [self.train[torch.randint(len(self.train), (args.batch - made,))]]
        picks += [self.share[torch.randint(len(self.share), (made,))]] if made else []
        loss = self.loss(torch.cat(picks).to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 0.5)
        self.optimizer.step()
        self.step, self.sum = self.step + 1, self.sum + loss.detach()
        if self.step % BUCKET == 0:
            self.losses.append((self.step, round(self.sum.item() / BUCKET, 4)))
            self.sum = torch.zeros_like(self.sum)
        return loss.detach()

    def _position(self, loss: Tensor) -> tuple[float, float, Callable[[], str]]:
        """How far the training is: done, of how much, and in words."""
        args, budget = self.args, self.budget

        def words() -> str:
            return f"step {self.step}, loss {loss.item():.3f}"

        if args.max_steps is not None:
            return self.step, args.max_steps, words
        return min(budget.spent(), budget.seconds), budget.seconds, words

    def _start(self) -> bool:
        """First weights that are not random; whether they are those of a multi-token-prediction module."""
        config, file = self.target.config, self.args.target / "model.safetensors"
        stored = {} if self.args.random or not file.exists() else load_file(file)
        with torch.no_grad():
            x = self.train[:4].to(self.device)
            embedded, (taps, _) = self.target.get_input_embeddings()(x).float(), self.features(x)
        final = self.target.model.norm.weight
        own = {name: value.float().to(self.device) for name, value in stored.items()}
        return self.head.start(own, f"model.layers.{config.num_hidden_layers}.", final, embedded, taps)

    def _record(self, loss: Tensor) -> None:
        """Evaluate, print, and save."""
        began, args = time.monotonic(), self.args
        entry = {"step": self.step, "tokens": self.step * args.batch * args.window, "loss": round(loss.item(), 4)}
        entry |= {"seconds": round(self.budget.spent(), 1), "agreement_text": self.agreement(self.held[:16])}
        if len(self.own):
            entry["agreement_generated"] = self.agreement(self.own)
        self.history.append(entry)
        say(json.dumps(entry))
        self.save()
        self.checkpoint()
        self.cost = time.monotonic() - began

    def save(self) -> None:
        """The checkpoint in the format of `speculators`, half precision, without embedding (the target's)."""
        out, config, head = self.args.out, self.target.config, self.head
        out.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().half().cpu().contiguous() for name, value in head.state_dict().items()}
        ids = head.ids.cpu()
        if len(ids) < config.vocab_size:
            tensors["d2t"] = ids - torch.arange(len(ids))
            tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
            tensors |= {} if self.args.no_lm_head else {"lm_head.weight": head.lm_head.half().cpu().contiguous()}
        save_file(tensors, out / "model.safetensors", {"format": "pt"})
        layer = {
            "model_type": "llama" if self.args.kind == "eagle3" else "qwen3",
            "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size, "num_hidden_layers": len(head.layers),
            "num_attention_heads": head.heads, "num_key_value_heads": head.kv_heads, "head_dim": head.head_dim,
            "hidden_act": "silu", "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps, "rope_theta": head.theta,
            "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        }  # fmt: skip
        verifier = {"name_or_path": self.args.target.name, "architectures": config.architectures}
        proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        raw = {
            "architectures": [KINDS[self.args.kind][1]], "speculators_model_type": self.args.kind,
            "speculators_version": "0.5.0",
            "speculators_config": {
                "algorithm": self.args.kind, "proposal_methods": [proposal], "default_proposal_method": "greedy",
                "verifier": verifier,
            },
            "transformer_layer_config": layer, "draft_vocab_size": len(ids), "tie_word_embeddings": False,
            "torch_dtype": "float16", **head.described(self.args.layers),
        }  # fmt: skip
        (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
        record = {"arguments": described(self.args), "covered": self.covered, "text_tokens": self.train.numel()}
        record |= {"history": self.history, "losses": self.losses}
        (out / "training.json").write_text(json.dumps(record) + "\n")
        (out / "loss.svg").write_text(self.picture())

    def picture(self) -> str:
        """Loss and agreement by step, as an SVG."""
        first = (self.history[0]["step"], self.history[0]["loss"])
        panels = [Panel("Loss", "step", "cross-entropy", {"loss": [first, *self.losses]})]
        for key, title in (("agreement_text", "On held-out text"), ("agreement_generated", "On the target's own text")):
            known = [entry for entry in self.history if key in entry]
            lines = {
                f"draft position {at}": [(entry["step"], entry[key][at]) for entry in known]
                for at in range(min(4, len(known[0][key])) if known else 0)
            }
            panels += [Panel(title, "step", "agreement with the target", lines, top=1.0)] if lines else []
        return drawing(f"{self.args.out.name}: {self.args.kind} for {self.args.target.name}", panels)


class Progress:
    """A bar on a terminal; elsewhere a line on stderr every ten seconds."""

    def __init__(self) -> None:
        self._bar = progress_bar("training", None, "{task.fields[note]}", transient=False, note="")
        self._line = time.monotonic()

    def __enter__(self) -> Progress:
        self._update = self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def __call__(self, done: float, total: float, unit: str | Callable[[], str]) -> None:
        """So much of `total` is done. A `unit` that costs time to say is a function."""
        now = time.monotonic()
        if now - self._line < (0.5 if sys.stderr.isatty() else LINE_SECONDS):
            return
        self._line, words = now, unit if isinstance(unit, str) else unit()
        if sys.stderr.isatty():
            self._update(completed=round(done), total=round(total), note=words)
        else:
            print(f"{done / total:4.0%}  {words}", file=sys.stderr, flush=True)


def described(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments as JSON has them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}


def say(message: str) -> None:
    """A line of progress."""
    print(message, flush=True)


if __name__ == "__main__":
    Trainer(arguments(), STARTED).run()
    sys.exit(0)
