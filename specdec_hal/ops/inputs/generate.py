"""Inputs for any op, generated from its OpSpec.

:func:`generate` walks the operands of an OpSpec and cuts each from one coherent scene (`scene`, `rows`, `mask_scene`,
`draft_scene`, `phase_scene`, `recurrent_scene`); pure outputs are poisoned. :func:`hostile` keeps dtypes and shapes and
replaces values by the worst possible ones. A tensor or attribute unknown to the scene is an error, so that a new op is
not tested with zeros.

    inputs = generate("verify_draft_tokens", seed=7, strategy="TOPP", S=5)
    backend.verify_draft_tokens(**inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import get_op
from specdec_hal.ops.inputs.recurrent_scene import RecurrentScene
from specdec_hal.ops.inputs.rows import numpy_dtype
from specdec_hal.ops.spec import AttrSpec, Operand, OpSpec, Role
from specdec_hal.text import did_you_mean

Array = NDArray[Any]
Workspace = Callable[..., Mapping[str, Any]]

_SCENE_OPTIONS = (*RecurrentScene.SYMBOLS, "states", "dtype", "nan")
_PROPERTY = {"seed": "seed_values", "states": "states_by_position"}
"""Operands whose scene property has another name."""


_LONG_TEXTS = {"states": ("decode",), "S": 6, "L": 40, "V": 40, "token_budget": 10**9, "pad_to_max": False}
DEEP: Mapping[str, Mapping[str, Any]] = {
    "verify_draft_tokens": {"states": ("decode",), "S": 8, "V": 40, "E": 1, "C": 3, "accept_policy": "NORMAL"},
    "update_model_status": {"states": ("decode", "decode", "stopped"), "S": 6, "L": 16},
    "apply_penalties": {"states": ("decode",), "S": 4, "L": 16, "V": 40, "nan": False},
    "ngram_match": _LONG_TEXTS,
    "hybrid_mtp_ngram": _LONG_TEXTS,
    "schedule_slots": {"states": ("decode", "prefill", "idle"), "L": 40, "I_cap": 24},
    "set_stop_sequences": {"states": ("decode",), "S": 6, "L": 24, "V": 40, "Q": 4, "Z": 5},
    "draft_model_preprocess": {"states": ("decode", "prefill"), "S": 5, "L": 40},
    "draft_model_update": {"states": ("decode", "prefill", "idle"), "S": 5, "L": 40},
    "write_accepted": {"states": ("decode",), "S": 6, "L": 16},
    "gather_draft_logits": {"states": ("decode", "prefill")},
    "insert_first_token": {"states": ("decode", "prefill")},
    "limit_thinking": {"states": ("decode",), "S": 6, "L": 40, "V": 40},
    "truncate_by_confidence": {"states": ("decode",), "S": 6, "L": 40},
    "select_draft_path": {"states": ("decode",), "S": 6, "L": 40, "V": 40, "D": 9, "C_draft": 8, "nan": False},
    "truncate_drafts": {"states": ("decode",), "S": 6, "L": 40, "V": 111},
    "causal_conv1d": {"states": ("decode", "decode", "prefill"), "S": 4, "L": 24},
    "gated_delta_rule": {"states": ("decode", "decode", "prefill"), "S": 4, "L": 24, "D_k": 9, "D_v": 5},
    "mamba2_step": {"states": ("decode", "decode", "prefill"), "S": 4, "L": 24, "D_k": 9, "D_v": 5},
    "advance_checkpoints": {"states": ("decode", "decode", "prefill"), "S": 4, "L": 24},
    "reasoning_constraint": {"states": ("decode", "decode", "prefill"), "L": 40, "V": 3, "H": 2},
}
"""Options that often reach an op's innermost branches; other ops need none."""


