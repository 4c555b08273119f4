"""Reads trained EAGLE-3 heads (Li et al., arXiv:2503.01840) in the published formats.

- The original one (SafeAILab/EAGLE, ``LlamaForCausalLMEagle3``): tensors ``midlayer.*``, in model.safetensors or
  pytorch_model.bin.
- That of ``speculators`` (vllm-project): the layer's keys in ``transformer_layer_config``, tensors ``layers.0.*``. A
  head there may be parallel (``peagle``, P-EAGLE): it drafts all tokens in one pass, from rows of a mask token and the
  learned features ``mask_hidden``.

Taps. The head reads the target's residual stream at a few depths, which sources number differently. Here tap b is the
residual after b decoder layers (0: the embeddings, N: before the final norm).

| where config.json has them | id i means | tap |
|---|---|---|
| nowhere | what EAGLE taps in a target of N layers | 2, N // 2, N - 3 |
| ``eagle_aux_hidden_state_layer_ids`` at the top (speculators, vLLM) | as here | i |
| the same in ``eagle_config`` (SGLang) | the output of layer i | i + 1 |

An unknown key that may change the arithmetic is refused, and so is an unexpected tensor or shape.
:mod:`specdec_hal.models.eagle3` computes the head.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.checkpoint import (
    CONFIG,
    WEIGHTS,
    Fields,
    LlamaConfig,
    check_file,
    checkpoint_error,
    llama_config,
    read_json,
)
from specdec_hal.models.layout import Array, LayerWeights, arrange_layer, in_out
from specdec_hal.models.weights import (
    INDEX,
    STORED,
    Shapes,
    check_finite,
    check_shapes,
    header,
    layer_shapes,
    shards,
    widened,
)
from specdec_hal.plugin.model import TargetModel

Kind = Literal["eagle3", "peagle", "dflash", "dspark", "mtp", "draft_model"]
PICKLED = "pytorch_model.bin"
TAPS = "eagle_aux_hidden_state_layer_ids"

_ORIGINAL = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_SPECULATORS = {"eagle3": "eagle3", "peagle": "peagle", "dflash": "dflash", "dspark": "dspark", "mtp": "mtp"}
_NESTED = "transformer_layer_config"

# Keys that are read or checked, here or by `llama_config`.
_READ = {
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "head_dim",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "hidden_act", "attention_bias", "mlp_bias",
    "partial_rotary_factor", "quantization_config", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
    "bias", "eagle_config", "layer_types", "num_aux_hidden_states", TAPS,
}  # fmt: skip
_ARITHMETIC = re.compile(
    r"norm|bias|scale|scaling|rope|rotary|causal|window|swa|conv|selector|markov|projector|softcap|multiplier|sink|gate"
    r"|act$|quant|partial|residual|aux|^fc|moe|expert|anchor|confidence|layer_types|logit"
)
"""Names of keys that change the arithmetic, in all known formats."""


class Target(Protocol):
    """The target's sizes, to check a drafter's config.json."""

    @property
    def vocab_size(self) -> int:
        """Tokens."""

    @property
    def hidden_size(self) -> int:
        """Of a residual."""

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers."""


@dataclass(frozen=True)
class _Sizes:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int


def target_of(model: TargetModel, method: str) -> Target:
    """The sizes of a target; UnsupportedError if it lacks residuals of its layers or does not lend its embedding."""
    layers = [layer for layer in model.capabilities.hidden_layers if layer >= 0]
    if not layers or not callable(getattr(model, "embed", None)):
        raise UnsupportedError(
            f"speculative.method '{method}': expected a target that gives the residuals of its layers and lends its "
            f"embedding, got {type(model).__name__}; use another method"
        )
    return _Sizes(model.config.vocab_size, model.config.hidden_size, max(layers) + 1)


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(LlamaConfig):
    """A head's config.json; as :class:`LlamaConfig`, of the head's own layers.

    `taps`: see this module; each feature has `feature_size` numbers. `numbering`: how config.json gave them.
    `norm_before_fc`: an RMSNorm over all features together before `fc`; `fc_norm`: one of each feature.
    `norm_before_residual`: the first layer's residual is the normed state. `norm_output`: the next draft starts from
    the state after the final norm ("EAGLE-3.1"). `mask_token_id`: of a parallel head; None: it chains its drafts.
    `head_norms`: queries and keys are normed by head (Qwen3's layers).
    """

    draft_vocab_size: int
    feature_size: int
    taps: tuple[int, ...]
    numbering: str
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    mask_token_id: int | None
    head_norms: bool = False

    @property
    def plain(self) -> bool:
        """Whether its layers are Llama's, and chained."""
        return self.mask_token_id is None and not self.head_norms


