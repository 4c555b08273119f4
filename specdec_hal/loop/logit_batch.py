"""The state of :mod:`specdec_hal.loop.functional`: buffers and bound ops for a batch of logits, cached by shape."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import index
from typing import Any, NamedTuple, NoReturn

import numpy as np

from specdec_hal.errors import ArgumentError, BackendUnavailableError, NoDistributionError
from specdec_hal.ops import Strategy
from specdec_hal.ops.seeds import fresh
from specdec_hal.ops.spec import FLOATS
from specdec_hal.plugin import registry
from specdec_hal.plugin.backend import Backend, BoundOp
from specdec_hal.runner.state import DecodeState
from specdec_hal.tensors.device import Device, get_device
from specdec_hal.tensors.views import as_numpy, describe, framework, framework_of

_NO_LIMIT = 1 << 62
_MOST_BATCHES = 64
"""Shapes cached per thread; beyond this number, all are dropped."""


class _Kept(threading.local):
    def __init__(self) -> None:
        self.batches: dict[Any, LogitBatch] = {}


_kept = _Kept()


class Logprobs(NamedTuple):
    """Of each emitted token (column 0) and the N - 1 most likely ones of its row, as op `token_logprobs` gives them.

    `ids` int64 and `logprobs` float32 are [..., N], `ranks` int64 [...] is 1 for the most likely token. After the
    emitted tokens: -1, 0.0, -1.
    """

    ids: Any
    logprobs: Any
    ranks: Any


@contextmanager
def logit_batch(
    function: str, logits: Any, rank: int, end_tokens: Iterable[int], backend: str | Backend | None
) -> Iterator[LogitBatch]:
    """The buffers for one call of `function` with logits [B, V] (rank 2) or [B, S, V] (rank 3)."""

    def fail(argument: str, expected: str, got: str, hint: str) -> NoReturn:
        name = backend if isinstance(backend, str) else getattr(backend, "name", "auto")
        raise ArgumentError(op=function, backend=name, argument=argument, expected=expected, got=got, hint=hint)

    info = describe(logits)
    if info is None or len(info.shape) != rank or info.dtype not in FLOATS or 0 in info.shape:
        got = type(logits).__name__ if info is None else f"{info.dtype} {list(info.shape)}"
        shape = "[B, V]" if rank == 2 else "[B, S, V]"
        fail("logits", f"{' | '.join(FLOATS)} {shape}, not empty", got, "pass the model's logits")
    try:
        ends = tuple(map(index, end_tokens))
    except TypeError as error:
        fail("end_tokens", "integers", str(error), "pass token ids")
    served_by = backend if isinstance(backend, Backend) else backend_for(info.device.partition(":")[0], backend)
    held_by = framework_of(type(logits))
    size, width, vocabulary = info.shape[0], info.shape[1] if rank == 3 else 1, info.shape[-1]
    key = (served_by, info.device, held_by, size, width, ends)
    batch = _kept.batches.get(key)
    if batch is None:
        if len(_kept.batches) >= _MOST_BATCHES:
            _kept.batches.clear()
        batch = LogitBatch(served_by, get_device(info.device, held_by), held_by, size, width, ends)
        _kept.batches[key] = batch
    flat = (logits if info.contiguous else framework(held_by).contiguous(logits)).reshape((size * width, vocabulary))
    batch.function, batch.logits, batch.vocabulary = function, flat, vocabulary
    try:
        yield batch
    finally:
        batch.logits = batch.probs = None


@cache
def backend_for(kind: str, name: str | None) -> Backend:
    """The backend of that name. Without a name, the "auto" backend if it works on that kind of device, else the best
    that does.
    """
    if name is not None:
        return registry.get_backend(name)
    names = dict.fromkeys([registry.choose(), *(info.name for info in registry.backends() if info.available)])
    for backend in map(registry.get_backend, names):
        if backend.device == kind:
            return backend
    raise BackendUnavailableError(f"expected a backend for tensors on {kind}, got only {', '.join(names)}; move them")


class LogitBatch:
    """B requests with S rows of logits each: row i of request b is row b * S + i of all."""

    def __init__(
        self, backend: Backend, device: Device, framework: str, size: int, width: int, end_tokens: tuple[int, ...]
    ) -> None:
        self.backend, self.device, self.size, self.width = backend, device, size, width
        self._framework = framework
        self.function, self.logits, self.vocabulary = "", None, 0
        self.probs: Any = None
        """The current call, its logits and, under REJECTION and TOPP, probabilities [B * S, V]."""
        self._samples = False
        self.state = state = DecodeState(
            max_num_seqs=size,
            num_speculative_tokens=width - 1,
            max_model_len=1,
            prefill_chunk=1,
            end_tokens=end_tokens,
            device=device,
        )
        rows = np.arange(size * width, dtype=np.int32)
        self._slots = rows // width
        state.write("cu_seqlens_q_output", slice(None), np.arange(size + 1, dtype=np.int32) * width)
        state.write("stop_flags", slice(None), False)
        state.write("seq_lens_decoder", slice(None), 1)
        self._rows, self._end = device.upload(rows), device.upload(np.array([0, len(rows)], np.int32))
        self._no_top_p = device.upload(np.ones(len(rows), np.float32))
        self._spread = backend.bind("build_sampling_params", **state.args("build_sampling_params"))
        self._bound: dict[Any, BoundOp] = {}
        self._written: dict[str, Any] = {}
        self._numbers: dict[str, tuple[type, float, Any]] = {}

    def _fail(self, argument: str, expected: str, got: str, hint: str) -> NoReturn:
        raise ArgumentError(
            op=self.function, backend=self.backend.name, argument=argument, expected=expected, got=got, hint=hint
        )

    def set_sampling(self, temperature: Any, top_k: Any, top_p: Any, min_p: Any, seeds: Any, positions: Any) -> Any:
        """Write the requests' parameters. Returns the seeds, drawn [B] if needed and not given."""
        given = self._set("temperature", "temperature", temperature)
        # Device values are not read.
        self._samples = bool((given > 0).any()) if isinstance(given, np.ndarray) else True
        self._set("top_k", "top_k", top_k, integers=True)
        self._set("top_p", "top_p", top_p)
        self._set("min_p", "min_p", min_p)
        draws = seeds is None and self._samples
        used = fresh(self.size) if draws else 0 if seeds is None else seeds
        self._set("seeds", "seed", used, integers=True)
        if positions is None and self._samples:
            hint = "pass how many tokens stand before each, or temperature 0"
            self._fail("positions", "one for each request where tokens are sampled", "nothing", hint)
        self._set("positions", "prompt_lens", 0 if positions is None else positions, integers=True)
        return self.give(self.state["seed"]) if draws else seeds

    def strategy(self, strategy: Strategy | str) -> Strategy:
        """The member of that name; refused if it does not fit the temperature."""
        found = Strategy.__members__.get(strategy.upper()) if isinstance(strategy, str) else strategy
        if not isinstance(found, Strategy):
            names = " | ".join(member.name.lower() for member in Strategy)
            self._fail("strategy", names, repr(strategy), "choose one of them")
        if found is Strategy.GREEDY and self._samples:
            self._fail("temperature", "0 with strategy 'greedy'", "another", "use strategy 'target_match'")
        return found

    def set_limit(self, max_new_tokens: Any) -> None:
        """Write how many tokens may be emitted."""
        limit = _NO_LIMIT if max_new_tokens is None else max_new_tokens
        self._set("max_new_tokens", "max_dec_len", limit, integers=True)

    def set_drafts(self, drafts: Any, lens: Any) -> None:
        """Write the drafts and how many of them count."""
        k = self.width - 1
        if isinstance(drafts, (list, tuple)) and lens is None:
            drafts, lens = self._padded(drafts)
        drafts = self._tensor("drafts", drafts, k, integers=True)
        self.state.write("draft_tokens", (slice(None), slice(1, None)), drafts)
        counts = np.full(self.size, k) if lens is None else self._tensor("draft_lens", lens, integers=True)
        used = self._slots
        if isinstance(counts, np.ndarray):
            if counts.min() < 0 or counts.max() > k:
                self._fail("draft_lens", f"values in [0, {k}]", str(counts.tolist()), "see what computes them")
            # Rows after the drafts become tail rows, at no cost.
            used = np.where(np.arange(len(used)) % self.width <= counts[used], used, -1)
        self._write("seq_lens_this_time", counts + 1)
        self._write("batch_id_per_token_output", used)

    def _padded(self, drafts: Any) -> tuple[Any, Any]:
        """Lists of drafts as an array [B, K], and their lengths."""
        k = self.width - 1
        lens = [len(row) for row in drafts]
        if len(lens) != self.size or max(lens) > k:
            expected = f"{self.size} lists of at most {k} drafts, for logits with S = {self.width}"
            self._fail("drafts", expected, f"{len(lens)} of at most {max(lens, default=0)}", "make them agree")
        padded = np.array([[*row, *[-1] * (k - len(row))] for row in drafts])
        return (padded if padded.size else np.zeros((self.size, k), np.int64)), lens

    def _set(self, argument: str, name: str, values: Any, *, integers: bool = False) -> Any:
        """Write one value for all requests or one per request; returns them."""
        last = self._numbers.pop(name, None)
        if last is not None and type(values) is last[0] and values == last[1]:  # most calls change few of them
            self._numbers[name] = last
            return last[2]
        tensor = self._tensor(argument, values, integers=integers)
        self._write(name, tensor)
        if type(values) in (int, float):
            self._numbers[name] = type(values), values, tensor
        return tensor

    def _write(self, name: str, values: Any) -> None:
        """Write values unless unchanged since the last call, since writes to a GPU cost time."""
        mark = (values.shape, values.tobytes()) if isinstance(values, np.ndarray) else None
        if mark is None or self._written.get(name) != mark:
            self._written.pop(name, None)
            self.state.write(name, slice(None), values)
            self._written[name] = mark

    def _tensor(self, argument: str, values: Any, *extents: int, integers: bool = False) -> Any:
        """One value, or values [B, *extents]: as NumPy's, or a tensor on the state's device."""
        info = describe(values)
        if info is None:
            try:
                values = np.asarray(values)
            except (TypeError, ValueError) as error:
                self._fail(argument, "numbers", f"a {type(values).__name__} ({error})", "pass an array")
            info = describe(values)
            assert info is not None
        shape, kinds = (self.size, *extents), ("int", "uint") if integers else ("int", "uint", "float")
        if info.dtype.rstrip("0123456789") not in kinds or info.shape not in ((), shape):
            expected = f"{'integers' if integers else 'numbers'} {list(shape)}"
            got = f"{info.dtype} {list(info.shape)}"
            self._fail(argument, expected, got, "pass one entry for each request of the logits")
        if info.device not in ("cpu", self.device.name):
            self._fail(argument, f"a tensor on {self.device.name} or the host", f"one on {info.device}", "move it")
        return as_numpy(values) if info.device == "cpu" else values

    def target_tokens(self) -> Any:
        """Draw every row's token, int64 [B * S]."""
        if self.width == 1:
            self._write("batch_id_per_token_output", self._slots)
        self._spread()
        self.backend.sample_target(self.logits, **self.state.args("sample_target"))
        return self.state["target_tokens"]

    def verify(self, strategy: Strategy, draft_probs: Any, window: int, candidates: int) -> None:
        """Fill `accept_tokens` and `accept_num`."""
        state = self.state
        if strategy is not Strategy.REJECTION and draft_probs is not None:
            self._fail("draft_probs", "nothing unless strategy 'rejection'", "a tensor", "leave them out")
        if strategy in (Strategy.GREEDY, Strategy.TARGET_MATCH):
            self.target_tokens()
            bound = self._bound.get(strategy)
            if bound is None:
                args = state.args("verify_draft_tokens", strategy=strategy, verify_window=window)
                bound = self._bound[strategy] = self.backend.bind("verify_draft_tokens", **args)
            bound()
            return
        args = state.args("verify_draft_tokens", strategy=strategy, verify_window=window)
        self._spread()
        probs = self.probs = state.allocate("probs", V=self.vocabulary)
        if strategy is Strategy.REJECTION:
            self.backend.processed_probs(self.logits, probs=probs, **state.args("processed_probs"))
            self.backend.verify_draft_tokens(target_probs=probs, draft_probs=draft_probs, **args)
            return
        # TOPP applies top_p when it picks candidates.
        given = {**state.args("processed_probs"), "row_top_p": self._no_top_p}
        self.backend.processed_probs(self.logits, probs=probs, **given)
        names = ("candidate_ids", "candidate_scores", "candidate_lens")
        picked = {name: state.allocate(name, C=min(candidates, self.vocabulary)) for name in names}
        self.backend.top_p_candidates(probs, **picked, **state.args("top_p_candidates"))
        self.backend.verify_draft_tokens(**picked, **args)

    def check_rows(self, tokens: Any, counts: Any = None) -> None:
        """NoDistributionError for tokens drawn from undefined rows. Only on the host: a GPU would have to be read.

        `tokens` [B * S], of which `counts` [B] were emitted by each request (None: all). REJECTION and TOPP draw
        from probabilities, which are all 0 there, and get the token 0.
        """
        if self.device.name != "cpu":
            return
        undefined = np.asarray(tokens).reshape(self.size, self.width) < 0
        if counts is not None:
            emitted = np.arange(self.width) < np.asarray(counts)[:, None]
            if self.probs is not None:
                undefined[emitted] = ~np.asarray(self.probs)[emitted.reshape(-1)].any(axis=1)
            undefined &= emitted
        if undefined.any():
            at = np.argwhere(undefined)[:, : 1 if counts is None else 2]
            got = ", ".join(str(row.tolist()) for row in at[:8]) + (f" and {len(at) - 8} more" if len(at) > 8 else "")
            error = NoDistributionError(
                op=self.function, backend=self.backend.name, argument="logits",
                expected="rows without NaN and not of -inf alone", got=f"others at {got}",
                hint="see what computes them",
            )  # fmt: skip
            error.requests = tuple(at[:, 0].tolist())
            raise error

    def logprobs(self, tokens: Any, top: Any, shape: tuple[int, ...]) -> Logprobs | None:
        """Log-probabilities of one token a row (-1: none), and of `top` more; shaped as the batch is."""
        if top is None:
            return None
        if isinstance(top, bool) or not isinstance(top, int) or top < 0:
            self._fail("logprobs", "how many alternatives, at least 0, or None", repr(top), "pass an int")
        n = min(top, self.vocabulary - 1) + 1
        ids, values, ranks = (
            self.state.allocate(name, A_cap=self.size * self.width, N=n) for name in ("ids", "logprobs", "ranks")
        )
        self.backend.token_logprobs(self.logits, self._rows, tokens, self._end, ids, values, ranks)
        return Logprobs(
            *(self.give(t.reshape(s)) for t, s in ((ids, (*shape, n)), (values, (*shape, n)), (ranks, shape)))
        )

    def give(self, tensor: Any) -> Any:
        """A copy for the caller, in the framework of the logits."""
        if self.device.name == "cpu":
            return framework(self._framework).on_host(tensor)
        return self.device.copy(tensor)
