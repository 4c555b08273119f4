"""Memory of a runner, computed before allocation; sizes that do not fit are refused with the numbers."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import Any, cast

from specdec_hal.config.schema import Config
from specdec_hal.models.loader import checkpoint_memory
from specdec_hal.ops import Storage, Strategy
from specdec_hal.plugin.backend import Backend
from specdec_hal.plugin.model import DeviceModel, RecurrentModel, TargetModel
from specdec_hal.plugin.proposer import MemoryContext
from specdec_hal.plugin.registry import Registry, or_default
from specdec_hal.runner.admission import MAX_BAD_TOKENS, MAX_LOGIT_BIAS, MAX_STOP_SEQUENCES
from specdec_hal.runner.blocks import BlockPool
from specdec_hal.runner.state import DecodeState
from specdec_hal.tensors.device import get_device
from specdec_hal.tensors.measuring import MeasuringDevice
from specdec_hal.tensors.memory import require


def checked_length(config: Config, model: TargetModel, headroom: int) -> int:
    """The longest context of a request, with `headroom` positions after it; ConfigError beyond the model's."""
    longest = model.config.max_position_embeddings - headroom
    wanted = longest if config.runner.max_model_len is None else config.runner.max_model_len
    if not 1 <= wanted <= longest:
        raise config.error("runner.max_model_len", f"expected 1..{longest} for this model, got {wanted}")
    named = config.model
    thinking = {"think_end_id": [named.think_end_id or 0], "line_break_id": [named.line_break_id or 0]}
    for key, tokens in {
        **thinking, "think_end_text": named.think_end_text, "answer_start_ids": named.answer_start_ids,
    }.items():  # fmt: skip
        if (largest := max(tokens, default=0)) >= model.config.vocab_size:
            raise config.error(f"model.{key}", f"expected ids below {model.config.vocab_size}, got {largest}")
    return wanted


