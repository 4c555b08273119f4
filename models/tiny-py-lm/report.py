"""What a training run leaves behind to read: training.json, loss.png and MODEL_CARD.md, all from one record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_report(record: dict[str, Any], out: Path, figure: bool) -> None:
    """Write training.json and MODEL_CARD.md (and loss.png if `figure`) to `out`."""
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (out / "MODEL_CARD.md").write_text(card(record), encoding="utf-8")
    if figure:
        plot(record, out / "loss.png")


def plot(record: dict[str, Any], path: Path) -> None:
    """The loss curves over training tokens."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    history = record["history"]
    tokens = [entry["tokens"] / 1e6 for entry in history]
    figure, axes = plt.subplots(figsize=(7.5, 4.5), dpi=110)
    for key, label, style in (
        ("batch_loss", "training batches (dropout, augmented)", ":"),
        ("train_loss", "training files (averaged weights)", "--"),
        ("validation_loss", "validation files", "-"),
        ("validation_mtp_loss", "validation files, MTP (t + 2)", "-."),
    ):
        axes.plot(tokens, [entry[key] for entry in history], style, label=label)
    lowest = min(entry["validation_loss"] for entry in history)
    axes.set_ylim(0.75 * min(entry["train_loss"] for entry in history), 2.6 * lowest)
    axes.set_xlabel("training tokens (millions)")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(f"tiny-py-lm: lowest validation loss {lowest:.3f} nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _sample(g: dict[str, Any]) -> str:
    how = f"temperature {g['temperature']:g}, top_p {g['top_p']:g}" if g["temperature"] else "greedy"
    return f"Continued ({how}) from {g['prompt_tokens']} prompt tokens:\n\n~~~~python\n{g['prompt']}{g['text']}\n~~~~\n"


def _split(counts: dict[str, int]) -> str:
    return f"{counts['files']} files ({counts['bytes'] / 1e6:.2f} MB, {counts['tokens'] / 1e6:.3f} million tokens)"


def card(r: dict[str, Any]) -> str:
    """MODEL_CARD.md; every number in it comes from the record."""
    if not r["complete"]:
        return (
            "# tiny-py-lm\n\nUnfinished run: this checkpoint is the best one so far "
            f"(step {r['best_step']}, validation loss {r['best_validation_loss_bfloat16']:.3f} nats per token).\n"
        )
    final, options, data = r["final"], r["options"], r["corpus"]
    excluded = ", ".join(f"{reason}: {count}" for reason, count in sorted(data["excluded"].items()))
    versions = ", ".join(f"{name} {version}" for name, version in r["versions"].items())
    early = " The run was stopped early." if r["stopped_early"] else ""
    smoke = "\n> Smoke run: this checkpoint only shows that the script works.\n" if options["smoke"] else ""
    samples = "\n".join(_sample(g) for g in r["generations"])
    return f"""# tiny-py-lm
{smoke}
A language model of {r["parameters"] / 1e6:.2f} million parameters that continues Python source code. It exists so that
tests, examples and demonstrations of speculative decoding run a real model on real text on any machine; it is not a
coding assistant.

This file is rendered by `train.py` from `training.json`, which holds the same numbers and the whole loss history.

## Licence and origin

Trained from scratch on the source code of the Python standard library ({data["name"]}), which is distributed under
the Python Software Foundation License (PSF-2.0), with parts under the licences listed in CPython's LICENSE file. The
weights and the tokenizer are derived from that source and from nothing else.

## Architecture

Llama-style decoder, Hugging Face parameter names: 8 layers, hidden size 256, 4 attention heads and 2 key/value heads
of 64, SwiGLU of 704, RMSNorm, rotary embeddings (rotate-half, theta 10000), tied embedding and head, vocabulary 4096,
context {r["context"]}. Stored as float16; meant to be computed in float32.

One multi-token-prediction (MTP) module in DeepSeek-V3's form, parameters `model.layers.8.*`:

- input of row t: `eh_proj([enorm(embedding of token t+1), hnorm(hidden state of t)])`, the embedding half first;
- the hidden state is the decoder's output AFTER its final norm (`model.norm`), which is what serving engines hand on;
- then one decoder layer like the others (causal over the rows; only differences of rotary positions matter), then
  `shared_head.norm` and the shared embedding as the head: logits of the token at t+2.

Tokenizer: byte-level BPE of 4096 tokens, `decode(encode(x)) == x` for any text. `<|endoftext|>` (id 0) is both bos and
eos; it separates files in training. A line break and the indentation after it form one token, so a prompt should end
with the indentation of the line to be written, not right after the line break.

## Results

On {r["validation"]["files"]} held-out files, with the float16 weights computed in float32, in back-to-back windows of
{r["context"]} tokens:

| measure | value |
| --- | --- |
| validation loss | {final["loss"]:.4f} nats per token |
| the same per byte | {final["bits_per_byte"]:.4f} bits per byte |
| top-1 accuracy, next token | {final["top1"]:.1%} |
| MTP loss, token after next | {final["mtp_loss"]:.4f} nats per token |
| MTP top-1 accuracy, token after next | {final["mtp_top1"]:.1%} |
| MTP's best token is the decoder's own best token | {final["mtp_agreement"]:.1%} |
| loss on the second of two equal passages of {r["context"] // 2} tokens | {final["copy_loss"]:.4f} nats per token |
| top-1 accuracy there | {final["copy_top1"]:.1%} |

Rounding to float16 moves a logit by {r["float16_check"]["main_mean_difference"]:.1e} on average.

![loss over training tokens](loss.png)

## Recipe

```
{r["command"]}
```

- `LIB` is the directory {data["name"]}: all `*.py`, tests included, less what the rules in `data.py` leave out (by
  reason: {excluded}).
- SHA-256 over the paths and contents that remain: `{data["sha256"]}`.
- Split by a hash of the path: {_split(r["train"])} for training,
  {_split(r["validation"])} for validation.
- {1 - options["original_share"]:.0%} of the windows come from {options["copies"]} augmented copies of the training
  split ({r["augmented_tokens"] / 1e6:.1f} million tokens), in which names that few files use are respelled consistently
  and some functions and classes are followed by an edited copy of themselves. Validation text is unchanged.
- {r["steps"]} steps of {options["batch"]} windows of {r["context"]} tokens, {r["tokens_seen"] / 1e6:.0f} million tokens
  in all ({r["tokens_seen"] / r["train"]["tokens"]:.0f} times the training split); the weights are those of step
  {r["best_step"]}, the lowest validation loss.{early}
- Loss: cross-entropy of t+1 plus {r["mtp_weight"]} times the MTP module's of t+2, trained jointly.
- {r["optimizer"]}; peak learning rate {options["lr"]:g}, weight decay
  {options["weight_decay"]:g} on matrices, dropout {options["dropout"]:g} on embeddings and residual branches, weights
  averaged with decay {options["ema"]:g}; bfloat16 autocast.
- {r["training_seconds"] / 60:.1f} minutes of training, {r["wall_seconds"] / 60:.1f} with everything, on {r["device"]};
  {versions}.
- Seeds are fixed, but GPU arithmetic is not reproducible bit for bit and `--minutes` ends by the clock;
  `--steps {r["steps"]}` repeats the same schedule.

## Limits

It knows the style of one code base and little else: continuations look like Python and are often wrong. It repeats
itself readily, which n-gram speculation profits from and nothing else does. It may reproduce passages of the standard
library literally. No safety work of any kind was done. Held-out files are from the same library as the training files,
so the validation loss says little about other Python code.

## Samples

{samples}"""
