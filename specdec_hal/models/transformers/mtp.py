"""Multi-token-prediction modules in the checkpoints of other families, beside their decoders of `transformers`.

The library's classes ignore these weights. A module is one more decoder layer of its target's class over
``projection([norm(embedding of the token at p + 1), norm(hidden state of p)])`` and a final norm, whose rows feed the
target's head and the next draft. So it is a decoder of one layer, loaded, tried and served like its target. Only the
first of several modules is used.

| family | names | final norm |
|---|---|---|
| DeepSeek-V3, GLM-4.5 | enorm, hnorm, eh_proj, shared_head.norm and the layer in ``model.layers.N`` | its own |
| ERNIE-4.5 | ``model.mtp_emb_norm.0``, mtp_hidden_norm, mtp_linear_proj, the dense layer mtp_block | the target's |
| MiMo-7B | ``model.mtp_layers.0``: token_layernorm, hidden_layernorm, input_proj, final_layernorm, a layer | its own |

MiMo's projection takes the hidden state first. The first row of all but ERNIE's reads no embedding, as in vLLM.
Engines disagree about GLM's state for the next draft (vLLM: from before the norm) and about ERNIE's norm (vLLM: none);
these are SGLang's and FastDeploy's. Decoders of Qwen3-Next and Qwen3.5 keep a recurrent state and are refused by name.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from specdec_hal.models.checkpoint import checkpoint_error
from specdec_hal.models.draft_pass import PagedPass
from specdec_hal.models.drafter import Blocks
from specdec_hal.models.paged import on_torch
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.interface import NAME
from specdec_hal.models.transformers.mimo import MODEL_TYPE
from specdec_hal.models.transformers.replace import is_experts
from specdec_hal.models.weights import header, shards
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelConfig


@dataclass(frozen=True)
class _Family:
    """Names of a module's weights; `final_norm` None: the target's. `first`: whether its first row has an embedding.

    `changes`: what its layer's configuration has instead of the target's. `hidden_first`: the projection's input is the
    hidden state, then the embedding.
    """

    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str | None
    first: bool
    changes: dict[str, Any]
    hidden_first: bool = False


_IN = "model.layers.{n}."
_DEEPSEEK = _Family(
    _IN, f"{_IN}enorm.weight", f"{_IN}hnorm.weight", f"{_IN}eh_proj.weight", f"{_IN}shared_head.norm.weight", False,
    {"first_k_dense_replace": 0},
)  # fmt: skip
_ERNIE = _Family(
    "model.mtp_block.0.", "model.mtp_emb_norm.0.weight", "model.mtp_hidden_norm.0.weight",
    "model.mtp_linear_proj.0.weight", None, True, {"moe_layer_start_index": 1},
)  # fmt: skip
_MIMO_LAYER = "model.mtp_layers.0."
_MIMO = _Family(
    _MIMO_LAYER, f"{_MIMO_LAYER}token_layernorm.weight", f"{_MIMO_LAYER}hidden_layernorm.weight",
    f"{_MIMO_LAYER}input_proj.weight", f"{_MIMO_LAYER}final_layernorm.weight", False, {}, hidden_first=True,
)  # fmt: skip
FAMILIES = {
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE,
    MODEL_TYPE: _MIMO,
}
_VOCABULARY = 64  # of the decoder of one layer, which nobody asks for tokens


@dataclass(frozen=True)
class ModuleFiles:
    """Files of the module's weights by name."""

    family: _Family
    files: dict[str, Path]

    def read(self) -> dict[str, Any]:
        """The weights by name, as stored."""
        from safetensors import safe_open

        found: dict[str, Any] = {}
        for file in sorted(set(self.files.values())):
            with safe_open(file, framework="pt") as shard:
                found |= {name: shard.get_tensor(name) for name, there in self.files.items() if there == file}
        return found


