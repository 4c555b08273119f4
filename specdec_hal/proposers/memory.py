"""Memory estimates of built-in proposers that run a model: `memory` of their specs."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from specdec_hal.models.dflash import DFlashConfig, dflash_shapes
from specdec_hal.models.drafter import Eagle3Config, drafter_kind, eagle3_shapes
from specdec_hal.models.weights import Shapes, shards
from specdec_hal.ops import Strategy
from specdec_hal.plugin.model import MTPModel
from specdec_hal.plugin.proposer import MemoryContext
from specdec_hal.proposers.dflash import drafter_config
from specdec_hal.proposers.draft_model import whole_model
from specdec_hal.proposers.eagle3 import head_config
from specdec_hal.proposers.mtp import module_path, reads_modules
from specdec_hal.tensors.transfer import Field


def mtp_memory(context: MemoryContext) -> dict[str, int]:
    """For an MTP module, without the weights of the target's own. An assistant has no KV cache."""
    capabilities, size, trained = context.model.capabilities, context.symbols, module_path(context.config)
    if capabilities.mtp_modules < 1 if trained is None else not reads_modules(context.model):
        return {}  # which the factory refuses
    on_device = capabilities.device_lengths
    rows = (2 if on_device else 4) * size["T_cap"] + 2 * size["M"]
    hidden = Field((rows, context.model.config.hidden_size), capabilities.hidden_dtype)
    parts = {"MTP module's hidden states": hidden.nbytes, **_sampler(context)}
    if trained is not None:
        parts["MTP module"] = sum(file.stat().st_size for file in shards(Path(trained)))
    if on_device and (trained is None or drafter_kind(trained) != "assistant"):
        per_block = cast(MTPModel, context.model).mtp_bytes_per_block(context.config.runner.block_size)
        parts["MTP module's KV cache"] = context.kv_blocks * per_block
    return parts


def eagle3_memory(context: MemoryContext) -> dict[str, int]:
    """For a trained head."""
    head = head_config(context.config, context.model)
    drafts = context.symbols["S"] - 1 if head.parallel else 0
    return _drafter_memory(context, "EAGLE-3 head", eagle3_shapes(head)[0], head, drafts)


def dflash_memory(context: MemoryContext) -> dict[str, int]:
    """For a DFlash drafter."""
    drafter = drafter_config(context.config, context.model)
    drafts = min(drafter.drafts, context.symbols["S"] - 1)
    return _drafter_memory(context, "DFlash drafter", dflash_shapes(drafter)[0], drafter, drafts)


def _drafter_memory(
    context: MemoryContext, name: str, shapes: Shapes, drafter: Eagle3Config | DFlashConfig, drafts: int
) -> dict[str, int]:
    """`drafts`: whose logits are computed at once. Where the model takes lists, the cache grows with the contexts."""
    size, capabilities, width = context.symbols, context.model.capabilities, drafter.hidden_size
    dtype, features = capabilities.hidden_dtype, context.model.config.hidden_size
    mapped = 0 if drafter.draft_vocab_size == context.model.config.vocab_size else size["M"]
    rows = Field((4 * size["T_cap"] + 2 * size["M"], width), dtype).nbytes
    rows += Field((len(drafter.taps) * (size["T_cap"] + size["R_cap"]), features), dtype).nbytes
    parts = {
        name: sum(Field(shape, dtype).nbytes for shape in shapes.values()),
        f"{name}'s hidden states": rows,
        f"{name}'s logits": Field(((size["M"] + 1) * drafts + mapped, drafter.draft_vocab_size), "float32").nbytes,
        **_sampler(context),
    }
    if capabilities.device_lengths:
        positions = (context.kv_blocks + 1) * context.config.runner.block_size
        parts[f"{name}'s KV cache"] = Field((drafter.num_hidden_layers, positions, drafter.kv_width), dtype).nbytes
    return parts


def hybrid_memory(context: MemoryContext) -> dict[str, int]:
    """As :func:`mtp_memory`, without distributions."""
    return {name: size for name, size in mtp_memory(context).items() if name != _PROBABILITIES}


def draft_model_memory(context: MemoryContext) -> dict[str, int]:
    """For a second checkpoint, without parts known only after loading."""
    parts, size = _sampler(context), context.symbols
    need = context.checkpoint_memory(whole_model(context.config))
    if need is not None:
        parts |= {f"draft model's {name}": part for name, part in need.weights.items()}
        parts["draft model's KV cache"] = context.kv_blocks * context.config.runner.block_size * need.kv_position
        if context.model.capabilities.device_lengths:
            parts["draft model's hidden states"] = (size["T_cap"] + size["M"]) * need.hidden_row
    return parts


_PROBABILITIES = "drafts' probabilities"


def _sampler(context: MemoryContext) -> dict[str, int]:
    """For :class:`specdec_hal.proposers.draft_sampler.DraftSampler`."""
    slots, drafts, vocabulary = context.symbols["M"], context.symbols["S"] - 1, context.model.config.vocab_size
    parts = {"drafts' logits": Field((slots, vocabulary), "float32").nbytes}
    if context.config.speculative.verify_strategy is Strategy.REJECTION:
        parts[_PROBABILITIES] = Field((slots, drafts + 1, vocabulary), "float32").nbytes
    return parts
