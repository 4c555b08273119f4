"""Make a draft model of tiny-py-lm: one decoder layer, cut from its MTP module and trained to predict as it does.

    python train_draft.py --corpus /path/to/cpython/Lib --target DIR --out OTHER [--minutes 13]

The MTP module reads the embedding of a token and the target's hidden state before it. A draft model has no hidden
state, so it starts with the mean of those before each token: its embedding is the module's projection of both. Then it
is trained. The loss is the cross-entropy against the target's own distribution (knowledge distillation, Hinton et al.
2015), which is what speculative decoding accepts drafts by; text, windows, optimiser and schedule are those of
`train.py`. Writes config.json, model.safetensors, the target's tokenizer.json and training.json to OTHER. One CPU core
is enough; `--minutes` are those of the processor, so that other work on the machine does not change the result.
"""

from __future__ import annotations

import argparse
import copy
import platform
import shlex
import shutil
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import torch
from data import encode, read_corpus
from model import Config, TinyPyLM, load_float16, save_float16
from tokenizers import Tokenizer
from torch import Tensor
from train import Windows, descend, optimizer_for, rate, say, size, tiled, versions, write

CPU = torch.device("cpu")
VALIDATION_WINDOWS = 12
PRIOR = 4
"""Occurrences of a token that the overall mean hidden state counts for."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path(sysconfig.get_path("stdlib")), help="a directory of *.py")
    parser.add_argument("--corpus-name", default=f"CPython {platform.python_version()} Lib", help="for the model card")
    parser.add_argument("--target", type=Path, default=Path(__file__).parent, help="the checkpoint to imitate")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=13.0, help="processor time of the training proper")
    parser.add_argument("--window", type=int, default=1024, help="tokens per step")
    parser.add_argument("--means", type=int, default=64, help="windows of 2048 tokens for the mean hidden states")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--ema", type=float, default=0.99, help="decay of the averaged weights (those saved)")
    parser.add_argument("--seed", type=int, default=20)
    return parser.parse_args()


@torch.no_grad()
def cut(target: TinyPyLM, config: Config, windows: Tensor) -> TinyPyLM:
    """The target's MTP module as a decoder of one layer; mean hidden states are taken over `windows`."""
    draft, mtp = TinyPyLM(config), target.model["layers"][-1]
    embedding = target.model["embed_tokens"].weight
    sums, counts = torch.zeros_like(embedding), torch.zeros(len(embedding), 1)
    for row in windows.split(1):
        hidden = mtp.hnorm(target.hidden(row[:, :-2]))[0]
        sums.index_add_(0, row[0, 1:-1], hidden)
        counts.index_add_(0, row[0, 1:-1], torch.ones(len(hidden), 1))
    overall = sums.sum(0) / counts.sum()
    means = (sums + PRIOR * overall) / (counts + PRIOR)
    weights = draft.state_dict()
    own = {
        "model.embed_tokens.weight": mtp.eh_proj(torch.cat((mtp.enorm(embedding), means), -1)),
        "model.norm.weight": mtp.shared_head["norm"].weight,
        "lm_head.weight": embedding,
    }
    layer = {name: mtp.state_dict()[name.removeprefix("model.layers.0.")] for name in weights if ".layers.0." in name}
    draft.load_state_dict({name: tensor.clone() for name, tensor in (own | layer).items()})
    return draft


def distance(draft: TinyPyLM, target: TinyPyLM, tokens: Tensor) -> Tensor:
    """Cross-entropy of the draft's distributions against the target's, in nats per token; tokens int64 [B, T]."""
    with torch.no_grad():
        wanted = torch.softmax(target.logits(target.hidden(tokens)), -1)
    predicted = torch.log_softmax(draft.logits(draft.hidden(tokens)), -1)
    return -(wanted * predicted).sum(-1).mean()