def cases(op: str, count: int) -> Iterator[dict[str, Any]]:
    """`count` sets of options for :func:`generate`: seeds 0, 1, ..., every other one with those of `DEEP`."""
    for seed in range(count):
        yield {"seed": seed, **(DEEP.get(op, {}) if seed % 2 else {})}


def poison(dtype: str) -> Any:
    """Contents of an output before the op: bytes 0xA5, or True, which no op leaves by accident."""
    kind = numpy_dtype(dtype)
    return True if kind == np.bool_ else np.frombuffer(b"\xa5" * kind.itemsize, kind)[0]


def generate(op: str, seed: int = 0, *, workspace: Workspace | None = None, **options: Any) -> dict[str, Any]:
    """Tensors (NumPy; bfloat16 as uint16) and attributes for one call of `op`, by argument name.

    Options:
        a size symbol (``M=4``, ``S=1``, ``V=151936``, ``R_cap=64``), `states` (of slots in use), `dtype` (of logits, or
        of `x`), `nan` (False: no NaN and no all -inf logit rows): fix that of the scene. An attribute's name fixes its
        value. An optional operand's name: whether to pass it. Everything else is drawn within the OpSpec.

    `workspace` is the backend's, for operands of backend-specific size (`index`); they are poisoned, so reset them
    before use. Raises LookupError for an unknown option, operand or attribute.
    """
    spec = get_op(op)
    optional = [operand.name for operand in spec.operands if operand.optional]
    known = (*_SCENE_OPTIONS, *spec.attr_by_name, *optional)
    for name in options:
        if name not in known:
            raise LookupError(f"generate('{op}'): no option '{name}'{did_you_mean(name, known)}; options: {known}")
    if "dtype" not in options and "x" in spec.by_name:
        options["dtype"] = str(np.random.default_rng(seed).choice(spec.by_name["x"].tensor.dtypes))
    scene = RecurrentScene(seed, **{name: options[name] for name in _SCENE_OPTIONS if name in options})
    attrs = _attributes(spec, scene, options)
    inputs: dict[str, Any] = {}
    for operand in spec.operands:
        if operand.wanted(attrs) and _included(operand, scene, options, workspace):
            inputs[operand.name] = _tensor(spec, operand, scene, attrs, workspace)
    _check_relations(spec, scene, attrs)
    return {**inputs, **attrs}


def _attributes(spec: OpSpec, scene: RecurrentScene, options: Mapping[str, Any]) -> dict[str, Any]:
    attrs = {attr.name: _attribute(spec, attr, scene, options) for attr in spec.attrs}
    for relation in spec.relations:
        if relation.left in attrs and relation.right in attrs and not relation.holds(attrs):
            follower, leader = (
                (relation.left, relation.right) if relation.left not in options else (relation.right, relation.left)
            )
            attrs[follower] = attrs[leader]
    return attrs


def _attribute(spec: OpSpec, attr: AttrSpec, scene: RecurrentScene, options: Mapping[str, Any]) -> Any:
    if attr.name in options:
        value = options[attr.name]
        if issubclass(attr.kind, IntEnum) and isinstance(value, str):
            return attr.kind[value.upper()]
        return value
    rng = scene.rng(f"attribute {attr.name}")
    if issubclass(attr.kind, IntEnum) or attr.kind is bool:
        # At least half of the inputs have the default, as users do.
        if attr.default is not None and rng.random() < 0.5:
            return attr.default
        values = list(attr.kind) if issubclass(attr.kind, IntEnum) else [False, True]
        return values[int(rng.integers(len(values)))]
    if hasattr(RecurrentScene, attr.name):
        return getattr(scene, attr.name)
    raise LookupError(f"generate('{spec.name}'): no rule for attribute '{attr.name}'; add one to Scene")


def _included(operand: Operand, scene: RecurrentScene, options: Mapping[str, Any], workspace: Workspace | None) -> bool:
    if not operand.optional:
        return True
    made = operand.role is Role.OUT or hasattr(RecurrentScene, _PROPERTY.get(operand.name, operand.name))
    possible = made or workspace is not None
    return bool(options.get(operand.name, possible and scene.rng(f"include {operand.name}").random() < 0.5))