@dataclass(frozen=True)
class DrafterWeights:
    """A drafter's tensors by their names in speculators' format, [out, in], and the target id of each draft id."""

    tensors: Mapping[str, Array]
    draft_ids: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class Blocks:
    """The cache of a drafter: `slots`, `positions` of each, and the target's `pool`, its blocks and their size.

    `pool` None: a target that takes lists; each slot has its own blocks.
    """

    slots: int
    positions: int
    pool: tuple[int, int] | None = None


@dataclass(frozen=True)
class Eagle3Weights:
    """A head, float32. F: features times their size; P, layers: :mod:`specdec_hal.models.layout`."""

    embedding: Array | None  # [V, D]; None: the target's
    head: Array | None  # [D, Vd]; None: the target's
    draft_ids: npt.NDArray[np.int64] | None  # [Vd], the target's id of each draft id; None: the same
    fc: Array  # [F, D]
    feature_norms: tuple[Array, ...]  # none, [F], or of each feature
    hidden_norm: Array  # [D]
    layers: tuple[LayerWeights, ...]  # the first reads embedding and state side by side, [2D, P]
    final_norm: Array  # [D]


def drafter_kind(folder: str | Path) -> Kind:
    """The kind of drafter in this checkpoint; by default a Llama-style model."""
    raw = read_json(folder, CONFIG)
    names = raw.get("architectures")
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    kind = raw.get("speculators_model_type")
    if kind is not None:
        if kind not in _SPECULATORS:
            known = ", ".join(_SPECULATORS)
            raise checkpoint_error(Path(folder) / CONFIG, f"speculators_model_type: one of {known}", repr(kind), OTHER)
        return _SPECULATORS[kind]  # type: ignore[return-value]
    if architecture.startswith("PEagle"):
        return "peagle"
    if architecture in _ORIGINAL or "draft_vocab_size" in raw:
        return "eagle3"
    if architecture.startswith(("DFlash", "Qwen3DSpark", "DSpark")):
        nested = raw.get("dflash_config")
        projector = nested.get("projector_type") if isinstance(nested, dict) else None
        return "dspark" if "DSpark" in architecture or projector == "dspark" else "dflash"
    return "draft_model"


OTHER = "use a drafter of another kind"


def read_eagle3(folder: str | Path, target: Target) -> Eagle3Config:
    """config.json of a head for this target, in either format. CheckpointError for unsupported ones."""
    file = Path(folder) / CONFIG
    if (kind := drafter_kind(folder)) not in ("eagle3", "peagle"):
        raise checkpoint_error(file, "an EAGLE-3 head", f"a checkpoint of the kind '{kind}'", OTHER)
    top = Fields(file, read_json(folder, CONFIG))
    layer = layer_fields(top)
    check_keys(top, layer)
    eagle = top.section("eagle_config")
    eagle.only("use_aux_hidden_state", True)
    for key in sorted(eagle.keys() - {"use_aux_hidden_state", "norm_before_fc", TAPS}):
        raise eagle.error(key, "no such key, since it may change what is computed", OTHER)
    own = llama_config(layer, layer.token_ids(), ("llama", "qwen3"))
    if own.vocab_size != target.vocab_size:
        raise layer.error("vocab_size", f"the target's {target.vocab_size}", "use a head that was trained for it")
    if own.num_hidden_layers > 64:
        raise layer.error("num_hidden_layers", "at most 64")
    draft_vocab_size = top.integer("draft_vocab_size", own.vocab_size)
    if draft_vocab_size > own.vocab_size:
        raise top.error("draft_vocab_size", f"at most vocab_size ({own.vocab_size})")
    feature_size = top.integer("target_hidden_size", own.hidden_size)
    if feature_size != target.hidden_size:
        key = "target_hidden_size" if "target_hidden_size" in top else "hidden_size"
        raise top.error(key, f"the target's hidden_size, {target.hidden_size}", "use a head that was trained for it")
    flags: dict[str, Any] = {
        name: top.boolean(name, False) for name in ("norm_before_residual", "fc_norm", "norm_output")
    }
    before_fc = (eagle if "norm_before_fc" in eagle else top).boolean("norm_before_fc", False)
    if before_fc and flags["fc_norm"]:
        raise top.error("fc_norm", "false with norm_before_fc")
    mask = None
    if kind == "peagle":
        mask = top.integer("mask_token_id", minimum=0)
        if mask >= own.vocab_size:
            raise top.error("mask_token_id", f"a token id in 0..{own.vocab_size - 1}")
    taps, numbering = _taps(top, eagle, target.num_hidden_layers)
    top.only("num_aux_hidden_states", len(taps))
    return Eagle3Config(
        **{field.name: getattr(own, field.name) for field in fields(own)},
        draft_vocab_size=draft_vocab_size,
        feature_size=feature_size,
        taps=taps,
        numbering=numbering,
        norm_before_fc=before_fc,
        mask_token_id=mask,
        head_norms=layer.value("model_type") == "qwen3",
        **flags,
    )