def kv_blocks(config: Config, model: TargetModel, positions: int) -> int:
    """KV blocks of the pool for at most `positions` per slot; 0 for a model without blocks."""
    if not model.capabilities.device_lengths:
        return 0
    settings = config.runner
    whole = settings.max_num_seqs * -(-positions // settings.block_size)
    return whole if settings.num_kv_blocks is None else settings.num_kv_blocks


REPLAY_FROM = 3
"""Drafts of a step from which replaying updates was measured as faster on a GPU than keeping states."""


def with_storage(config: Config, backend: Backend, model: TargetModel) -> Config:
    """The configuration with the storage "auto" of recurrent states resolved."""
    if not model.capabilities.recurrent or config.runner.recurrent_storage != "auto":
        return config
    has = any(status.op == "advance_checkpoints" and status.available for status in backend.explain())
    many = config.speculative.num_speculative_tokens >= REPLAY_FROM
    chosen = "replay" if has and many and backend.device != "cpu" else "states"
    return config.model_copy(update={"runner": config.runner.model_copy(update={"recurrent_storage": chosen})})


def shares_prefixes(config: Config, model: TargetModel) -> bool:
    """Whether requests share KV blocks of equal prefixes."""
    if not model.capabilities.device_lengths:
        return False
    wanted = config.runner.enable_prefix_caching
    return model.capabilities.stable_row_counts is None if wanted is None else wanted


def prefix_states(config: Config, model: TargetModel) -> int:
    """Recurrent states kept for requests with an equal prefix."""
    if not model.capabilities.recurrent or not shares_prefixes(config, model):
        return 0
    settings = config.runner
    return settings.max_num_seqs if settings.num_prefix_states is None else settings.num_prefix_states


def state_bytes(config: Config, model: TargetModel) -> int:
    """Bytes of the recurrent states of all slots and of prefixes; 0 for a model without any."""
    if not model.capabilities.recurrent:
        return 0
    recurrent, drafts = cast(RecurrentModel, model), config.speculative.num_speculative_tokens
    slots = config.runner.max_num_seqs * recurrent.bytes_per_slot(drafts, _storage(config))
    prefixes = prefix_states(config, model)
    return slots + (prefixes and prefixes * recurrent.bytes_per_prefix)


def _storage(config: Config) -> Storage:
    return Storage.REPLAY if config.runner.recurrent_storage == "replay" else Storage.STATES


def allocate_cache(config: Config, backend: Backend, model: TargetModel, positions: int) -> BlockPool | None:
    """The model's KV cache: a pool of blocks if it supports them, else a cache per slot; and its recurrent states,
    whose ops `backend` computes."""
    settings = config.runner
    if model.capabilities.recurrent:
        drafts = config.speculative.num_speculative_tokens
        cast(RecurrentModel, model).allocate_states(
            settings.max_num_seqs, drafts, backend, storage=_storage(config), num_prefixes=prefix_states(config, model)
        )
    if not model.capabilities.device_lengths:
        model.allocate(settings.max_num_seqs, positions)
        return None
    blocks = kv_blocks(config, model, positions)
    cast(DeviceModel, model).allocate_blocks(blocks, settings.block_size, positions)
    return BlockPool(blocks, settings.block_size)


def state_sizes(config: Config, model: TargetModel, max_model_len: int, positions: int) -> dict[str, Any]:
    """The arguments of :class:`DecodeState` but its device. `positions`: `max_model_len` with the headroom."""
    settings, k = config.runner, config.speculative.num_speculative_tokens
    slots, chunk = settings.max_num_seqs, min(settings.prefill_chunk, max_model_len)
    return {
        "max_num_seqs": slots,
        "num_speculative_tokens": k,
        "max_model_len": max_model_len,
        "prefill_chunk": chunk,
        "end_tokens": frozenset(model.config.eos_token_ids),
        "max_bad_tokens": MAX_BAD_TOKENS,
        "max_logit_bias": MAX_LOGIT_BIAS,
        "vocab_size": model.config.vocab_size,
        "max_num_batched_tokens": settings.max_num_batched_tokens or slots * (k + 1) + chunk,
        "max_stop_sequences": MAX_STOP_SEQUENCES,
        "think_end_text": config.model.think_end_text,
        "answer_start_ids": config.model.answer_start_ids,
        "max_blocks": -(-positions // settings.block_size) if model.capabilities.device_lengths else 0,
    }


def footprint(
    config: Config,
    model: TargetModel,
    max_model_len: int,
    positions: int,
    *,
    registry: Registry | None = None,
    device_name: str = "cpu",
) -> dict[str, int]:
    """Bytes by purpose, without the target's weights, growing caches and workspaces.

    `registry`: has the proposer of ``speculative.method`` and its estimate; None: the process's.
    """
    device = MeasuringDevice()
    size = DecodeState(**state_sizes(config, model, max_model_len, positions), device=device).symbols
    parts = {"states of slots": device.nbytes}

    def count(name: str, *fields: tuple[tuple[int, ...], str]) -> None:
        device.nbytes = 0
        for shape, dtype in fields:
            device.zeros(shape, dtype)
        parts[name] = device.nbytes

    width, vocabulary, rows = model.config.hidden_size, model.config.vocab_size, size["R_cap"]
    dtype = model.capabilities.hidden_dtype
    count("hidden states", ((size["T_cap"], width), dtype), ((rows, width), dtype))
    count("logits", ((rows, vocabulary), "float32"))
    if config.speculative.verify_strategy in (Strategy.TOPP, Strategy.REJECTION):
        count("probabilities", ((rows, vocabulary), "float32"))
    if config.sampling.logprobs is not None:
        columns = (rows, config.sampling.logprobs + 1)
        # Any request may have penalties, which need a copy of the raw logits.
        count("log-probabilities", ((rows, vocabulary), "float32"), (columns, "int64"), (columns, "float32"))
    blocks = kv_blocks(config, model, positions)
    if model.capabilities.device_lengths:
        parts["KV cache"] = blocks * cast(DeviceModel, model).bytes_per_block(config.runner.block_size)
    if model.capabilities.recurrent:
        parts["recurrent states"] = state_bytes(config, model)
    registry, speculative = or_default(registry), config.speculative
    load = partial(checkpoint_memory, framework=config.model.framework, registry=registry, device=device_name)
    context = MemoryContext(model, speculative.settings, config, size, blocks, load)
    return parts | registry.draft_memory(speculative.method, context)


def check_footprint(
    config: Config, backend: Backend, model: TargetModel, max_model_len: int, positions: int, *, registry: Registry
) -> None:
    """InsufficientMemoryError, before anything is allocated, if a runner of these sizes does not fit."""
    free = get_device(backend.device_name, model.framework).free_bytes()
    if free is None:
        return
    if model.capabilities.device_lengths:  # the current pool is replaced
        free += cast(DeviceModel, model).cache_bytes
    if model.capabilities.recurrent:
        free += cast(RecurrentModel, model).state_bytes

    def need(slots: int) -> dict[str, int]:
        fewer = config.runner.model_copy(update={"max_num_seqs": slots})
        changed = config.model_copy(update={"runner": fewer})
        return footprint(changed, model, max_model_len, positions, registry=registry, device_name=backend.device_name)

    slots = config.runner.max_num_seqs
    parts = need(slots)
    if sum(parts.values()) <= free:
        return
    fits = bisect_right(range(1, slots), free, key=lambda fewer: sum(need(fewer).values()))
    hint = (
        f"runner.max_num_seqs ({slots}{f'; {fits} would fit' if fits else ''}), runner.max_model_len ({max_model_len})"
    )
    if model.capabilities.device_lengths:
        hint += f", runner.num_kv_blocks ({kv_blocks(config, model, positions)})"
    other = "" if fits else ", or use another speculative.method or draft model"
    require("runner", parts, backend.device_name, free, f"lower {hint} or speculative.num_speculative_tokens{other}")
