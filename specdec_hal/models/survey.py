"""What a trial finds out about a model's attention layers, in any framework; unsupported models are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.attention import Layer
from specdec_hal.models.weights import not_finite

if TYPE_CHECKING:
    from specdec_hal.models.states import Recurrence

# Other allowed keyword arguments: without effect, or absent if they had one.
HARMLESS = {
    "dropout", "position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits",
    "return_dict", "is_causal", "cache_position", "logits_to_keep", "attention_type",
}  # fmt: skip
HONOURED = {"scaling", "sliding_window", "softcap", "s_aux", "sink", "indices"}
TRIED, CHUNK = 7, 4  # tokens of the trial's text; the first CHUNK are packed with another text
LAYER_TYPES = {"full_attention", "sliding_attention"}


def check_config(name: str, text: Any, more_types: Collection[str] = ()) -> None:
    """UnsupportedError for a decoder whose configuration excludes our cache. `more_types`: supported types of layers
    besides those of attention."""
    kinds = sorted({*(getattr(text, "layer_types", None) or ())} - LAYER_TYPES - {*more_types})
    reasons = {
        f"it has layers of type {', '.join(kinds)}, which keep more than keys and values": kinds,
    }
    for reason, found in reasons.items():
        if found:
            raise refused(name, reason)


def refused(what: Any, reason: str) -> UnsupportedError:
    """The error for an unsupported model."""
    name = what if isinstance(what, str) else type(what).__name__
    return UnsupportedError(f"{name}: {reason}; choose another model")


def check_finite(path: Path, weights: Mapping[str, Any]) -> None:
    """CheckpointError for a weight with NaN or an infinity, such as one beyond its dtype."""
    numbers = {name: x for name, x in weights.items() if x.is_floating_point() and x.element_size() > 1}
    good = {name: weight.isfinite() for name, weight in numbers.items()}
    for name, finite in good.items():
        if not bool(finite.all()):
            dtype = str(numbers[name].dtype).rpartition(".")[2]
            raise not_finite(path, f"{name} as {dtype}", int((~finite).sum()))


@dataclass(frozen=True)
class Survey:
    """`blocks`: the decoder layers, containing `attentions` and recurrent layers, `mixers`; `tappable`: they return
    hidden states. `layers` and `recurrences` describe attentions and mixers.

    An attention is there once for each of its calls in a pass, with a layer each. `hidden`: of the trial's text `ids`,
    after the final norm.
    """

    layers: tuple[Layer, ...]
    attentions: tuple[Any, ...]
    recurrences: tuple[Recurrence, ...]
    mixers: tuple[Any, ...]
    blocks: Any
    tappable: bool
    ids: Any
    hidden: Any
    hidden_size: int
    vocab_size: int

    def within(self, kept: Sequence[int]) -> tuple[list[int], list[int]]:
        """The numbers of the attentions and of the mixers in these blocks."""
        inside = {module for i in kept for module in self.blocks[i].modules()}
        found = ([i for i, one in enumerate(each) if one in inside] for each in (self.attentions, self.mixers))
        attentions, mixers = found
        return attentions, mixers


class LayerRecorder:
    """Records the calls of attention layers in a trial.

    `REPEATED`: whether a layer may be called several times, and use the keys and values of an earlier call.
    """

    REPEATED: ClassVar[bool] = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.found: list[tuple[Any, Layer]] = []
        self._kept: dict[tuple[int, int], tuple[Any, Any, Layer]] = {}

    def layer(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        window: int,
        arguments: dict[str, Any],
        chunked: bool = False,
    ) -> Layer:
        """The layer of a call of `module`, from `query` [T, heads, head_dim], `key` and `value`, and the others.

        UnsupportedError for one that the engine's attention cannot serve.
        """
        name = type(module).__name__
        *_, shared = self._kept.get((key.data_ptr(), value.data_ptr()), (None,))
        if not self.REPEATED and any(module is known for known, _ in self.found):
            raise refused(self.model, f"a layer ({name}) calls its attention twice in one pass")
        if shared is not None and (not self.REPEATED or shared.heads != query.shape[1]):
            raise refused(self.model, f"layers ({name}) share their keys")
        if value.shape[2] > key.shape[2]:
            raise refused(self.model, f"its attention ({name}) has values wider than its keys")
        causal = arguments.get("is_causal")
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise refused(self.model, f"its attention ({name}) is not causal")
        others = {argument: value for argument, value in arguments.items() if argument not in HONOURED}
        self.check_others(f"its attention ({name})", others)
        scale = arguments.get("scaling")
        layer = Layer(
            index=len(self._kept) if shared is None else shared.index,
            heads=query.shape[1],
            kv_heads=key.shape[1],
            head_dim=key.shape[2],
            value_dim=value.shape[2],
            scale=key.shape[2] ** -0.5 if scale is None else float(scale),
            window=window,
            softcap=float(arguments.get("softcap") or 0.0),
            chunked=chunked,
        )
        self.found.append((module, layer))
        if shared is None:  # keys and values stay alive, so that their memory is not used again
            self._kept[key.data_ptr(), value.data_ptr()] = key, value, layer
        elif (shared.window, shared.chunked) != (window, chunked):
            raise refused(self.model, f"layers ({name}) share their keys, and differ in what they attend to")
        return layer

    def keys_alone(self, module: Any, width: int) -> None:
        """A layer of the cache for what `module` keeps of each position besides keys and values."""
        layer = Layer(len(self._kept), 1, 1, width, width, 1.0)
        self.found.append((module, layer))
        self._kept[-1, layer.index] = None, None, layer

    def check_others(self, what: str, arguments: dict[str, Any]) -> None:
        """UnsupportedError for an argument that would change the result."""
        for argument, value in arguments.items():
            if argument not in HARMLESS and value is not None and value is not False:
                raise refused(self.model, f"{what} needs '{argument}', which is not supported")


def check_in_parts(
    model: Any,
    run: Callable[..., list[Any]],
    lengths: tuple[int, int],
    expected: tuple[Any, Any],
    concat: Callable[[list[Any]], Any],
    besides: str = "",
) -> None:
    """UnsupportedError unless two texts in two steps, beside each other, give the `expected` hidden states.

    `run(*(text, start, length))`: hidden states of tokens of the texts 0 and 1, in one pass. `besides`: what the model
    may keep besides keys and values.
    """
    first, second = lengths
    one, two = run((0, 0, CHUNK), (1, 0, 2))
    three, four = run((0, CHUNK, first - CHUNK), (1, 2, second - 2))
    for whole, got in zip(expected, ([one, three], [two, four]), strict=True):
        compare(
            model, whole, concat(got),
            "its hidden states are others when a text comes in two steps, and beside another text: it keeps more than "
            f"keys and values{besides}, or mixes the rows of a step",
        )  # fmt: skip


def compare(model: Any, expected: Any, got: Any, reason: str) -> None:
    """UnsupportedError with `reason` unless both are equal up to rounding."""
    error = float((got - expected).float().norm() / expected.float().norm())
    if not error <= (1e-3 if expected.element_size() == 4 else 0.1):
        raise refused(model, f"{reason} (relative difference {error:.1e})")


def blocks_of(
    model: Any, names: Mapping[Any, str], kind: type, attentions: Sequence[Any], mixers: Sequence[Any] = ()
) -> Any | None:
    """The list of decoder layers, each with attention layers; beside recurrent layers some have none.

    None if no list has all of them. `names`: of the model's modules; `kind`: the framework's class of lists of modules.
    """
    modules = {name: module for module, name in names.items()}
    found: dict[str, list[int]] = {}
    layers = {*attentions, *mixers}
    for layer in layers:
        path = names[layer].split(".")
        above = {".".join(path[:i]): path[i] for i in range(len(path))}
        lists = {name: number for name, number in above.items() if isinstance(modules.get(name), kind)}
        if not lists:
            raise refused(model, f"its attention {names[layer]} is in no list of layers")
        for name, number in lists.items():
            found.setdefault(name, []).append(int(number))
    whole = [name for name, numbers in found.items() if len(numbers) == len(layers)]
    if not whole:
        return None
    blocks = modules[min(whole, key=len)]
    missing = sorted({*range(len(blocks))} - {*found[min(whole, key=len)]})
    if missing and not mixers:
        where = ", ".join(map(str, missing))
        raise refused(model, f"attention was not called in layers {where} of {len(blocks)}")
    return blocks
