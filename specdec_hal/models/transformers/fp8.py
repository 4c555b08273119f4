"""Linear layers and experts with weights in FP8: of checkpoints that have such weights, or quantised at loading.

They stay in FP8 on a GPU, where our kernels multiply by them (:mod:`.kernels`). The head, the embedding and what
chooses experts stay as they are, unless the checkpoint has them in FP8.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from specdec_hal.errors import SpecDecError
from specdec_hal.models import fp8
from specdec_hal.models.batch import refused as refused_argument
from specdec_hal.models.checkpoint import checkpoint_error
from specdec_hal.models.fp8 import Fp8Weight
from specdec_hal.models.survey import refused
from specdec_hal.models.transformers.replace import holds_experts, is_experts
from specdec_hal.models.weights import header, not_finite, shards

AUTO, NONE, WEIGHTS, DYNAMIC = "auto", "none", "fp8", "fp8_dynamic"
CHOICES = (AUTO, NONE, WEIGHTS, DYNAMIC)
"""What ``model.quantization`` may be: as the checkpoint is, widened, weights in FP8, and activations too."""
_METHODS = ("fp8", "compressed-tensors")
_NAMES = ("weight_scale_inv", "weight_scale")
_STORED = "F8_E4M3"
_SCALES = ("F32", "BF16", "F16")
EXPERTS = "specdec_hal_fp8"
"""The name of the experts function that trials call."""
_CAPABILITY = (8, 9)
_NEEDS = "a GPU with FP8 (compute capability 8.9 or newer) and Triton"


class Fp8Linear(torch.nn.Module):  # type: ignore[misc]
    """A linear layer with a weight in FP8, which only trials call: our kernels replace it."""

    def __init__(self, weight: Fp8Weight, bias: Any | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Any) -> Any:
        """x [.., in] weight^T + bias, by the weight in the dtype of x, and rows rounded as the kernels do."""
        rows = x
        if self.weight.by_row:
            rows = fp8.widened(*fp8.quantised(x.flatten(0, -2))).to(x.dtype).view(x.shape)
        return F.linear(rows, fp8.widened(self.weight.values, self.weight.scales).to(x.dtype), self.bias)

    def extra_repr(self) -> str:
        """Its sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _experts(module: Any, hidden: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """See ALL_EXPERTS_FUNCTIONS of `transformers`, for trials; each of the weights may be in FP8 or not."""

    def multiply(x: Any, name: str, expert: int) -> Any:
        weight, bias = getattr(module, name), getattr(module, f"{name}_bias")[expert] if module.has_bias else None
        if isinstance(weight, Fp8Weight):
            return Fp8Linear(Fp8Weight(weight.values[expert], weight.scales[expert], weight.by_row), bias)(x)
        return F.linear(x, weight[expert].T if module.is_transposed else weight[expert], bias)

    name, act = ("gate_up_proj", module._apply_gate) if module.has_gate else ("up_proj", module.act_fn)
    total = torch.zeros_like(hidden)
    for expert in top_k_index.unique().tolist():
        row, place = (top_k_index == expert).nonzero(as_tuple=True)
        result = multiply(act(multiply(hidden[row], name, expert)), "down_proj", expert)
        total.index_add_(0, row, (result * top_k_weights[row, place, None]).to(total.dtype))
    return total


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)


