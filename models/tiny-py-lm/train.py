"""Train tiny-py-lm from scratch on the Python standard library's own source, on one GPU in a few minutes.

    python train.py --corpus /path/to/cpython/Lib --out DIR [--minutes 5]

writes config.json, model.safetensors, tokenizer.json and training.json to DIR; the card is written by hand. `--smoke`
does all of it on a slice of the corpus, on the CPU, in under a minute. The weights are those of the lowest validation
loss.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import shlex
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from data import (
    Corpus,
    SourceFile,
    augmented_copies,
    check_round_trip,
    encode,
    read_corpus,
    train_tokenizer,
)
from model import Config, TinyPyLM, load_float16, save_float16
from torch import Tensor

CONTEXT = 2048
MTP_WEIGHT = 0.3
STARTED = time.monotonic()


def say(message: str) -> None:
    """One line of progress, at once."""
    print(f"[{time.monotonic() - STARTED:6.1f} s] {message}", flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path(sysconfig.get_path("stdlib")), help="a directory of *.py")
    parser.add_argument("--corpus-name", default="", help="for the model card, e.g. CPython 3.12.1 Lib")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0, help="training proper, evaluations included")
    parser.add_argument("--steps", type=int, help="train for exactly this many steps instead")
    parser.add_argument("--batch", type=int, default=32, help="windows of 2048 tokens per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--ema", type=float, default=0.998, help="decay of the averaged weights (those saved)")
    parser.add_argument("--copies", type=int, default=4, help="augmented copies of the corpus")
    parser.add_argument("--original-share", type=float, default=0.5, help="share of windows from the unchanged corpus")
    parser.add_argument("--eval-every", type=int, default=250, help="steps")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="a check of the script itself, not a training")
    args = parser.parse_args()
    args.corpus_name = args.corpus_name or f"CPython {platform.python_version()} Lib"
    if args.smoke:
        args.steps, args.batch, args.copies, args.eval_every = args.steps or 20, 1, 1, 10
    return args


# --------------------------------------------------------------------------------------------------------- data


class Windows:
    """Random training windows int64 [B, CONTEXT + 2]: a share from the original stream, the rest from the copies."""

    def __init__(self, streams: list[np.ndarray], share: float, seed: int, device: torch.device) -> None:
        self.tokens = torch.from_numpy(np.concatenate(streams).astype(np.int32)).to(device)
        self.original = len(streams[0])
        self.share = share if len(streams) > 1 else 1.0
        self.generator = torch.Generator(device).manual_seed(seed)
        self.offsets = torch.arange(CONTEXT + 2, device=device)

    def sample(self, batch: int) -> Tensor:
        """`batch` windows; positions are uniform, so documents are met in proportion to their length."""
        device, span = self.tokens.device, CONTEXT + 2
        place = torch.rand(2, batch, device=device, generator=self.generator, dtype=torch.float64)
        first = (place[0] * (self.original - span)).long()
        later = self.original + (place[0] * (len(self.tokens) - self.original - span)).long()
        start = torch.where(place[1] < self.share, first, later)
        return self.tokens[start[:, None] + self.offsets].long()


def tiled(stream: np.ndarray, device: torch.device, limit: int | None = None) -> Tensor:
    """Back-to-back windows [N, CONTEXT + 2] that predict every token once (the incomplete last window is dropped)."""
    starts = np.arange(0, len(stream) - CONTEXT - 1, CONTEXT)[:limit]
    if not len(starts):
        raise SystemExit(f"a split of {len(stream)} tokens is shorter than one window of {CONTEXT + 2}")
    rows = stream[starts[:, None] + np.arange(CONTEXT + 2)]
    return torch.from_numpy(rows.astype(np.int64)).to(device)


# --------------------------------------------------------------------------------------------------- evaluation


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 arithmetic on the GPU, float32 on the CPU."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def evaluate(model: TinyPyLM, windows: Tensor, batch: int = 16) -> tuple[float, float]:
    """Mean losses (main, MTP) in nats per token over tiled windows."""
    model.eval()
    main, ahead = 0.0, 0.0
    for rows in windows.split(batch):
        with autocast(windows.device):
            a, b = model.losses(rows)
        main, ahead = main + a.item() * len(rows), ahead + b.item() * len(rows)
    return main / len(windows), ahead / len(windows)


@torch.no_grad()
def measure(model: TinyPyLM, windows: Tensor) -> dict[str, float]:
    """Final numbers of the float16-rounded weights, computed in float32.

    `copy_*` repeat the first half of each window and score the second half, which only reading back can predict.
    `mtp_agreement` is how often the MTP module's best token is the one the decoder itself goes on to prefer.
    """
    sums = dict.fromkeys(("loss", "mtp_loss", "top1", "mtp_top1", "mtp_agreement", "copy_loss", "copy_top1"), 0.0)
    half = CONTEXT // 2
    for row in windows.split(1):
        hidden = model.hidden(row[:, :-2])
        main, ahead = model.logits(hidden)[0], model.logits(model.mtp_hidden(hidden, row[:, 1:-1]))[0]
        best, best_ahead = main.argmax(-1), ahead.argmax(-1)
        sums["loss"] += F.cross_entropy(main, row[0, 1:-1]).item()
        sums["mtp_loss"] += F.cross_entropy(ahead, row[0, 2:]).item()
        sums["top1"] += (best == row[0, 1:-1]).float().mean().item()
        sums["mtp_top1"] += (best_ahead == row[0, 2:]).float().mean().item()
        sums["mtp_agreement"] += (best_ahead[:-1] == best[1:]).float().mean().item()
        twice = torch.cat((row[:, :half], row[:, :half]), dim=1)
        again = model.logits(model.hidden(twice))[0, half:-1]
        sums["copy_loss"] += F.cross_entropy(again, twice[0, half + 1 :]).item()
        sums["copy_top1"] += (again.argmax(-1) == twice[0, half + 1 :]).float().mean().item()
    return {name: value / len(windows) for name, value in sums.items()}


# ----------------------------------------------------------------------------------------------------- training


def optimizer_for(model: TinyPyLM, args: argparse.Namespace, device: torch.device) -> torch.optim.AdamW:
    """AdamW with weight decay on the matrices only."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": args.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=device.type == "cuda")


