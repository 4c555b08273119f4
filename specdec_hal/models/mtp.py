"""Multi-token-prediction modules of checkpoints: names of their weights by family, and rows of their first products.

A module is one more decoder layer of its target's class over ``projection([norm(embedding of the token at p + 1),
norm(hidden state of p)])`` and a final norm, whose rows feed the target's head and the next draft (DeepSeek-V3,
arXiv:2412.19437, equation 21). Only the first of several modules is used.

| family | names | final norm |
|---|---|---|
| DeepSeek-V3, GLM-4.5, GLM-4.7-Flash, HY-V3, Llama | in ``model.layers.N``: enorm, hnorm, eh_proj, shared_head.norm, a
layer | its own |
| ERNIE-4.5 | ``model.mtp_emb_norm.0``, mtp_hidden_norm, mtp_linear_proj, the dense layer mtp_block | the target's |
| EXAONE-MoE | as Qwen's, a dense layer with attention like the target's first | its own |
| MiMo-V2-Flash | ``model.mtp.layers.0``: enorm, hnorm, eh_proj, final_layernorm, a dense layer, a window | its own |
| MiMo-7B | ``model.mtp_layers.0``: token_layernorm, hidden_layernorm, input_proj, final_layernorm, a layer | its own |
| Qwen3-Next, Qwen3.5 | ``mtp``: pre_fc_norm_embedding, pre_fc_norm_hidden, fc, norm, a layer | its own |
| Step-3.5, Step-3.7 | as DeepSeek's, some in ``transformer``, and a head, shared_head.output | its own |
| any, in a checkpoint of `speculators` | ``mtp_layers.0``: as MiMo-7B's | its own |

MiMo's projection takes the hidden state first. Engines disagree about the row at position 0: in vLLM it reads no
embedding, in the library's ``MtpModel`` that of its token. By default MiMo's is vLLM's, the others' the library's.
Norms of Qwen and Step multiply by 1 + their weight.
Engines disagree about GLM's state for the next draft (vLLM: from before the norm) and about ERNIE's norm (vLLM: none);
these are SGLang's and FastDeploy's. Qwen's module reads the target's state after its norm, as in vLLM. Step's reads
states from before norms, the target's and its own, and has a head: so in vLLM and SGLang. The library's ``MtpModel``
reads states after norms and uses the target's head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specdec_hal.models.batch import check_rows
from specdec_hal.models.checkpoint import CONFIG, Fields, checkpoint_error, read_json
from specdec_hal.models.weights import header, shards
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch

MIMO = "mimo"
"""The `model_type` of MiMo-7B."""


@dataclass(frozen=True)
class Family:
    """Names of a module's weights; `final_norm` None: the target's. `first`: whether the row at position 0 reads an
    embedding.

    `changes`: what its layer's configuration has instead of the target's. `hidden_first`: the projection's input is the
    hidden state, then the embedding. `offset`: what its first norms add to their weights. `like`: the layer of the
    target with its kind of attention, unless config.json has `mtp_layer_types`. `renamed`: names in its layer that
    layers of the target lack. `head`: a head of its own over its final norm; it then reads states from before norms.
    `within`: where names may have it after :attr:`layer`.
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
    like: int = -1
    renamed: Mapping[str, str] = field(default_factory=dict)
    head: str | None = None
    within: str = ""

    def known(self, name: str) -> str:
        """The name of a weight in a checkpoint, by these names."""
        return name.replace(self.layer + self.within, self.layer, 1)

    def named(self, layers: int) -> Family:
        """With the names in a checkpoint of so many decoder layers."""
        return self._with(lambda text: text.format(n=layers))

    def moved(self, layer: str) -> Family:
        """With names that begin so, not with :attr:`layer`."""
        return self._with(lambda text: text.replace(self.layer, layer))

    def _with(self, change: Callable[[str], str]) -> Family:
        names = ("layer", "embedding_norm", "hidden_norm", "projection", "final_norm", "head")
        given: dict[str, Any] = {name: change(text) for name in names if (text := getattr(self, name)) is not None}
        return replace(self, **given)


