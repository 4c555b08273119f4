"""Linear layers with weights in FP8: of checkpoints that have such weights, or quantised at loading.

They stay in FP8 on a GPU, where our kernels multiply by them (:mod:`.kernels`). The head and the embedding stay as they
are, unless the checkpoint has the head in FP8.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
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


class _Stored(torch.nn.Module):  # type: ignore[misc]
    """The tensors of a layer, by their names in the checkpoint, while the library loads them."""

    def __init__(self, layer: Any, scale: str, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale, self.bias = scale, layer.bias
        for name, size, dtype in (("weight", layer.weight.shape, fp8.DTYPE), (scale, shape, torch.float32)):
            empty = torch.empty(size, dtype=dtype, device=layer.weight.device)
            setattr(self, name, torch.nn.Parameter(empty, requires_grad=False))


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
        if left:
            raise refused(model, f"its {min(left)} is in FP8, which is supported for linear layers only")

    def finish(self, model: Any, device: str) -> None:
        """Make layers of what was loaded, or quantise, on the device."""
        if any(holds_experts(part) or (is_experts(part) and not self.stored) for part in model.modules()):
            raise refused(model, "it is a mixture of experts, which is not supported in FP8 (model.quantization)")
        made: dict[Any, Any] = {}
        for name, module in list(model.named_modules(remove_duplicate=False)):
            if module not in made:
                made[module] = self._layer(name, module, model, device)
            if made[module] is not None:
                _put(model, name, made[module])

    def _layer(self, name: str, module: Any, model: Any, device: str) -> Fp8Linear | None:
        if isinstance(module, _Stored):
            values = module.weight.detach().to(device)
            if bad := int((values.view(torch.uint8) & 127 == 127).sum()):
                raise not_finite(self.path, f"{name}.weight", bad)
            scales = self._scales(f"{name}.{module.scale}", getattr(module, module.scale).detach(), values.shape)
            return Fp8Linear(Fp8Weight(values, scales.to(device), self.by_row), module.bias)
        if self.stored or type(module) not in (torch.nn.Linear, Conv1D) or module is model.get_output_embeddings():
            return None
        weight = module.weight.detach()
        values, scales = fp8.quantised((weight.T if type(module) is Conv1D else weight).to(device))
        return Fp8Linear(Fp8Weight(values, scales, self.by_row), module.bias)

    def _scales(self, name: str, scales: Any, shape: tuple[int, int]) -> Any:
        """Of rows [out] or groups [in / GROUP, out]."""
        rows, columns = shape
        if scales.numel() == 1:
            return scales.flatten().repeat(rows)
        if scales.shape in ((rows,), (rows, 1)):
            return scales.flatten().contiguous()
        height, width = self.block
        if scales.shape != (-(-rows // height), -(-columns // width)) or width != fp8.GROUP:
            expected = f"a scale for all, for each row, or for blocks of any number of rows and {fp8.GROUP} columns"
            got = f"{list(scales.shape)} for {list(shape)} with blocks of {list(self.block)}"
            raise checkpoint_error(self.path, f"{expected} in {name}", got, "quantise the model in another way")
        return scales.repeat_interleave(height, 0)[:rows].T.contiguous()


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


def _put(model: Any, name: str, module: Any) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _refused(expected: str, got: str, hint: str) -> SpecDecError:
    return refused_argument("transformers", "load_model", "quantization", expected, got, hint)