def descend(
    loss: Tensor, optimizer: torch.optim.Optimizer, weights: list[Tensor], averages: list[Tensor], decay: float
) -> None:
    """One step of the optimizer, and of the moving averages of the weights."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch._foreach_lerp_(averages, weights, 1.0 - decay)


def rate(progress: float) -> float:
    """Learning-rate factor at `progress` in [0, 1]: linear warm-up over 2 %, then a cosine to zero."""
    progress = min(max(progress, 0.0), 1.0)
    return min(progress / 0.02, 1.0) * 0.5 * (1.0 + math.cos(math.pi * progress))


def train(
    args: argparse.Namespace,
    sampler: Windows,
    train_windows: Tensor,
    validation: Tensor,
    record: dict[str, Any],
) -> TinyPyLM:
    """Train; returns the averaged model of the lowest validation loss."""
    device = validation.device
    torch.manual_seed(args.seed)
    model = TinyPyLM(Config(), args.dropout).to(device)
    average = copy.deepcopy(model).eval()
    weights, averages = list(model.parameters()), list(average.parameters())
    best_state: dict[str, Tensor] = {}
    optimizer = optimizer_for(model, args, device)
    losses = torch.compile(model.losses) if device.type == "cuda" else model.losses

    history: list[dict[str, float]] = record["history"]
    step, begin, best, progress = 0, time.monotonic(), math.inf, 0.0
    recent: list[Tensor] = []
    while progress < 1.0:
        factor = rate(progress)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * factor
        model.train()
        with autocast(device):
            main, ahead = losses(sampler.sample(args.batch))
            loss = main + MTP_WEIGHT * ahead
        step += 1
        descend(loss, optimizer, weights, averages, min(args.ema, step / (step + 10)))
        recent.append(main.detach())
        if step % 20 == 0:  # also keeps the host from running ahead of the GPU, and so of the clock
            torch.stack(recent[-20:]).mean().item()
        if step == 5:  # compilation is over: the clock of --minutes starts
            begin = (recent[-1].item(), time.monotonic())[1]
            say("compiled; training")
        seconds = time.monotonic() - begin if step >= 5 else 0.0
        progress = step / args.steps if args.steps else seconds / (60.0 * args.minutes)
        if step % args.eval_every == 0 or progress >= 1.0:
            value, mtp_value = evaluate(average, validation)
            seen, mtp_seen = evaluate(average, train_windows)
            running = torch.stack(recent).mean().item()
            recent.clear()
            if not math.isfinite(value):
                raise SystemExit(f"step {step}: validation loss is {value}; lower --lr")
            tokens = step * args.batch * CONTEXT
            entry = {"step": step, "tokens": tokens, "seconds": round(seconds, 2), "lr": args.lr * factor}
            entry |= {"batch_loss": running, "train_loss": seen, "train_mtp_loss": mtp_seen}
            entry |= {"validation_loss": value, "validation_mtp_loss": mtp_value}
            history.append(entry)
            say(
                f"step {step}  {progress:4.0%}  batch {running:.3f}  train {seen:.3f}  validation {value:.4f}"
                f"  mtp {mtp_value:.4f}  {tokens / max(seconds, 1e-9) / 1e6:.2f} Mtok/s{'  *' if value < best else ''}"
            )
            if value < best:
                best = value
                best_state = {name: tensor.clone() for name, tensor in average.state_dict().items()}
                record |= {"best_step": step, "best_validation_loss_bfloat16": value}
    record |= {"steps": step, "tokens_seen": step * args.batch * CONTEXT, "training_seconds": time.monotonic() - begin}
    average.load_state_dict(best_state)
    return average


# --------------------------------------------------------------------------------------------------------- main


def size(files: list[SourceFile], tokens: int) -> dict[str, int]:
    """Counts of one split."""
    return {"files": len(files), "bytes": sum(len(f.text.encode()) for f in files), "tokens": tokens}


def describe(args: argparse.Namespace, corpus: Corpus, device: torch.device) -> dict[str, Any]:
    """The part of training.json that is known before the first step."""
    options = {k: v for k, v in vars(args).items() if k not in ("corpus", "out")}
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {
        "command": shlex.join(["python", *sys.argv]),
        "options": options,
        "mtp_weight": MTP_WEIGHT,
        "context": CONTEXT,
        "optimizer": "AdamW, betas (0.9, 0.95), gradient norm clipped to 1, 2 % warm-up, cosine to 0",
        "corpus": {"name": args.corpus_name, "sha256": corpus.sha256, "excluded": dict(corpus.excluded)},
        "device": gpu,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "tokenizers": tokenizers.__version__,
            "numpy": np.__version__,
        },
        "history": [],
    }


def main() -> None:
    """Corpus, tokenizer, training, evaluation, outputs."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.smoke else "cpu")
    workers = max(1, min(args.copies, os.cpu_count() or 1))

    # Processes first: forking is only safe before the tokenizer and the GPU have started their threads.
    corpus = read_corpus(args.corpus, limit=200 if args.smoke else None)
    say(f"{len(corpus.train)} + {len(corpus.validation)} files, sha256 {corpus.sha256}")
    say(f"left out: {dict(corpus.excluded)}")
    copies = augmented_copies(corpus.train, args.copies, args.seed, workers)
    say(f"{len(copies)} augmented copies")
    tokenizer = train_tokenizer(corpus.train)
    check_round_trip(tokenizer, corpus.validation)
    tokenizer.save(str(args.out / "tokenizer.json"), pretty=False)
    config = Config()
    config.write(args.out / "config.json")
    streams = [encode(tokenizer, corpus.train, args.seed)]
    streams += [encode(tokenizer, files, args.seed + 1 + i) for i, files in enumerate(copies)]
    held_out = encode(tokenizer, corpus.validation)
    record = describe(args, corpus, device)
    record["train"], record["validation"] = size(corpus.train, len(streams[0])), size(corpus.validation, len(held_out))
    record["augmented_tokens"] = sum(map(len, streams[1:]))
    bytes_per_token = record["validation"]["bytes"] / len(held_out)
    say(f"tokens: {[len(s) for s in streams]} + {len(held_out)} held out, {bytes_per_token:.3f} bytes each")

    validation = tiled(held_out, device, 2 if args.smoke else None)
    train_windows = tiled(streams[0], device, 2 if args.smoke else 64)
    sampler = Windows(streams, args.original_share, args.seed, device)
    checkpoint = args.out / "model.safetensors"
    record["parameters"] = sum(p.numel() for p in TinyPyLM(config).parameters())
    say(f"{record['parameters']:,} parameters on {record['device']}")

    trained = train(args, sampler, train_windows, validation, record)
    save_float16(trained, checkpoint)
    loaded = load_float16(config, checkpoint, device)
    final = measure(loaded, validation)
    final["bits_per_byte"] = final["loss"] / bytes_per_token / math.log(2)
    record["final"] = final
    say(f"float16 checkpoint: {', '.join(f'{k} {v:.4f}' for k, v in final.items())}")
    record["wall_seconds"] = round(time.monotonic() - STARTED, 1)
    (args.out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for file in sorted(args.out.iterdir()):
        say(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
