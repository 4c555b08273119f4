"""Multi-token-prediction modules beside decoders of `paddleformers`: see :mod:`..mtp`."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import paddle
from paddleformers.nn.norm import RMSNorm

from specdec_hal.models.checkpoint import CONFIG, WEIGHTS, read_json
from specdec_hal.models.mtp import VOCABULARY, ModuleFiles, OverStates, divided, one_layer
from specdec_hal.models.paddleformers.decoder import Decoder
from specdec_hal.models.paddleformers.folder import load_folder
from specdec_hal.models.weights import check_finite, widened


class ModuleDecoder(OverStates, Decoder):
    """A module as a decoder of one layer, over rows of its target: `hidden` projects them first.

    `target`: the decoder whose embedding it uses.
    """

    def __init__(self, target: Decoder, files: ModuleFiles, place: Any) -> None:
        weights, config = divided(files.read(_read), files.family), target.model.config
        self._family, self._target, self._place = files.family, target, place
        final = weights.final_norm
        if final is None:
            final = target.base.norm.weight.astype("float32").numpy()
        model = _one_layer(target, files, {**weights.layer}, final, place)
        parts = ("embedding_norm", weights.embedding_norm), ("hidden_norm", weights.hidden_norm)
        for name, weight in parts:
            norm = RMSNorm(config, len(weight), config.rms_norm_eps)
            norm.weight.set_value(weight + np.float32(files.family.offset))
            model.add_sublayer(name, norm)
        inputs, outputs = weights.projection.T.shape
        model.projection = paddle.nn.Linear(inputs, outputs, bias_attr=False)
        model.projection.weight.set_value(weights.projection.T)
        super().__init__(model.to(place, target.dtype).eval(), target.config)

    def of(self, states: Any) -> None:
        """See OverStates."""
        known = states if isinstance(states, paddle.Tensor) else paddle.to_tensor(np.asarray(states), place=self._place)
        super().of(known.to(self._place))

    def _concat(self, parts: Sequence[Any], axis: int) -> Any:
        return paddle.concat([*parts], axis)

    def _normed(self, token: Any, state: Any) -> list[Any]:
        return [self.model.embedding_norm(token), self.model.hidden_norm(state)]

    def hidden(self, ids: Any, positions: Any, layers: Collection[int] = ()) -> dict[int, Any]:
        """See Decoder; `ids` are of the target's vocabulary."""
        rows = self.model.projection(self._inputs(self._target.embed(ids), positions))
        return self._pass({"inputs_embeds": rows[None]}, positions, layers)

    def _check_head(self, ids: Any, positions: Any) -> None:
        """The target's head is used."""


def _read(file: Path, names: Sequence[str]) -> dict[str, Any]:
    from safetensors import deserialize

    found = {name: widened(info) for name, info in deserialize(file.read_bytes()) if name in names}
    check_finite(file, found)
    return found


def _one_layer(target: Decoder, files: ModuleFiles, layer: dict[str, Any], norm: Any, place: Any) -> Any:
    """A model of the target's class with only this layer."""
    from safetensors.numpy import save_file

    architecture = type(target.model)
    raw = read_json(next(iter(files.files.values())).parent, CONFIG)
    raw |= one_layer(target.model.config, files.family)
    table = np.random.default_rng(0).standard_normal((VOCABULARY, len(norm)), np.float32)
    ends = {"model.norm.weight": norm, "model.embed_tokens.weight": table, "lm_head.weight": table.copy()}
    with TemporaryDirectory() as name:
        (Path(name) / CONFIG).write_text(json.dumps(raw))
        save_file({f"model.layers.0.{key}": value for key, value in layer.items()} | ends, Path(name) / WEIGHTS)
        return load_folder(Path(name), architecture, str(target.dtype).rpartition(".")[2], place)[0]
