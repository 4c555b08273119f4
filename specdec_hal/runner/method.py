"""The meaning of `speculative.method: auto` for a model and a backend: a first method, and the choice while decoding.

Beside the first method, a module or a drafter, there is look-up by n-grams, which costs next to nothing. The faster one
drafts, by tokens per second measured while decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from specdec_hal.config.schema import NAIVE, Config
from specdec_hal.errors import UnsupportedError
from specdec_hal.models.drafter import drafter_kind
from specdec_hal.ops import Strategy, draft_model
from specdec_hal.plugin.backend import AUTO, Backend
from specdec_hal.plugin.model import TargetModel
from specdec_hal.plugin.registry import Registry
from specdec_hal.proposers.switched import FED, LIMIT, SwitchedProposer
from specdec_hal.runner.draft_length import DraftLengths
from specdec_hal.runner.slot_table import Ints
from specdec_hal.runner.step_cost import Rate

SETTLING = 2
"""Steps after a change that are not measured: their drafts, or their calls, may be those of the method before."""
TRIAL, KNOWN_PAUSE = 8, 64
"""Steps of a trial; and before the first trial with a number of requests, if such requests were measured in others."""
HOPELESS, LEAST_TRIAL = 0.5, 3
"""A trial ends where its method is this much slower than the other, after some steps."""
TRIAL_SHARE = 0.03
"""What trials of the slower method may take of the time, if the longest pause allows."""
LONGEST_PAUSE = 1024
"""Most steps between two trials, and with some requests that the first method was not fed."""
OLD_TRIALS = 0.5
"""What steps of earlier trials count in a trial."""
FEEDING = 1.25
"""The speed of look-ups, as a multiple of that with the first method fed, until it is measured: much, so that it is."""

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


class _Rates:
    """Tokens per second at one load, for one kind of requests: of the first method, and of the look-up while the first
    is fed and while it is not. `pause`: steps of this kind until the next trial. `failures`: trials in a row whose
    method was slower.
    """

    def __init__(self, pause: int) -> None:
        self.first, self.fed, self.look_up = Rate(), Rate(), Rate()
        self.pause, self.failures = pause, 0

    @property
    def speeds(self) -> tuple[float, float]:
        """Of the first method, and of the look-up; 0 where it was not measured."""
        return float(self.first), float(self.look_up) or FEEDING * float(self.fed)

    def best(self, otherwise: int) -> int:
        """The faster method, 0 or 1; `otherwise` where one was not measured."""
        first, look_up = self.speeds
        return int(look_up > first) if look_up and first else otherwise


class DraftMethods:
    """Chooses the method of a :class:`~specdec_hal.proposers.switched.SwitchedProposer`, for all requests together, by
    tokens per second measured while decoding; and draft lengths, as :class:`DraftLengths` does.

    At first each drafts for :data:`TRIAL` steps, look-up before the first method. Then the faster one drafts, with
    trials of the other after pauses that double as long as it is slower. Measurements and pauses are by number of
    requests, in powers of two, and by whether any samples. While look-up is faster, the first method is not fed, and a
    later trial waits for requests that begin after it is fed again.

    `names`: of its first method and of the look-up. `proposer`: its inputs are written. `samples`: whether a request
    does.
    """

    def __init__(
        self, k: int, names: tuple[str, str], proposer: SwitchedProposer, samples: Callable[[Any], bool]
    ) -> None:
        self._names, self._proposer, self._samples = names, proposer, samples
        self.lengths = [DraftLengths(k) for _ in names]
        self._rows = np.zeros(0, [("cold", np.bool_), ("samples", np.bool_)])
        """By row: requests that the first method has not been fed, and those that sample."""
        self._rates: dict[tuple[bool, int], _Rates] = {}
        """By whether a request samples, and the logarithm of their number."""
        self._of: tuple[bool, int] | None = None
        """Those of the last step."""
        self._kinds: tuple[int, bool, bool, bool] | None = None
        """Of the last step: how many requests, whether any samples, whether any is cold, and whether all are; None if
        these may have changed."""
        self._at, self._settling = 1, 0
        self._trying, self._left, self._patience = False, 0, 0
        """Whether the method in use is on trial; its steps left; steps that the next one waits for requests."""
        self._asking: _Rates | None = None
        """Those whose pause ended before it."""
        self.feeds = True
        """Whether the first method is fed requests that begin."""

    def forget(self) -> None:
        """Forget acceptance, for later requests. Speeds are kept."""
        for one in self.lengths:
            one.forget()

    @property
    def in_use(self) -> str:
        """The name of the method that drafts."""
        return self._names[self._at]

    def begin(self, requests: Iterable[Any]) -> Ints:
        """As :meth:`DraftLengths.begin`: a request has the same row for every method."""
        requests = list(requests)
        rows, _ = (one.begin(requests) for one in self.lengths)
        if len(rows) and (more := int(rows.max()) + 1 - len(self._rows)) > 0:
            self._rows = np.append(self._rows, np.zeros(more, self._rows.dtype))
        self._kinds = None
        self._rows["cold"][rows] = not self.feeds
        self._rows["samples"][rows] = [self._samples(one) for one in requests]
        return rows

    def rows(self, requests: Iterable[Any]) -> Ints:
        """As :meth:`DraftLengths.rows`, of requests that have begun."""
        return self.lengths[0].rows(requests)

    def limits(self, rows: Ints) -> Ints:
        """The most drafts that these requests get in their next step."""
        return self.lengths[self._at].limits(rows)

    def send(self, rows: Ints, limits: Ints) -> None:
        """Send the proposer every slot's part for the first method: by row and most drafts [M]."""
        own = limits if self._at == 0 else np.zeros_like(limits)
        fed = ~self._rows["cold"][rows] if len(self._rows) else np.ones(len(rows), np.bool_)
        self._proposer.mode = "look_up" if not fed.any() else "propose" if own.any() else "feed"
        inputs = self._proposer.inputs
        if (inputs.host[LIMIT] != own).any() or (inputs.host[FED] != fed).any():
            inputs.host[LIMIT][:], inputs.host[FED][:] = own, fed
            inputs.upload()

    def stepped(self, rows: Ints, drafted: Ints, accepted: Ints, seconds: float, *, narrow: bool | None = None) -> bool:
        """As :meth:`DraftLengths.stepped`."""
        if not len(rows):
            return False
        if self._settling:
            self._settling -= 1
            return False
        before = self._at, self.feeds
        if self._kinds is None or self._kinds[0] != len(rows):
            cold = self._rows["cold"][rows]
            self._kinds = len(rows), bool(self._rows["samples"][rows].any()), bool(cold.any()), bool(cold.all())
        count, samples, some_cold, all_cold = self._kinds
        of = samples, count.bit_length()
        if (rates := self._rates.get(of)) is None:
            alike = any(other[0] == samples and one.speeds[0] for other, one in self._rates.items())
            rates = self._rates[of] = _Rates(KNOWN_PAUSE if alike else TRIAL)
        # Feeding the first method takes time that is not that of look-ups.
        mixed = self._at == 1 and not all_cold and float(rates.look_up) > 0
        chosen = self.lengths[self._at].stepped(rows, drafted, accepted, None if mixed else seconds, narrow=narrow)
        if self._at == 0:
            rates.first.add(count + int(accepted.sum()), seconds)
        elif all_cold or not some_cold:
            (rates.look_up if all_cold else rates.fed).add(count + int(accepted.sum()), seconds)
        if self._trying:
            self._left -= 1
            speeds = rates.speeds
            hopeless = speeds[self._at] < HOPELESS * speeds[1 - self._at]
            due = self._left <= (TRIAL - LEAST_TRIAL if hopeless else 0)
        else:
            rates.pause -= 1
            known = of != self._of and rates.best(self._at) != self._at  # to be slower for these requests
            due = known or rates.pause <= 0 or self._patience > 0
        self._of = of
        if due:
            self._decide(rates, some_cold)
        return chosen or before != (self._at, self.feeds)

    def _decide(self, rates: _Rates, cold: bool) -> None:
        """End a trial, or begin one. `cold`: whether a request of this step is."""
        other = 1 - self._at
        if self._trying:
            better, self._trying = rates.best(other), False
            rates.failures = 0 if better == self._at else rates.failures + 1
            self._use(better, rates)
        elif self._at == 1 and not self.feeds:
            self.feeds, self._patience, self._asking = True, LONGEST_PAUSE, rates
        elif self._at == 1 and cold:
            self._patience -= 1
            if self._patience <= 0:
                self._use(1, rates)
        elif rates.best(self._at) == other:
            self._use(other, rates)
        else:
            (rates.first, rates.fed)[other].fade(OLD_TRIALS)
            self._start(other)
            self._trying, self._left = True, TRIAL

    def _use(self, method: int, rates: _Rates) -> None:
        """Use a method until the next trial."""
        first, look_up = rates.speeds
        slower = min(first, look_up) / max(first, look_up, 1e-9)
        pause = TRIAL * (1 - slower) / TRIAL_SHARE
        rates.pause = int(np.clip(pause * 2**rates.failures, TRIAL, LONGEST_PAUSE))
        for (samples, _), one in self._rates.items():  # none has its trial right after this one
            if self._of is not None and samples == self._of[0]:
                one.pause = max(one.pause, min(rates.pause, KNOWN_PAUSE))
        if self._asking is not None:  # the trial that it asked for may have been of others
            self._asking.pause, self._asking = max(self._asking.pause, rates.pause), None
        self._patience = 0
        if method == 1:
            self.feeds, self._rows["cold"], self._kinds = False, True, None
        level = logging.DEBUG if rates.failures else logging.INFO  # else it is said once a trial
        speeds = f"{self._names[0]} {first:.0f} tokens/s, {self._names[1]} {look_up:.0f}"
        _log.log(level, "speculative.method auto: %s drafts now: %s", self._names[method], speeds)
        if method != self._at:
            self._start(method)

    def _start(self, method: int) -> None:
        self._at, self._settling = method, SETTLING
        self.lengths[method].retry()


def _with(config: Config, **keys: Any) -> Config:
    return config.model_copy(update={"speculative": config.speculative.model_copy(update=keys)})


def _method(config: Config, backend: Backend, model: TargetModel, registry: Registry) -> tuple[str, str]:
    """The method and the reason."""
    if config.speculative.num_speculative_tokens == 0:
        return NAIVE, "num_speculative_tokens is 0"
    if (path := config.speculative.path) is not None:
        kind = drafter_kind(path)
        method = {"peagle": "eagle3", "dspark": "dflash", "assistant": "mtp"}.get(kind, kind)
        if method not in registry.proposers():
            raise UnsupportedError(f"speculative.path: {path} is a drafter of the kind '{kind}', which no method runs")
        return method, f"{path} is for it"
    if model.capabilities.mtp_modules < 1:
        return "ngram", "the model has no MTP module"
    missing = sorted(status.op for status in backend.explain() if not status.available and status.op in _MTP_OPS)
    if missing:
        return "ngram", f"the backend lacks {', '.join(missing)}, which the model's MTP module needs"
    return "mtp", "the model has an MTP module"


_MTP_OPS = frozenset(spec.name for spec in draft_model.OPS)
