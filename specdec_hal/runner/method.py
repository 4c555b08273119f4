"""The meaning of `speculative.method: auto` for a model and a backend: a first method, and the choice while decoding.

Beside the first method, a module or a drafter, there is look-up by n-grams, which costs next to nothing. Which of them
is faster depends on the text, the device and the batch. So each is tried for some steps at each size of batch, and that
with the most tokens per second is used. The others are tried again after pauses that double as long as they lose. A
method that drafts nothing is as fast as plain decoding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from specdec_hal.config.schema import NAIVE, Config
from specdec_hal.errors import UnsupportedError
from specdec_hal.models.drafter import drafter_kind
from specdec_hal.ops import Strategy, draft_model
from specdec_hal.plugin.backend import AUTO, Backend
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.registry import Registry
from specdec_hal.runner.draft_length import DraftLengths
from specdec_hal.runner.slot_table import Ints
from specdec_hal.tensors.transfer import Inputs

TRIAL = 6
"""Measured steps of a trial; it ends early if the method stops drafting."""
SETTLING = 2
"""Steps after a change that are not measured: their drafts, or their calls, may be those of the method before."""
FIRST_PAUSE, LONGEST_PAUSE = 32, 1024
"""Steps between trials."""

_log = logging.getLogger("specdec_hal")


def chosen(config: Config, backend: Backend, model: TargetModel, registry: Registry) -> Config:
    """The configuration with the method "auto" and null for `adaptive` resolved; logs a choice and its reason."""
    wanted = config.speculative
    method, why = _method(config, backend, model, registry) if wanted.method == AUTO else (wanted.method, "")
    config = _with(config, method=method)
    if wanted.adaptive is None:
        padded = registry.pads_drafts(method, config.speculative.settings)
        drafts = method != NAIVE and wanted.num_speculative_tokens > 0
        config = _with(config, adaptive=drafts and not padded and config.engine.tensor_parallel == 1)
    if not why:
        return config
    k, lengths = wanted.num_speculative_tokens, "adaptive" if config.speculative.adaptive else "not adaptive"
    _log.info("speculative.method auto: %s, since %s; at most %d drafts a step, %s", method, why, k, lengths)
    return config


def looks_up_too(config: Config, backend: Backend, registry: Registry) -> bool:
    """Whether the method that "auto" has resolved to takes turns with look-ups.

    They have no distribution, and may not be longer than the draft lengths.
    """
    speculative = config.speculative
    if not speculative.adaptive or speculative.method == "ngram" or speculative.verify_strategy is Strategy.REJECTION:
        return False
    settings = getattr(speculative, "ngram", None)
    if settings is not None and registry.pads_drafts("ngram", settings):
        return False
    return any(status.op == "hybrid_mtp_ngram" and status.available for status in backend.explain())


class DraftMethods:
    """As :class:`DraftLengths`, for a :class:`~specdec_hal.proposers.switched.SwitchedProposer`: also chooses its
    method, for all requests together.

    `names`: of its first method and of the look-up. `first`: the most drafts of the first, `draft_token_num` [M].
    """

    def __init__(self, k: int, names: tuple[str, str], first: Inputs) -> None:
        self._names, self._first, self._at, self._settling = names, first, 0, 0
        self._lengths = [DraftLengths(k) for _ in names]
        self._choices: dict[int, _Choice] = {}
        self._known = set[tuple[int, int]]()

    @property
    def in_use(self) -> str:
        """The name of the method that drafts."""
        return self._names[self._at]

    def forget(self) -> None:
        """Forget acceptance, for later requests."""
        self._choices.clear()
        for one in self._lengths:
            one.forget()

    def rows(self, requests: Iterable[Any]) -> Ints:
        """As :meth:`DraftLengths.rows`: a request has the same row for every method."""
        requests = list(requests)
        return [one.rows(requests) for one in self._lengths][0]

    def limits(self, rows: Ints) -> Ints:
        """The most drafts that these requests get in their next step."""
        return self._lengths[self._at].limits(rows)

    def send(self, limits: Ints) -> None:
        """Send the first method its part of the most drafts of every slot [M]."""
        host, own = self._first.host["draft_token_num"], limits if self._at == 0 else np.zeros_like(limits)
        if (host != own).any():
            host[:] = own
            self._first.upload()

    def stepped(self, rows: Ints, drafted: Ints, accepted: Ints, seconds: float) -> None:
        """As :meth:`DraftLengths.stepped`."""
        if not len(rows):
            return
        if self._settling:
            self._settling -= 1
            return
        lengths, size = self._lengths[self._at], len(rows).bit_length()
        lengths.stepped(rows, drafted, accepted, seconds)
        choice = self._choices.setdefault(size, _Choice(len(self._names), self._at))
        if choice.at == self._at:  # else the batch had another size
            choice.stepped(lengths.speed, bool(lengths.limits(rows).any()))
        if choice.at != self._at:
            self._at, self._settling = choice.at, SETTLING
            self._lengths[self._at].retry()
        if not choice.trial and (size, self._at) not in self._known:
            self._known.add((size, self._at))
            speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in zip(self._names, choice.speeds, strict=True))
            _log.info(
                "speculative.method auto: %s now, since it is the fastest with %d to %d requests; expected tokens per "
                "second and request: %s", self.in_use, 1 << (size - 1), (1 << size) - 1, speeds,
            )  # fmt: skip


class _Choice:
    """The method `at` for one size of batch. `trial`: measured steps that are left of its trial; 0: it is the fastest.

    `speeds`: tokens per second and request of each method when last used; infinite before, so that each is tried.
    """

    def __init__(self, methods: int, at: int) -> None:
        self.at, self.trial, self.speeds = at, TRIAL, [math.inf] * methods
        self._pause = self._next_pause = FIRST_PAUSE
        self._tried = 0

    def stepped(self, speed: float, drafts: bool) -> None:
        """Choose again, after a step that makes this `speed` expected. `drafts`: whether the method goes on drafting."""
        self.speeds[self.at] = speed
        best = max(range(len(self.speeds)), key=self.speeds.__getitem__)
        if self.trial:
            self.trial = self.trial - 1 if drafts else 0
            if self.trial:
                return
            self._pause = self._next_pause
            self._next_pause = FIRST_PAUSE if best == self.at else min(2 * self._next_pause, LONGEST_PAUSE)
        else:
            self._pause -= 1
        if self.speeds[best] == math.inf:
            self.at, self.trial = best, TRIAL
        elif self._pause > 0:
            self.at = best
        else:
            others = [one for one in range(len(self.speeds)) if one != best]
            self.at, self.trial = others[self._tried % len(others)], TRIAL
            self._tried += 1


def _with(config: Config, **keys: Any) -> Config:
    return config.model_copy(update={"speculative": config.speculative.model_copy(update=keys)})


def _method(config: Config, backend: Backend, model: TargetModel, registry: Registry) -> tuple[str, str]:
    """The method and the reason."""
    if config.speculative.num_speculative_tokens == 0:
        return NAIVE, "num_speculative_tokens is 0"
    if (path := config.speculative.path) is not None:
        kind = drafter_kind(path)
        method = {"peagle": "eagle3", "dspark": "dflash"}.get(kind, kind)
        if method == "mtp" or method not in registry.proposers():
            raise UnsupportedError(f"speculative.path: {path} is a drafter of the kind '{kind}', which no method runs")
        return method, f"{path} is for it"
    if model.capabilities.mtp_modules < 1:
        return "ngram", "the model has no MTP module"
    missing = sorted(status.op for status in backend.explain() if not status.available and status.op in _MTP_OPS)
    if missing:
        return "ngram", f"the backend lacks {', '.join(missing)}, which the model's MTP module needs"
    return "mtp", "the model has an MTP module"


_MTP_OPS = frozenset(spec.name for spec in draft_model.OPS)