def layer_fields(top: Fields) -> Fields:
    """The keys of the drafter's layers: a section of speculators' format, all of another."""
    return top.section(_NESTED) if _NESTED in top else top


def check_keys(top: Fields, layer: Fields, more: Collection[str] = ()) -> None:
    """Refuse unread keys that change the arithmetic. `more`: keys that only this format has."""
    for section in dict.fromkeys((top, layer)):
        unused = {"sliding_window", "max_window_layers"} if section.value("use_sliding_window") is False else set()
        for key in sorted(section.keys() - _READ - unused - {*more}):
            neutral = (False, [], {}, *([1] if key.endswith(("scale", "multiplier")) else []))
            if _ARITHMETIC.search(key) and section.value(key) not in neutral:
                raise section.error(key, "no such key, since it changes what is computed", OTHER)
        section.only("bias", False)
        kinds = section.value("layer_types")
        if kinds is not None and (not isinstance(kinds, list) or set(map(str, kinds)) - {"full_attention"}):
            raise section.error("layer_types", "full_attention alone", OTHER)
        section.only("tie_word_embeddings", False)


def _taps(top: Fields, eagle: Fields, layers: int) -> tuple[tuple[int, ...], str]:
    """Sorted and unique, as in vLLM, with their form in config.json."""
    if (ids := top.integers(TAPS)) is not None:
        source, key, taps, numbering = top, TAPS, ids, f"{TAPS} {list(ids)}, residuals after so many layers"
    elif (ids := eagle.integers(TAPS)) is not None:
        source, key, taps = eagle, TAPS, tuple(i + 1 for i in ids)
        numbering = f"eagle_config.{TAPS} {list(ids)}, outputs of these layers"
    else:
        source, key, taps = top, TAPS, (2, layers // 2, layers - 3)
        numbering = f"no ids in config.json: 2, N // 2, N - 3 of N = {layers} layers"
    taps = tuple(sorted(set(taps)))
    if not 1 <= taps[0] <= taps[-1] <= layers:
        raise source.error(key, f"residuals after 1 to {layers} layers of the target")
    return taps, numbering


def eagle3_shapes(config: Eagle3Config) -> tuple[Shapes, Shapes]:
    """Required and optional weights of a head."""
    d, features = config.hidden_size, len(config.taps) * config.feature_size
    shapes: Shapes = {"fc.weight": (d, features), "norm.weight": (d,), "layers.0.hidden_norm.weight": (d,)}
    for i in range(config.num_hidden_layers):
        shapes |= layer_shapes(f"layers.{i}", config, d if i else 2 * d, config.head_norms)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (features,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (config.feature_size,) for i in range(len(config.taps))}
    if config.mask_token_id is not None:
        shapes["mask_hidden"] = (1, 1, features)
    full, head = config.draft_vocab_size == config.vocab_size, {"lm_head.weight": (config.draft_vocab_size, d)}
    maps: Shapes = {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,)}
    optional: Shapes = {"embed_tokens.weight": (config.vocab_size, d)}
    if full:
        return shapes, {**optional, **head, **maps}
    return {**shapes, **head, "d2t": maps.pop("d2t")}, {**optional, **maps}


def read_eagle3_weights(folder: str | Path, config: Eagle3Config) -> Eagle3Weights:
    """The head's weights, every name and shape checked."""
    read = read_drafter_weights(folder, eagle3_shapes(config), config)
    arrays = read.tensors
    norms = ["input_norm.weight"] if config.norm_before_fc else []
    norms += [f"fc_norm.{i}.weight" for i in range(len(config.taps) if config.fc_norm else 0)]
    return Eagle3Weights(
        embedding=arrays.get("embed_tokens.weight"),
        head=in_out(arrays["lm_head.weight"]) if "lm_head.weight" in arrays else None,
        draft_ids=read.draft_ids,
        fc=in_out(arrays["fc.weight"]),
        feature_norms=tuple(arrays[name] for name in norms),
        hidden_norm=arrays["layers.0.hidden_norm.weight"],
        layers=tuple(arrange_layer(arrays, f"layers.{i}", config) for i in range(config.num_hidden_layers)),
        final_norm=arrays["norm.weight"],
    )


