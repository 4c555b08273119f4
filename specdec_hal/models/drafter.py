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
| the same in ``eagle_config`` (SGLang, ModelOpt) | the output of layer i | i + 1 |
| there, if one of them is N (NVIDIA's heads for gpt-oss) | as here | i |

An unknown key that may change the arithmetic is refused (:mod:`specdec_hal.models.drafter_keys`), and so is an
unexpected tensor or shape.
:mod:`specdec_hal.models.eagle3` computes the head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.checkpoint import (
    CONFIG,
    WEIGHTS,
    Fields,
    LlamaConfig,
    TokenIds,
    checkpoint_error,
    llama_config,
    read_json,
)
from specdec_hal.models.drafter_keys import OTHER, refuse_unread
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
from specdec_hal.tensors.views import download

Kind = Literal["eagle3", "peagle", "dflash", "dspark", "mtp", "assistant", "draft_model"]
PICKLED = "pytorch_model.bin"
TAPS = "eagle_aux_hidden_state_layer_ids"

_ORIGINAL = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_SPECULATORS: Mapping[str, Kind] = {
    **{kind: kind for kind in get_args(Kind) if kind not in ("assistant", "draft_model")},
    "dflash2": "dflash",
    "xpress": "dflash",
}
_LLAMA_LIKE = ("llama", "qwen2", "phi3")
"""Values of `model_type` in heads with Llama's layers, whose trainers copy it from the target."""
_NESTED = "transformer_layer_config"
_DRAFTER_KEYS = ("dflash_config", "eagle_config", "speculators_config")
_DFLASH = re.compile(r"DFlash2?(?!\d)|(Qwen3)?DSpark|Domino")
_ASSISTANT = re.compile("Gemma4(Unified)?AssistantForCausalLM$")
_DRAFTER_NAMES = re.compile(
    r"ForCausalLMEagle|^(P?Eagle|EAGLE)\w*(CausalLM|Model)$|Medusa|DraftModel$|DSpark|Speculator|Assistant|NextN$|MTP$"
)
"""What only drafters have in config.json, and names of their architectures."""


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
    count = getattr(model, "num_hidden_layers", max(layers) + 1)
    return _Sizes(model.config.vocab_size, model.config.hidden_size, count)


@dataclass(frozen=True)
class Mask:
    """Which keys a query of a layer sees. `window`: this many up to its own position, 0 for all.

    Not `causal`: after it too, all rows of its slot, or those nearer than `window`. `anchored`: the window is that of
    the slot's first row, `window` keys before it and all rows.
    """

    window: int = 0
    causal: bool = True
    anchored: bool = False


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(LlamaConfig):
    """A head's config.json; as :class:`LlamaConfig`, of the head's own layers.

    `taps`: see this module; each feature has `feature_size` numbers. `numbering`: how config.json gave them.
    `norm_before_fc`: an RMSNorm over all features together before `fc`; `fc_norm`: one of each feature.
    `norm_before_residual`: the first layer's residual is the normed state. `norm_output`: the next draft starts from
    the state after the final norm ("EAGLE-3.1"). `norm_before_head`: logits are those of the normed state.
    `old_norm_output`: the value of `norm_output` in a format where it has had two meanings, see
    :mod:`specdec_hal.proposers.eagle3`. `parallel`: it drafts in one pass, with `mask_token_id`; None: config.json does
    not name it, and it may be one of `mask_candidates`, the likeliest first. `head_norms`: queries and keys are normed
    by head (Qwen3's layers).
    """

    draft_vocab_size: int
    feature_size: int
    taps: tuple[int, ...]
    numbering: str
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    masks: tuple[Mask, ...]
    parallel: bool = False
    mask_token_id: int | None = None
    mask_candidates: tuple[int, ...] = ()
    head_norms: bool = False
    norm_before_head: bool = True
    old_norm_output: bool | None = None

    @property
    def is_llama(self) -> bool:
        """Whether its layers are Llama's with full attention, and chained."""
        return not self.parallel and not self.head_norms and set(self.masks) == {Mask()}


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
    head: Array | None  # [D, Vd]; None: the target's, of the draft vocabulary
    draft_ids: npt.NDArray[np.int64] | None  # [Vd], the target's id of each draft id; None: the same
    fc: Array  # [F, D]
    feature_norms: tuple[Array, ...]  # none, [F], or of each feature
    hidden_norm: Array  # [D]
    layers: tuple[LayerWeights, ...]  # the first reads embedding and state side by side, [2D, P]
    final_norm: Array  # [D]


def drafter_kind(folder: str | Path) -> Kind:
    """The kind of drafter in this checkpoint; by default a Llama-style model."""
    raw = read_json(folder, CONFIG)
    architecture = _architecture(Fields(Path(folder) / CONFIG, raw))
    nested = raw.get("dflash_config")
    projector = nested.get("projector_type") if isinstance(nested, dict) else None
    kind = raw.get("speculators_model_type")
    if isinstance(kind, str) and kind in _SPECULATORS:
        return _SPECULATORS[kind]
    if kind is None and projector in (None, "dflash", "domino", "dspark"):
        if architecture.startswith("PEagle"):
            return "peagle"
        if _DFLASH.match(architecture):
            return "dspark" if "DSpark" in architecture or projector == "dspark" else "dflash"
        if _ASSISTANT.match(architecture):
            return "assistant"
        if architecture.startswith(_ORIGINAL) or ("draft_vocab_size" in raw and "dflash_config" not in raw):
            return "eagle3"
        if not _DRAFTER_NAMES.search(architecture) and not any(key in raw for key in _DRAFTER_KEYS):
            return "draft_model"
    got = f"speculators_model_type {kind!r}" if kind is not None else f"{architecture or 'no name in architectures'}"
    got += f" with projector_type {projector!r}" if projector is not None else ""
    expected = (
        "a drafter of a known format (EAGLE-3, P-EAGLE, DFlash, DSpark, Domino, DFlash 2, XPress, MTP) or a whole model"
    )
    raise checkpoint_error(Path(folder) / CONFIG, expected, got, OTHER)


def layer_windows(layer: Fields, layers: int) -> tuple[int, ...]:
    """The window of each layer, 0 for none: `sliding_window` of those that `layer_types` calls sliding_attention.

    Without `layer_types`, Qwen3's layers from `max_window_layers` on have it if `use_sliding_window` is true.
    """
    kinds, size, used, first = (
        layer.value(key) for key in ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
    )
    if kinds is None:
        slide = used is True and size is not None and layer.value("model_type", "qwen3") == "qwen3"
        first = 28 if first is None else first
        kinds = ["sliding_attention" if slide and i >= first else "full_attention" for i in range(layers)]
    if not isinstance(kinds, list) or set(map(str, kinds)) - {"full_attention", "sliding_attention"}:
        raise layer.error("layer_types", "full_attention or sliding_attention for each layer", OTHER)
    if "sliding_attention" not in kinds:
        return (0,) * layers
    if len(kinds) != layers:
        raise layer.error("layer_types", f"one for each of the drafter's {layers} layers, since some are sliding")
    if used is False:
        raise layer.error("use_sliding_window", "true with a sliding_attention in layer_types and with sliding_window")
    window = layer.integer("sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def read_eagle3(folder: str | Path, target: Target, check_taps: bool = True) -> Eagle3Config:
    """config.json of a head for this target, in either format. CheckpointError for unsupported ones.

    `check_taps`: whether its taps must be layers of the target; not where others replace them.
    """
    file = Path(folder) / CONFIG
    if (kind := drafter_kind(folder)) not in ("eagle3", "peagle"):
        raise checkpoint_error(file, "an EAGLE-3 head", f"a checkpoint of the kind '{kind}'", OTHER)
    top = Fields(file, read_json(folder, CONFIG), other=OTHER)
    layer, eagle = layer_fields(top), top.section("eagle_config")
    own = drafter_layers(top, layer, ("qwen3", *_LLAMA_LIKE))
    if own.vocab_size != target.vocab_size:
        raise layer.error("vocab_size", f"the target's {target.vocab_size}", "use a head that was trained for it")
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
    top.only("bias", False)
    taps, numbering = _taps(top, eagle, target.num_hidden_layers, check_taps)
    top.only("num_aux_hidden_states", len(taps))
    parallel = kind == "peagle"
    mask = top.integer("mask_token_id", minimum=0) if parallel and "mask_token_id" in top else None
    if mask is not None and mask >= own.vocab_size:
        raise top.error("mask_token_id", f"a token id in 0..{own.vocab_size - 1}")
    masks = tuple(Mask(window) for window in layer_windows(layer, own.num_hidden_layers))
    refuse_unread(top, layer)
    refuse_unread(eagle, every=True)
    return Eagle3Config(
        **{field.name: getattr(own, field.name) for field in fields(own)},
        draft_vocab_size=draft_vocab_size,
        feature_size=feature_size,
        taps=taps,
        numbering=numbering,
        norm_before_fc=before_fc,
        parallel=parallel,
        mask_token_id=mask,
        masks=masks,
        head_norms=layer.value("model_type") == "qwen3" and not _architecture(top).startswith(_ORIGINAL),
        old_norm_output=top.value("norm_output") if layer is top else None,
        **flags,
    )


def _architecture(top: Fields) -> str:
    names = top.value("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def layer_fields(top: Fields) -> Fields:
    """The keys of the drafter's layers: a section of speculators' format, all of another."""
    return top.section(_NESTED) if _NESTED in top else top


def drafter_layers(top: Fields, layer: Fields, kinds: tuple[str, ...]) -> LlamaConfig:
    """The drafter's layers. Ids of special tokens are a text's, not the drafter's; the tie is the whole drafter's."""
    own = llama_config(layer, TokenIds(layer.integer("vocab_size"), None, ()), kinds)
    if own.num_hidden_layers > 64:
        raise layer.error("num_hidden_layers", "at most 64")
    return replace(own, tie_word_embeddings=top.boolean("tie_word_embeddings", False))


def _taps(top: Fields, eagle: Fields, layers: int, check: bool) -> tuple[tuple[int, ...], str]:
    """Sorted and unique, as in vLLM, with their form in config.json."""
    source, taps = top, tuple([2, layers // 2, layers - 3])
    numbering = f"no ids in config.json: 2, N // 2, N - 3 of N = {layers} layers"
    boundaries = "residuals after so many layers"
    if (ids := top.integers(TAPS)) is not None:
        taps, numbering = ids, f"{TAPS} {list(ids)}, {boundaries}"
    elif (ids := eagle.integers(TAPS)) is not None:
        source = eagle
        if layers in ids:  # no layer has this output
            taps, numbering = ids, f"eagle_config.{TAPS} {list(ids)}, {boundaries}, since one is N = {layers}"
        else:
            taps = tuple(i + 1 for i in ids)
            numbering = f"eagle_config.{TAPS} {list(ids)}, outputs of these layers"
    taps = tuple(sorted(set(taps)))
    if check and not 1 <= taps[0] <= taps[-1] <= layers:
        raise source.error(TAPS, f"residuals after 1 to {layers} layers of the target")
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
    if config.parallel:
        shapes["mask_hidden"] = (1, 1, features)
    if config.draft_vocab_size < config.vocab_size:
        shapes["d2t"] = (config.draft_vocab_size,)
    lent: Shapes = {"embed_tokens.weight": (config.vocab_size, d), "lm_head.weight": (config.draft_vocab_size, d)}
    if d != config.feature_size:  # the target's have another width
        shapes, lent = {**shapes, **lent}, {}
    return shapes, {"d2t": (config.draft_vocab_size,), "t2d": (config.vocab_size,), **lent}


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
    if config.tie_word_embeddings and "embed_tokens.weight" in tensors:
        tensors.setdefault("lm_head.weight", tensors["embed_tokens.weight"])
    return DrafterWeights(tensors, draft_ids(stored, config.vocab_size))


def rows_of_head(logits: Callable[[Array], Any], width: int, ids: npt.NDArray[np.int64]) -> Array:
    """The rows of a target's head for these ids, float32 [n, D], by its `logits` of unit vectors.

    A head with a smaller vocabulary and no rows of its own has these, as in `speculators`.
    """
    some = np.split(np.eye(width, dtype=np.float32), range(64, width, 64))
    return np.ascontiguousarray(np.concatenate([np.asarray(download(logits(x)))[:, ids] for x in some]).T)


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
    there = {name for name in (WEIGHTS, INDEX, PICKLED, f"{PICKLED}.index.json") if (folder / name).exists()}
    pickled = bool(there) and there.isdisjoint({WEIGHTS, INDEX})
    stored: dict[str, tuple[Path, Any]] = {}
    for file in shards(folder, PICKLED if pickled else WEIGHTS):
        for name, array in (_unpickled(file) if pickled else _read(file)).items():
            if (known := _name(name)) is None:
                continue
            if known in stored:
                raise checkpoint_error(file, "each weight once", f"{known} twice", _EXPORT)
            stored[known] = file, array
    return stored


def _name(name: str) -> str | None:
    """The name in speculators' format; None for derived or training-only tensors."""
    name = name.removeprefix("model.").removeprefix("logit_head.")
    if name.endswith(".rotary_emb.inv_freq") or name.startswith("verifier_"):
        return None
    if name.startswith("midlayer."):
        return "layers.0." + name.removeprefix("midlayer.")
    if name.startswith(("markov_w1.", "markov_w2.", "gate_proj.", "joint_proj.")):  # ModelOpt's DSpark
        return "markov_head." + name
    if name.startswith("confidence_proj."):
        return name.replace("confidence_proj.", "confidence_head.proj.")
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
