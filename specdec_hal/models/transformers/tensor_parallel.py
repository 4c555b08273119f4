"""A model of `transformers` over a group of ranks, divided by the plan of its class (`base_model_tp_plan`).

Layers that the plan calls "colwise" keep a part of their outputs, those that it calls "rowwise" a part of their inputs.
Results of the latter are added in float32, in the order of ranks. So a token's bits do not depend on its batch, as a
library's reduction may have it, and are the same on every rank; they depend on the number of ranks. With fewer KV heads
than ranks, several ranks have the same one. The head is divided by tokens; the embedding is whole on every rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from specdec_hal.errors import ArgumentError
from specdec_hal.models.batch import refused as refused_argument
from specdec_hal.models.survey import refused
from specdec_hal.models.transformers.replace import is_experts
from specdec_hal.models.transformers.survey import kind_of, only
from specdec_hal.tensors.group import Group

_WHOLE = {"embedding_rowwise", "replicated_with_grad_allreduce"}
_BY_OUTPUTS = {"colwise", "packed_colwise"}
_GATHERED = {"colwise_gather_output", "colwise_rep"}
_BY_INPUTS = {"rowwise", "rowwise_split_input", "rowwise_rep"}
_KV = ("k_proj", "v_proj")


TILE = 1024
"""Columns of a divided head come in whole tiles; those beyond the vocabulary are zeros."""


class Summed(torch.nn.Module):  # type: ignore[misc]
    """A linear layer whose inputs are divided among ranks. `split`: its input is whole.

    `exchange`: adds the ranks' products of x and a residual or None, for this layer; None: they are gathered. `norm`:
    the RMSNorm of the result that follows, where the exchange may compute it.
    """

    exchange: Callable[[Summed, Any, Any | None], Any] | None = None
    norm: Any = None

    def __init__(self, layer: Any, group: Group, mine: slice, split: bool) -> None:
        super().__init__()
        self.bias, layer.bias = layer.bias, None
        self.part, self._group, self._mine = layer, group, mine if split else slice(None)
        self._residual: list[Any] = []

    def add(self, residual: Any) -> None:
        """A residual to add to the next result."""
        self._residual[:] = [residual]

    def product(self, x: Any) -> Any:
        """The sum of all ranks' products, the bias and the residual."""
        x = x[..., self._mine]
        residual = self._residual.pop() if self._residual else None
        if self.exchange is not None:
            return self.exchange(self, x, residual)
        out = summed(self._group, self.part(x.contiguous()))
        for more in (self.bias, residual):
            out = out if more is None else out + more
        return out

    def forward(self, x: Any) -> Any:
        """See :meth:`product`."""
        return self.product(x)


class Gathered(torch.nn.Module):  # type: ignore[misc]
    """A linear layer whose outputs are divided among ranks and gathered."""

    def __init__(self, layer: Any, group: Group) -> None:
        super().__init__()
        self.part, self._group, self._outputs = layer, group, layer.out_features

    def forward(self, x: Any) -> Any:
        """All outputs, of all ranks in turn."""
        parts = self._group.gather(self.part(x))
        return torch.cat(list(parts), -1)[..., : self._outputs]


def summed(group: Group, partial: Any) -> Any:
    """All ranks' summands, added in their order."""
    first, *others = group.gather(partial)
    total = first.float()
    for other in others:
        total = total + other.float()
    return total.to(partial.dtype)


def _sum_result(group: Group, module: Any, args: Any, out: Any) -> Any:
    return summed(group, out)


def divide(model: Any, group: Group) -> None:
    """Leave this rank's part of a whole model. Errors as :class:`Division`."""
    Division(model, group).finish()


