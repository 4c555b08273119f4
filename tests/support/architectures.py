"""Whether an architecture of `transformers` runs under our KV cache, by a tiny random checkpoint of it."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from specdec_hal.errors import UnsupportedError
from specdec_hal.models import load_model
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, Segment
from specdec_hal.runner import SamplingParams
from specdec_hal.text import one_line
from tests.runner.conftest import make_runner
from tests.support.decoding import outputs_of
from tests.support.hf_models import VOCABULARY, Case, enlarge
from tests.support.tiny_configs import multimodal_types, tiny_config

RECORD = Path(__file__).parents[1] / "models/architectures.json"
RUNS = "runs"
_UNSCALED = {"aya_vision", "cohere2_vision"}
"""Their classes leave out the factor of logits (`logit_scale`) that their text model was trained with, and has."""
_NUMBER = r" \(relative difference [^)]*\)"


class Models(Case):
    """The checkpoint under our KV cache."""

    kind = ""

    @cached_property
    def host(self) -> Any:
        return load_model(self.folder, "transformers")

    @cached_property
    def device(self) -> Any:
        """The model for GPUs, on a CPU: attention by PyTorch's operators."""
        from specdec_hal.models.transformers.device import DeviceTransformers
        from specdec_hal.models.transformers.load import load_decoder

        return DeviceTransformers(load_decoder(self.folder, "cpu", "float32"))

    def decode(self, model: Any, method: str, **settings: Any) -> tuple[list[list[int]], dict[str, Any]]:
        """A runner's outputs for the prompts, in one batch, and its counts."""
        k = 0 if method == "none" else 3
        runner = make_runner(
            model=model,
            speculative={
                "method": "ngram" if method == "none" else method,
                "num_speculative_tokens": k,
                "adaptive": False,
            },
            runner={"max_num_seqs": 3, "prefill_chunk": 5, "max_model_len": 64, **settings},
        )
        params = SamplingParams(max_new_tokens=self.new_tokens)
        outputs = outputs_of(runner, *((prompt, params) for prompt in self.prompts))
        return [list(output.token_ids) for output in outputs], runner.summary()

    def check_logits(self, texts: Any, layers: tuple[int, ...] = ()) -> Any:
        """Compare logits of two texts [2, 40] in parts that share steps, with rows that are taken back.

        Hidden states [layers, 19, D] of the first step.
        """
        model, a, b = self.host, texts[0], texts[1]
        wrong = (a[20:24] + 1) % VOCABULARY
        model.allocate(3, 64)
        got: list[list[Any]] = [[], []]
        hidden: list[Any] = []

        def step(*parts: tuple[int, int, Any]) -> list[Any]:
            segments, ids = [], np.concatenate([tokens for *_, tokens in parts])
            start = 0
            for slot, position, tokens in parts:
                segments.append(Segment(2 * slot, start, len(tokens), position))
                start += len(tokens)
            states = model.forward(ForwardBatch(ids, segments, layers))
            logits = model.compute_logits(states[FINAL_NORM]).numpy()
            hidden.append([states[layer].numpy() for layer in layers])
            return [logits[s.start : s.start + s.length] for s in segments]

        got[0] += step((0, 0, a[:19]))
        for i, part in enumerate(step((1, 0, b[:7]), (0, 19, np.r_[a[19:20], wrong]))):
            got[1 - i].append(part[: len(part) - 4 * i])
        for i, part in enumerate(step((0, 20, a[20:]), (1, 7, b[7:]))):
            got[i].append(part)
        for i, text in enumerate(texts):
            want = self.logits(text)
            np.testing.assert_allclose(np.concatenate(got[i]), want, rtol=0, atol=1e-4 * max(1.0, np.abs(want).max()))
        return hidden[0]


def write(folder: Path, kind: str) -> Any:
    """A tiny random checkpoint of a type of models, and the model."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = tiny_config(kind)
    auto = "Seq2SeqLM" if config.is_encoder_decoder else auto_of(kind)
    model = getattr(transformers, f"AutoModelFor{auto}").from_config(config, attn_implementation="eager").eval()
    enlarge(model, 2)
    model.save_pretrained(folder)
    return model


def auto_of(kind: str) -> str:
    """Which of the library's Auto classes has a type of models."""
    return "MultimodalLM" if kind in multimodal_types() else "CausalLM"


def outcome(kind: str, folder: Path) -> str:
    """RUNS, or why it does not: what the library cannot do itself, or what we refuse.

    AssertionError for a model that runs and computes something else than the library.
    """
    import torch

    first = np.arange(3, 9)
    same = True
    try:
        made = write(folder, kind)
        if not made.config.is_encoder_decoder:
            with torch.inference_mode():
                text = torch.as_tensor(first)[None]
                logits = made(text, attention_mask=torch.ones_like(text)).logits[0].numpy()
            read = Models(folder, auto=auto_of(kind)).logits(first)
            same = np.allclose(read, logits, rtol=0, atol=1e-4 * max(1.0, np.abs(logits).max()))
    except Exception as error:  # of the library's code
        return f"not tried: {type(error).__name__}: {one_line(error)[:80]}"
    if not same:
        return "not tried: it reads other weights than it writes"
    case = Models(folder, unscaled=kind in _UNSCALED, auto=auto_of(kind))
    try:
        model = case.host
    except UnsupportedError as error:
        return f"refused: {re.sub(_NUMBER, '', one_line(error)).removesuffix('; choose another model')}"
    case.check_logits(np.random.default_rng(0).integers(3, VOCABULARY, (2, 40)))
    for method in ("none", "ngram"):
        assert case.decode(model, method)[0] == case.generated, method
    drafted, _ = case.decode(case.device, "ngram", block_size=4, num_kv_blocks=11)
    assert drafted == case.generated, "over a small pool"
    return RUNS


def recorded() -> dict[str, str]:
    """The committed record: an outcome for each type of models."""
    found: dict[str, str] = json.loads(RECORD.read_text())
    return found


def table(outcomes: dict[str, str]) -> str:
    """Rows of a table in Markdown: what runs, and then each reason for which others do not, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for kind, found in outcomes.items():
        how, _, why = found.partition(": ")
        if how == "refused":  # without the name of the class
            head, _, rest = why.partition(": ")
            why = rest or head
        elif why:
            why = "transformers builds no tiny one from its configuration, or does not run it with a text alone"
        groups.setdefault(why and f"{how}: {why}".replace("|", "\\|"), []).append(kind)
    rows = sorted(groups.items(), key=lambda group: (bool(group[0]), -len(group[1]), group[0]))
    lines = [f"| {why or RUNS} | {len(kinds)} | `{' '.join(sorted(kinds))}` |" for why, kinds in rows]
    return "\n".join(["| outcome | number | `model_type` |", "|---|--:|---|", *lines])


PAGE = Path(__file__).parents[2] / "docs/use/models.md"
_BEGIN, _END = "<!-- tools/architectures.py writes the table: begin -->\n", "\n<!-- end -->"


def with_table(page: str, outcomes: dict[str, str]) -> str:
    """The page on models with this table."""
    before, rest = page.split(_BEGIN)
    return before + _BEGIN + table(outcomes) + _END + rest.split(_END)[1]
