"""Train an EAGLE-3 head or a DFlash drafter for a checkpoint, in the format of `speculators` (PyTorch, a CPU or a GPU).

    python tools/train_drafter.py --target models/tiny-py-lm --text /path/to/cpython/Lib --out DIR [--kind dflash]

The target is frozen, and the drafter shares its embedding and head. The text is cut into windows. A share of them keeps
only its beginning and is continued by the target (`--generated`), since the target's own text is what will be drafted.

EAGLE-3 (Li et al., arXiv:2503.01840) trains with its training-time test. The head runs `--steps` times over each
window, from the second time on with its own states instead of the target's. Each time it is compared with the target's
distribution over the draft vocabulary. The third feature is the target's last residual stream, with `fc_norm`, and
normed states are recycled (`norm_output`). A target with a multi-token-prediction module (DeepSeek-V3's tensor names)
gives the head its first weights; `--random` starts without.

DFlash (z-lab) trains on `--anchors` random positions of each window: a block of `--block` rows begins with the token
there, and the masked rows after it are compared with the target's distributions, with weights exp(-(k - 1) / 4).

`--minutes` are those of the processor, so that other work on the machine does not change the result; on a GPU those of
the clock. Writes config.json, model.safetensors and training.json; the card of a drafter is written by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

HELD = 12
"""Files that are not trained on, to measure agreement."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder of a Llama-style model")
    parser.add_argument("--text", type=Path, required=True, help="a folder of *.py, *.md and *.txt files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=("eagle3", "dflash"), default="eagle3")
    parser.add_argument("--layers", type=int, nargs="+", help="taps: residuals after so many layers")
    parser.add_argument(
        "--draft-vocab", type=int, default=2048, help="most frequent tokens of the text; DFlash has all"
    )
    parser.add_argument("--tokens", type=int, default=1_500_000, help="most tokens of text that are read")
    parser.add_argument("--generated", type=float, default=0.5, help="share of windows that the target continues")
    parser.add_argument("--pool", type=int, default=1024, help="windows that the target continues in all")
    parser.add_argument("--minutes", type=float, default=20.0, help="processor time of the training proper")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3, help="iterations of the training-time test")
    parser.add_argument("--decay", type=float, default=0.8, help="weight of an iteration over that of the previous one")
    parser.add_argument("--depth", type=int, default=4, help="layers of a DFlash drafter")
    parser.add_argument("--block", type=int, default=8, help="rows of a block, the known token included")
    parser.add_argument("--anchors", type=int, default=32, help="blocks in a window")
    parser.add_argument("--mask-token", type=int, help="an id that no text has (the token of byte 0xFF)")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--random", action="store_true", help="ignore the target's multi-token-prediction module")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=20)
    return parser.parse_args()


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
    """What both kinds share; parameters have their names in the checkpoint."""

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
        n, mlp = layer["post_attention_layernorm"](x), layer["mlp"]
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](n)) * mlp["up_proj"](n))


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
        for i, drafts in enumerate(self(embed(x), taps, self.steps if training else 4)):
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
        y, seen = embed(ids), torch.arange(length, device=x.device).expand(size, length)
        hidden = torch.where(seen[:, None] < anchors.repeat_interleave(block, 1)[..., None], 0.0, -math.inf)[:, None]
        for layer in self.layers:
            attention, n = layer["self_attn"], layer["input_layernorm"](y)
            q, k, v = (self._heads(attention, name, n, None if name == "v" else positions) for name in "qkv")
            known = self._heads(attention, "k", context, seen), self._heads(attention, "v", context, None)
            blocks = [part.reshape(size, self.heads, -1, block, self.head_dim) for part in (q, k, v)]
            inside = (blocks[0] @ blocks[1].mT).flatten(2, 3)
            scores = torch.cat([q @ known[0].mT + hidden, inside], -1).float() * self.head_dim**-0.5
            weights = scores.softmax(-1).to(v.dtype)
            out = weights[..., :length] @ known[1]
            out = out + (weights[..., length:].unflatten(2, (-1, block)) @ blocks[2]).flatten(2, 3)
            y = self._mlp(layer, y + attention["o_proj"](out.transpose(1, 2).flatten(2)))
        y = self.norm(y).view(size, -1, block, y.shape[-1])
        for slot in range(1, block):
            yield F.linear(y[:, :, slot], self.lm_head), anchors + slot - 1, math.exp(-(slot - 1) / 4)

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
            "sliding_window_non_causal": False, "sample_from_anchor": False,
        }  # fmt: skip