def find_module(path: Path, config: Any) -> ModuleFiles | None:
    """The first module in a checkpoint folder of a known family, or None."""
    family = FAMILIES.get(config.model_type)
    if family is None or not path.is_dir():
        return None

    def named(name: str) -> str:
        return name.format(n=config.num_hidden_layers)

    family = replace(
        family, layer=named(family.layer), embedding_norm=named(family.embedding_norm),
        hidden_norm=named(family.hidden_norm), projection=named(family.projection),
        final_norm=None if family.final_norm is None else named(family.final_norm),
    )  # fmt: skip
    wanted = (family.embedding_norm, family.hidden_norm, family.projection, family.final_norm)
    layer = family.layer
    files = {name: file for file in shards(path) for name in header(file) if name in wanted or name.startswith(layer)}
    if family.projection not in files:
        return None
    missing = [name for name in wanted if name is not None and name not in files]
    if missing:
        raise checkpoint_error(path, f"{missing[0]} beside {family.projection}", "none", "download it again")
    return ModuleFiles(family, files)


class TransformersMTP(PagedPass):
    """See :class:`specdec_hal.plugin.model.MTPModule` and `DeviceMTPModule`: both, whatever the target is."""

    def __init__(self, model: Any, target: Decoder, files: ModuleFiles, blocks: Blocks) -> None:
        weights, family = files.read(), files.family
        first = next(target.model.parameters())

        def take(name: str) -> Any:
            return weights.pop(name).to(first.device, target.dtype)

        self._target, self._family = target, family
        self._norms = take(family.embedding_norm), take(family.hidden_norm)
        self._projection = take(family.projection)
        norm = target.base.norm.weight if family.final_norm is None else take(family.final_norm)
        layer = {name.removeprefix(family.layer): weight for name, weight in weights.items()}
        self._decoder = _one_layer(target, layer, norm, family)
        super().__init__(model, self._decoder.survey.layers, blocks, dtype=target.dtype)
        self._decoder.serve(self._store, blocks.positions)
        self._epsilon = target.model.config.get_text_config().rms_norm_eps

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DeviceMTPModule.forward_device."""
        batch = on_torch(batch)
        with torch.inference_mode():
            ids, positions = self._store.begin(batch, self._vocab_size)
            token = self._target.embed(ids)
            if not self._family.first:
                token = torch.where(positions[:, None] > 0, token, 0)
            state = torch.as_tensor(hidden).to(token.dtype)
            parts = [F.rms_norm(x, w.shape, w, self._epsilon) for x, w in zip((token, state), self._norms, strict=True)]
            if self._family.hidden_first:
                parts.reverse()
            x = F.linear(torch.cat(parts, 1), self._projection)
            torch.as_tensor(out).copy_(self._decoder.hidden(x, positions)[FINAL_NORM])


def _one_layer(target: Decoder, layer: dict[str, Any], norm: Any, family: _Family) -> Decoder:
    """A decoder of the target's class with only this layer."""
    config = copy.deepcopy(target.model.config)
    kinds = getattr(config, "layer_types", None)
    changes = {
        **family.changes, "num_hidden_layers": 1, "vocab_size": _VOCABULARY, "pad_token_id": None,
        "tie_word_embeddings": False, "layer_types": None if kinds is None else kinds[-1:],
    }  # fmt: skip
    for name, value in changes.items():
        if hasattr(config, name):
            setattr(config, name, value)
    like = norm.detach().cpu()
    table = torch.randn((_VOCABULARY, len(like)), generator=torch.Generator().manual_seed(0)).to(like.dtype)
    ends = {"model.norm.weight": like, "model.embed_tokens.weight": table, "lm_head.weight": table}
    ignored = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the target's
    state = {f"model.layers.0.{name}": weight for name, weight in layer.items() if name not in ignored}
    model = type(target.model).from_pretrained(
        None, config=config, state_dict={**state, **ends}, dtype=target.dtype, attn_implementation=NAME
    )
    for module in model.modules():
        if is_experts(module):
            module.config._experts_implementation = "batched_mm"
    size = ModelConfig(
        vocab_size=_VOCABULARY, hidden_size=len(like), max_position_embeddings=target.config.max_position_embeddings
    )
    return Decoder(model.eval().to(norm.device), size)
