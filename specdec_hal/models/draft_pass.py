"""Trained drafters in PyTorch, for any target that lends its embedding and head, on a CPU or a GPU.

- :class:`HeadPass`: EAGLE-3 heads, chained (:mod:`specdec_hal.models.eagle3` says what is computed) or parallel
  (P-EAGLE): after the rows of what the step accepted, a row of the mask token and a learned state for each draft but
  the first.
- :class:`BlockPass`: DFlash, DSpark and DFlash 2 (:mod:`specdec_hal.models.dflash`): a block of masked tokens is
  filled in by one pass over the target's features.

Keys and values use the target's block numbers. The host reads nothing and shapes are those of the batch, so a pass is
captured with the step. On a CPU, with a model that takes lists, each slot has its own blocks. Rows of slots without
tokens are undefined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from specdec_hal.models.attention import Layer
from specdec_hal.models.batch import check_rows
from specdec_hal.models.dflash import DFlashConfig
from specdec_hal.models.drafter import Blocks, DrafterWeights, Eagle3Config, rows_of_head
from specdec_hal.models.paged import PagedStore, Placed, launchers, on_torch
from specdec_hal.models.rope import rotations
from specdec_hal.plugin.model import DeviceBatch, ForwardBatch, TargetModel
from specdec_hal.tensors.views import download

_BLOCK_SIZE = 64  # of a cache without a target's blocks


@dataclass(frozen=True)
class _Weights:
    """A layer, [out, in]; rows of queries and keys in pairs that rotary embeddings turn.

    For Triton's kernels these are in order, and rows of `gate_up` in turns.
    """

    input_norm: Any
    qkv: Any
    head_norms: tuple[Any, Any] | None
    out: Any
    mlp_norm: Any
    gate_up: Any
    down: Any


def kernels_of(device: Any) -> Any:
    """Triton's kernels, on a GPU that has them."""
    return launchers(device) if device.type == "cuda" else None


