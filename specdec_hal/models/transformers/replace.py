"""Replace a model's products, norms, gated MLPs, rotary embeddings and experts by our operators.

Most operators of a model of `transformers` are not products, and small. A trial finds replaceable modules and compares
results; the rest remains the library's. Consecutive linear layers with the same input become one product.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from transformers.pytorch_utils import Conv1D

from specdec_hal.models import fp8
from specdec_hal.models.attention import Layer
from specdec_hal.models.fp8 import Fp8Weight
from specdec_hal.models.rope import Norms, Rotation
from specdec_hal.models.transformers.bits import Silent
from specdec_hal.models.transformers.gates import Gates, install_gates
from specdec_hal.models.transformers.interface import LAYER, STORE

_ROTATE = "apply_rotary_pos_emb"
_LARGE = 64.0


class Operators(Protocol):
    """What computes the replaced parts (:mod:`.packed` on CPUs, :mod:`.kernels` on GPUs).

    `pending`: a rotary embedding that the next attention computes, or None. `experts`: the name of its experts
    function in `transformers`. `gates`: of recurrent layers, or None; with them `rotate` takes rotations of some
    dimensions of a head.
    """

    pending: Rotation | None
    experts: str

    @property
    def gates(self) -> Gates | None:
        """What computes gates."""

    def weight(self, weight: Any) -> Any:
        """A weight [out, in] as `linear` takes it. On GPUs it may be an Fp8Weight."""

    def linear(self, x: Any, weight: Any, outputs: int, bias: Any | None, residual: Any | None, dtype: Any) -> Any:
        """x [.., in] weight^T + `bias` + `residual`, of `dtype`, [.., outputs]."""

    def norm(self, x: Any, weight: Any, epsilon: float) -> Any:
        """RMSNorm over the last dimension."""

    def gated(self, module: Any) -> Callable[[Any], Any] | None:
        """A function for act(gate(x)) * up(x) of such an MLP without biases; None if there is none."""

    def rotate(self, rotation: Rotation) -> tuple[Any, Any]:
        """Rotated queries and keys [T, heads, width]."""

    def take_experts(self, module: Any) -> None:
        """Prepare a module for the experts function."""


class Linear(torch.nn.Module):  # type: ignore[misc]
    """Linear layers [out, in] of one input, as one product, computed by the first call and freed by the last.

    `dtype`: of the result.
    """

    def __init__(self, operators: Operators, layers: list[Any], dtype: Any) -> None:
        super().__init__()
        weights = [layer.weight.T if isinstance(layer, Conv1D) else layer.weight for layer in layers]
        biases = [layer.bias for layer in layers]
        self.sizes, self._outputs = [len(weight) for weight in weights], sum(map(len, weights))
        self.weight, self.bias = operators.weight(joined(weights)), None
        if (known := next((bias for bias in biases if bias is not None), None)) is not None:
            sized = zip(biases, self.sizes, strict=True)
            self.bias = joined([known.new_zeros(size) if bias is None else bias for bias, size in sized])
        self._operators, self._dtype = operators, dtype
        self._held: list[Any] = []
        self._residual: list[Any] = []

    def add(self, residual: Any) -> None:
        """A residual to add to the next result."""
        self._residual[:] = [residual]

    def product(self, x: Any) -> Any:
        """The result of all layers for x [.., in]."""
        residual = self._residual.pop() if self._residual else None
        return self._operators.linear(x, self.weight, self._outputs, self.bias, residual, self._dtype)

    def forward(self, x: Any, part: int = 0) -> Any:
        """The result of layer `part` for x [.., in]."""
        if len(self.sizes) == 1:
            return self.product(x)
        held = self._held
        if not held or held[0] is not x:
            held[:] = x, self.product(x).split_with_sizes(self.sizes, -1)
        result = held[1][part]
        if part == len(self.sizes) - 1:
            held.clear()
        return result

    def extra_repr(self) -> str:
        """Its sizes."""
        return f"outputs={self.sizes}"


class Part(torch.nn.Module):  # type: ignore[misc]
    """One of the layers of a product of several."""

    def __init__(self, whole: Any, part: int) -> None:
        super().__init__()
        self.__dict__["whole"], self.part = whole, part

    def forward(self, x: Any) -> Any:
        """What this layer makes of x [.., in]."""
        return self.whole.forward(x, self.part)


def joined(tensors: list[Any]) -> Any:
    """Rows of several tensors as one parameter, or of several Fp8Weights as one."""
    if isinstance(tensors[0], Fp8Weight):
        return fp8.stacked(tensors) if len(tensors) > 1 else tensors[0]
    with torch.no_grad():
        whole = torch.cat(tensors) if len(tensors) > 1 else tensors[0].contiguous()
    return torch.nn.Parameter(whole.detach(), requires_grad=False)


def same_inputs(model: Any, dtype: Any, run: Callable[[], Any]) -> list[list[Any]]:
    """Linear layers of one parent that take the same input one after the other, together; `run`: a pass."""
    groups: list[list[Any]] = []
    inputs: list[Any] = []
    owner = {child: parent for parent in model.modules() for child in parent.children()}

    def called(module: Any, args: Any) -> None:
        if any(module in group for group in groups):
            return
        last = groups[-1][0] if groups else None
        if inputs and inputs[-1] is args[0] and owner[last] is owner[module] and type(last) is type(module):
            groups[-1].append(module)
        else:
            groups.append([module])
        inputs.append(args[0])

    layers = [module for module in model.modules() if is_linear(module, dtype)]
    hooks = [module.register_forward_pre_hook(called) for module in layers]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return groups


def is_linear(module: Any, dtype: Any) -> bool:
    """Whether a module is a linear layer over a plain tensor of that dtype, or our Fp8Linear: others that are quantised
    are classes of their own, or have tensors that are, or a `forward` of their own."""
    if isinstance(getattr(module, "weight", None), Fp8Weight):
        return True
    standard = type(module) in (torch.nn.Linear, Conv1D) and type(module.weight.data) is torch.Tensor
    return standard and module.weight.dtype is dtype and "forward" not in vars(module)


def is_experts(module: Any) -> bool:
    """Whether a module uses our experts function (use_experts_implementation of `transformers`)."""
    return hasattr(module, "_apply_gate") and hasattr(module, "down_proj") and hasattr(module, "has_gate")


def holds_experts(module: Any) -> bool:
    """Whether a module runs its experts one by one on their rows."""
    experts = getattr(module, "experts", None)
    return isinstance(experts, torch.nn.ModuleList)


@dataclass(frozen=True)
class Parts:
    """A layer that is Llama's or Qwen3's: its attention, norms, products, the function between the MLP's products, and
    norms of heads or None. `out`, `down`: Linear, or Summed of :mod:`.tensor_parallel`."""

    attention: Any
    first: Callable[[Any], Any]
    qkv: Linear
    out: Any
    second: Callable[[Any], Any]
    middle: Callable[[Any], Any]
    down: Any
    head_norms: Norms | None


def install(decoder: Any, operators: Operators, run: Callable[[], Any]) -> list[Parts | None]:
    """Replace modules; `run`: a pass of two rows or more through all layers and the head.

    Returns the parts of each layer, None for one that is another.
    """
    model, blocks = decoder.model, list(decoder.survey.blocks)
    dtype = model.get_input_embeddings().weight.dtype
    groups = same_inputs(model, dtype, run)
    norms, calls = _trace(model, blocks, run)
    made = [(norm, x, _norm(norm, operators)) for norm, x in norms]
    ours = [mine for norm, x, mine in made if mine is not None and _replace(norm, x, mine)]
    for gated, x in _gated(model, groups, dtype):
        middle = operators.gated(gated)
        if middle is not None and _replace(gated, x, partial(_mlp, gated, middle)):
            del gated.gate_proj, gated.up_proj
    parents = {child: (parent, name) for parent in model.modules() for name, child in parent.named_children()}
    head = model.get_output_embeddings()
    head = getattr(head, "part", head)  # of a rank
    for layers in groups:
        if layers[0] not in parents:
            continue  # of a replaced MLP
        whole = Linear(operators, layers, torch.float32 if layers == [head] else dtype)
        for part, layer in enumerate(layers):
            parent, name = parents[layer]
            parent._modules[name] = Part(whole, part) if len(layers) > 1 else whole
            if len(layers) > 1:
                layer.weight = layer.bias = None  # copied weights
                parent._modules[f"{name}_joined"] = whole
    for module in model.modules():
        if is_experts(module):
            operators.take_experts(module)
            module.config._experts_implementation = operators.experts
    watch, seen = _Watch(operators), deque[tuple[_Norm, Any]](maxlen=2)
    rotaries = _install_rotary(model, operators, seen)
    for norm in ours:
        norm.seen = seen
    decoder.serve(watch, 8, watch)
    if operators.gates is not None:
        install_gates(model, operators.gates, _whole, close)
    run()
    for norm in ours:
        norm.seen = None
    for rotary in rotaries.values():
        rotary.settle(watch)
    parts = [
        _replace_block(block, args, kwargs, operators, watch)
        for block, (args, kwargs) in zip(blocks, calls, strict=True)
    ]
    _join_norms(parts, getattr(getattr(decoder.base, "norm", None), "forward", None))
    return parts


def _join_norms(parts: list[Parts | None], final: Any) -> None:
    """Let sums over ranks know the norms of their results."""
    following = [*(None if part is None else part.first for part in parts[1:]), final]
    for part, norm in zip(parts, following, strict=True):
        for layer, after in () if part is None else ((part.out, part.second), (part.down, norm)):
            if isinstance(after, _Norm) and not isinstance(layer, Linear):
                layer.norm = after


def _trace(model: Any, blocks: list[Any], run: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """Norms with an input of theirs; what decoder layers were called with."""
    norms: dict[Any, Any] = {}
    calls: list[Any] = []

    def block(module: Any, args: Any, kwargs: Any) -> None:
        calls.append((args, kwargs))

    hooks = [module.register_forward_pre_hook(block, with_kwargs=True) for module in blocks]
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and getattr(module, "weight", None) is not None:
            hooks.append(module.register_forward_pre_hook(lambda norm, args: norms.setdefault(norm, args[0])))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return list(norms.items()), calls


def _replace(module: Any, x: Any, forward: Callable[[Any], Any]) -> bool:
    """Let `forward` compute a module, if equal up to rounding; returns whether it is."""
    for scale in (1.0, 1e-3, 32.0):  # an epsilon matters for small numbers, a limit for large ones
        expected, got = module(x * scale), forward(x * scale)
        if expected.shape != got.shape or not close(expected, got, module):
            return False
    module.forward = forward
    return True


class _Rehearsal(threading.local):
    on = False


_rehearsal = _Rehearsal()


@contextmanager
def rehearsing() -> Iterator[None]:
    """Context in which this thread's comparisons succeed: kernels are not launched, only recorded."""
    _rehearsal.on = True
    try:
        yield
    finally:
        _rehearsal.on = False