class Trainer:
    """A frozen target, its drafter, and windows of text."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.device = torch.device(args.device)
        torch.set_float32_matmul_precision("high")
        self.tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
        config = AutoConfig.from_pretrained(args.target)
        self.train, self.held = self._windows([] if config.bos_token_id is None else [config.bos_token_id])
        self.target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).to(self.device).eval()
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
        kind = Eagle3 if args.kind == "eagle3" else DFlash
        self.head = kind(config, ids, self.target.lm_head.weight, args).to(self.device)
        self.history: list[dict[str, Any]] = []

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
            if len(out) > limit:
                break
        return torch.tensor(out[:limit])

    @torch.no_grad()
    def continued(self, windows: Tensor) -> Tensor:
        """The windows with all but their first eighth written by the target: half of them greedily."""
        args, parts = self.args, []
        for i, part in enumerate(windows.split(64 if self.device.type == "cpu" else 512)):
            kept = part[:, : args.window // 8].to(self.device)
            sampling = {"do_sample": True, "temperature": 0.8} if i % 2 else {"do_sample": False}
            new = args.window - kept.shape[1]
            made = self.target.generate(
                kept, attention_mask=torch.ones_like(kept), max_new_tokens=new, min_new_tokens=new, **sampling
            )
            parts.append(made.cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The tapped residual streams and the logits, all [B, T, ...]."""
        out = self.target(x, use_cache=False, output_hidden_states=True)
        streams = [*out.hidden_states[:-1], self.last[0]]  # the last of transformers' is normed
        return [streams[b].float() for b in self.args.layers], out.logits

    def agreement(self, windows: Tensor) -> list[float]:
        """Share of rows whose best draft token is the target's, by draft, on tokens of the text."""
        hits = []
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            for x in windows.to(self.device).split(8):
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
        wanted = logits[..., self.head.ids].softmax(-1)
        total = torch.zeros((), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            for drafts, at, weight in self.head.compared(self.target.get_input_embeddings(), x, taps, True):
                log_q = drafts.float().log_softmax(-1)
                cost = -(wanted.gather(1, at[..., None].expand(log_q.shape)) * log_q).sum(-1)
                counts = known.gather(1, at)
                total = total + weight * (cost * counts).sum() / counts.sum()
        return total

    def run(self) -> None:
        """Train for the given processor time."""
        args, head = self.args, self.head
        say(f"text {self.train.numel()} tokens, draft vocabulary covers {self.covered:.4f} of them")
        order = torch.randperm(len(self.train))
        share = self.continued(self.train[order[: args.pool]]) if args.generated else self.train[:0]
        own = self.continued(self.held[:16]) if args.generated else self.held[:16]
        warm = self._start()
        say(f"continued {share.numel()} tokens; start {'from the MTP module' if warm else 'at random'}")
        optimizer = torch.optim.AdamW(head.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
        clock = time.process_time if self.device.type == "cpu" else time.perf_counter
        began, step, seen = clock(), 0, 0
        while (progress := (clock() - began) / (60 * args.minutes)) < 1:
            rate = args.lr * min(1, (step + 1) / 20) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            made = round(args.batch * args.generated) if len(share) else 0
            picks = [self.train[torch.randint(len(self.train), (args.batch - made,))]]
            picks += [share[torch.randint(len(share), (made,))]] if made else []
            loss = self.loss(torch.cat(picks).to(self.device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 0.5)
            optimizer.step()
            step, seen = step + 1, seen + args.batch * args.window
            if step % (100 if self.device.type == "cpu" else 1000) == 0 or step == 1:
                self._record(step, seen, loss, own, clock() - began)
        self._record(step, seen, loss, own, clock() - began)

    def _start(self) -> bool:
        """First weights that are not random; whether they are those of a multi-token-prediction module."""
        config, file = self.target.config, self.args.target / "model.safetensors"
        stored = {} if self.args.random or not file.exists() else load_file(file)
        with torch.no_grad():
            x = self.train[:4].to(self.device)
            embedded, (taps, _) = self.target.get_input_embeddings()(x), self.features(x)
        final = self.target.model.norm.weight
        own = {name: value.float().to(self.device) for name, value in stored.items()}
        return self.head.start(own, f"model.layers.{config.num_hidden_layers}.", final, embedded, taps)

    def _record(self, step: int, seen: int, loss: Tensor, own: Tensor, seconds: float) -> None:
        entry = {"step": step, "tokens": seen, "loss": round(loss.item(), 4), "seconds": round(seconds, 1)}
        entry |= {"agreement_text": self.agreement(self.held[:16]), "agreement_generated": self.agreement(own)}
        self.history.append(entry)
        say(json.dumps(entry))
        self.save()

    def save(self) -> None:
        """The checkpoint in the format of `speculators`, half precision, without embedding (the target's)."""
        out, config, head = self.args.out, self.target.config, self.head
        out.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.detach().half().cpu().contiguous() for name, value in head.state_dict().items()}
        ids = head.ids.cpu()
        if len(ids) < config.vocab_size:
            tensors["d2t"] = ids - torch.arange(len(ids))
            tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
            tensors["lm_head.weight"] = head.lm_head.half().cpu().contiguous()
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
        name = {"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator"}[self.args.kind]
        raw = {
            "architectures": [name], "speculators_model_type": self.args.kind, "speculators_version": "0.5.0",
            "speculators_config": {
                "algorithm": self.args.kind, "proposal_methods": [proposal], "default_proposal_method": "greedy",
                "verifier": verifier,
            },
            "transformer_layer_config": layer, "draft_vocab_size": len(ids), "tie_word_embeddings": False,
            "torch_dtype": "float16", **head.described(self.args.layers),
        }  # fmt: skip
        (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
        record = {"arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(self.args).items()}}
        record |= {"covered": self.covered, "text_tokens": self.train.numel(), "history": self.history}
        (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def say(message: str) -> None:
    """A line of progress."""
    print(message, flush=True)


if __name__ == "__main__":
    Trainer(arguments()).run()
    sys.exit(0)