class Division:
    """Leaves this rank's part of a model, which may have no data yet (meta tensors).

    UnsupportedError for what its plan says and is not done here; ArgumentError for sizes that cannot be divided.
    """

    def __init__(self, model: Any, group: Group) -> None:
        self._model, self._group = model, group
        self._cuts: dict[tuple[Any, str], tuple[Any, Callable[[Any], Any]]] = {}
        """Of a weight, by module and name: its whole shape, and what takes this rank's part."""
        self._made: list[tuple[str, Callable[[Any], Any]]] = []
        """What replaces modules, by name."""
        config, self._plan = model.config.get_text_config(), model.tp_plan
        if getattr(model, "is_quantized", False):
            raise refused(model, "its weights are quantised, which ranks do not support")
        if not any("layers." in name for name in config.base_model_tp_plan or ()):
            if getattr(config, "base_model_ep_plan", None):
                raise refused(model, "its plan is expert parallelism (base_model_ep_plan), which is not supported")
            raise refused(model, "it has no plan for tensor parallelism (base_model_tp_plan)")
        layers = getattr(config, "per_layer_config", ())
        if len({(one.num_attention_heads, getattr(one, "num_key_value_heads", None)) for one in layers}) > 1:
            raise refused(model, "its layers differ in their numbers of heads, which ranks do not support")
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        if group.size % kv_heads and kv_heads % group.size:
            raise indivisible("a divisor or a multiple", "num_key_value_heads", kv_heads, group.size)
        _part(group, config.num_attention_heads, "num_attention_heads")
        for name, module in list(model.named_modules()):
            kind = self._style(name)
            if kind is not None and kind not in _WHOLE:
                self._add(name, module, kind, kv_heads)
        self._blocks = next(
            (x for x in model.modules() if isinstance(x, torch.nn.ModuleList) and len(x) == config.num_hidden_layers),
            None,
        )
        if self._blocks is None:
            raise refused(model, "its decoder layers are in no list")
        kinds = {kind_of(block): i for i, block in reversed(list(enumerate(self._blocks)))}
        self._tried = sorted(kinds.values())
        self._whole = {part for i in self._tried for part in self._blocks[i].modules()}

    def trying(self) -> AbstractContextManager[None]:
        """Context in which the model has only one decoder layer of each kind, whole until :meth:`finish`."""
        return only(self._model, self._blocks, self._tried)

    def _style(self, name: str) -> Any:
        return self._plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))

    def _add(self, name: str, module: Any, kind: str, kv_heads: int) -> None:
        group = self._group
        if kind == "moe_tp_experts" and is_experts(module):
            self._add_experts(name, module)
        elif type(module) is not torch.nn.Linear or kind not in _BY_OUTPUTS | _GATHERED | _BY_INPUTS:
            raise refused(self._model, f"its plan for ranks has '{kind}' for {name}, which is not supported")
        elif kind in _BY_OUTPUTS:
            count, groups = module.out_features, 1 if kind == "colwise" else 2
            if name.rpartition(".")[2] in _KV and group.size > kv_heads:  # ranks share a head
                first, width = group.rank * kv_heads // group.size, count // kv_heads
                mine = slice(first * width, (first + 1) * width)
            else:
                mine = _part(group, count // groups, name)
            for tensor in ("weight", "bias"):
                self._cut(module, tensor, lambda whole: _own(whole.unflatten(0, (groups, -1))[:, mine]).flatten(0, 1))
        elif kind in _BY_INPUTS:
            mine = _part(group, module.in_features, name)
            self._cut(module, "weight", lambda whole: _own(whole[:, mine]))
            self._made.append((name, lambda layer: Summed(layer, group, mine, kind != "rowwise")))
        else:
            width = -(-module.out_features // (group.size * TILE)) * TILE
            for tensor in ("weight", "bias"):
                self._cut(module, tensor, lambda whole: _padded(whole[group.rank * width :][:width], width))
            self._made.append((name, lambda layer: Gathered(layer, group)))

    def _add_experts(self, name: str, module: Any) -> None:
        up, model = "gate_up_proj" if module.has_gate else "up_proj", self._model
        kinds = self._style(f"{name}.{up}"), self._style(f"{name}.down_proj")
        if kinds != ("packed_colwise" if module.has_gate else "colwise", "rowwise") or module.has_bias:
            raise refused(model, f"its plan for ranks divides {name} in an unsupported way")
        if module.is_transposed:
            raise refused(model, f"the weights of {name} are transposed, which ranks do not support")
        mine, groups = _part(self._group, module.down_proj.shape[2], name), 1 + module.has_gate
        self._cut(module, up, lambda whole: _own(whole.unflatten(1, (groups, -1))[:, :, mine]).flatten(1, 2))
        self._cut(module, "down_proj", lambda whole: _own(whole[:, :, mine]))
        self._made.append((name, self._sum_experts))

    def _sum_experts(self, module: Any) -> Any:
        module.register_forward_hook(partial(_sum_result, self._group))
        return module

    def _cut(self, module: Any, name: str, take: Callable[[Any], Any]) -> None:
        whole = getattr(module, name)
        if whole is not None:
            self._cuts[module, name] = whole.shape, take

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Context in which a weight that is given to a module loses all but this rank's part.

        Until :meth:`finish` layers of :meth:`trying` stay whole, and so does a head that is the embedding.
        """

        def give(module: Any, name: str, tensor: Any) -> Any:
            shape, take = self._cuts.get((module, name), (None, None))
            if take is None or tensor is None or tensor.is_meta or tensor.shape != shape or module in self._whole:
                return None
            if tensor is self._model.get_input_embeddings().weight:
                return None
            made = torch.nn.Parameter(take(tensor.detach()), requires_grad=False)
            made.__dict__.update(tensor.__dict__)  # marks of `transformers`
            return made

        handle = register_module_parameter_registration_hook(give)
        try:
            yield
        finally:
            handle.remove()

    def finish(self) -> None:
        """Cut what is whole, and replace the modules that exchange results."""
        model = self._model
        for (module, name), (shape, take) in self._cuts.items():
            tensor = getattr(module, name)
            if tensor.shape == shape:
                setattr(module, name, torch.nn.Parameter(take(tensor.detach()), requires_grad=False))
        for name, make in self._made:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, make(model.get_submodule(name)))


def _own(part: Any) -> Any:
    """A part of a weight in memory of its own, so that the whole can go."""
    return part.clone(memory_format=torch.contiguous_format)


def _padded(rows: Any, count: int) -> Any:
    """So many rows, zeros after those that are there."""
    return torch.cat([rows, rows.new_zeros((count - len(rows), *rows.shape[1:]))])


def indivisible(relation: str, name: str, count: int, size: int) -> ArgumentError:
    """The error of sizes that cannot be divided among ranks."""
    expected, hint = f"{relation} of {name} = {count}", "lower engine.tensor_parallel"
    return refused_argument("transformers", "load_model", "tensor_parallel", expected, size, hint)


def _part(group: Group, count: int, what: str) -> slice:
    if count % group.size:
        raise indivisible("a divisor", what, count, group.size)
    width = count // group.size
    return slice(group.rank * width, (group.rank + 1) * width)
