"""Train an EAGLE-3 head for a checkpoint, and write it in the format of `speculators` (PyTorch, a CPU or one GPU).

    python tools/train_drafter.py --target models/tiny-py-lm --text /path/to/cpython/Lib --out DIR [--minutes 20]

The target is frozen. The text is cut into windows; a share of them keeps only its beginning and is continued by the
target itself (`--generated`), since drafts are judged on the target's own text. The loss is the training-time test of
EAGLE-3 (Li et al., arXiv:2503.01840): the head runs `--steps` times over each window, from the second time on with its
own states in place of the target's; each time it is compared with the target's distribution, restricted to the draft
vocabulary. Embedding and head are the target's. A target with a multi-token-prediction module (DeepSeek-V3's tensor
names) gives the head its first weights; `--random` starts without.

The head's third feature is the target's last residual stream, with `fc_norm`, and it recycles normed states
(`norm_output`, "EAGLE-3.1"). `--minutes` are those of the processor, so that other work on the machine does not change
the result. Writes config.json, model.safetensors and training.json; the card of a head is written by hand.
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
from transformers import AutoModelForCausalLM


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder of a Llama-style model")
    parser.add_argument("--text", type=Path, required=True, help="a folder of *.py, *.md and *.txt files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs=3, help="taps: the residual after so many layers (2, N/2, N)")
    parser.add_argument("--draft-vocab", type=int, default=2048, help="most frequent tokens of the text")
    parser.add_argument("--tokens", type=int, default=1_500_000, help="most tokens of text that are read")
    parser.add_argument("--generated", type=float, default=0.5, help="share of windows that the target continues")
    parser.add_argument("--pool", type=int, default=1024, help="windows that the target continues in all")
    parser.add_argument("--minutes", type=float, default=20.0, help="processor time of the training proper")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3, help="iterations of the training-time test")
    parser.add_argument("--decay", type=float, default=0.8, help="weight of an iteration by that of the one before")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--random", action="store_true", help="ignore the target's multi-token-prediction module")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=20)
    return parser.parse_args()


class RMSNorm(nn.Module):
    """Zhang and Sennrich, arXiv:1910.07467."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Rows of `x`, normed."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Head(nn.Module):
    """An EAGLE-3 head; parameters have their names in the checkpoint."""

    def __init__(self, config: Any, ids: Tensor, lm_head: Tensor, features: int) -> None:
        super().__init__()
        d, ffn, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or d // self.heads
        self.theta = float((getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0))
        self.register_buffer(
            "inverse", self.theta ** -(torch.arange(0, self.head_dim, 2) / self.head_dim), persistent=False
        )
        self.register_buffer("ids", ids, persistent=False)
        self.register_buffer("lm_head", lm_head[ids].clone(), persistent=False)

        def linear(inner: int, outer: int) -> nn.Linear:
            layer = nn.Linear(inner, outer, bias=False)
            nn.init.normal_(layer.weight, std=0.02)
            return layer

        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = nn.ModuleDict(
            {"q_proj": linear(2 * d, q), "k_proj": linear(2 * d, kv), "v_proj": linear(2 * d, kv)}
        )
        attention["o_proj"] = linear(q, d)
        mlp = nn.ModuleDict({"gate_proj": linear(d, ffn), "up_proj": linear(d, ffn), "down_proj": linear(ffn, d)})
        names = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        layer = nn.ModuleDict({name: RMSNorm(d, eps) for name in names} | {"self_attn": attention, "mlp": mlp})
        self.layers = nn.ModuleList([layer])
        self.fc, self.norm = linear(features * d, d), RMSNorm(d, eps)
        self.fc_norm = nn.ModuleList([RMSNorm(d, eps) for _ in range(features)])

    def fuse(self, taps: list[Tensor]) -> Tensor:
        """The state of a row from the target's features [B, T, D]."""
        return self.fc(torch.cat([norm(tap) for norm, tap in zip(self.fc_norm, taps, strict=True)], -1))

    def _turned(self, x: Tensor, first: int) -> Tensor:
        angle = torch.arange(first, first + x.shape[-2], device=x.device)[:, None] * self.inverse
        cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        half = self.head_dim // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def rows(self, embedded: Tensor, u: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """States [B, T, D] of one iteration; `cache` holds keys and values of those before, and gets its own."""
        layer = self.layers[0]
        attention, mlp = layer["self_attn"], layer["mlp"]
        x = torch.cat([layer["input_layernorm"](embedded), layer["hidden_norm"](u)], -1)
        (size, length, _), step = x.shape, len(cache)

        def split(name: str, heads: int) -> Tensor:
            part = attention[name](x).view(size, length, heads, self.head_dim).transpose(1, 2)
            return part.repeat_interleave(self.heads // heads, 1)

        q = self._turned(split("q_proj", self.heads), step)
        cache.append((self._turned(split("k_proj", self.kv_heads), step), split("v_proj", self.kv_heads)))
        scale = self.head_dim**-0.5
        hidden = torch.full((length, length), -math.inf, device=x.device).triu(1)
        scores = [q @ cache[0][0].mT * scale + hidden]
        scores += [(q * key).sum(-1, keepdim=True) * scale for key, _ in cache[1:]]  # a row's own later iterations
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., :length] @ cache[0][1]
        for i, (_, value) in enumerate(cache[1:]):
            out = out + weights[..., length + i : length + i + 1] * value
        y = u + attention["o_proj"](out.transpose(1, 2).reshape(size, length, -1))
        n = layer["post_attention_layernorm"](y)
        return self.norm(y + mlp["down_proj"](F.silu(mlp["gate_proj"](n)) * mlp["up_proj"](n)))

    def forward(self, embedded: Tensor, taps: list[Tensor], steps: int) -> Iterator[Tensor]:
        """Draft logits [B, T-1, Vd] of each iteration; row t of iteration i predicts the token at t + 2 + i."""
        u, tokens, cache = self.fuse([tap[:, :-1] for tap in taps]), embedded[:, 1:], []
        for _ in range(steps):
            u = self.rows(tokens, u, cache)
            yield F.linear(u, self.lm_head)
            tokens = torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], 1)


