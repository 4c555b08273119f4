"""Multi-token-prediction modules of checkpoints, beside their decoders of `transformers`.

The library's classes ignore these weights. A module is one more decoder layer of its target's class over
``projection([norm(embedding of the token at p + 1), norm(hidden state of p)])`` and a final norm, whose rows feed the
target's head and the next draft (DeepSeek-V3, arXiv:2412.19437, equation 21). So it is a decoder of one layer, loaded,
tried and served like its target, with the same operators and promises about bits. Only the first of several modules is
used.

| family | names | final norm |
|---|---|---|
| DeepSeek-V3, GLM-4.5, GLM-4.7-Flash, HY-V3, Llama | in ``model.layers.N``: enorm, hnorm, eh_proj, shared_head.norm, a
layer | its own |
| ERNIE-4.5 | ``model.mtp_emb_norm.0``, mtp_hidden_norm, mtp_linear_proj, the dense layer mtp_block | the target's |
| MiMo-7B | ``model.mtp_layers.0``: token_layernorm, hidden_layernorm, input_proj, final_layernorm, a layer | its own |
| Qwen3-Next, Qwen3.5 | ``mtp``: pre_fc_norm_embedding, pre_fc_norm_hidden, fc, norm, a layer with attention | its own |

MiMo's projection takes the hidden state first. Engines disagree about the row at position 0: in vLLM it reads no
embedding, in the library's ``MtpModel`` that of its token. By default MiMo's is vLLM's, the others' the library's.
Qwen's norms multiply by 1 + their weight.
Engines disagree about GLM's state for the next draft (vLLM: from before the norm) and about ERNIE's norm (vLLM: none);
these are SGLang's and FastDeploy's. Qwen's module reads the target's state after its norm, as in vLLM.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specdec_hal.models.batch import check_rows
from specdec_hal.models.checkpoint import checkpoint_error
from specdec_hal.models.paged import PagedStore
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.interface import NAME, loading
from specdec_hal.models.transformers.mimo import MODEL_TYPE
from specdec_hal.models.transformers.replace import is_experts
from specdec_hal.models.transformers.survey import check_finite, text_batch
from specdec_hal.models.transformers.tensor_parallel import divide
from specdec_hal.models.weights import header, shards
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ForwardBatch, ModelConfig
from specdec_hal.tensors.group import Group


@dataclass(frozen=True)
class _Family:
    """Names of a module's weights; `final_norm` None: the target's. `first`: whether the row at position 0 reads an
    embedding.

    `changes`: what its layer's configuration has instead of the target's. `hidden_first`: the projection's input is the
    hidden state, then the embedding. `offset`: what its first norms add to their weights.
    """

    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str | None
    first: bool
    changes: dict[str, Any]
    hidden_first: bool = False
    offset: float = 0.0

    def named(self, layers: int) -> _Family:
        """With the names in a checkpoint of so many decoder layers."""
        names = ("layer", "embedding_norm", "hidden_norm", "projection", "final_norm")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{name: text and text.format(n=layers) for name, text in given.items()})


_IN = "model.layers.{n}."
_DEEPSEEK = _Family(
    _IN, f"{_IN}enorm.weight", f"{_IN}hnorm.weight", f"{_IN}eh_proj.weight", f"{_IN}shared_head.norm.weight", True,
    {"first_k_dense_replace": 0, "mlp_layer_types": ["sparse"]},
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
_QWEN = _Family(
    "mtp.layers.0.", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight",
    "mtp.norm.weight", True, {"layer_types": ["full_attention"]}, offset=1.0,
)  # fmt: skip
FAMILIES = {
    "llama": replace(_DEEPSEEK, changes={}),
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "hy_v3": _DEEPSEEK,
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE,
    MODEL_TYPE: _MIMO,
    "qwen3_next": _QWEN,
    "qwen3_5_text": _QWEN,
    "qwen3_5_moe_text": _QWEN,
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
                read = {name: shard.get_tensor(name) for name, there in self.files.items() if there == file}
            check_finite(file, read)
            found |= read
        return found


def find_module(path: Path, config: Any) -> ModuleFiles | None:
    """The first module in a checkpoint folder of a known family, or None."""
    family = FAMILIES.get(config.model_type)
    if family is None or not path.is_dir():
        return None
    family = family.named(config.num_hidden_layers)
    wanted = (family.embedding_norm, family.hidden_norm, family.projection, family.final_norm)
    layer = family.layer
    files = {name: file for file in shards(path) for name in header(file) if name in wanted or name.startswith(layer)}
    if family.projection not in files:
        return None
    missing = [name for name in wanted if name is not None and name not in files]
    if missing:
        raise checkpoint_error(path, f"{missing[0]} beside {family.projection}", "none", "download it again")
    return ModuleFiles(family, files)


class ModuleDecoder(Decoder):
    """A module as a decoder of one layer, over rows of its target: `hidden` projects them first.

    `target`: the decoder whose embedding it uses. `group`: of the ranks that share it.
    """

    def __init__(self, target: Decoder, files: ModuleFiles, group: Group | None = None) -> None:
        weights, self._family, self._target = files.read(), files.family, target
        self.first_embedding = files.family.first
        self._states: Any = None  # before the trials
        first = next(target.model.parameters())
        family, final = files.family, target.base.norm
        names = family.embedding_norm, family.hidden_norm, family.projection
        embedding_norm, hidden_norm, projection = (weights.pop(name).to(target.dtype) for name in names)
        norm = final.weight.detach().cpu() if family.final_norm is None else weights.pop(family.final_norm)
        layer = {name.removeprefix(family.layer): weight for name, weight in weights.items()}
        model = _one_layer(target, layer, norm.to(target.dtype), family)
        if group is not None:
            divide(model, group)
        epsilon = target.model.config.get_text_config().rms_norm_eps
        first_norms = (_norm(weight + family.offset, epsilon) for weight in (embedding_norm, hidden_norm))
        own = *first_norms, _linear(projection)
        model.mtp = torch.nn.ModuleDict(dict(zip(("embedding_norm", "hidden_norm", "projection"), own, strict=True)))
        size = ModelConfig(
            vocab_size=_VOCABULARY, hidden_size=len(norm), max_position_embeddings=target.config.max_position_embeddings
        )
        super().__init__(model.to(first.device), size)
        self.config = target.config
        self._try()

    def _others(self) -> tuple[Any, ...]:
        return (self._target,)

    def _try(self) -> None:
        """Survey the layer with its projection, which the general trial does not run."""
        ids = self.survey.ids % self.config.vocab_size
        store = PagedStore(self.survey.layers, 1, len(ids), dtype=self.dtype, device=ids.device)
        self.serve(store, len(ids))
        with torch.inference_mode():
            _, positions = store.begin(text_batch(ids.device, [(0, len(ids))], len(ids)))
            self.survey = replace(self.survey, ids=ids, hidden=self.hidden(ids, positions)[FINAL_NORM])

    def of(self, states: Any) -> None:
        """The hidden states [T, D] that the next passes of T rows together are over."""
        self._states = states

    def hidden(self, ids: Any, positions: Any, layers: Any = ()) -> dict[int, Any]:
        """See Decoder; `ids` are of the target's vocabulary. Rows beyond those of :meth:`of` are over zeros."""
        token = state = self._target.embed(ids)
        if self._states is not None:
            state, rest = self._states[: len(ids)].to(token.dtype), self._states[len(ids) :]
            self._states = rest
            if len(state) < len(ids):
                state = torch.cat([state, state.new_zeros((len(ids) - len(state), state.shape[1]))])
        if not self.first_embedding:
            token = torch.where(positions[:, None] > 0, token, 0)
        own = self.model.mtp
        parts = [own["embedding_norm"](token[None]), own["hidden_norm"](state[None])]
        if self._family.hidden_first:
            parts.reverse()
        return super().hidden(own["projection"](torch.cat(parts, -1))[0], positions, layers)


