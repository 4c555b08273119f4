"""Multi-token-prediction modules beside decoders of `transformers`: see :mod:`..mtp`.

The library's classes ignore these weights. A module is loaded, tried and served like its target, as a decoder of one
layer, with the same operators and promises about bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec_hal.models.drafter import drafter_kind
from specdec_hal.models.mtp import (
    VOCABULARY,
    Family,
    HostMTP,
    ModuleFiles,
    ModuleWeights,
    OverStates,
    divided,
    one_layer,
    trained_files,
)
from specdec_hal.models.paged import PagedStore
from specdec_hal.models.survey import check_finite
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.interface import NAME, loading
from specdec_hal.models.transformers.replace import is_experts
from specdec_hal.models.transformers.survey import base_of, text_batch
from specdec_hal.models.transformers.tensor_parallel import divide
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelConfig
from specdec_hal.tensors.group import Group


class ModuleDecoder(OverStates, Decoder):
    """A module as a decoder of one layer, over rows of its target: `hidden` projects them first.

    `target`: the decoder whose embedding it uses. `group`: of the ranks that share it.
    """

    def __init__(self, target: Decoder, files: ModuleFiles, group: Group | None = None) -> None:
        weights, self._family, self._target = divided(files.read(_read), files.family), files.family, target
        first = next(target.model.parameters())
        norm = target.base.norm.weight.detach().cpu() if weights.final_norm is None else weights.final_norm
        model = _one_layer(target, weights, norm.to(target.dtype), files.family)
        if group is not None:
            divide(model, group)
        epsilon = target.model.config.get_text_config().rms_norm_eps
        given = (weights.embedding_norm, weights.hidden_norm)
        first_norms = (_norm(weight.to(target.dtype) + files.family.offset, epsilon) for weight in given)
        own = *first_norms, _linear(weights.projection.to(target.dtype))
        model.mtp = torch.nn.ModuleDict(dict(zip(("embedding_norm", "hidden_norm", "projection"), own, strict=True)))
        vocabulary, positions = VOCABULARY, target.config.max_position_embeddings
        if files.family.head is not None:
            vocabulary, self.state_layer = target.config.vocab_size, len(target.survey.blocks) - 1
        size = ModelConfig(vocab_size=vocabulary, hidden_size=len(norm), max_position_embeddings=positions)
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
        """See OverStates."""
        super().of(torch.as_tensor(states).to(self.survey.hidden.device))

    def _concat(self, parts: Sequence[Any], axis: int) -> Any:
        return torch.cat([*parts], axis)

    def _normed(self, token: Any, state: Any) -> list[Any]:
        own = self.model.mtp
        return [own["embedding_norm"](token[None])[0], own["hidden_norm"](state[None])[0]]

    def hidden(self, ids: Any, positions: Any, layers: Any = ()) -> dict[int, Any]:
        """See Decoder; `ids` are of the target's vocabulary."""
        rows = self._inputs(self._target.embed(ids), positions)
        return super().hidden(self.model.mtp["projection"](rows[None])[0], positions, layers)


class WithModules:
    """Mixin of models: modules of checkpoints beside the target's."""

    _decoder: Decoder
    _module: ModuleFiles | None
    _made: Callable[[ModuleFiles], Any]

    def mtp_module(self) -> Any:
        """See MTPModel.mtp_module."""
        assert self._module is not None  # else its capabilities have none
        return self._made(self._module)

    def trained_module(self, folder: str, slots: int) -> Any:
        """See ModuleReader.trained_module."""
        if drafter_kind(folder) == "assistant":
            from specdec_hal.models.transformers.assistant import AssistantPass

            return AssistantPass(self, folder, slots)
        return self._made(trained_files(Path(folder), self._decoder.model.config.get_text_config()))


class TransformersMTP(HostMTP):
    """See HostMTP, and :class:`specdec_hal.plugin.model.DeviceMTPModule`: what `served` is."""

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DeviceMTPModule.forward_device."""
        self._decoder.of(hidden)
        self._served.forward_device(batch, {FINAL_NORM: out})

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceMTPModule.compute_logits_device."""
        self._headed.compute_logits_device(hidden, out, num_rows)


def _read(file: Path, names: Sequence[str]) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as shard:
        found = {name: shard.get_tensor(name) for name in names}
    check_finite(file, found)
    return found


def _norm(weight: Any, epsilon: float) -> Any:
    made = torch.nn.RMSNorm(len(weight), epsilon, device="meta")
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    return made


def _linear(weight: Any) -> Any:
    outputs, inputs = weight.shape
    made = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    return made


def _one_layer(target: Decoder, weights: ModuleWeights, norm: Any, family: Family) -> Any:
    """A model of the target's class with only this layer, on the CPU; its head, if it has one, is over its norm."""
    config, changes = copy.deepcopy(target.model.config), one_layer(target.model.config, family)
    if getattr(config, "is_heterogeneous", False):  # else its one layer would be as the target's first
        config = config.per_layer_config[config.layer_types.index(changes["layer_types"][0])]
    unused = torch.randn((VOCABULARY, len(norm)), generator=torch.Generator().manual_seed(0))
    table = (unused if weights.head is None else weights.head).to(norm.dtype)
    for name, value in {**changes, "vocab_size": len(table)}.items():
        setattr(config, name, value)
    ends = {"model.norm.weight": norm, "model.embed_tokens.weight": table, "lm_head.weight": table}
    state = {f"model.layers.0.{name}": weight for name, weight in weights.layer.items()}
    with loading:
        model = type(target.model).from_pretrained(
            None, config=config, state_dict={**state, **ends}, dtype=target.dtype, attn_implementation=NAME
        )
    for module in model.modules():
        if is_experts(module):
            module.config._experts_implementation = "batched_mm"
    if weights.head is not None:
        base = base_of(model)
        model.set_output_embeddings(torch.nn.Sequential(base.norm, model.get_output_embeddings()))
        base.norm = torch.nn.Identity()
    return model.eval()