def close(expected: Any, got: Any, module: Any = None) -> bool:
    """Whether our result, of `module`, is equal up to rounding."""
    return _rehearsal.on or _near(expected, got, _rounds_to_fp8(module))


def _near(expected: Any, got: Any, in_fp8: bool = False) -> bool:
    error = (got.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-30)
    return bool(error <= (1e-4 if expected.dtype == torch.float32 else 2e-2) * (2.5 if in_fp8 else 1))


def _rounds_to_fp8(module: Any) -> bool:
    """Whether it rounds rows to FP8: what differs by the last bit before may be rounded to the neighbour."""
    weights = () if module is None else (getattr(part, "weight", None) for part in module.modules())
    return any(isinstance(weight, Fp8Weight) and weight.by_row for weight in weights)


def _norm(norm: Any, operators: Operators) -> _Norm | None:
    """RMSNorm with its weight, or 1 + weight."""
    epsilon = next((getattr(norm, n) for n in ("variance_epsilon", "eps", "epsilon") if hasattr(norm, n)), None)
    if norm.weight.ndim != 1 or not isinstance(epsilon, float):
        return None
    x = torch.ones((1, 1, len(norm.weight)), dtype=norm.weight.dtype, device=norm.weight.device)
    standard = _near(norm(x), norm.weight.expand_as(x))
    weight = norm.weight.detach() if standard else 1 + norm.weight.detach().float()
    return _Norm(operators, weight, epsilon)