class TransformersMTP:
    """See :class:`specdec_hal.plugin.model.MTPModule` and `DeviceMTPModule`: what `served` is.

    `model`: the target. `served`: the model of a :class:`ModuleDecoder`, with a cache like the target's.
    """

    def __init__(self, model: Any, served: Any, decoder: ModuleDecoder) -> None:
        self._model, self._served, self._decoder = model, served, decoder

    def read_first_embedding(self, reads: bool) -> None:
        """Whether the row at position 0 reads the embedding of its token, or zeros; before the first pass."""
        self._decoder.first_embedding = reads

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DeviceMTPModule.forward_device."""
        self._decoder.of(torch.as_tensor(hidden))
        self._served.forward_device(batch, {FINAL_NORM: out})

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """See MTPModule.forward."""
        check_rows(self._served.framework, "forward", hidden, self._model.config.hidden_size, len(batch.token_ids))
        states = hidden if isinstance(hidden, torch.Tensor) else torch.as_tensor(hidden)
        self._decoder.of(states.to(self._decoder.survey.hidden.device))
        return self._served.forward(batch)[FINAL_NORM]

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceMTPModule.compute_logits_device."""
        self._model.compute_logits_device(hidden, out, num_rows)

    def compute_logits(self, hidden: Any) -> Any:
        """See MTPModule.compute_logits."""
        return self._model.compute_logits(hidden)


def _norm(weight: Any, epsilon: float) -> Any:
    made = torch.nn.RMSNorm(len(weight), epsilon, device="meta")
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    return made


def _linear(weight: Any) -> Any:
    outputs, inputs = weight.shape
    made = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    return made


def _one_layer(target: Decoder, layer: dict[str, Any], norm: Any, family: _Family) -> Any:
    """A model of the target's class with only this layer, on the CPU."""
    config = copy.deepcopy(target.model.config)
    kinds = getattr(config, "layer_types", None)
    changes = {
        "num_hidden_layers": 1, "vocab_size": _VOCABULARY, "pad_token_id": None, "tie_word_embeddings": False,
        "layer_types": None if kinds is None else kinds[-1:], **family.changes,
    }  # fmt: skip
    for name, value in changes.items():
        if hasattr(config, name):
            setattr(config, name, value)
    table = torch.randn((_VOCABULARY, len(norm)), generator=torch.Generator().manual_seed(0)).to(norm.dtype)
    ends = {"model.norm.weight": norm, "model.embed_tokens.weight": table, "lm_head.weight": table}
    ignored = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the target's
    state = {f"model.layers.0.{name}": weight for name, weight in layer.items() if name not in ignored}
    with loading:
        model = type(target.model).from_pretrained(
            None, config=config, state_dict={**state, **ends}, dtype=target.dtype, attn_implementation=NAME
        )
    for module in model.modules():
        if is_experts(module):
            module.config._experts_implementation = "batched_mm"
    return model.eval()
