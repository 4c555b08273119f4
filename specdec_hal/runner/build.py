"""What a runner is made of, and how that is built from a configuration."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import cast

from specdec_hal.config.schema import Config
from specdec_hal.models import Tokenizer, load_model
from specdec_hal.plugin.backend import AUTO, Backend
from specdec_hal.plugin.model import DeviceModel, RecurrentModel, TargetModel
from specdec_hal.plugin.proposer import Proposer, ProposerContext, check_hidden_layers
from specdec_hal.plugin.registry import Registry, or_default
from specdec_hal.proposers.switched import SwitchedProposer
from specdec_hal.runner.admission import RequestRules
from specdec_hal.runner.blocks import PrefixStates
from specdec_hal.runner.draft_length import DraftLengths
from specdec_hal.runner.footprint import (
    allocate_cache,
    check_footprint,
    checked_length,
    prefix_states,
    shares_prefixes,
    state_bytes,
    state_sizes,
    with_storage,
)
from specdec_hal.runner.guard import claim_cache
from specdec_hal.runner.method import DraftMethods, chosen, looks_up_too
from specdec_hal.runner.plan import StepCompiler
from specdec_hal.runner.report import StepReport
from specdec_hal.runner.row_masks import RowMasks
from specdec_hal.runner.scheduler import PrefixCache, Scheduler
from specdec_hal.runner.state import DecodeState
from specdec_hal.runner.structured import StructuredRequests
from specdec_hal.tensors.device import get_device

_log = logging.getLogger("specdec_hal")


class RunnerHook:
    """Where the ranks of one model attach to a runner; a process that holds the whole model attaches nothing."""

    def took(self, step: int, slots: Iterable[int], report: StepReport) -> None:
        """The runner takes over a step's results for these slots."""

    def stepped(self, steps: int) -> None:
        """That many steps were taken."""

    def forget(self) -> None:
        """Measurements begin again."""


@dataclass(frozen=True)
class RunnerParts:
    """What a :class:`~specdec_hal.runner.ModelRunner` is made of; :func:`build_parts` makes them.

    `launches`: a step only enqueues work. `overlap`: a step is launched before the previous one is read.
    `max_model_len`: the longest context of a request. `kv_cache_bytes`, `state_bytes`: see ModelRunner.
    """

    config: Config
    backend: Backend
    model: TargetModel
    tokenizer: Tokenizer | None
    registry: Registry
    hook: RunnerHook
    state: DecodeState
    proposer: Proposer
    compiler: StepCompiler
    scheduler: Scheduler
    rules: RequestRules
    structured: StructuredRequests
    masks: RowMasks
    lengths: DraftLengths | DraftMethods | None
    launches: bool
    overlap: bool
    max_model_len: int
    kv_cache_bytes: int
    state_bytes: int