class Trainer:
    """A frozen target, its head, and windows of text."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        self.device = torch.device(args.device)
        self.target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32).to(self.device).eval()
        self.target.requires_grad_(False)
        config = self.target.config
        depth = config.num_hidden_layers
        self.layers = args.layers or [2, depth // 2, depth]
        self.last: list[Tensor] = []
        self.target.model.layers[-1].register_forward_hook(self._keep_last)
        self.tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
        self.train, self.held = self._windows()
        counts = torch.bincount(self.train.flatten(), minlength=config.vocab_size)
        size = min(args.draft_vocab, config.vocab_size)
        ids = counts.argsort(descending=True, stable=True)[:size].sort().values.to(self.device)
        self.covered = float(counts[ids.cpu()].sum() / counts.sum())
        self.head = Head(config, ids, self.target.lm_head.weight, len(self.layers)).to(self.device)
        self.history: list[dict[str, Any]] = []

    def _keep_last(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.last = [output[0] if isinstance(output, tuple) else output]

    def _windows(self) -> tuple[Tensor, Tensor]:
        """Windows [n, window] to train on, and held-out ones, of other files."""
        args = self.args
        files = sorted(f for kind in ("py", "md", "txt") for f in args.text.rglob(f"*.{kind}"))
        files = [f for f in files if "site-packages" not in f.parts and f.stat().st_size < 1 << 20]
        random.Random(args.seed).shuffle(files)
        held, text = self._ids(files[:12], 32 * args.window), self._ids(files[12:], args.tokens)
        return tuple(part[: len(part) // args.window * args.window].view(-1, args.window) for part in (text, held))

    def _ids(self, files: list[Path], limit: int) -> Tensor:
        start = [] if self.target.config.bos_token_id is None else [self.target.config.bos_token_id]
        out: list[int] = []
        for file in files:
            text = file.read_bytes().decode(errors="ignore")
            out += start + self.tokenizer.encode(text, add_special_tokens=False).ids
            if len(out) > limit:
                break
        return torch.tensor(out[:limit])

    @torch.no_grad()
    def continued(self, windows: Tensor) -> Tensor:
        """The windows with all but their first eighth written by the target: half of them greedily."""
        args, parts = self.args, []
        for i, part in enumerate(windows.split(64)):
            kept = part[:, : args.window // 8].to(self.device)
            sampling = {"do_sample": True, "temperature": 0.8} if i % 2 else {"do_sample": False}
            new = args.window - kept.shape[1]
            made = self.target.generate(
                kept, attention_mask=torch.ones_like(kept), max_new_tokens=new, min_new_tokens=new, **sampling
            )
            parts.append(made.cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Embedded tokens, the tapped residual streams, and logits, all [B, T, ...]."""
        out = self.target(x, use_cache=False, output_hidden_states=True)
        streams = [*out.hidden_states[:-1], self.last[0]]  # the last of transformers' is normed
        return self.target.get_input_embeddings()(x), [streams[b].float() for b in self.layers], out.logits

    def start_from_mtp(self) -> bool:
        """First weights from the target's multi-token-prediction module, as near as the head's form allows.

        The module adds its projections of embedding and state, which is its layer's residual; the head's is the fused
        state alone, and the embedding comes in by attention.
        """
        config, head = self.target.config, self.head
        stored = {k: v.float() for k, v in load_file(self.args.target / "model.safetensors").items()}
        module = f"model.layers.{config.num_hidden_layers}."
        own = {k.removeprefix(module): v for k, v in stored.items() if k.startswith(module)}
        if "eh_proj.weight" not in own or self.layers[-1] != config.num_hidden_layers:
            return False
        by_embedding, by_state = own["eh_proj.weight"].chunk(2, 1)
        with torch.no_grad():
            embedded, taps, _ = self.features(self.train[:4].to(self.device))
            eps = config.rms_norm_eps

            def normed(x: Tensor, weight: Tensor) -> Tensor:
                return F.rms_norm(x, weight.shape, weight, eps)

            def size(x: Tensor) -> Tensor:
                return x.pow(2).mean(-1).sqrt().mean()

            final = self.target.model.norm.weight
            head.fc_norm[2].weight.copy_(final * own["hnorm.weight"] / size(normed(taps[2], final)))
            head.fc.weight[:, -config.hidden_size :].copy_(by_state)
            head.fc.weight[:, : -config.hidden_size].mul_(0.1)
            u = head.fuse(taps)[:, :-1]
            x = u + normed(embedded, own["enorm.weight"])[:, 1:] @ by_embedding.T
            layer, first = head.layers[0], own["input_layernorm.weight"]
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
            head.norm.weight.copy_(own["shared_head.norm.weight"])
        return True

    @torch.no_grad()
    def agreement(self, windows: Tensor, steps: int = 4) -> list[float]:
        """Share of rows whose best draft token is the target's, by iteration: tokens of the text, recycled states."""
        hits = torch.zeros(steps)
        for x in windows.to(self.device).split(8):
            embedded, taps, logits = self.features(x)
            best = logits.argmax(-1)
            for i, drafts in enumerate(self.head(embedded, taps, steps)):
                wanted = best[:, 1 + i :]
                hits[i] += (
                    self.head.ids[drafts[:, : wanted.shape[1]].argmax(-1)] == wanted
                ).float().mean().cpu() * len(x)
        return [round(float(hit) / len(windows), 4) for hit in hits]

    def loss(self, x: Tensor) -> Tensor:
        """The training-time test's, over the rows whose target token the draft vocabulary has."""
        embedded, taps, logits = self.features(x)
        known = torch.isin(logits.argmax(-1), self.head.ids)
        wanted = logits[..., self.head.ids].softmax(-1)
        total = torch.zeros((), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            for i, drafts in enumerate(self.head(embedded, taps, self.args.steps)):
                length = wanted.shape[1] - 1 - i
                log_q = drafts[:, :length].float().log_softmax(-1)
                cost = -(wanted[:, 1 + i :] * log_q).sum(-1) * known[:, 1 + i :]
                total = total + self.args.decay**i * cost.sum() / known[:, 1 + i :].sum()
        return total

    def run(self) -> None:
        """Train for the given processor time."""
        args, head = self.args, self.head
        say(f"text {self.train.numel()} tokens, draft vocabulary covers {self.covered:.4f} of them")
        order = torch.randperm(len(self.train))
        share = self.continued(self.train[order[: args.pool]]) if args.generated else self.train[:0]
        own = self.continued(self.held[:16]) if args.generated else self.held[:16]
        warm = not args.random and self.start_from_mtp()
        say(f"continued {share.numel()} tokens; start {'from the MTP module' if warm else 'at random'}")
        optimizer = torch.optim.AdamW(head.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
        began, step, seen = time.process_time(), 0, 0
        while (progress := (time.process_time() - began) / (60 * args.minutes)) < 1:
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
            if step % 100 == 0 or step == 1:
                self._record(step, seen, loss, own, time.process_time() - began)
        self._record(step, seen, loss, own, time.process_time() - began)

    def _record(self, step: int, seen: int, loss: Tensor, own: Tensor, seconds: float) -> None:
        entry = {"step": step, "tokens": seen, "loss": round(float(loss), 4), "processor_s": round(seconds, 1)}
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
            "model_type": "llama", "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size, "num_hidden_layers": 1,
            "num_attention_heads": head.heads, "num_key_value_heads": head.kv_heads, "head_dim": head.head_dim,
            "hidden_act": "silu", "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps, "rope_theta": head.theta,
            "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        }  # fmt: skip
        verifier = {"name_or_path": self.args.target.name, "architectures": config.architectures}
        proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        raw = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
            "speculators_config": {
                "algorithm": "eagle3", "proposal_methods": [proposal], "default_proposal_method": "greedy",
                "verifier": verifier,
            },
            "transformer_layer_config": layer, "draft_vocab_size": len(ids), "tie_word_embeddings": False,
            "norm_before_residual": False, "norm_before_fc": False, "fc_norm": True, "norm_output": True,
            "eagle_aux_hidden_state_layer_ids": self.layers, "target_hidden_size": None, "torch_dtype": "float16",
        }  # fmt: skip
        (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
        told = {"arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(self.args).items()}}
        told |= {"covered": self.covered, "text_tokens": self.train.numel(), "history": self.history}
        (out / "training.json").write_text(json.dumps(told, indent=1) + "\n")


def say(message: str) -> None:
    """A line of progress."""
    print(message, flush=True)


if __name__ == "__main__":
    Trainer(arguments()).run()
    sys.exit(0)