class _Norm:
    """RMSNorm. `seen`: during a trial, the last norms and their results. `later`: for head norms that the following
    rotary embedding computes, where to put it. `ready`: an input whose norm another kernel has computed, and that.
    """

    seen: deque[tuple[_Norm, Any]] | None = None
    later: list[_Norm] | None = None
    ready: tuple[Any, Any] | None = None

    def __init__(self, operators: Operators, weight: Any, epsilon: float) -> None:
        self._operators, self.weight, self.epsilon = operators, weight, epsilon

    def __call__(self, x: Any) -> Any:
        if self.later is not None:
            self.later.append(self)
            return x
        if self.ready is not None:
            (known, out), self.ready = self.ready, None
            if known is x:
                return out
        out = self._operators.norm(x, self.weight, self.epsilon)
        if self.seen is not None:
            self.seen.append((self, out))
        return out


def _gated(model: Any, groups: list[list[Any]], dtype: Any) -> list[tuple[Any, Any]]:
    """MLPs whose gate and up projections form a group, with an input."""
    found = []
    for module in model.modules():
        parts: list[Any] = [getattr(module, f"{name}_proj", None) for name in ("gate", "up", "down")]
        if parts[:2] in groups and (parts[2:] in groups or _adds(parts[2])):
            weight: Any = parts[0].weight
            if any(part.bias is not None for part in parts[:2]) or weight.shape != parts[1].weight.shape:
                continue
            x = torch.linspace(-2, 2, 2 * weight.shape[1], device=next(parts[0].parameters()).device)
            found.append((module, x.view(1, 2, -1).to(dtype)))
    return found


