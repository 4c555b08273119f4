"""Drafts for flat histories, for engines with their own decode loop.

:class:`Drafter` copies the histories into the slots of a :class:`~specdec_hal.runner.state.DecodeState` and runs a
registered proposer over them. A history is one text, prompt and output alike: ``prompt_lens`` is 0 and ``step_idx`` its
length, so that a query may span the two.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from specdec_hal.errors import ArgumentError, ConfigError, UnsupportedError
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.proposer import Proposer, ProposerContext, SlotView, StepBounds, StepView
from specdec_hal.plugin.registry import Registry, or_default
from specdec_hal.runner.state import DecodeState
from specdec_hal.tensors.device import Device, get_device
from specdec_hal.tensors.on_host import HostDevice
from specdec_hal.tensors.views import download

if TYPE_CHECKING:
    from specdec_hal.config import Config

_NO_LIMIT = 1 << 62
"""`max_dec_len` of a history; the engine ends its requests."""
_DECIDED = ("token_ids_all", "step_idx", "seq_lens_decoder", "draft_token_num")


class Drafter:
    """Proposes drafts for histories of another engine: flat token ids, one sequence per request.

    `method` is a registered proposer that needs no model, `backend` a backend or the name of one,
    `num_speculative_tokens` K, the most drafts per request and call (0..31). `settings` are the keys of the method's
    section in a configuration (``max_ngram_size``, ``min_ngram_size``, ``match_policy``, ``continue_cycles``, ...).
    With `match_factor` (method ngram; `max_factor` for suffix), a match of n tokens gives at most that many times n
    drafts, since continuations of short matches are right less often. On a GPU, `framework` ("torch", "paddle") holds
    the buffers. `registry`: of plug-ins; None: the process's own. Raises ConfigError for settings, and the errors of
    `get_backend`.

    >>> import specdec_hal as sd
    >>> drafter = sd.Drafter(method="ngram", backend="reference", num_speculative_tokens=3, max_ngram_size=4)
    >>> drafter.propose([[5, 6, 7, 8, 5, 6], [1, 2, 3]])
    [[7, 8, 5], []]
    >>> drafter.propose([[5, 6, 7, 8, 5, 6]], request_ids=["a"])
    [[7, 8, 5]]
    >>> drafter.propose([[5, 6, 7, 8, 5, 6, 7, 9, 7]], request_ids=["a"])  # only the last three tokens are read
    [[9, 7, 9]]
    >>> drafter.forget("a")
    True

    Buffers and bound ops are kept and grow by doubling. Drafts depend only on the histories; state kept per request
    only saves time. Not thread-safe.
    """

    def __init__(
        self,
        method: str = "ngram",
        backend: str | Backend = "auto",
        *,
        num_speculative_tokens: int = 8,
        match_factor: int | None = None,
        framework: str = "torch",
        registry: Registry | None = None,
        **settings: Any,
    ) -> None:
        from specdec_hal.config import parse

        registry = or_default(registry)
        speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": num_speculative_tokens}
        if settings:
            speculative[method] = settings
        config = parse({"speculative": speculative}, source="Drafter", registry=registry)
        if match_factor is not None and (method != "ngram" or match_factor < 1):
            raise ConfigError(
                f"Drafter: match_factor: expected at least 1, and method 'ngram', got {match_factor} and '{method}'; "
                "leave it out, or give method 'suffix' a max_factor"
            )
        self.backend = backend if isinstance(backend, Backend) else registry.get_backend(backend)
        self.num_speculative_tokens = num_speculative_tokens
        self._match_factor = match_factor
        device = get_device(self.backend.device_name, framework)
        section = config.speculative.settings
        self._longest = getattr(section, "max_ngram_size", 0)

        def slots(use_index: bool) -> _Slots:
            indexed = hasattr(section, "use_index")
            chosen = section.model_copy(update={"use_index": use_index}) if indexed else section
            build = partial(_build_proposer, registry, self.backend, config, chosen)
            return _Slots(device, build, num_speculative_tokens, self._flat)

        # An index pays for histories that return longer; others are searched.
        self._once, self._kept = slots(False), slots(settings.get("use_index", True))

    def propose(
        self,
        histories: Any,
        request_ids: Iterable[Hashable] | None = None,
        *,
        lengths: Any = None,
        num_speculative_tokens: int | Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Drafts after each history: at most K token ids, possibly none.

        `histories`: a list of integer arrays, tensors or lists, one per request; or one padded array [B, width] with
        `lengths` [B]. `request_ids`: one name per history, to keep and index it, so that the next call reads only new
        tokens. A history may grow between calls; it starts over if it is shorter than before or its last seen token
        differs (or after `forget`). `num_speculative_tokens` lowers K, for all or per request (0: no drafts). Raises
        ArgumentError with nothing changed.
        """
        rows = self._rows(histories, lengths)
        wanted = None if num_speculative_tokens is None else self._wanted(num_speculative_tokens, len(rows))
        if not rows:
            return []
        if request_ids is None:
            drafts = self._once.propose(range(len(rows)), rows, wanted)
            self._once.clear()
        else:
            drafts = self._kept.propose(self._names(request_ids, len(rows)), rows, wanted)
        if (factor := self._match_factor) is not None:
            most = [min(-(-len(ids) // factor), self._longest) for ids in drafts]
            drafts = [ids and ids[: factor * _matched(row, n)] for row, ids, n in zip(rows, drafts, most, strict=True)]
        return drafts

    def forget(self, request_id: Hashable) -> bool:
        """Free the state of a request; False if there is none."""
        return self._kept.forget(request_id)

    def _rows(self, histories: Any, lengths: Any) -> list[Any]:
        """The histories one by one: lists, or flat integer arrays."""
        if not isinstance(histories, (list, tuple)):
            return self._cut(self._array("histories", histories), lengths)
        if lengths is not None:
            self._fail("lengths", "nothing with a list of histories", "lengths", "give a padded array, or cut the rows")
        return [
            row if type(row) is list or (type(row) is np.ndarray and row.ndim == 1) else self._flat(row)
            for row in histories
        ]

    def _flat(self, tokens: Any) -> NDArray[Any]:
        flat = self._array("histories", tokens)
        if flat.ndim != 1:
            self._fail("histories", "flat token ids", f"rank {flat.ndim}", "flatten each history")
        return np.ascontiguousarray(flat, np.int64)

    def _cut(self, padded: NDArray[Any], lengths: Any) -> list[Any]:
        if padded.ndim != 2:
            self._fail("histories", "a list, or an array [B, width]", f"rank {padded.ndim}", "add a dimension")
        if lengths is None:
            return list(padded)
        ends = self._array("lengths", lengths)
        if ends.shape != padded.shape[:1]:
            self._fail("lengths", f"shape [{len(padded)}]", f"{list(ends.shape)}", "give one length per history")
        stops = ends.tolist()
        if any(not 0 <= stop <= padded.shape[1] for stop in stops):
            self._fail("lengths", f"values in [0, {padded.shape[1]}]", f"{stops}", "see what computes them")
        return [row[:stop] for row, stop in zip(padded, stops, strict=True)]

    def _array(self, argument: str, values: Any) -> NDArray[Any]:
        """The values as NumPy integers."""
        try:
            integers = download(values) if hasattr(values, "__dlpack__") else np.asarray(values)
        except (BufferError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            self._fail(argument, "integers", f"a {type(values).__name__} ({error})", "give token ids")
        if integers.dtype.kind not in "iu":
            if integers.size:
                self._fail(argument, "integers", f"dtype {integers.dtype}", "cast them; nothing is converted silently")
            integers = integers.astype(np.int64)
        return integers

    def _names(self, request_ids: Iterable[Hashable], count: int) -> list[Hashable]:
        names = list(request_ids)
        try:
            different = len(set(names))
        except TypeError as error:
            self._fail("request_ids", "hashable names", str(error), "use strings or integers")
        if not different == len(names) == count:
            self._fail("request_ids", f"{count} different names", f"{names!r}", "name each history once")
        return names

    def _wanted(self, wanted: int | Sequence[int], count: int) -> list[int]:
        k = self.num_speculative_tokens
        counts = self._array("num_speculative_tokens", wanted)
        each: list[int] = [counts.item()] * count if counts.ndim == 0 else counts.reshape(-1).tolist()
        if len(each) != count or not all(0 <= n <= k for n in each):
            expected = f"a number in [0, {k}], or {count} of them"
            self._fail("num_speculative_tokens", expected, f"{wanted!r}", "lower it, or build the drafter with more")
        return each

    def _fail(self, argument: str, expected: str, got: str, hint: str) -> NoReturn:
        raise ArgumentError(
            op="Drafter.propose", backend=self.backend.name, argument=argument, expected=expected, got=got, hint=hint
        )


class _Slots:
    """Named histories in the slots of a state, and the proposer bound to it.

    A slot keeps its history, and the proposer its state, until the name is forgotten.
    """

    def __init__(
        self, device: Device, build: Callable[[DecodeState], Proposer], k: int, flat: Callable[[Any], Any]
    ) -> None:
        self._device, self._build, self._k, self._flat = device, build, k, flat
        self._slots: dict[Hashable, int] = {}
        self._rows = self._width = 0
        self._proposer: Any = None

    def propose(self, names: Sequence[Hashable], rows: list[Any], wanted: list[int] | None) -> list[list[int]]:
        """Copy each history's new tokens, then draft."""
        fresh = [name for name in names if name not in self._slots]
        count, width = len(self._slots) + len(fresh), max(map(len, rows))
        if count > self._rows or width > self._width:
            self._allocate(max(self._rows, _power(count)), max(self._width, _power(width)))
        for name in fresh:
            self._slots[name] = self._free.pop()
        slots = [self._slots[name] for name in names]
        try:
            self._take_over(slots, rows)
        except BaseException:
            for name in fresh:
                self.forget(name)
            raise
        self._wanted.fill(self._k)
        if wanted is not None:
            self._wanted[slots] = wanted
        if not self._on_host:
            self._upload(slots)
        if self._stale:
            self._proposer.reset(sorted(self._stale))
            self._stale.clear()
        self._proposer.propose(self._view(names, slots))
        for slot in slots:
            self._sent[slot] = self._held[slot]
        drafts, counts = (download(tensor).tolist() for tensor in self._drafts)
        return [drafts[slot][1 : counts[slot]] for slot in slots]

    def _allocate(self, rows: int, width: int) -> None:
        """Buffers for `rows` histories of `width` tokens. They start empty, since every call passes whole histories."""
        state = DecodeState(
            max_num_seqs=rows,
            num_speculative_tokens=self._k,
            max_model_len=width,
            prefill_chunk=1,
            device=self._device,
        )
        state.write("max_dec_len", slice(None), _NO_LIMIT)
        if self._proposer is None or self._proposer.runs_on == "device":
            self._proposer = self._build(state)
        # A host proposer keeps its state and sees the new buffers in its steps.
        self._state, self._rows, self._width = state, rows, width
        self._drafts = state["draft_tokens"], state["seq_lens_this_time"]
        self._free = sorted(set(range(rows)).difference(self._slots.values()), reverse=True)
        self._stale = set(range(rows))
        self._held, self._sent = [0] * rows, [0] * rows
        # Inputs of every call. On a host these are the state's own tensors.
        self._on_host = isinstance(self._device, HostDevice)
        self._tokens, self._step_idx, self._lengths, self._wanted = (
            state.read(name) if self._on_host else np.array(state.read(name)) for name in _DECIDED
        )

    def _take_over(self, slots: list[int], rows: list[Any]) -> None:
        """Copy new tokens into the slots. Memoryviews take half of NumPy's time for so few."""
        held, stale, width = self._held, self._stale, self._width
        tokens, step_idx, lengths = self._tokens.reshape(-1).data, self._step_idx.data, self._lengths.data
        self._lengths.fill(0)  # a slot that is not in this call is idle
        for slot, row in zip(slots, rows, strict=True):
            start, stop, at = held[slot], len(row), slot * width
            if start > stop or (start and row[start - 1] != tokens[at + start - 1]):
                start = 0
            new = row[start:] if start else row
            try:
                tokens[at + start : at + stop] = array("l", new) if type(new) is list else new
            except (NotImplementedError, OverflowError, TypeError, ValueError):  # not integers, or not flat int64
                tokens[at + start : at + stop] = self._flat(new)
            if start == 0:
                stale.add(slot)
                self._sent[slot] = 0
            step_idx[slot] = lengths[slot] = held[slot] = stop

    def _upload(self, slots: list[int]) -> None:
        """Send the host's decisions to the device."""
        device, state = self._device, self._state
        columns = [np.arange(self._sent[slot], self._held[slot]) for slot in slots]
        at = np.repeat(slots, list(map(len, columns))), np.concatenate(columns)
        device.write(state["token_ids_all"], at, self._tokens[at])
        for name, values in zip(_DECIDED[1:], (self._step_idx, self._lengths, self._wanted), strict=True):
            device.write(state[name], slice(None), values)

    def _view(self, names: Sequence[Hashable], slots: list[int]) -> StepView:
        """The proposer's view: on the host, each history is a request that has generated all of it."""
        size = self._state.symbols
        bounds = StepBounds(size["M"], size["T_cap"], size["I_cap"], size["L"])
        step = StepView(self._state, self._device.stream(), bounds)
        if self._proposer.runs_on == "host":
            texts = {slot: self._tokens[slot, : self._held[slot]].tolist() for slot in slots}
            wanted = self._wanted.tolist()
            step.slots = [
                SlotView(slot, str(name), (), texts[slot], texts[slot][self._sent[slot] :], wanted[slot])
                for name, slot in zip(names, slots, strict=True)
            ]
            step.vocab_size = _NO_LIMIT
        return step

    def forget(self, name: Hashable) -> bool:
        """Free the slot of that name."""
        slot = self._slots.pop(name, None)
        if slot is None:
            return False
        self._held[slot] = 0
        self._stale.add(slot)  # a proposer may keep its state for the text
        self._free.append(slot)
        return True

    def clear(self) -> None:
        """Forget the slots' contents but not their names."""
        self._held = [0] * self._rows


class _NoModel:
    """Replaces the model in a proposer's context; proposers that use it are refused."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __getattr__(self, name: str) -> NoReturn:
        raise _unsupported(self._method, f"the model's {name}")


def _unsupported(method: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"Drafter: method '{method}' wants {what}, and there is no model here; choose a method that reads histories "
        "alone (ngram), or run this one in a ModelRunner"
    )


def _build_proposer(
    registry: Registry, backend: Backend, config: Config, settings: Any, state: DecodeState
) -> Proposer:
    """The configured method's proposer over a state, without a model."""
    method = config.speculative.method

    def load_model(path: str) -> NoReturn:
        raise _unsupported(method, f"the model {path}")

    model: Any = _NoModel(method)
    context = ProposerContext(backend, state, model, None, settings, config, load_model)
    proposer = registry.build_proposer(method, context)
    if proposer.hidden_layers:
        raise _unsupported(method, f"hidden states of the layers {list(proposer.hidden_layers)}")
    return proposer


def _matched(history: Any, most: int) -> int:
    """The length, up to `most`, of the history's suffix that occurs earlier; at least one."""
    text = np.asarray(history)
    ends, n = np.flatnonzero(text[:-1] == text[-1]), 1
    while n < most:
        ends = ends[ends >= n]
        ends = ends[text[ends - n] == text[-1 - n]]
        if not len(ends):
            break
        n += 1
    return n


def _power(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()