class _Stored(torch.nn.Module):  # type: ignore[misc]
    """The tensors of a layer, by their names in the checkpoint, while the library loads them."""

    def __init__(self, layer: Any, scale: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale, self.bias = scale, layer.bias
        for name, size, dtype in (("weight", layer.weight.shape, fp8.DTYPE), (scale, shape, torch.float32)):
            setattr(self, name, _empty(size, dtype, layer.weight.device))


@dataclass(frozen=True)
class Plan:
    """What becomes FP8. `stored`: names of weights in FP8, those of their scales and the scales' shapes; empty: linear
    layers are quantised. `block`: rows and columns that share a scale. `by_row`: see Fp8Weight."""

    path: Path
    stored: Mapping[str, tuple[str, tuple[int, ...]]]
    block: tuple[int, int]
    by_row: bool

    def prepare(self, model: Any) -> None:
        """Give a model without data the tensors that the checkpoint has."""
        left = dict(self.stored)
        for name, module in list(model.named_modules()):
            if (found := left.get(f"{name}.weight")) is not None and type(module) is torch.nn.Linear:
                del left[f"{name}.weight"]
                _put(model, name, _Stored(module, *found))
        for target, (scale, names) in _merged(model, left).items():
            (experts, name), weight = _parent(model, target), model.get_parameter(target)
            parts, shape = _parts(name), left[names[0]][1]
            if is_experts(experts) and not experts.is_transposed and shape and len(names) == parts * len(weight):
                setattr(experts, name, _empty(weight.shape, fp8.DTYPE, weight.device))
                merged = (len(weight), parts * shape[0], *shape[1:])
                setattr(experts, scale.rpartition(".")[2], _empty(merged, torch.float32, weight.device))
                for one in names:
                    del left[one]
        if left:
            kinds = "linear layers, and for experts if all of a layer are, with scales of 1 dimension or more"
            raise refused(model, f"its {min(left)} is in FP8, which is supported for {kinds}")

    def finish(self, model: Any, device: str) -> None:
        """Make layers of what was loaded, or quantise, on the device."""
        if any(map(holds_experts, model.modules())):
            raise refused(model, "it runs its experts one by one, which is not supported in FP8 (model.quantization)")
        kept = {model.get_output_embeddings()}
        for name, module in list(model.named_modules()):
            if any(map(is_experts, module.children())):
                kept.update(module.children())  # such as a gate of all experts
            if is_experts(module):
                self._finish_experts(name, module, device)
        made: dict[Any, Any] = {}
        for name, module in list(model.named_modules(remove_duplicate=False)):
            if module not in made:
                made[module] = self._layer(name, module, module in kept, device)
            if made[module] is not None:
                _put(model, name, made[module])

    def _finish_experts(self, name: str, module: Any, device: str) -> None:
        for what in ("gate_up_proj", "up_proj", "down_proj"):
            if (weight := getattr(module, what, None)) is None:
                continue
            scales = (what + scale.removeprefix("weight") for scale in _NAMES)
            if (scale := next((one for one in scales if one in module._parameters), None)) is not None:
                stored, of_scales = getattr(module, scale), f"{name}.{scale}"
                found = self._weight(f"{name}.{what}", weight, of_scales, stored, _parts(what), device)
                delattr(module, scale)
            elif self.stored:
                continue
            else:
                rows = weight.detach().mT if module.is_transposed else weight.detach()
                values, of_rows = zip(*(fp8.quantised(one.to(device)) for one in rows), strict=True)
                found = Fp8Weight(torch.stack(values), torch.stack(of_rows), self.by_row)
            delattr(module, what)
            setattr(module, what, found)
            module.config._experts_implementation = EXPERTS

    def _layer(self, name: str, module: Any, keep: bool, device: str) -> Fp8Linear | None:
        if isinstance(module, _Stored):
            scales = getattr(module, module.scale)
            weight = self._weight(f"{name}.weight", module.weight, f"{name}.{module.scale}", scales, 1, device)
            return Fp8Linear(weight, module.bias)
        if keep or self.stored or type(module) not in (torch.nn.Linear, Conv1D):
            return None
        weight = module.weight.detach()
        values, scales = fp8.quantised((weight.T if type(module) is Conv1D else weight).to(device))
        return Fp8Linear(Fp8Weight(values, scales, self.by_row), module.bias)

    def _weight(self, name: str, values: Any, of_scales: str, scales: Any, parts: int, device: str) -> Fp8Weight:
        """Of what was loaded; rows are of several `parts`, each with its scales."""
        values = values.detach().to(device)
        if bad := int((values.view(torch.uint8) & 127 == 127).sum()):
            raise not_finite(self.path, name, bad)
        *experts, rows, columns = values.shape
        dim = len(experts)
        of_parts = scales.detach().chunk(parts, dim) if parts > 1 else [scales.detach()]
        joined = torch.cat([self._scales(of_scales, one, (*experts, rows // parts, columns)) for one in of_parts], -1)
        return Fp8Weight(values, joined.to(device), self.by_row)

    def _scales(self, name: str, scales: Any, shape: tuple[int, ...]) -> Any:
        """Of rows [.., out] or groups [.., in / GROUP, out]."""
        *experts, rows, columns = shape
        if scales.numel() == prod(experts):
            return scales.reshape(*experts, 1).repeat_interleave(rows, -1)
        if scales.shape in ((*experts, rows), (*experts, rows, 1)):
            return scales.reshape(*experts, rows).contiguous()
        height, width = self.block
        if scales.shape != (*experts, -(-rows // height), -(-columns // width)) or width != fp8.GROUP:
            expected = f"a scale for all, for each row, or for blocks of any number of rows and {fp8.GROUP} columns"
            got = f"{list(scales.shape)} for {list(shape)} with blocks of {list(self.block)}"
            raise checkpoint_error(self.path, f"{expected} in {name}", got, "quantise the model in another way")
        return scales.repeat_interleave(height, -2)[..., :rows, :].mT.contiguous()


def plan(
    path: str | Path, method: Mapping[str, Any], quantization: str, device: str, *, ranks: bool, others: Collection[str]
) -> Plan | None:
    """What of a checkpoint becomes or stays FP8, by its `quantization_config`; None: nothing.

    `ranks`: whether several share the model. `others`: names of tensors that are not the model's. ArgumentError for an
    unknown `quantization`, and where the device has no FP8.
    """
    if quantization not in CHOICES:
        expected = f"one of {', '.join(CHOICES)}"
        raise _refused(expected, quantization, "choose one of them (model.quantization)")
    known = method.get("quant_method") in _METHODS
    stored = _stored(Path(path), others) if known and quantization != NONE else {}
    asked = quantization in (WEIGHTS, DYNAMIC)
    if not stored and not asked:
        return None
    if method and not stored:
        got = f"{quantization!r} for a checkpoint quantised by {method.get('quant_method')}"
        raise _refused("a checkpoint in FP8, or one that is not quantised", got, "leave it out (model.quantization)")
    if not supported(device):
        got = f"{quantization!r} on {device}" + (" for a checkpoint in FP8" if stored else "")
        hint = "to widen its weights, set model.quantization: none" if stored else "leave it out (model.quantization)"
        raise _refused(_NEEDS, got, hint)
    if ranks:
        got, hint = f"{quantization!r} with ranks", "set engine.tensor_parallel: 1, or leave model.quantization out"
        raise _refused("one GPU for weights in FP8", got, hint)
    block = method.get("weight_block_size") or _block(method)
    return Plan(Path(path), stored, (int(block[0]), int(block[1])), quantization == DYNAMIC)


def supported(device: str) -> bool:
    """Whether our kernels compute with FP8 there."""
    from specdec_hal.models.paged import launchers

    place = torch.device(device)
    if place.type != "cuda" or launchers(place) is None:
        return False
    return bool(torch.cuda.get_device_capability(place) >= _CAPABILITY)


def any_stored(files: Mapping[str, Path]) -> bool:
    """Whether one of the weights is in FP8, by names and files."""
    headers = {file: header(file) for file in set(files.values())}
    return any(headers[file][name][1].startswith("F8") for name, file in files.items())


def _tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: found for file in shards(path) for name, found in header(file).items()} if path.is_dir() else {}


def _stored(path: Path, others: Collection[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    tensors, stored = _tensors(path), {}
    for name, (_, dtype) in tensors.items():
        prefix, _, last = name.rpartition(".")
        if dtype != _STORED or last != "weight" or name in others:
            continue
        scale = next((one for one in _NAMES if f"{prefix}.{one}" in tensors), None)
        if scale is None:
            hint = "download it again, or quantise the model in another way"
            raise checkpoint_error(path, f"scales of {name} ({' or '.join(_NAMES)})", "none", hint)
        shape, kind = tensors[f"{prefix}.{scale}"]
        if kind not in _SCALES:
            raise checkpoint_error(path, f"{prefix}.{scale} as {', '.join(_SCALES)}", kind, "use another checkpoint")
        stored[name] = scale, shape
    return stored


def _block(method: Mapping[str, Any]) -> Any:
    """Of compressed-tensors' groups."""
    groups = [one.get("weights") or {} for one in (method.get("config_groups") or {}).values()]
    return next((one["block_structure"] for one in groups if one.get("block_structure")), (fp8.GROUP, fp8.GROUP))


def _merged(model: Any, stored: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, tuple[str, list[str]]]:
    """By what the library merges weights into, what it merges their scales into, and their names."""
    rules, state = get_model_conversion_mapping(model), model.state_dict()
    renamings, merges = (
        [rule for rule in rules if isinstance(rule, kind)] for kind in (WeightRenaming, WeightConverter)
    )
    merged: dict[str, tuple[str, list[str]]] = {}

    def renamed(name: str) -> str:
        return str(rename_source_key(name, renamings, merges, model.base_model_prefix, state)[0])

    for name, (scale, _) in stored.items():
        if (target := renamed(name)) in state:
            of_scales = renamed(name.removesuffix("weight") + scale)
            merged.setdefault(target, (of_scales, []))[1].append(name)
    return merged


def _parts(name: str) -> int:
    """How many weights of an expert the library joins to one of that name."""
    return 2 if name == "gate_up_proj" else 1


def _empty(size: Any, dtype: Any, device: Any) -> Any:
    return torch.nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)


def _parent(model: Any, name: str) -> tuple[Any, str]:
    parent, _, last = name.rpartition(".")
    return model.get_submodule(parent), last


def _put(model: Any, name: str, module: Any) -> None:
    setattr(*_parent(model, name), module)


def _refused(expected: str, got: str, hint: str) -> SpecDecError:
    return refused_argument("transformers", "load_model", "quantization", expected, got, hint)
