"""The meaning of `speculative.method: auto` for a model and a backend: a first method, and the choice while decoding.

Beside the first method, a module or a drafter, there is look-up by n-grams, which costs next to nothing. Where draft
lengths switch the first one off, since it does not pay, requests draft by look-up. The first is tried again after
pauses that double as long as it does not pay.
"""

from __future__ import annotations

import logging
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
from specdec_hal.proposers.switched import FED, LIMIT
from specdec_hal.runner.draft_length import DraftLengths
from specdec_hal.runner.slot_table import Ints
from specdec_hal.tensors.transfer import Inputs

SETTLING = 2
"""Steps after a change that are not measured: their drafts, or their calls, may be those of the method before."""
FIRST_PAUSE, LONGEST_PAUSE = 16, 1024
"""Steps with look-up before the first method is tried again."""
GIVE_UP = 3
"""Tries of the first method without success, after which its cache is no longer kept up to date."""

_log = logging.getLogger("specdec_hal")


def chosen(config: Config, backend: Backend, model: TargetModel, registry: Registry) -> Config:
    """The configuration with the method "auto" and null for `adaptive` resolved; logs a choice and its reason."""
    wanted = config.speculative
    method, why = wanted.method, ""
    if method == AUTO:
        method, why = _method(config, backend, model, registry)
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
    if not (speculative.adaptive and speculative.num_speculative_tokens):
        return False
    if speculative.method in (NAIVE, "ngram") or speculative.verify_strategy is Strategy.REJECTION:
        return False
    settings = getattr(speculative, "ngram", None)
    if settings is not None and registry.pads_drafts("ngram", settings):
        return False
    return any(status.op == "hybrid_mtp_ngram" and status.available for status in backend.explain())


def methods_of(config: Config, backend: Backend, model: TargetModel, registry: Registry) -> list[str]:
    """What drafts under this configuration: the method, and what takes turns with it."""
    settled = chosen(config, backend, model, registry)
    automatic = config.speculative.method == AUTO and looks_up_too(settled, backend, registry)
    return [settled.speculative.method, *(["ngram"] if automatic else [])]


class DraftMethods:
    """As :class:`DraftLengths`, for a :class:`~specdec_hal.proposers.switched.SwitchedProposer`: also chooses its
    method, for all requests together.

    `names`: of its first method and of the look-up. `inputs`: what it reads. `spares`: feeding the first method takes
    time even where it drafts nothing, so requests are no longer fed after :data:`GIVE_UP` tries. It is tried again with
    requests that begin :data:`LONGEST_PAUSE` steps later.
    """

    def __init__(self, k: int, names: tuple[str, str], inputs: Inputs, *, spares: bool) -> None:
        self._names, self._inputs, self._spares = names, inputs, spares
        self._lengths = [DraftLengths(k) for _ in names]
        self._cold = np.zeros(0, np.bool_)
        """By row: requests that the first method has not been fed."""
        self.forget()

    def forget(self) -> None:
        """Forget acceptance, for later requests."""
        self._at = self._settling = self._steps = self._failures = 0
        self._pause, self._feeds = FIRST_PAUSE, True
        for one in self._lengths:
            one.forget()

    @property
    def in_use(self) -> str:
        """The name of the method that drafts."""
        return self._names[self._at]

    def rows(self, requests: Iterable[Any]) -> Ints:
        """As :meth:`DraftLengths.rows`: a request has the same row for every method."""
        requests = list(requests)
        new = np.array([one not in self._lengths[0] for one in requests], np.bool_)
        rows, _ = (one.rows(requests) for one in self._lengths)
        if len(rows) and (size := int(rows.max()) + 1) > len(self._cold):
            self._cold = np.append(self._cold, np.zeros(size - len(self._cold), np.bool_))
        self._cold[rows[new]] = not self._feeds
        return rows

    def limits(self, rows: Ints) -> Ints:
        """The most drafts that these requests get in their next step."""
        return self._lengths[self._at].limits(rows)

    def send(self, rows: Ints, limits: Ints) -> None:
        """Send the proposer every slot's part for the first method: by row and most drafts [M]."""
        own = limits if self._at == 0 else np.zeros_like(limits)
        fed = ~self._cold[rows] if len(self._cold) else np.ones(len(rows), np.bool_)
        host = self._inputs.host
        if (host[LIMIT] != own).any() or (host[FED] != fed).any():
            host[LIMIT][:], host[FED][:] = own, fed
            self._inputs.upload()

    def stepped(self, rows: Ints, drafted: Ints, accepted: Ints, seconds: float) -> None:
        """As :meth:`DraftLengths.stepped`."""
        if not len(rows):
            return
        if self._settling:
            self._settling -= 1
            return
        lengths = self._lengths[self._at]
        lengths.stepped(rows, drafted, accepted, seconds)
        self._steps += 1
        if self._at == 0:
            if lengths.drafts(rows):
                return
            self._failures = 0 if self._steps > FIRST_PAUSE else self._failures + 1
            self._pause = min(FIRST_PAUSE << self._failures, LONGEST_PAUSE)
            if self._spares and self._failures >= GIVE_UP:
                self._feeds, self._pause, self._cold[:] = False, LONGEST_PAUSE, True
            self._use(1, "does not pay")
        elif self._steps >= self._pause:
            self._feeds = True
            if not self._cold[rows].any():
                self._use(0, "is tried again")

    def _use(self, method: int, why: str) -> None:
        self._at, self._settling, self._steps = method, SETTLING, 0
        self._lengths[method].retry()
        level = logging.INFO if self._failures <= GIVE_UP else logging.DEBUG  # else it is said once a pause
        _log.log(level, "speculative.method auto: %s drafts now, since %s %s", self.in_use, self._names[0], why)


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