_IN = "model.layers.{n}."
_DEEPSEEK = Family(
    _IN, f"{_IN}enorm.weight", f"{_IN}hnorm.weight", f"{_IN}eh_proj.weight", f"{_IN}shared_head.norm.weight", True,
    {"first_k_dense_replace": 0, "mlp_layer_types": ["sparse"]},
)  # fmt: skip
_STEP = replace(
    _DEEPSEEK, offset=1.0, head=f"{_IN}shared_head.output.weight", within="transformer.",
    changes={"swiglu_limits": None, "swiglu_limits_shared": None, "pad_token_id": 0},  # limits: of the target's layers
)  # fmt: skip
_ERNIE = Family(
    "model.mtp_block.0.", "model.mtp_emb_norm.0.weight", "model.mtp_hidden_norm.0.weight",
    "model.mtp_linear_proj.0.weight", None, True, {"moe_layer_start_index": 1},
)  # fmt: skip
_MIMO_LAYER = "model.mtp_layers.0."
_MIMO = Family(
    _MIMO_LAYER, f"{_MIMO_LAYER}token_layernorm.weight", f"{_MIMO_LAYER}hidden_layernorm.weight",
    f"{_MIMO_LAYER}input_proj.weight", f"{_MIMO_LAYER}final_layernorm.weight", False, {}, hidden_first=True,
)  # fmt: skip
_TRAINED = "mtp_layers.0."
_MIMO_V2 = replace(
    _DEEPSEEK.moved("model.mtp.layers.0."), final_norm="model.mtp.layers.0.final_layernorm.weight",
    changes={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    renamed={"pre_mlp_layernorm.weight": "post_attention_layernorm.weight"},
)  # fmt: skip
_QWEN = Family(
    "mtp.layers.0.", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight",
    "mtp.norm.weight", True, {"layer_types": ["full_attention"]}, offset=1.0,
)  # fmt: skip
_EXAONE = replace(_QWEN, changes={"mlp_layer_types": ["dense"]}, offset=0.0, like=0)
FAMILIES = {
    "llama": replace(_DEEPSEEK, changes={}),
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "hy_v3": _DEEPSEEK,
    "exaone_moe": _EXAONE,
    "mimo_v2_flash": _MIMO_V2,
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE,
    MIMO: _MIMO,
    "qwen3_next": _QWEN,
    "qwen3_5_text": _QWEN,
    "qwen3_5_moe_text": _QWEN,
    "step3p5": _STEP,
}
VOCABULARY = 64  # of the decoder of one layer, which nobody asks for tokens


@dataclass(frozen=True)
class ModuleFiles:
    """Files of the module's weights by name in the checkpoint."""

    family: Family
    files: dict[str, Path]

    def read(self, open_file: Callable[[Path, Sequence[str]], dict[str, Any]]) -> dict[str, Any]:
        """The weights by the family's names. `open_file`: reads the weights of these names from a file, as tensors."""
        found: dict[str, Any] = {}
        for file in sorted(set(self.files.values())):
            found |= open_file(file, [name for name, there in self.files.items() if there == file])
        return {self.family.known(name): weight for name, weight in found.items()}


def find_module(path: Path, config: Any) -> ModuleFiles | None:
    """The first module in a checkpoint folder of a known family, or None."""
    family = FAMILIES.get(config.model_type)
    if family is None or not path.is_dir():
        return None
    return _files(path, family.named(config.num_hidden_layers))


def _files(path: Path, family: Family) -> ModuleFiles | None:
    wanted = (family.embedding_norm, family.hidden_norm, family.projection, family.final_norm, family.head)
    layer = family.layer
    files = {name: file for file in shards(path) for name in header(file) if name in wanted or name.startswith(layer)}
    if family.projection not in files:
        return None
    known = {family.known(name) for name in files}
    missing = [name for name in wanted if name is not None and name not in known]
    if missing:
        raise checkpoint_error(path, f"{missing[0]} beside {family.projection}", "none", "download it again")
    return ModuleFiles(family, files)


def trained_files(path: Path, config: Any) -> ModuleFiles:
    """The module in a checkpoint of `speculators`, for a target of this text configuration. CheckpointError for one of
    another kind or size."""
    top = Fields(path / CONFIG, read_json(path, CONFIG))
    layer = top.section("transformer_layer_config")
    if top.value("speculators_model_type") != "mtp":
        raise top.error("speculators_model_type", '"mtp"', "use another method, or speculative.method auto")
    for key in ("model_type", "vocab_size", "hidden_size"):
        if layer.value(key, wanted := getattr(config, key)) != wanted:
            raise layer.error(key, f"the target's {wanted}", "use a module that was trained for it")
    own = FAMILIES.get(config.model_type, _MIMO)
    family = replace(
        _MIMO.moved(_TRAINED), hidden_first=False, first=True, offset=own.offset,
        changes={**own.changes, "layer_types": ["full_attention"]},
    )  # fmt: skip
    if (found := _files(path, family)) is None:
        raise checkpoint_error(path, f"the weight {family.projection}", "none", "download it again")
    return found


@dataclass(frozen=True)
class ModuleWeights:
    """A module's weights; `layer`: those of its layer, by their names there. Without `final_norm` or `head`: the
    target's."""

    embedding_norm: Any
    hidden_norm: Any
    projection: Any
    final_norm: Any | None
    head: Any | None
    layer: dict[str, Any]


def divided(weights: dict[str, Any], family: Family) -> ModuleWeights:
    """The weights of `ModuleFiles.read`."""
    left = dict(weights)
    norms = left.pop(family.embedding_norm), left.pop(family.hidden_norm)
    projection = left.pop(family.projection)
    final, head = (None if name is None else left.pop(name) for name in (family.final_norm, family.head))
    layer = {name.removeprefix(family.layer): weight for name, weight in left.items()}
    ignored = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the target's
    layer = {name: weight for name, weight in layer.items() if name not in ignored}
    layer = {family.renamed.get(name, name): weight for name, weight in layer.items()}
    return ModuleWeights(*norms, projection, final, head, layer)


def one_layer(config: Any, family: Family) -> dict[str, Any]:
    """What the configuration of a decoder of the module's layer alone has instead of its target's."""
    kinds = getattr(config, "layer_types", None)
    changes = {
        "num_hidden_layers": 1, "vocab_size": VOCABULARY, "pad_token_id": None, "tie_word_embeddings": False,
        "layer_types": None if kinds is None else [kinds[family.like]], **family.changes,
    }  # fmt: skip
    for name in ("layer_types", "mlp_layer_types"):
        if own := getattr(config, f"mtp_{name}", None):
            changes[name] = own[:1]
    return {name: value for name, value in changes.items() if hasattr(config, name)}


class OverStates(ABC):
    """Mixin of a module's decoder: embeds tokens, and projects them with hidden states of the target's."""

    _family: Family
    _states: Any = None
    first_embedding: bool | None = None
    """Whether the row at position 0 reads the embedding of its token, or zeros; None: as the family's does."""
    state_layer: int = FINAL_NORM
    """Where it reads the target's states: see ForwardBatch.hidden_layers."""

    @abstractmethod
    def _concat(self, parts: Sequence[Any], axis: int) -> Any:
        """One tensor."""

    @abstractmethod
    def _normed(self, token: Any, state: Any) -> list[Any]:
        """Rows [T, D] after the norms of embeddings and of states."""

    def of(self, states: Any) -> None:
        """The hidden states [T, D] that the next passes of T rows together are over."""
        self._states = states

    def _inputs(self, token: Any, positions: Any) -> Any:
        """Rows [T, 2 D] for the projection, of embeddings `token` [T, D]. Rows beyond those of :meth:`of` are over
        zeros."""
        state = token
        if self._states is not None:
            state, self._states = self._states[: len(token)].to(token.dtype), self._states[len(token) :]
            if len(state) < len(token):
                state = self._concat([state, token[len(state) :] * 0], 0)
        if not (self._family.first if self.first_embedding is None else self.first_embedding):
            token = token.masked_fill((positions <= 0)[:, None], 0)
        parts = self._normed(token, state)
        return self._concat(parts[::-1] if self._family.hidden_first else parts, -1)


class HostMTP:
    """See :class:`specdec_hal.plugin.model.MTPModule`.

    `model`: the target. `served`: the model of `decoder`, which is over states, with a cache like the target's.
    """

    def __init__(self, model: Any, served: Any, decoder: Any) -> None:
        self._model, self._served, self._decoder = model, served, decoder
        self.state_layer: int = decoder.state_layer
        self._headed = model if decoder.state_layer == FINAL_NORM else served

    def read_first_embedding(self, reads: bool) -> None:
        """Whether the row at position 0 reads the embedding of its token, or zeros; before the first pass."""
        self._decoder.first_embedding = reads

    def forward(self, batch: ForwardBatch, hidden: Any) -> Any:
        """See MTPModule.forward."""
        check_rows(self._served.framework, "forward", hidden, self._model.config.hidden_size, len(batch.token_ids))
        self._decoder.of(hidden)
        return self._served.forward(batch)[FINAL_NORM]

    def compute_logits(self, hidden: Any) -> Any:
        """See MTPModule.compute_logits."""
        return self._headed.compute_logits(hidden)