@torch.no_grad()
def measure(draft: TinyPyLM, target: TinyPyLM, windows: Tensor) -> dict[str, float]:
    """How well the draft stands in for the target, per token of `windows`.

    `overlap` is the sum over the vocabulary of the smaller of both probabilities: how often a sampled draft is accepted
    at temperature 1 (Leviathan et al. 2022, theorem 3.5).
    """
    sums = dict.fromkeys(("loss", "top1", "agreement", "overlap"), 0.0)
    for row in windows[:, :-1].split(1):
        wanted = torch.softmax(target.logits(target.hidden(row[:, :-1]))[0], -1)
        predicted = torch.softmax(draft.logits(draft.hidden(row[:, :-1]))[0], -1)
        best = predicted.argmax(-1)
        sums["loss"] += -predicted.gather(-1, row[0, 1:, None]).log().mean().item()
        sums["top1"] += (best == row[0, 1:]).float().mean().item()
        sums["agreement"] += (best == wanted.argmax(-1)).float().mean().item()
        sums["overlap"] += torch.minimum(wanted, predicted).sum(-1).mean().item()
    return {name: value / len(windows) for name, value in sums.items()}


def train(args: argparse.Namespace, draft: TinyPyLM, target: TinyPyLM, sampler: Windows) -> tuple[TinyPyLM, int]:
    """The averaged weights, and how many steps they took."""
    torch.manual_seed(args.seed)
    average = copy.deepcopy(draft).eval()
    weights, averages = list(draft.parameters()), list(average.parameters())
    optimizer = optimizer_for(draft, args, CPU)
    step, begin, progress, recent = 0, time.process_time(), 0.0, 0.0
    draft.train()
    while progress < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(progress)
        loss = distance(draft, target, sampler.sample(1)[:, : args.window])
        step += 1
        descend(loss, optimizer, weights, averages, min(args.ema, step / (step + 10)))
        recent += (loss.item() - recent) / min(step, 50)
        progress = (time.process_time() - begin) / (60.0 * args.minutes)
        if step % 100 == 0:
            say(f"step {step}  {progress:4.0%}  cross-entropy against the target {recent:.3f}")
    return average, step


def main() -> None:
    """Corpus, cut, training, evaluation, outputs."""
    args = arguments()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    corpus = read_corpus(args.corpus)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    stream, held_out = encode(tokenizer, corpus.train, args.seed), encode(tokenizer, corpus.validation)
    windows = tiled(held_out, CPU, VALIDATION_WINDOWS)
    target = load_float16(Config(), args.target / "model.safetensors", CPU)
    config = replace(Config(), num_hidden_layers=1, num_nextn_predict_layers=0, tie_word_embeddings=False)
    draft = cut(target, config, tiled(stream, CPU, args.means))
    parameters = sum(p.numel() for p in draft.parameters())
    say(f"{len(stream)} tokens; {parameters:,} parameters")
    before = measure(draft.eval(), target, windows)
    say(f"as cut: {before}")
    average, steps = train(args, draft, target, Windows([stream], 1.0, args.seed, CPU))
    shutil.copyfile(args.target / "tokenizer.json", args.out / "tokenizer.json")
    config.write(args.out / "config.json")
    save_float16(average, args.out / "model.safetensors")
    final = measure(load_float16(config, args.out / "model.safetensors", CPU), target, windows)
    say(f"trained: {final}")
    options = {k: v for k, v in vars(args).items() if k not in ("corpus", "target", "out")}
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "options": options,
        "corpus": {"name": args.corpus_name, "sha256": corpus.sha256},
        "train": size(corpus.train, len(stream)),
        "validation": size(corpus.validation, len(held_out)),
        "windows": len(windows),
        "parameters": parameters,
        "target_layers": Config().num_hidden_layers,
        "steps": steps,
        "before": before,
        "final": final,
        "versions": versions(),
    }
    write(record, args.out)


if __name__ == "__main__":
    sys.exit(main())
