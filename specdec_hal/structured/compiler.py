"""A cache of compiled grammars; each is compiled once, off the critical path."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from importlib.util import find_spec
from typing import Any
from weakref import WeakValueDictionary

from specdec_hal.config.schema import StructuredOutput, StructuredSettings
from specdec_hal.errors import RequestError
from specdec_hal.structured.backend import Grammar, GrammarBackend, UnsupportedGrammarError, Vocabulary

NAMES = ("xgrammar", "llguidance")
"""Libraries in the order of "auto"."""
_SLOW = 1024
"""Most grammars that are remembered as slow."""


class Grammars:
    """Grammars of one vocabulary, built by `vocabulary` on first use. Thread-safe."""

    def __init__(self, settings: StructuredSettings, vocabulary: Callable[[], Vocabulary]) -> None:
        self._settings, self._make_vocabulary = settings, vocabulary
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._alive: WeakValueDictionary[str, Grammar] = WeakValueDictionary()
        """Grammars in use, cached or not."""
        self.nbytes = 0
        self._under_way: dict[str, Future[Grammar]] = {}
        self._slow: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Grammars that a library has taken too long for, after its trial."""
        self._backends: dict[str, GrammarBackend] = {}

    @cached_property
    def names(self) -> list[str]:
        """The configured libraries, in order."""
        wanted = NAMES if self._settings.backend == "auto" else (self._settings.backend,)
        return [name for name in wanted if find_spec(name) is not None]

    def get(self, wanted: StructuredOutput) -> Grammar:
        """The compiled grammar, from the cache if possible. RequestError as from :meth:`GrammarBackend.compile`, or
        without a library.

        Concurrent calls for one grammar wait for the first.
        """
        key = wanted.key
        with self._lock:
            found = self._alive.get(key)
            if found is not None:
                if key in self._kept:
                    self._kept.move_to_end(key)
                return found
            pending = self._under_way.get(key)
            mine = pending is None
            if pending is None:
                pending = self._under_way[key] = Future()
        if mine:
            try:
                grammar = self._compile(wanted)
            except BaseException as error:
                with self._lock:
                    del self._under_way[key]
                pending.set_exception(error)
            else:
                self._keep(key, grammar)
                pending.set_result(grammar)
        return pending.result()

    def put(self, wanted: StructuredOutput, backend: str, exported: Any) -> Grammar:
        """Add a grammar compiled by another process (:attr:`Grammar.exported`), unless cached."""
        with self._lock:
            found = self._alive.get(wanted.key)
        if found is None:
            found = self.backend(backend).imported(exported)
            self._keep(wanted.key, found)
        return found

    def too_slow(self, wanted: StructuredOutput, backend: str) -> str:
        """A mask of this grammar has taken too long: from now on the other library serves it, or it is refused.

        Returns the message.
        """
        limit = f"{self._settings.mask_timeout_s:g} s (structured.mask_timeout_s)"
        why = f"{backend} has taken more than {limit} for the masks of a step; simplify the grammar"
        with self._lock:
            self._slow[wanted.key, backend] = why
            while len(self._slow) > _SLOW:
                self._slow.popitem(last=False)
            found = self._alive.get(wanted.key)
            if found is not None and found.backend == backend:
                del self._alive[wanted.key]
                if self._kept.pop(wanted.key, None) is not None:
                    self.nbytes -= found.nbytes
        return why

    def _keep(self, key: str, grammar: Grammar) -> None:
        with self._lock:
            self._under_way.pop(key, None)
            self._kept[key] = self._alive[key] = grammar
            self.nbytes += grammar.nbytes
            while self.nbytes > self._settings.cache_mb << 20 and len(self._kept) > 1:
                self.nbytes -= self._kept.popitem(last=False)[1].nbytes

    def _compile(self, wanted: StructuredOutput) -> Grammar:
        names = self.names
        if not names:
            needed = "xgrammar or llguidance" if self._settings.backend == "auto" else self._settings.backend
            raise RequestError(f"structured: needs {needed}; pip install specdec-hal[structured]")
        refused = list[str]()
        for name in names:
            try:
                if (why := self._slow.get((wanted.key, name))) is not None:
                    raise UnsupportedGrammarError(f"structured.{wanted.kind[0]}: {why}")
                return self.backend(name).compile(wanted)
            except UnsupportedGrammarError as error:
                refused.append(str(error))
            except RecursionError as error:
                raise RequestError(
                    f"structured.{wanted.kind[0]}: expected fewer nested levels; define parts in $defs"
                ) from error
        raise UnsupportedGrammarError("; ".join(refused))

    def backend(self, name: str) -> GrammarBackend:
        """A library by name, made on first use."""
        with self._making:
            if name not in self._backends:
                self._backends[name] = self._made(name)
            return self._backends[name]

    def _made(self, name: str) -> GrammarBackend:
        if name == "xgrammar":
            from specdec_hal.structured.xgrammar import XGrammar

            return XGrammar(self._vocabulary, self._settings.compile_timeout_s, self._settings.mask_budget_s)
        from specdec_hal.structured.llguidance import LLGuidance

        return LLGuidance(self._vocabulary, self._settings.mask_budget_s)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of all grammars."""
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._make_vocabulary()
