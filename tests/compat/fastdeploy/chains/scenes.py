"""Random scenes: what is asked of a runner, and how FastDeploy is configured."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.compat.fastdeploy.chains.kernels_tokens import GREEDY, TARGET_MATCH, TOPP
from tests.compat.fastdeploy.chains.toy_model import ToyModel

VERSIONS = ("2026-05-09", "2026-05-11", "2026-05-20", "2026-06-17")
"""Days of FastDeploy's main branch whose signatures are called: see `gpu_runner` and `xpu_runner`."""
THINK_END, NEWLINE = 3, 4
ALLOWED = (5, 6)
ENDS = (2, 15)
MODEL_LEN = 160


@dataclass
class Request:
    """One text to write, and what has become of it."""

    prompt: list[int]
    max_dec_len: int
    min_dec_len: int = 1
    seed: int = 0
    temperature: float = 1.0
    bad: list[int] = field(default_factory=list)
    frequency: float = 0.0
    presence: float = 0.0
    stops: list[list[int]] = field(default_factory=list)
    think: int = -1
    reply: int = -1
    enable_thinking: bool = True
    arrival: int = 0
    cached: int = 0
    """Tokens of the prompt that are in the cache from another request."""
    output: list[int] = field(default_factory=list)
    recomputed: list[int] = field(default_factory=list)
    """How long the output was each time it was preempted and read again."""

    @property
    def finished(self) -> bool:
        return bool(self.output) and self.output[-1] in ENDS


@dataclass
class Scene:
    """A configuration of FastDeploy and its requests."""

    model: ToyModel
    rng: np.random.Generator
    version: str
    method: str
    """"" (not speculative), "naive", "ngram", "suffix" or "mtp"."""
    strategy: int
    slots: int
    drafts: int
    requests: list[Request] = field(default_factory=list)
    model_steps: int = 1
    chunk: int = 8
    block_size: int = 4
    columns: bool = False
    """Lengths are [slots, 1], as before they were [slots]."""
    whole_buffers: bool = True
    """Offsets come in buffers for all slots, as in the runner, not as returned for the slots in use."""
    wider: int = 0
    """Columns by which the draft model's buffer of drafts is wider than the target's."""
    overlap: bool = False
    """The number of tokens is an upper bound."""
    pad_to_max: bool = False
    reject_all: bool = False
    top_p: float = 1e-6
    """With TOPP; one candidate a row, or several, of which one is drawn by chance."""
    candidates: int = 3
    window: int = 2
    thinking: bool = False
    inject: list[int] = field(default_factory=list)
    reasoning: bool = False
    logprobs: bool = False
    preemption: float = 0.0
    late_blocks: float = 0.0
    token_budget: int = 1024
    """Tokens of a step that n-grams may fill up."""

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn; else the most likely one is taken."""
        return self.strategy == TARGET_MATCH


def methods(platform: str, version: str) -> list[str]:
    """Requests that a runner of that date supports and the layer serves."""
    if platform == "gpu":  # before, ngram_match looked up a token that was not written yet
        return ["", "naive", "suffix", "mtp"] + ["ngram"] * (version >= "2026-05-20")
    return ["", "naive", "suffix"] + ["mtp"] * (version >= "2026-06-17")  # before, it dropped and recomputed tokens


def scene(seed: int, platform: str, version: str | None = None, method: str | None = None) -> Scene:
    """A random scene for the runner of a platform, "gpu" or "xpu"; of a version, with a method, if they are given."""
    rng = np.random.default_rng([seed, platform == "gpu"])
    version = version or str(rng.choice(VERSIONS))
    method = str(rng.choice(methods(platform, version))) if method is None else method
    drafts = 0 if method in ("", "naive") else int(rng.integers(1, 6))
    out = Scene(
        model=ToyModel(rng),
        rng=rng,
        version=version,
        method=method,
        strategy=int(rng.choice([TOPP, GREEDY, TARGET_MATCH] if drafts else [GREEDY, TARGET_MATCH])),
        slots=int(rng.integers(1, 6)),
        drafts=drafts,
        model_steps=int(rng.integers(1, drafts + 1)) if method == "mtp" else 1,
        chunk=int(rng.integers(4, 20)),
        block_size=int(rng.integers(3, 9)),
        columns=bool(platform == "xpu" and rng.random() < 0.5),
        whole_buffers=bool(rng.random() < 0.7),
        wider=int(rng.choice([0, 0, 3])),
        overlap=bool(rng.random() < 0.3),
        pad_to_max=bool(rng.random() < 0.4),
        reject_all=bool(drafts and rng.random() < 0.1),
        candidates=int(rng.integers(2, 6)),
        window=int(rng.integers(1, 4)),
        thinking=bool(rng.random() < 0.4),
        inject=[] if rng.random() < 0.3 else [THINK_END, NEWLINE, NEWLINE][: int(rng.integers(1, 4))],
        reasoning=bool(method and drafts <= 2 and rng.random() < 0.5),
        logprobs=bool(platform == "gpu" and rng.random() < 0.3),
        # XPU's draft model takes a request that is read again for one that decodes: see eagle_get_self_hidden_states.
        preemption=0.0 if platform == "xpu" and method == "mtp" else float(rng.choice([0, 0.05])),
        late_blocks=float(rng.choice([0, 0.3])),
        token_budget=int(rng.choice([6, 12, 1024])),
    )
    if out.strategy == TOPP and not out.thinking and rng.random() < 0.5:
        out.top_p = 0.6
    out.requests = [_request(out, platform) for _ in range(int(rng.integers(1, 9)))]
    return out


def _request(scene: Scene, platform: str) -> Request:
    rng, v = scene.rng, scene.model.vocabulary
    prompt = rng.integers(1, v, int(rng.integers(1, 30))).tolist()
    if rng.random() < 0.4:  # texts that repeat are what n-grams are for
        prompt = (prompt[: int(rng.integers(2, 6))] * 8)[: len(prompt)]
    single = scene.drafts == 0 or scene.reject_all
    """One token a step: penalties then know all that came before, as in plain decoding."""
    out = Request(
        prompt,
        max_dec_len=int(rng.integers(1, 40)),
        seed=int(rng.integers(0, 2**31 - 2)),
        temperature=float(rng.choice([0.5, 1, 2])),
        bad=rng.integers(5, v, int(rng.integers(0, 3))).tolist() if platform == "gpu" else [],
        frequency=float(rng.choice([0, 0.25, 0.5])) if single else 0.0,
        presence=float(rng.choice([0, 0.5])) if single else 0.0,
        arrival=int(rng.integers(0, 12)),
        cached=int(rng.integers(0, len(prompt))) if rng.random() < 0.3 else 0,
    )
    if rng.random() < 0.5:
        out.stops = [rng.integers(1, v, int(rng.integers(1, 3))).tolist() for _ in range(int(rng.integers(1, 4)))]
    elif rng.random() < 0.5:
        out.min_dec_len = int(rng.integers(1, 12))
    if scene.thinking and rng.random() < 0.7:
        out.think = int(rng.integers(0, 16))
        out.reply = int(rng.choice([-1, 3, 8]))
    if scene.reasoning:
        out.enable_thinking = bool(rng.random() < 0.6)
    return out