def _tensor(
    spec: OpSpec, operand: Operand, scene: RecurrentScene, attrs: Mapping[str, Any], workspace: Workspace | None
) -> Array:
    name, property_name = operand.name, _PROPERTY.get(operand.name, operand.name)
    dims = operand.dims(attrs)
    if all(dim.symbol is None or dim.symbol in scene.size for dim in dims):
        shape = tuple(dim.value(scene.size) for dim in dims)
        dtype = scene.dtype if len(operand.tensor.dtypes) > 1 else operand.tensor.dtypes[0]
        if operand.role is Role.OUT:
            return np.full(shape, poison(dtype), numpy_dtype(dtype))
        if not hasattr(RecurrentScene, property_name):
            raise LookupError(f"generate('{spec.name}'): no rule for operand '{name}'; add it to a scene")
        made = getattr(scene, property_name)
        if name in ("decay", "replay_decay") and made.ndim > len(shape):  # the scene's are by channel
            made = made[..., 0]
        value = np.array(made, order="C")
        if value.shape != shape or value.dtype != numpy_dtype(dtype):
            raise TypeError(f"rule for '{name}': made {value.dtype} {value.shape}, declared {dtype} {shape}")
        return value
    if workspace is None:
        raise LookupError(f"generate('{spec.name}'): only a backend knows the size of '{name}'; pass its `workspace`")
    integers = {key: value for key, value in attrs.items() if type(value) is int}
    grams = {"max_ngram_size": scene.max_ngram_size, "min_ngram_size": scene.min_ngram_size}
    layout = workspace(spec.name, **{**scene.size, **grams, **integers})[name]
    return np.full(layout.shape, poison(layout.dtype), numpy_dtype(layout.dtype))


def _check_relations(spec: OpSpec, scene: RecurrentScene, attrs: Mapping[str, Any]) -> None:
    for relation in spec.relations:
        if not relation.holds({**scene.size, **attrs}):
            raise ValueError(f"generate('{spec.name}'): the fixed sizes or attributes break {relation}")


_WORST_INTS = (0, 1, -1, 2, 3, 7, 100, 2**15, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
_WORST_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, 3.4e38, np.nan, np.inf, -np.inf)


def hostile(op: str, seed: int = 0, **options: Any) -> dict[str, Any]:
    """As :func:`generate`, with the values of most input tensors replaced by negative, huge, unordered or NaN ones.

    Some tensors, and some values of others, are kept, to combine bad values with good ones.
    """
    spec = get_op(op)
    inputs = generate(op, seed, **options)
    for name, operand in spec.by_name.items():
        if name not in inputs or operand.role is Role.OUT:
            continue
        rng = np.random.default_rng([seed, list(spec.by_name).index(name), 1])
        bad = rng.random(inputs[name].shape) < rng.choice([0.0, 0.2, 0.7, 1.0])
        np.copyto(inputs[name], _worst(rng, inputs[name]), where=bad)
    return inputs


def _worst(rng: np.random.Generator, like: Array) -> Array:
    """Bad values of the same dtype and shape."""
    dtype = like.dtype
    if dtype == np.bool_:
        return rng.choice(np.array([0, 0, 1, 2, 3, 128, 255], np.uint8), like.shape).view(np.bool_)
    if dtype == np.uint16 or dtype == np.uint8:  # bfloat16 bits, and the bytes of an index
        return rng.integers(0, np.iinfo(dtype).max + 1, like.shape).astype(dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return rng.choice(np.array(_WORST_FLOATS).astype(dtype), like.shape)
    info = np.iinfo(dtype)
    return rng.choice(np.array([v for v in _WORST_INTS if info.min <= v <= info.max], dtype), like.shape)