def read_drafter_weights(folder: str | Path, shapes: tuple[Shapes, Shapes], config: LlamaConfig) -> DrafterWeights:
    """A drafter's tensors, every name and shape checked."""
    stored = read_tensors(Path(folder), *shapes)
    tensors = {name: array for name, (_, array) in stored.items() if name not in _MAPS}
    return DrafterWeights(tensors, draft_ids(stored, config.vocab_size))


_MAPS = ("d2t", "t2d")


def draft_ids(stored: Mapping[str, tuple[Path, Any]], size: int) -> npt.NDArray[np.int64] | None:
    """The target's id of each draft id, d2t[i] + i; None for the same vocabulary, of `size` tokens."""
    if "d2t" not in stored:
        return None
    file, offsets = stored["d2t"]
    ids: npt.NDArray[np.int64] = np.arange(len(offsets)) + offsets.astype(np.int64)
    wrong = np.flatnonzero((ids < 0) | (ids >= size))
    if len(wrong):
        raise checkpoint_error(file, f"d2t[i] + i in 0..{size - 1}", f"{ids[wrong[0]]} for i = {wrong[0]}", _EXPORT)
    if len(np.unique(ids)) < len(ids):
        raise checkpoint_error(file, "another target token for each entry of d2t", "one twice", _EXPORT)
    if "t2d" in stored:
        named = np.flatnonzero(stored["t2d"][1])
        if not np.array_equal(named, np.sort(ids)):
            got = f"{len(named)} tokens in t2d, which are not the {len(ids)} of d2t"
            raise checkpoint_error(file, "the same tokens in d2t and t2d", got, _EXPORT)
    return None if len(ids) == size and (ids == np.arange(size)).all() else ids


_EXPORT = "export the head again"


def read_tensors(folder: Path, required: Shapes, optional: Shapes) -> dict[str, tuple[Path, Any]]:
    """The drafter's tensors by their names in speculators' format, with their files; all shapes and values checked."""
    stored = _stored(folder)
    expected = required | {name: shape for name, shape in optional.items() if name in stored}
    check_shapes(folder, {name: (file, array.shape) for name, (file, array) in stored.items()}, expected)
    for name, (file, array) in stored.items():
        if name not in _MAPS:
            check_finite(file, {name: array})
    return stored


def _stored(folder: Path) -> dict[str, tuple[Path, Any]]:
    """Every needed tensor by its name in speculators' format, with its file."""
    pickled = not (folder / WEIGHTS).exists() and not (folder / INDEX).exists() and (folder / PICKLED).exists()
    files = [check_file(folder, PICKLED)] if pickled else shards(folder)
    stored: dict[str, tuple[Path, Any]] = {}
    for file in files:
        for name, array in (_unpickled(file) if pickled else _read(file)).items():
            if (known := _name(name)) is None:
                continue
            if known in stored:
                raise checkpoint_error(file, "each weight once", f"{known} twice", _EXPORT)
            stored[known] = file, array
    return stored


def _name(name: str) -> str | None:
    """The name in speculators' format; None for derived or training-only tensors."""
    name = name.removeprefix("model.")
    if name.endswith(".rotary_emb.inv_freq") or name.startswith("verifier_"):
        return None
    if name.startswith("midlayer."):
        return "layers.0." + name.removeprefix("midlayer.")
    aux = ("aux_norm_low.weight", "aux_norm_mid.weight", "aux_norm_high.weight")
    return f"fc_norm.{aux.index(name)}.weight" if name in aux else name


_INTEGERS = {"I64": np.int64, "I32": np.int32, "BOOL": np.bool_}


def _read(file: Path) -> dict[str, Any]:
    from safetensors import deserialize

    for name, (_, dtype) in header(file).items():
        known = name.removeprefix("model.") in _MAPS
        if dtype not in (_INTEGERS if known else STORED):
            kinds = "I64, I32 or BOOL" if known else "F16, BF16 or F32"
            raise checkpoint_error(file, f"{name} as {kinds}", dtype, "convert the head")
    return {
        name: np.frombuffer(info["data"], _INTEGERS[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] in _INTEGERS
        else widened(info)
        for name, info in deserialize(file.read_bytes())
    }


def _unpickled(file: Path) -> dict[str, Any]:
    """Tensors in PyTorch's format, without executing pickles."""
    try:
        import torch
    except ImportError as error:
        raise checkpoint_error(file, "PyTorch to read it", "none", f"convert it to {WEIGHTS}") from error
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)
        return {
            name: (tensor.float() if tensor.is_floating_point() else tensor).numpy() for name, tensor in stored.items()
        }
    except Exception as error:  # damage raises many types
        raise checkpoint_error(file, "tensors that PyTorch reads with weights_only", str(error), _EXPORT) from error
