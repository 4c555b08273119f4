"""Gemma 4's assistants: drafters over the keys and values that their target keeps.

An assistant is a small Gemma 4 decoder whose layers have queries only. They read what the target's last layer of their
type has kept, so an assistant has no cache. Let P be the position of the last token, x its embedding by the target's
table, and h the target's final state at P - 1. For each draft the rotary position is P, and the keys are those before
P, in a sliding layer the last ``sliding_window`` + 1::

    y = decoder(pre_projection [x, h])      logits = lm_head(y)
                                            next: x of the draft, h = post_projection(y)

With ``use_ordered_embeddings`` only the tokens of the ``centroid_intermediate_top_k`` best clusters, by ``centroids``
of y, have logits; the others have 1 less than the least of these.

The library's generator also lets drafts after a rejection read the key of the rejected token. Here they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.attention import Layer
from specdec_hal.models.checkpoint import CONFIG, checkpoint_error, read_json
from specdec_hal.models.paged import Placed, on_torch
from specdec_hal.models.survey import check_finite
from specdec_hal.models.transformers.interface import NAME, bind, loading
from specdec_hal.models.weights import some_names
from specdec_hal.plugin.model import DeviceBatch, ForwardBatch, Segment
from specdec_hal.text import describe

Look = Callable[[Layer, Any], Any]


class AssistantPass:
    """A parallel pass, as :class:`~specdec_hal.models.draft_pass.DraftPass`, whose blocks have one row.

    `target`: a model of this package. `slots`: the most of a step.
    """

    block = {"mask_token_id": 0, "num_masks": 0, "anchor_only": True}  # noqa: RUF012  (read only)

    def __init__(self, target: Any, folder: str | Path, slots: int) -> None:
        self._target, decoder = target, target._decoder
        first = next(decoder.model.parameters())
        self._model = model = _load(Path(folder), decoder.dtype).to(first.device)
        text, size = model.config.get_text_config(), decoder.config
        _check(folder, "text_config.vocab_size", size.vocab_size, text.vocab_size)
        _check(folder, "backbone_hidden_size", size.hidden_size, model.config.backbone_hidden_size)
        if target._group is not None:
            raise UnsupportedError("Gemma 4's assistants: expected engine.tensor_parallel 1; use another method")
        self.width = text.hidden_size
        survey, self._look = decoder.survey, dict[int, Look]()
        kept = {
            module.layer_type: layer
            for module, layer in zip(survey.attentions, survey.layers, strict=True)
            if getattr(module, "store_full_length_kv", False)
        }
        for block in model.model.layers:
            bind(block.self_attn, _layer(Path(folder), block.self_attn, kept), self)
        self._slots = slots
        # Of a slot, and a spare one: the state for its next draft, and its last token's position.
        self._state = torch.zeros((slots + 1, size.hidden_size), dtype=decoder.dtype, device=first.device)
        self._position = torch.zeros(slots + 1, dtype=torch.int64, device=first.device)

    # ---- over device tensors

    def forward_block_device(self, batch: DeviceBatch, hidden: Any, out: Any, block: DeviceBatch, source: Any) -> None:
        """See DraftPass."""
        with torch.inference_mode():
            batch, block = on_torch(batch), on_torch(block)
            slot = block.batch_id_per_token.long()
            owner, slot = torch.where(slot >= 0, slot, self._slots), slot.clamp(min=0)
            self._state[owner] = torch.as_tensor(hidden)[torch.as_tensor(source).long().clamp(min=0)]
            self._position[owner] = block.seq_lens_decoder[slot].long()
            rows = self._drafted(block, owner)
            row = block.cu_seqlens_q.long()[batch.batch_id_per_token.long().clamp(min=0)]
            torch.as_tensor(out).copy_(rows[row.clamp(max=len(rows) - 1)])

    def further(self, number: int, batch: DeviceBatch, out: Any) -> None:
        """See DraftPass."""
        with torch.inference_mode():
            batch = on_torch(batch)
            slot = batch.batch_id_per_token.long()
            torch.as_tensor(out).copy_(self._drafted(batch, torch.where(slot >= 0, slot, self._slots)))

    def draft_logits(self, number: int, slots: Any | None, rows: Any, out: Any) -> None:
        """See DraftPass."""
        with torch.inference_mode():
            torch.as_tensor(out).copy_(self._logits(torch.as_tensor(rows)))

    def _drafted(self, batch: DeviceBatch, owner: Any) -> Any:
        """Rows of a batch with one row a slot."""
        seen = (self._position[: len(batch.cu_seqlens_q) - 1] - 1).clamp(min=0)
        here = replace(batch, seq_lens_decoder=seen.to(batch.seq_lens_decoder.dtype), max_query_len=1)
        place = Placed(here, here.batch_id_per_token.long().clamp(min=0), None, None)
        ids = batch.token_ids[:, 0]
        ids = torch.where((ids >= 0) & (ids < self._target.config.vocab_size), ids, 0)
        return self._rows(ids, owner, lambda layer, query: self._target._store.look(layer, place, query))

    # ---- over lists

    def forward_block(self, batch: ForwardBatch, hidden: Any, block: ForwardBatch, source: Any) -> Any:
        """As `forward_block_device`: rows [T, width]."""
        if self._target.capabilities.device_lengths:
            raise UnsupportedError(
                "forward_block: expected a target on the host, got one on a device; call forward_block_device"
            )
        with torch.inference_mode():
            owner = _owners(block.segments)
            self._state[owner] = torch.as_tensor(hidden)[torch.as_tensor(source).long()].to(self._state.dtype)
            self._position[owner] = torch.tensor([segment.position for segment in block.segments])
            lengths = torch.tensor([segment.length for segment in batch.segments])
            return self._listed(block).repeat_interleave(lengths, 0)

    def forward_further(self, number: int, batch: ForwardBatch) -> Any:
        """As `further`: rows [T, width]."""
        with torch.inference_mode():
            return self._listed(batch)

    def host_draft_logits(self, number: int, slots: Any, rows: Any) -> Any:
        """As `draft_logits`: float32, a row a slot."""
        with torch.inference_mode():
            return self._logits(torch.as_tensor(rows).to(self._state.dtype))

    def _listed(self, batch: ForwardBatch) -> Any:
        """Rows of a batch with one row a slot, as lists."""
        owner = _owners(batch.segments)
        seen = self._position[owner].tolist()
        spans = [
            Segment(segment.slot, row, 1, position - 1)
            for row, (segment, position) in enumerate(zip(batch.segments, seen, strict=True))
        ]
        ids = torch.as_tensor(np.asarray(batch.token_ids, np.int64))

        def look(layer: Layer, query: Any) -> Any:
            unread = query.new_zeros((len(query), 2 * layer.kv_heads * layer.head_dim))
            given = torch.cat([query.flatten(1), unread], 1).float()
            return self._target._store.look(layer, given, spans).unflatten(1, query.shape[1:]).to(query.dtype)

        return self._rows(ids, owner, look)

    # ---- the pass

    def _rows(self, ids: Any, owner: Any, look: Look) -> Any:
        """Rows for the head, after tokens `ids` of slots `owner`, whose states become the next."""
        x = torch.cat([self._target._decoder.embed(ids).to(self._state.dtype), self._state[owner]], 1)
        self._here = look
        none = dict.fromkeys(("full_attention", "sliding_attention"))
        nothing = x.new_zeros((1, 1, 0, 1))
        y = self._model.model(
            inputs_embeds=self._model.pre_projection(x)[None], position_ids=self._position[owner][None],
            attention_mask=none, shared_kv_states=dict.fromkeys(none, (nothing, nothing)), use_cache=False,
            logits_to_keep=slice(None),
        )[0][0]  # fmt: skip
        self._state[owner] = self._model.post_projection(y)
        return y

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None, bias: Any | None = None) -> Any:
        """See Store.attend. Nothing is stored."""
        return self._here(layer, query)

    def _logits(self, rows: Any) -> Any:
        weight, part = self._model.lm_head.weight, self._model.masked_embedding
        if part is None:
            return torch.nn.functional.linear(rows, weight).float()
        best = part.centroids(rows).topk(part.centroid_intermediate_top_k, -1).indices
        ids = part.token_ordering.long().view(part.num_centroids, -1)[best].flatten(1)
        found = (weight[ids] @ rows[:, :, None])[:, :, 0].float()
        least = found.amin(-1, keepdim=True) - 1
        return least.repeat(1, self._target.config.vocab_size).scatter_(1, ids, found)


def _owners(segments: Sequence[Segment]) -> Any:
    return torch.tensor([segment.slot for segment in segments])


def _check(folder: str | Path, key: str, expected: int, got: int) -> None:
    if got != expected:
        hint = "use an assistant that was trained for this target"
        raise checkpoint_error(Path(folder) / CONFIG, f"{key}: the target's {expected}", str(got), hint)


def _layer(folder: Path, module: Any, kept: dict[str, Layer]) -> Layer:
    """The attention of an assistant's layer to the keys of a target's."""
    kind = module.layer_type
    if kind not in kept:
        raise UnsupportedError(
            f"{folder}: expected a target of Gemma 4 with layers of the type {kind}, whose keys an assistant reads, "
            "got none; use another method"
        )
    heads, of = module.config.num_attention_heads, kept[kind]
    _check(folder, f"head_dim of {kind}", of.head_dim, module.head_dim)
    _check(folder, f"num_key_value_heads of {kind}", of.kv_heads, heads // module.num_key_value_groups)
    window = module.sliding_window + 1 if module.is_sliding else 0
    return replace(of, heads=heads, scale=module.scaling, window=window)


def _load(folder: Path, dtype: Any) -> Any:
    (name,) = read_json(folder, CONFIG)["architectures"]
    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise UnsupportedError(f"{folder}: transformers {transformers.__version__} has no {name}; install a newer one")
    try:
        with loading:
            model, info = architecture.from_pretrained(
                folder, local_files_only=True, dtype=dtype, attn_implementation=NAME, output_loading_info=True
            )
    except Exception as error:
        raise checkpoint_error(folder, f"a checkpoint of {name}", describe(error), "download it again") from error
    if missing := sorted(info["missing_keys"]):
        hint = "download or export the whole checkpoint"
        raise checkpoint_error(folder, f"all weights of {name}", f"none of {some_names(missing)}", hint)
    check_finite(folder, dict(model.named_parameters()))
    return model.eval()