def build_parts(
    config: Config,
    backend: Backend,
    model: TargetModel,
    tokenizer: Tokenizer | None = None,
    *,
    registry: Registry | None = None,
    hook: RunnerHook | None = None,
) -> RunnerParts:
    """Check a configuration against a backend and a model, and make what a runner of them needs.

    ConfigError, UnsupportedError or InsufficientMemoryError where they do not fit together.
    """
    registry, hook = or_default(registry), hook or RunnerHook()
    automatic = config.speculative.method == AUTO
    config = with_storage(chosen(config, backend, model, registry), backend, model)
    speculative, settings, capabilities = config.speculative, config.runner, model.capabilities
    spec = registry.get_proposer(speculative.method)
    if spec.settings is not None and speculative.settings is None:
        raise config.error(f"speculative.{spec.name}", "not checked; parse it with the runner's registry")
    k, slots, vocab_size = speculative.num_speculative_tokens, settings.max_num_seqs, model.config.vocab_size
    headroom = k if registry.pads_drafts(spec.name, speculative.settings) else 0
    if headroom and speculative.adaptive:
        message = f"'{spec.name}' pads drafts to num_speculative_tokens; set one of both to false"
        raise config.error("speculative.adaptive", message)
    max_model_len = checked_length(config, model, headroom)
    positions = max_model_len + headroom
    check_footprint(config, backend, model, max_model_len, positions, registry=registry)
    pool = allocate_cache(config, backend, model, positions)
    blocks = 0 if pool is None else pool.num_blocks
    sizes = state_sizes(config, model, max_model_len, positions)
    state = DecodeState(**sizes, device=get_device(backend.device_name, model.framework))
    claim_cache(model, state)
    if state.symbols["T_cap"] < slots * (k + 1) + 1:
        expected = f"expected at least {slots * (k + 1) + 1}: a decode step of every slot, and a prompt token"
        raise config.error("runner.max_num_batched_tokens", f"{expected}, got {settings.max_num_batched_tokens}")
    context = _proposer_context(config, backend, model, tokenizer, registry, state, blocks)
    first = partial(registry.build_proposer, speculative.method)
    proposer: Proposer
    lengths: DraftLengths | DraftMethods | None
    if automatic and looks_up_too(config, backend, registry):
        proposer = switched = SwitchedProposer(context, first)
        names = speculative.method, "ngram"
        lengths = DraftMethods(k, names, switched, lambda sequence: sequence.request.params.temperature > 0)
    else:
        proposer, lengths = first(context), DraftLengths(k) if speculative.adaptive and k else None
    check_hidden_layers(proposer, speculative.method, model)
    # A step only launches work: its drafts too, if the proposer works on the device.
    launches = capabilities.device_lengths and backend.asynchronous and not backend.debug and backend.shadow is None
    on_device = proposer.runs_on == "device"
    overlap = launches and on_device if settings.overlap is None else settings.overlap
    if overlap and not on_device:
        raise config.error("runner.overlap", f"the proposer '{speculative.method}' works on the host; set false")
    masks = RowMasks(state.device, state.symbols["R_cap"], vocab_size)
    compiler = StepCompiler(
        backend,
        model,
        state,
        proposer,
        speculative,
        captured=launches and capabilities.static_shapes and settings.graph is not False,
        named=config.model,
        masks=masks,
    )
    compiler.check()
    prefixes = _prefix_cache(config, model, proposer, pool is not None)
    room = None if pool is None else blocks * pool.block_size - headroom
    missing = frozenset(status.op for status in backend.explain() if not status.available)
    ends = frozenset(model.config.eos_token_ids)
    return RunnerParts(
        config=config,
        backend=backend,
        model=model,
        tokenizer=tokenizer,
        registry=registry,
        hook=hook,
        state=state,
        proposer=proposer,
        compiler=compiler,
        scheduler=Scheduler(state, pool, headroom, proposer.draft_positions, prefixes),
        rules=RequestRules(
            vocab_size, state, speculative, room, missing, config.model, tuple(end for end in ends if end < vocab_size)
        ),
        structured=StructuredRequests(
            config.structured,
            state,
            config.model,
            tokenizer,
            vocab_size,
            ends,
            bounded=config.engine.tensor_parallel == 1,  # ranks may disagree about times
        ),
        masks=masks,
        lengths=lengths,
        launches=launches,
        overlap=overlap,
        max_model_len=max_model_len,
        kv_cache_bytes=blocks and blocks * cast(DeviceModel, model).bytes_per_block(settings.block_size),
        state_bytes=state_bytes(config, model),
    )


def _proposer_context(
    config: Config,
    backend: Backend,
    model: TargetModel,
    tokenizer: Tokenizer | None,
    registry: Registry,
    state: DecodeState,
    kv_blocks: int,
) -> ProposerContext:
    load = partial(load_model, framework=config.model.framework, registry=registry, device=backend.device_name)
    if config.model.num_threads is not None:
        load = partial(load, threads=config.model.num_threads)
    return ProposerContext(backend, state, model, tokenizer, config.speculative.settings, config, load, kv_blocks)


def _prefix_cache(config: Config, model: TargetModel, proposer: Proposer, blocks: bool) -> PrefixCache | None:
    """Settings of prefix caching, if enabled; ConfigError for a model without `blocks`."""
    if config.runner.enable_prefix_caching and not blocks:
        message = "expected false for a model that keeps no KV blocks, got true; leave it out"
        raise config.error("runner.enable_prefix_caching", message)
    if not shares_prefixes(config, model):
        return None
    states = None
    if model.capabilities.recurrent:
        states = PrefixStates(prefix_states(config, model), cast(RecurrentModel, model).keeps_prefix)
    draft_rows = bool(proposer.hidden_layers) or proposer.draft_positions > 0
    return PrefixCache(draft_rows, proposer.cache_lookahead if draft_rows else 0, states)