def _mlp(module: Any, middle: Callable[[Any], Any], x: Any) -> Any:
    return module.down_proj(middle(x))


class _Rotary:
    """Replaces a file's ``apply_rotary_pos_emb``, only in our attention layers.

    First it runs beside the original for comparison, and replaces it if all results were equal. If the results go
    straight to attention, attention computes them and preceding head norms when it writes to the cache.
    """

    def __init__(self, original: Callable[..., Any], operators: Operators, seen: deque[tuple[_Norm, Any]]) -> None:
        self._original, self._operators, self._seen = original, operators, seen
        self._settled = False
        self._ours = self.late = True
        self._some = False
        self._norms: list[_Norm] = []
        self._before: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._ours or len(args) != 4 or kwargs or not self._fits(*args):
            self._ours = self._ours and self._settled
            return self._original(*args, **kwargs)
        q, k, cos, sin = args
        if not self._settled and self._operators.gates is not None and cos.shape[-1] < q.shape[-1]:
            self._some = not self._fills(*args)  # of whole heads, layers of another kind say nothing
        rotation = self._rotation(q, k, cos, sin)
        if self._settled and self.late:
            self._operators.pending = rotation
            return q, k
        turned = self._operators.rotate(rotation)
        result = tuple(x.transpose(0, 1)[None] for x in turned)
        if not self._settled:
            self._ours &= all(map(close, self._original(*args), result))
            self._before.append(([*self._seen], q, k))
            self._operators.pending = replace(rotation, q=turned[0], k=turned[1])
        return result

    def _rotation(self, q: Any, k: Any, cos: Any, sin: Any) -> Rotation:
        norms = None
        if self._norms:
            first, second = self._norms
            norms = (first.weight, second.weight, first.epsilon)
            self._norms.clear()
        dims = self.dims(q, cos)
        return Rotation(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin, norms, dims=dims)

    def dims(self, q: Any, cos: Any) -> int:
        """How many of the first dimensions of heads are rotated, where heads are wider than the angles; else 0."""
        width: int = cos.shape[-1]
        return width if self._some and width < q.shape[-1] else 0

    def _fills(self, q: Any, k: Any, cos: Any, sin: Any) -> bool:
        """Whether the angles are half as wide as what they rotate: the original changes the last dimensions."""
        turned: Any = self._original(torch.ones_like(q), torch.ones_like(k), cos, sin)[0]
        return bool((turned[..., cos.shape[-1] :] != 1).any())

    def _fits(self, q: Any, k: Any, cos: Any, sin: Any) -> bool:
        width = q.shape[-1]
        return (
            q.ndim == k.ndim == 4
            and cos.ndim == 3
            and len(q) == len(cos) == 1
            and k.shape[-1] == width
            and (cos.shape[-1] in (width, width // 2) or (self._operators.gates is not None and cos.shape[-1] < width))
            and cos.shape[-1] % 2 == 0
            and q.stride(-1) == k.stride(-1) == cos.stride(-1) == sin.stride(-1) == 1
            and cos.stride(1) == sin.stride(1)
        )

    def settle(self, watch: _Watch) -> None:
        """End the trial."""
        self._settled = True
        self.late = self._ours and watch.direct
        if not self.late or not self._before:
            return
        pairs = [norms for norms, q, k in self._before if _are_of(norms, q, k)]
        if len(pairs) == len(self._before):
            for (first, _), (second, _) in pairs:
                first.later = second.later = self._norms
        self._before.clear()


def _are_of(norms: list[Any], q: Any, k: Any) -> bool:
    """Whether the last two norms were of these heads, with one epsilon."""
    return len(norms) == 2 and all(
        out.data_ptr() == x.data_ptr() and len(norm.weight) == x.shape[-1] and norm.epsilon == norms[0][0].epsilon
        for (norm, out), x in zip(norms, (q, k), strict=True)
    )


class _Watch(Silent):
    """Tests whether attention gets the unchanged results of rotary embeddings."""

    def __init__(self, operators: Operators) -> None:
        super().__init__()
        self._operators, self.direct = operators, True
        self._last: Rotation | None = None

    def attend(self, layer: Layer, query: Any, key: Any, value: Any, sinks: Any | None, bias: Any | None = None) -> Any:
        """See Store.attend."""
        last, self._operators.pending = self._operators.pending, None
        if last is not None:
            self.direct &= all(
                x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()
                for x, y in ((query, last.q), (key, last.k))
            )
            self._last = last
        elif self._last is not None:  # DiffLlama attends to the same keys again
            self.direct &= key.data_ptr() != self._last.k.data_ptr()
        self.given: tuple[Any, ...] = last, query.clone(), key.clone(), value.clone(), sinks
        return super().attend(layer, query, key, value, sinks)

    def delta_rule(self, layer: Any, query: Any, key: Any, value: Any, decay: Any, beta: Any) -> Any:
        """See States."""
        self.given = None, *(x.clone() for x in (query, key, value, decay, beta)), None
        return super().delta_rule(layer, query, key, value, decay, beta)


def _replace_block(block: Any, args: Any, kwargs: Any, operators: Operators, watch: _Watch) -> Parts | None:
    """Run a layer that is h + attention(norm(h)), then h + MLP(norm(h)), without the library's code between our parts.

    `args`, `kwargs`: its arguments. Where more than that stands between the products of attention, only its last one
    adds the residual.
    """
    mixer, product = ("linear_attn", "out_proj") if hasattr(block, "linear_attn") else ("self_attn", "o_proj")
    names = (mixer, "mlp", "input_layernorm", "post_attention_layernorm")
    parts: list[Any] = [getattr(block, name, None) for name in names]
    attention, mlp, first, second = parts
    out: Any = getattr(attention, product, None)
    down: Any = getattr(mlp, "down_proj", None)
    if {name for name, _ in block.named_children()} != {*names} or not _adds(out):
        return None
    inner, qkv, norms = _attention(attention, operators)
    first, second = first.forward, second.forward  # without what calls of modules cost on a CPU
    middle: Any = mlp.forward.args[1] if isinstance(mlp.forward, partial) else None

    def feed(attended: Any) -> Any:
        if _adds(down):
            down.add(attended)
            return down.product(middle(second(attended))) if middle is not None else mlp(second(attended))
        result = mlp(second(attended))
        return attended + (result[0] if isinstance(result, tuple) else result)

    def around(hidden_states: Any, first: Any = first, **kwargs: Any) -> Any:
        out.add(hidden_states)
        attended = attention(hidden_states=first(hidden_states), **kwargs)
        return feed(attended[0] if isinstance(attended, tuple) else attended)

    def within(hidden_states: Any, position_embeddings: Any, first: Any = first, **kwargs: Any) -> Any:
        attended = inner(first(hidden_states), position_embeddings)
        out.add(hidden_states)
        return feed(out.product(attended))

    def large(x: Any) -> Any:
        return first(x) * _LARGE

    def equal(forward: Any) -> bool:
        """Whether it computes the layer, also with large queries, keys and values: some layers limit them."""
        for (expected, given), norm in zip(results, (first, large), strict=True):
            try:
                got = forward(*args, first=norm, **kwargs)
            except TypeError:  # other arguments
                got = None
            for part in (out, down):
                if _adds(part):
                    part.add(None)
            if got is None or got.shape != expected.shape:
                return False
            if not close(expected, got, block) or not _same(given, watch.given):
                return False
        return True

    results = [(block(*args, **kwargs), watch.given)]
    if not isinstance(results[0][0], torch.Tensor):
        return None
    with parts[2].register_forward_hook(lambda module, args, output: output * _LARGE):
        results.append((block(*args, **kwargs), watch.given))
    for forward in (within, around) if inner is not None and _adds(down) else (around,):
        if equal(forward):
            whole = forward is within and middle is not None
            block.forward = partial(_without_modes, forward) if whole else forward
            return Parts(attention, first, qkv, out, second, middle, down, norms) if whole else None
    return None


def _without_modes(forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Call it without modes such as :class:`.kernels.Invariant`, through which each attribute of a tensor would pass:
    it only launches our kernels.
    """
    with torch._C.DisableTorchFunction():
        return forward(*args, **kwargs)


def is_standard(base: Any, parts: list[Parts | None]) -> bool:
    """Whether a model is only layers of such parts and one rotary embedding, between its embedding and its norm."""
    standard = {name for name, _ in base.named_children()} == {"embed_tokens", "layers", "norm", "rotary_emb"}
    return standard and None not in parts and by_position(base.rotary_emb)


def by_position(rotary: Any) -> bool:
    """Whether all layers have the same angles, which depend on positions alone: not those of LongRoPE."""
    return isinstance(rotary.rope_type, str) and "forward" not in vars(rotary)


def tabulate(base: Any, positions: int) -> None:
    """Let layers of a plain model take angles from a table of so many positions instead of computing them."""
    table = angles(base, positions)
    base.rotary_emb.forward = lambda x, position_ids: (*table, position_ids[0].flatten())


def angles(base: Any, positions: int) -> Any:
    """Cosines and sines [1, positions, width] of a plain model's rotary embedding, with M-RoPE those of texts."""
    rotary, like = base.rotary_emb, base.embed_tokens.weight[:1, None]
    at = torch.arange(positions, device=like.device)[None]
    sections = getattr(rotary, "mrope_section", None)  # each has positions of its own, which are equal in texts
    if sections is not None:
        at = at.expand(len(sections), 1, positions)
    return type(rotary).forward(rotary, like, position_ids=at)


def _whole(parts: list[Any]) -> Linear | None:
    """The product whose parts these are, all of them in their order; None if there is none."""
    if not all(isinstance(part, Part) for part in parts):
        return None
    whole: Linear = parts[0].whole
    same = [(part.whole, part.part) for part in parts] == [(whole, i) for i in range(len(parts))]
    return whole if same and len(whole.sizes) == len(parts) else None


def _adds(layer: Any) -> bool:
    """Whether a layer's product takes a residual: ours, or of ranks."""
    return hasattr(layer, "product")


def _attention(attention: Any, operators: Operators) -> tuple[Any, Any, Norms | None]:
    """What is between a norm and the last product, if it is one product, a late rotary embedding and attention; that
    product, and norms of heads."""
    parts: list[Any] = [getattr(attention, f"{name}_proj", None) for name in "qkv"]
    rotary = getattr(attention.forward, "__globals__", {}).get(_ROTATE)
    whole = _whole(parts)
    if not isinstance(rotary, _Rotary) or not rotary.late or whole is None:
        return None, None, None
    norms: list[Any] = [getattr(getattr(attention, f"{name}_norm", None), "forward", None) for name in "qk"]
    late = all(isinstance(norm, _Norm) and norm.later is not None for norm in norms)
    if not late and any(norm is not None for norm in norms):
        return None, None, None
    before = (norms[0].weight, norms[1].weight, norms[0].epsilon) if late else None
    state = attention.__dict__

    def forward(x: Any, angles: Any) -> Any:
        layer = state[LAYER]
        qkv = whole.product(x)[0]
        q, k, v = (
            part.view(len(part), -1, width)
            for part, width in zip(
                qkv.split_with_sizes(whole.sizes, 1), (layer.head_dim, layer.head_dim, layer.value_dim), strict=True
            )
        )
        cos, sin, *positions = angles
        at = positions[0] if positions else None
        operators.pending = Rotation(q, k, cos, sin, before, at, rotary.dims(q, cos))
        return state[STORE].attend(layer, q, k, v, None).flatten(1)[None]

    return forward, whole, before


def _same(one: Any, two: Any) -> bool:
    """Whether attention was called alike."""
    (turn, *tensors, sinks), (other, *others, none) = one, two
    if sinks is not none or (turn is None) != (other is None):
        return False
    angles = turn is None or (
        turn.cos is other.cos and turn.sin is other.sin and (turn.norms, turn.dims) == (other.norms, other.dims)
    )
    return angles and all(a.shape == b.shape and close(a, b) for a, b in zip(tensors, others, strict=True))


def _install_rotary(model: Any, operators: Operators, seen: deque[tuple[_Norm, Any]]) -> dict[Any, _Rotary]:
    """Replace the function in the globals of layers that call it by name."""
    found: dict[Any, _Rotary] = {}
    for module in model.modules():
        forward = getattr(vars(module).get("forward"), "__func__", type(module).forward)  # ours, or the class's
        while hasattr(forward, "__wrapped__"):  # warnings about other versions' arguments
            forward = forward.__wrapped__
        if not isinstance(forward, FunctionType) or _ROTATE not in forward.__code__.co_names:
            continue
        original = forward.__globals__[_ROTATE]
        rotary = found.setdefault(original, _Rotary(original, operators, seen))
        names = {**forward.__globals__, _ROTATE: rotary}
        own = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
        own.__kwdefaults__ = forward.__kwdefaults__
        module.forward = MethodType(own, module)
    return found