class PagedPass(ABC):
    """A pass over rows of a target with keys and values in blocks, for models over device tensors or lists.

    `layers`: of attention. `drafts`: positions that rows may take beyond those of `blocks`. `dtype` None: the target's
    on a device, else float32.
    """

    def __init__(
        self, model: TargetModel, layers: Sequence[Layer], blocks: Blocks, drafts: int = 0, dtype: Any = None
    ) -> None:
        self._model, self.drafts = cast(Any, model), drafts
        self._on_device = model.capabilities.device_lengths
        self.device = getattr(model, "device", torch.device("cpu"))
        self._dtype = dtype or getattr(torch, model.capabilities.hidden_dtype if self._on_device else "float32")
        self.state_width = self.width = model.config.hidden_size
        self._vocab_size = model.config.vocab_size
        width = -(-(blocks.positions + drafts + 1) // _BLOCK_SIZE)
        self._tables = np.arange(blocks.slots * width, dtype=np.int32).reshape(blocks.slots, width)
        count, size = blocks.pool or (blocks.slots * width, _BLOCK_SIZE)
        make = kernels_of(self.device)
        self._launcher = make and make(self._dtype)
        self._store = PagedStore(layers, count, size, dtype=self._dtype, device=self.device, launcher=self._launcher)
        # Slots by their number in a batch.
        self._owners = self._every = torch.arange(blocks.slots, device=self.device)

    @abstractmethod
    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DeviceMTPModule.forward_device."""

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceMTPModule.compute_logits_device."""
        self._model.compute_logits_device(hidden, out, num_rows)

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """See DraftHead.forward."""
        check_rows("torch", "forward", hidden, self.state_width, len(batch.token_ids))
        out = self._out(batch)
        self.forward_device(self._batch(batch), self._rows(hidden), out)
        return out

    def compute_logits(self, hidden: Any) -> Any:
        """See DraftHead.compute_logits."""
        return self._model.compute_logits(hidden)

    def _rows(self, x: Any) -> Any:
        return _tensor(x).to(self.device, self._dtype)

    def _out(self, batch: ForwardBatch) -> Any:
        return torch.zeros((len(batch.token_ids), self.width), device=self.device)

    def _batch(self, batch: ForwardBatch) -> DeviceBatch:
        """Lists as tensors of the pass's device, each slot with its own blocks."""

        def here(array: Any, dtype: Any = np.int32) -> Any:
            return torch.as_tensor(np.asarray(array, dtype)).to(self.device)

        segments = batch.segments
        lengths, positions = (np.array([getattr(s, name) for s in segments]) for name in ("length", "position"))
        self._owners = self._every[[segment.slot for segment in segments]]
        return DeviceBatch(
            token_ids=here(batch.token_ids, np.int64)[:, None],
            batch_id_per_token=here(np.repeat(np.arange(len(segments)), lengths)),
            cu_seqlens_q=here(np.concatenate([[0], np.cumsum(lengths)])),
            seq_lens_decoder=here(positions),
            block_tables=here(self._tables[[s.slot for s in segments]]),
            max_seq_len=int((positions + lengths).max()) + self.drafts + 1,
            max_query_len=int(lengths.max()),
        )


@dataclass(frozen=True)
class DraftPath:
    """What `select_draft_path` reads of a pass, by slot (M, and a spare one) and draft: its operands of these names."""

    path_logits: Any
    path_ids: Any
    path_hidden: Any
    anchor_tokens: Any
    predecessor_codes: Any
    successor_codes: Any


class DraftPass(PagedPass):
    """See :class:`specdec_hal.plugin.model.DraftHead` and `DeviceMTPModule`: both, whatever the target is.

    `block`: attributes of the op `prepare_block_inputs` for a parallel pass, which computes the rows of all drafts at
    once (`forward_block`); None for one that chains drafts. `draft_ids`: see DraftHead. `confidence`: float32
    [M + 1, K] or None, how probably the target takes each draft; the last row is scratch. `path`: of drafts that
    `select_draft_path` draws; else None. `state_width`, `width`: of the states that it reads, and of the rows that it
    gives.
    """

    block: Mapping[str, Any] | None = None
    confidence: Any = None
    path: DraftPath | None = None

    def __init__(self, model: TargetModel, config: Any, weights: DrafterWeights, blocks: Blocks, drafts: int) -> None:
        kv, dim = config.num_key_value_heads, config.head_dim
        self._kinds = [
            Layer(i, config.num_attention_heads, kv, dim, dim, dim**-0.5, **vars(mask))
            for i, mask in enumerate(config.masks)
        ]
        super().__init__(model, self._kinds, blocks, drafts)
        self.config, self.state_width, self.width = config, config.hidden_size, config.hidden_size
        self._tensors = {name: self._upload(array) for name, array in weights.tensors.items()}
        self.draft_ids = ids = weights.draft_ids
        if ids is not None and "lm_head.weight" not in self._tensors:
            rows = rows_of_head(lambda x: self._logits(self._rows(x)), model.config.hidden_size, ids)
            self._tensors["lm_head.weight"] = self._upload(rows)
        self._layers = [self._layer(i) for i in range(config.num_hidden_layers)]
        turns = rotations(config, blocks.positions)
        if self._launcher is not None:  # cosines and sines
            turns = np.stack([turns.real, turns.imag]).astype(np.float32)
        self._rotary = self._index(turns if self._launcher is not None else turns.astype(np.complex64))
        if self.block is not None:
            # Per slot, and a spare one: the head's logits for all drafts. Their rows are the last of a block.
            self._last = torch.arange(-drafts, 0, device=self.device)
            head = self._tensors.get("lm_head.weight")
            columns = self._vocab_size if head is None else len(head)
            self._ahead = self._zeros(blocks.slots + 1, drafts, columns, dtype=torch.float32)

    # ---- what a chain calls

    @abstractmethod
    def fuse(self, features: Mapping[int, Any]) -> Any:
        """See DraftHead.fuse."""

    def forward_block_device(self, batch: DeviceBatch, hidden: Any, out: Any, block: DeviceBatch, source: Any) -> None:
        """As `forward_device`, of a parallel pass: compute the rows of all drafts; to `out` goes what they begin with.

        `block`, `source`: of `prepare_block_inputs` for the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} chains drafts; call forward_device")

    def further(self, number: int, batch: DeviceBatch, out: Any) -> None:
        """Write rows for draft `number`, from 1, to `out` [T_cap, width]: tokens of the batch are the drafts before.

        Of a parallel pass, after `forward_block_device`; without effect where no draft depends on another.
        """
        return

    def draft_logits(self, number: int, slots: Any | None, rows: Any, out: Any) -> None:
        """Write logits of the pass's own ids for draft `number` of these slots (None: 0 .. B-1) to `out`, a row each.

        `rows`: [B, width]. Of a parallel pass, after `forward_block_device`.
        """
        with torch.inference_mode():
            out = torch.as_tensor(out)
            out.copy_(self._scored(slice(len(out)) if slots is None else slots, number, torch.as_tensor(rows)))

    def _scored(self, slots: Any, number: int, rows: Any) -> Any:
        """Logits for draft `number`, from those that were kept."""
        return self._ahead[slots, number]

    def _look_ahead(self, rows: Any, starts: Any, owner: Any) -> Any:
        """Keep the logits of the last K rows of each block; returns what the head reads of these, [B, K, D]."""
        rows = self._head_rows(rows[(starts[1:, None] + self._last).clamp(min=0)])
        if self._on_device and "lm_head.weight" not in self._tensors:  # slots are in order
            self._model.compute_logits_device(rows.flatten(0, 1).contiguous(), self._ahead[: len(rows)].flatten(0, 1))
        else:
            self._ahead[owner] = self._logits(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        return rows

    def _logits(self, rows: Any) -> Any:
        """Float32 [R, columns] of the head."""
        if (head := self._tensors.get("lm_head.weight")) is not None:
            return F.linear(rows, head).float()
        if not self._on_device:
            lent = getattr(self._model, "head_logits", self._model.compute_logits)
            return _tensor(lent(rows.numpy()))
        out = torch.empty((len(rows), self._vocab_size), dtype=torch.float32, device=self.device)
        self._model.compute_logits_device(rows.contiguous(), out)
        return out

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceMTPModule.compute_logits_device."""
        with torch.inference_mode():
            torch.as_tensor(out).copy_(self._logits(self._head_rows(torch.as_tensor(hidden))))

    def forward_block(self, batch: ForwardBatch, hidden: Any, block: ForwardBatch, source: Any) -> Any:
        """As `forward_block_device`: rows [T, width]."""
        out, given = self._out(batch), (self._batch(batch), self._rows(hidden))
        self.forward_block_device(*given, out, self._batch(block), torch.as_tensor(source).to(self.device))
        return out

    def forward_further(self, number: int, batch: ForwardBatch) -> Any:
        """As `further`: rows [T, width]."""
        out = self._out(batch)
        self.further(number, self._batch(batch), out)
        return out

    def host_draft_logits(self, number: int, slots: Any, rows: Any) -> Any:
        """As `draft_logits`: float32, a row a slot."""
        out = torch.empty((len(slots), self._ahead.shape[2]), device=self.device)
        self.draft_logits(number, torch.as_tensor(slots), self._rows(rows), out)
        return out

    def compute_logits(self, hidden: Any) -> Any:
        """See DraftHead.compute_logits."""
        with torch.inference_mode():
            return self._logits(self._head_rows(self._rows(hidden)))

    def variant(self, config: Any) -> Any:
        """A variant with the same weights and cache."""
        other = copy(self)
        other.config = config
        return other

    # ---- parts of a pass

    def _head_rows(self, hidden: Any) -> Any:
        """The head's input from rows."""
        return hidden

    def _embed(self, ids: Any) -> Any:
        """Embeddings of tokens; arbitrary ones for ids outside the vocabulary, which stopped slots may have."""
        ids = torch.where((ids >= 0) & (ids < self._vocab_size), ids, 0)
        if (own := self._tensors.get("embed_tokens.weight")) is not None:
            return own[ids]
        return self._model.embed(ids) if self._on_device else self._rows(self._model.embed(ids.numpy()))

    def _norm(self, x: Any, name: str) -> Any:
        return self._normed(x, self._tensors[f"{name}.weight"])

    def _normed(self, x: Any, weight: Any) -> Any:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)

    def _features(self, features: Mapping[int, Any]) -> list[Any]:
        return [self._rows(features[tap]) for tap in self.config.taps]

    def _norm_to(self, out: Any, x: Any, weight: Any) -> None:
        if self._launcher is None:
            out.copy_(self._normed(x, weight))
        else:
            self._launcher.rms_norm(x, weight, out, None, self.config.rms_norm_eps)

    def _run(self, i: int, x: Any, rows: Any, first: int, turns: Any, lines: Any, place: Placed) -> Any:
        """Add layer i to the residual x: `rows` from `first` on attend to the cache, which has the keys of all rows.

        `turns`, `lines`: rotations of all rows, and their lines of the pool.
        """
        layer, launch = self._layers[i], self._launcher
        attended = self._attend(i, rows, first, turns, lines, place)
        if launch is None:
            x = torch.addmm(x, attended, layer.out.T)
            return torch.addmm(x, self._gated(i, self._normed(x, layer.mlp_norm)), layer.down.T)
        y, normed = torch.empty_like(x), torch.empty_like(x)
        launch.linear(attended, layer.out, y, None, residual=x)
        self._norm_to(normed, y, layer.mlp_norm)
        launch.linear(self._gated(i, normed), layer.down, y, None, residual=y)
        return y

    def _gated(self, i: int, rows: Any) -> Any:
        """The middle of layer i's MLP."""
        weight = self._layers[i].gate_up
        if self._launcher is None:
            gate, up = F.linear(rows, weight).chunk(2, 1)
            return F.silu(gate) * up
        gated = rows.new_empty((len(rows), len(weight) // 2))
        self._launcher.gate_up(rows, weight, gated, None)
        return gated

    def _attend(self, i: int, rows: Any, first: int, turns: Any, lines: Any, place: Placed) -> Any:
        """Attention of `_run`, before its last product. On a GPU rows before `first` have queries too, at no cost."""
        layer, kind, launch = self._layers[i], self._kinds[i], self._launcher
        sizes = [heads * kind.head_dim for heads in (kind.heads, kind.kv_heads, kind.kv_heads)]
        if launch is None:
            wide = sizes[0]
            if first:
                q, kv = F.linear(rows[first:], layer.qkv[:wide]), F.linear(rows, layer.qkv[wide:])
            else:
                q, kv = F.linear(rows, layer.qkv).split([wide, len(layer.qkv) - wide], 1)
            keys, values = kv.unflatten(1, (2, kind.kv_heads, kind.head_dim)).unbind(1)
            q = q.unflatten(1, (kind.heads, kind.head_dim))
            if layer.head_norms is not None:
                q, keys = (self._normed(part, norm) for part, norm in zip((q, keys), layer.head_norms, strict=True))
            self._store.write(kind, lines, _turned(keys, turns), values)
            return self._store.look(kind, place, _turned(q, turns[first:]).to(self._dtype)).flatten(1)
        cos, sin = turns
        qkv = rows.new_empty((len(rows), sum(sizes)))
        launch.linear(rows, layer.qkv, qkv, None)
        q, k, v = (part.unflatten(1, (-1, kind.head_dim)) for part in qkv.split(sizes, 1))
        turned = rows.new_empty(q.shape)
        norms = layer.head_norms and (*layer.head_norms, self.config.rms_norm_eps)
        launch.rotate(q, k, cos, sin, turned, self._store.pool[i], norms=norms, value=v, lines=lines)
        return self._store.look(kind, place, turned[first:]).flatten(1)

    def _turns(self, position: Any) -> Any:
        position = position.clamp(max=self._rotary.shape[-2] - 1)
        return self._rotary[position, None] if self._launcher is None else self._rotary[:, position]

    # ---- tensors

    def _layer(self, i: int) -> _Weights:
        """Layer i's weights, taken from the others."""
        config = self.config

        def take(name: str) -> Any:
            return self._tensors.pop(f"layers.{i}.{name}.weight")

        q, k, v = (take(f"self_attn.{name}_proj") for name in "qkv")

        def paired(weight: Any) -> Any:
            return _paired(weight, config.head_dim) if self._launcher is None else weight

        normed = f"layers.{i}.self_attn.q_norm.weight" in self._tensors
        norms = tuple(paired(take(f"self_attn.{name}_norm")) for name in "qk") if normed else None
        gate_up = [take("mlp.gate_proj"), take("mlp.up_proj")]
        return _Weights(
            input_norm=take("input_layernorm"),
            qkv=torch.cat([paired(q), paired(k), v]),
            head_norms=norms,
            out=take("self_attn.o_proj"),
            mlp_norm=take("post_attention_layernorm"),
            gate_up=torch.cat(gate_up) if self._launcher is None else torch.stack(gate_up, 1).flatten(0, 1),
            down=take("mlp.down_proj"),
        )

    def _upload(self, array: Any) -> Any:
        return torch.as_tensor(array).to(self.device, self._dtype)

    def _zeros(self, *shape: int, dtype: Any = None) -> Any:
        return torch.zeros(shape, dtype=dtype or self._dtype, device=self.device)

    def _index(self, array: Any) -> Any:
        return torch.as_tensor(array).to(self.device)


class HeadPass(DraftPass):
    """An EAGLE-3 head, chained or parallel."""

    config: Eagle3Config

    def __init__(
        self, model: TargetModel, config: Eagle3Config, weights: DrafterWeights, blocks: Blocks, drafts: int
    ) -> None:
        if config.parallel:
            self.block = {"mask_token_id": config.mask_token_id, "num_masks": drafts - 1, "anchor_only": False}
        super().__init__(model, config, weights, blocks, drafts)
        if self.block is not None:
            parts = np.split(weights.tensors["mask_hidden"].reshape(1, -1), len(config.taps), 1)
            self.mask_state = self.fuse(dict(zip(config.taps, parts, strict=True)))

    def fuse(self, features: Mapping[int, Any]) -> Any:
        """See DraftHead.fuse."""
        with torch.inference_mode():
            parts = self._features(features)
            if self.config.fc_norm:
                parts = [self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)]
            x = torch.cat(parts, 1)
            return F.linear(
                self._norm(x, "input_norm") if self.config.norm_before_fc else x, self._tensors["fc.weight"]
            )

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DeviceMTPModule.forward_device."""
        with torch.inference_mode():
            torch.as_tensor(out).copy_(self._pass(on_torch(batch), torch.as_tensor(hidden)))

    def forward_block_device(self, batch: DeviceBatch, hidden: Any, out: Any, block: DeviceBatch, source: Any) -> None:
        """See DraftPass. Its drafts do not depend on each other: nothing goes to `out`."""
        with torch.inference_mode():
            block, source = on_torch(block), torch.as_tensor(source)[:, None]
            state = torch.as_tensor(hidden)[source[:, 0].clamp(min=0)]
            z, starts = self._pass(block, torch.where(source < 0, self.mask_state, state)), block.cu_seqlens_q
            self._look_ahead(z, starts, self._owners[: len(starts) - 1])

    def _pass(self, batch: DeviceBatch, state: Any) -> Any:
        """The states [T, D] for further drafts, and for the head."""
        config, place = self.config, self._store.place(batch)
        turns, normed = self._turns(place.position), self._norm(state, "layers.0.hidden_norm")
        token = self._normed(self._embed(batch.token_ids[:, 0]), self._layers[0].input_norm)
        x = normed if config.norm_before_residual else state
        for i, layer in enumerate(self._layers):
            n = self._normed(x, layer.input_norm) if i else torch.cat([token, normed], 1)
            x = self._run(i, x, n, 0, turns, place.line, place)
        return self._norm(x, "norm") if config.norm_output else x

    def _head_rows(self, hidden: Any) -> Any:
        normed = self.config.norm_output or not self.config.norm_before_head
        return hidden if normed else self._norm(hidden, "norm")

    def variant(self, config: Eagle3Config) -> HeadPass:
        """See DraftPass.variant."""
        other = cast(HeadPass, super().variant(config))
        if self.block is not None:
            other.block = {**self.block, "mask_token_id": config.mask_token_id}
        return other


class BlockPass(DraftPass):
    """A DFlash drafter, or one whose drafts depend on each other.

    By DSpark's Markov head, Domino's GRU, XPress's refiner, or DFlash 2's selector, whose drafts `select_draft_path`
    draws from `path`. A row is then what these compute for the previous token. A block begins with its slot's last
    token, which gives the first draft with `sample_from_anchor`, else none. `columns`: those of `path`, if they are
    more than its drafts.
    """

    config: DFlashConfig

    def __init__(
        self, model: TargetModel, config: DFlashConfig, weights: DrafterWeights, blocks: Blocks, drafts: int,
        columns: int = 0,
    ) -> None:  # fmt: skip
        masks = drafts - config.sample_from_anchor
        self.block = {"mask_token_id": config.mask_token_id, "num_masks": masks, "anchor_only": True}
        super().__init__(model, config, weights, blocks, drafts)
        if self._launcher is not None and config.conv_kernel_size:  # the kernel multiplies rows that are not normed
            for i, layer in enumerate(self._layers):
                for part, norm in (("attention", layer.input_norm), ("mlp", layer.mlp_norm)):
                    projection = self._tensors[f"layers.{i}.{part}_conv.kernel_projection.weight"]
                    projection.copy_(projection.float() * norm.float())
        if rank := config.markov_rank or config.emb_dim or config.xpress_rank:
            self.width = rank
            # Per slot, and a spare one: what its drafts read of their rows, and a recurrent head's state. XPress keeps
            # the refiner's rows of a block, and the text's last token with its position.
            refines = config.xpress_rank
            self._rows_ahead = self._zeros(blocks.slots + 1, drafts, 2 * rank if refines else self.state_width)
            memory = (1 + masks, rank) if refines else (config.gru_hidden_dim or rank,)
            self._memory = self._zeros(blocks.slots + 1, *memory)
            self._text_end = self._zeros(blocks.slots + 1, 2, dtype=torch.int64) - 1
            if config.confidence:
                self.confidence = self._zeros(blocks.slots + 1, drafts, dtype=torch.float32)
        if config.selector_rank:
            self.width = config.selector_rank
            name, shape = "candidate_selector.", (blocks.slots + 1, max(drafts, columns))
            self.path = DraftPath(
                path_logits=self._zeros(*shape, config.selector_top_k, dtype=torch.float32),
                path_ids=self._zeros(*shape, config.selector_top_k, dtype=torch.int64) - 1,
                path_hidden=self._zeros(*shape, config.selector_rank),
                anchor_tokens=self._zeros(blocks.slots + 1, dtype=torch.int64),
                predecessor_codes=self._tensors[f"{name}predecessor_codebook"],
                successor_codes=self._tensors[f"{name}successor_codebook"],
            )

    def fuse(self, features: Mapping[int, Any]) -> Any:
        """Rows c [T, D], from the residuals [T, D] of the target, by the number of decoder layers before them."""
        with torch.inference_mode():
            return self._norm(
                F.linear(torch.cat(self._features(features), 1), self._tensors["fc.weight"]), "hidden_norm"
            )

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DraftPass: a block is computed at once."""
        raise NotImplementedError(f"{type(self).__name__} computes blocks; call forward_block_device")

    def forward_block_device(self, batch: DeviceBatch, hidden: Any, out: Any, block: DeviceBatch, source: Any) -> None:
        """See DraftPass: rows `hidden` extend the context of their slots. Nothing goes to `out` with a `path`."""
        with torch.inference_mode():
            batch, block, context = on_torch(batch), on_torch(block), torch.as_tensor(hidden)
            known, place = self._store.place(batch), self._store.place(block)
            ids, starts, slots = block.token_ids[:, 0], block.cu_seqlens_q, len(block.cu_seqlens_q) - 1
            x, first = self._embed(ids), len(context)
            if self.config.input_embedding_scale != 1:
                x = x * self.config.input_embedding_scale
            rows, turns = torch.cat([context, x]), self._turns(torch.cat([known.position, place.position]))
            lines = torch.cat([known.line, place.line])
            for i, layer in enumerate(self._layers):
                if self.config.conv_kernel_size:
                    x = self._run_convolved(block, i, x, rows, first, turns, lines, place)
                else:
                    self._norm_to(rows[first:], x, layer.input_norm)
                    x = self._run(i, x, rows, first, turns, lines, place)
            owner = torch.where(starts.diff() > 0, self._owners[:slots], len(self._every))
            drafts = self._look_ahead(x, starts, owner)
            if self.path is not None:
                self._keep(self.path, drafts, ids, starts, owner)
                return
            anchor = starts[:-1].clamp(max=len(ids) - 1)
            if self.config.xpress_rank:
                self._begin_refiner(
                    owner, ids[anchor], batch, None if self.config.sample_from_anchor else x[anchor], drafts
                )
            elif self._depends:
                self._rows_ahead[owner] = drafts
            if self._depends:
                if (rnn := self.config.markov_head_type == "rnn") or self.config.gru_hidden_dim:
                    self._memory.index_fill_(0, owner, 0)  # an assigned number would be copied from the host
                    if rnn and not self.config.sample_from_anchor:  # whose row goes through it too
                        self._recur(owner, self._embed_before(ids[anchor]), self._head_rows(x[anchor]))
                given = self._given(0, ids[anchor], owner)
                torch.as_tensor(out).copy_(given[batch.batch_id_per_token.clamp(min=0)])

    def forward_block(self, batch: ForwardBatch, hidden: Any, block: ForwardBatch, source: Any) -> Any:
        """See DraftPass.forward_block."""
        out = super().forward_block(batch, hidden, block, source)
        if self.path is not None:
            given = self._given(0, self.path.anchor_tokens[self._owners], self._owners)
            out.copy_(given.repeat_interleave(torch.tensor([s.length for s in batch.segments], device=self.device), 0))
        return out

    @property
    def _depends(self) -> bool:
        """Whether a draft depends on the previous one."""
        config = self.config
        return bool(config.markov_rank or config.emb_dim or config.selector_rank or config.xpress_rank)

    def _head_rows(self, hidden: Any) -> Any:
        return self._norm(hidden, "norm")

    def further(self, number: int, batch: DeviceBatch, out: Any) -> None:
        """See DraftPass.further."""
        if self._depends:
            with torch.inference_mode():
                batch = on_torch(batch)
                slot = batch.batch_id_per_token
                owner = torch.where(slot >= 0, self._owners[slot.clamp(min=0)], len(self._every))
                torch.as_tensor(out).copy_(self._given(number, batch.token_ids[:, 0], owner))

    def _given(self, number: int, before: Any, owner: Any) -> Any:
        """Rows for draft `number`, after the previous tokens `before`."""
        if self.path is not None:
            return self._embed_before(before) * self.path.path_hidden[owner, number]
        kind, rows = self.config.markov_head_type, self._rows_ahead[owner, number]
        if self.config.gru_hidden_dim:
            gates = (self._tensors[f"prefix_gru.weight_{name}_l0"] for name in ("ih", "hh"))
            self._memory[owner] = state = torch.gru_cell(self._embed(before), self._memory[owner], *gates)
            return F.silu(self._product("embed_proj.0", rows, state)) * (number >= self.config.pure_draft_prefix_len)
        token = added = self._embed_before(before)
        if self.config.xpress_rank:
            return self._refine(number + (not self.config.sample_from_anchor), owner, rows, token)
        if kind == "gated":
            added = token * self._product("markov_head.gate_proj", rows, token).sigmoid()
        elif kind == "rnn":
            added = self._recur(owner, token, rows)
        if self.confidence is not None:
            read = (rows, token) if self.config.confidence_with_markov else (rows,)
            self.confidence[owner, number] = self._product("confidence_head.proj", *read)[:, 0].float().sigmoid()
        return added

    def _keep(self, path: DraftPath, rows: Any, ids: Any, starts: Any, owner: Any) -> None:
        """Write a path, of the head's `rows` [slots, K, D] and the blocks' `ids`."""
        logits = self._adjusted(self._ahead[: len(rows)] if self._on_device else self._ahead[owner])
        rows, weight = rows.flatten(0, 1), self._tensors["candidate_selector.hidden_projection.weight"]
        if (launch := self._launcher) is not None:
            hidden = rows.new_empty((len(rows), len(weight)))
            launch.linear(rows, weight, hidden, None)
            launch.candidates(logits, hidden, ids, starts, owner, path)
            return
        best, kept = best_candidates(logits, self.config.selector_top_k), slice(self.drafts)
        path.path_ids[owner, kept], path.path_logits[owner, kept] = best, logits.gather(-1, best)
        path.path_hidden[owner, kept] = F.linear(rows, weight).unflatten(0, logits.shape[:2])
        path.anchor_tokens[owner] = ids[starts[:-1].clamp(max=len(ids) - 1)]

    def _embed_before(self, before: Any) -> Any:
        name = "markov_head.markov_w1.weight"
        if self.config.selector_rank or self.config.xpress_rank:
            selects = bool(self.config.selector_rank)
            name = "candidate_selector.predecessor_codebook" if selects else "refiner_head.token_embed.weight"
        return self._tensors[name][before.clamp(0, self._vocab_size - 1)]

    def _recur(self, owner: Any, token: Any, rows: Any) -> Any:
        """Advance the state of a recurrent Markov head by a row and the previous token; its output."""
        memory = self._memory[owner]
        gate, fresh, given = self._product("markov_head.joint_proj", memory, token, rows).chunk(3, 1)
        gate = gate.sigmoid()
        self._memory[owner] = gate * memory + (1 - gate) * fresh.tanh()
        return given.tanh()

    def _begin_refiner(self, owner: Any, last: Any, batch: DeviceBatch, first: Any | None, drafts: Any) -> None:
        """Keep what XPress's drafts read of a block's rows. `last`: its first token, `first`: a row without a draft."""
        rows = drafts if first is None else torch.cat([self._head_rows(first)[:, None], drafts], 1)
        mean = rows.mean(1, keepdim=True).expand_as(rows)
        rows = torch.cat([self._product(f"refiner_head.down_{name}", x) for name, x in (("h", rows), ("g", mean))], -1)
        self._rows_ahead[owner] = rows[:, -self.drafts :]
        if first is None:
            return
        ends = batch.cu_seqlens_q[1:].long()
        count = batch.cu_seqlens_q.diff()
        position = batch.seq_lens_decoder[: len(ends)] + count
        kept, at = self._text_end[owner].unbind(1)
        before = torch.where(at == position - 1, kept, last)
        before = torch.where(count > 1, batch.token_ids[(ends - 2).clamp(min=0), 0], before)
        self._text_end[owner] = torch.stack([last, position.long()], 1)
        self._memory[owner, 0] = self._product("refiner_head.in_proj", rows[:, 0], self._embed_before(before))

    def _refine(self, at: int, owner: Any, rows: Any, token: Any) -> Any:
        """XPress's row of slot `at` of a block, before `readout`."""
        self._memory[owner, at] = x = self._product("refiner_head.in_proj", rows, token)
        mix = self._tensors["refiner_head.mix_l"][:, at, : at + 1]
        x = x + torch.einsum("cj,bjc->bc", mix, self._memory[owner, : at + 1])
        gate, up = (self._product(f"refiner_head.mlp_{name}", x) for name in ("gate", "up"))
        return x + self._product("refiner_head.mlp_down", F.silu(gate) * up)

    def _product(self, name: str, *parts: Any) -> Any:
        return F.linear(
            torch.cat(parts, -1).to(self._dtype), self._tensors[f"{name}.weight"], self._tensors.get(f"{name}.bias")
        )

    def _scored(self, slots: Any, number: int, rows: Any) -> Any:
        config, logits = self.config, self._adjusted(self._ahead[slots, number])
        if config.markov_rank or config.emb_dim or config.xpress_rank:
            name = "markov_head.markov_w2" if config.markov_rank else "embed_proj.2"
            return logits + self._product("refiner_head.readout" if config.xpress_rank else name, rows).float()
        if (path := self.path) is not None:
            ids = path.path_ids[slots, number]
            scores = path.path_logits[slots, number] + (rows.float()[:, None] * path.successor_codes[ids].float()).sum(
                -1
            )
            return torch.full_like(logits, float("-inf")).scatter_(1, ids, scores)
        return logits

    def _adjusted(self, logits: Any) -> Any:
        """Logits after the multiplier and the cap."""
        if self.config.output_multiplier != 1:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return cap * torch.tanh(logits / cap) if cap else logits

    # ---- DFlash 2's convolutions

    def _around(self, name: str, norm: Any, x: Any, block: DeviceBatch, out: Any) -> Callable[[Any, Any], Any]:
        """To `out` the convolution before a sublayer of the norm of x; then the residual after it and its product.

        That takes the product's rows and weight.
        """
        projection, base = (self._tensors[f"{name}.{key}"] for key in ("kernel_projection.weight", "base_kernel"))
        taps, owners, starts = self.config.conv_kernel_size, block.batch_id_per_token, block.cu_seqlens_q
        if (launch := self._launcher) is not None:
            kernels = launch.norm_convolve(x, norm, projection, base, owners, starts, out, self.config.rms_norm_eps)

            def after(rows: Any, weight: Any) -> Any:
                y = torch.empty_like(x)
                launch.linear(rows, weight, y, None, residual=x, kernels=kernels)
                return y

            return after
        begins, n = starts[owners.clamp(min=0)], self._normed(x, norm)
        own = F.linear(n, projection).unflatten(1, (2, taps, -1))
        out.copy_(convolved(n, base[0], own[:, 0], begins))
        return lambda rows, weight: x + convolved(F.linear(rows, weight), base[1], own[:, 1], begins)

    def _run_convolved(
        self, block: DeviceBatch, i: int, x: Any, rows: Any, first: int, turns: Any, lines: Any, place: Placed
    ) -> Any:
        """As `_run`, with a convolution before and after each sublayer. The last `rows` are written here."""
        layer, n = self._layers[i], torch.empty_like(x)
        after = self._around(f"layers.{i}.attention_conv", layer.input_norm, x, block, rows[first:])
        x = after(self._attend(i, rows, first, turns, lines, place), layer.out)
        after = self._around(f"layers.{i}.mlp_conv", layer.mlp_norm, x, block, n)
        return after(self._gated(i, n), layer.down)


def convolved(x: Any, base: Any, own: Any, begins: Any) -> Any:
    """Rows `x` [R, D] convolved over their blocks, by kernels `base` [T, D] plus those of rows, `own` [R, T, groups].

    `begins` int32 [R]: the first row of each row's block.
    """
    x, row, total = x.unflatten(1, (own.shape[2], -1)), torch.arange(len(x), device=x.device), torch.zeros_like(x)
    for tap, kernel in enumerate(base.unflatten(1, x.shape[1:])):
        there = (row - tap >= begins)[:, None, None]
        total += (x[(row - tap).clamp(min=0)] * (kernel + own[:, tap, :, None]) * there).flatten(1)
    return total


def best_candidates(logits: Any, count: int) -> Any:
    """Ids of the `count` largest logits of the last axis, the largest first, equal ones by their ids."""
    least = logits.topk(count, -1).values[..., -1:]
    larger, equal = logits > least, logits == least
    chosen = larger | (equal & (equal.cumsum(-1) <= count - larger.sum(-1, keepdim=True)))
    ids = chosen.to(torch.uint8).topk(count, -1).indices.sort(-1).values
    order = logits.gather(-1, ids).sort(stable=True, dim=-1, descending=True).indices
    return ids.gather(-1, order)


def _tensor(x: Any) -> Any:
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(np.array(download(x)))


def _paired(weight: Any, head_dim: int) -> Any:
    """Rows (0, h, 1, h+1, ...) of each head, h = head_dim / 2, for (0, 1, ..., h, h+1, ...)."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def _turned(x: Any, by: Any) -> Any:
    """Pairs of [T, heads, head_dim], as complex numbers, times [T, 1, head_dim / 2]."""
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * by).flatten(-2)
