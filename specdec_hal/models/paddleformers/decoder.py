"""A loaded model of `paddleformers`: packed rows to hidden states, hidden states to logits."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import paddle

from specdec_hal.errors import SpecDecError
from specdec_hal.models.paddleformers.interface import bind, library_attention, release
from specdec_hal.models.survey import TRIED, LayerRecorder, Survey, blocks_of, compare, refused
from specdec_hal.plugin.model import FINAL_NORM, ModelConfig
from specdec_hal.text import describe

_LONGEST = 64  # tokens of a trial


class Decoder:
    """`model`: a causal language model on one device, which calls :data:`.interface.NAME`; `config`: the runner's view
    of it.

    A trial of a short text records the attention layers. UnsupportedError for a model that cannot run over our KV
    cache.
    """

    def __init__(self, model: Any, config: ModelConfig) -> None:
        self.model, self.config = model, config
        self.base = getattr(model, model.base_model_prefix)
        self._wanted: Collection[int] = ()
        self._taps: dict[int, Any] = {}
        self._hooked: set[int] = set()
        try:
            with paddle.no_grad():
                self.survey = self._survey()
        except SpecDecError:
            raise
        except Exception as error:  # from the model's own code
            raise refused(model, f"it does not run on packed rows ({describe(error)})") from error

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """See ModelCapabilities.hidden_layers."""
        return (FINAL_NORM, *range(len(self.survey.blocks)))

    @property
    def dtype(self) -> Any:
        """Of hidden states."""
        return self.model.get_input_embeddings().weight.dtype

    def serve(self, store: Any) -> None:
        """Connect the attention layers to a store."""
        for module, layer in zip(self.survey.attentions, self.survey.layers, strict=True):
            bind(module, layer, store)

    def hidden(self, ids: Any, positions: Any, layers: Collection[int] = ()) -> dict[int, Any]:
        """Hidden states [T, D] by layer, :data:`FINAL_NORM` among them, of ids and positions int64 [T]."""
        return self._pass({"input_ids": ids[None]}, positions, layers)

    def _pass(self, tokens: dict[str, Any], positions: Any, layers: Collection[int]) -> dict[int, Any]:
        self._wanted = layers
        for layer in layers:
            if layer != FINAL_NORM and layer not in self._hooked:
                self._hooked.add(layer)
                self.survey.blocks[layer].register_forward_post_hook(self._tap(layer))
        output = self.base(**tokens, position_ids=positions[None], use_cache=False)
        found = {FINAL_NORM: output[0][0], **self._taps}
        self._wanted, self._taps = (), {}
        return found

    def _tap(self, layer: int) -> Any:
        def keep(module: Any, args: Any, output: Any) -> None:
            if layer in self._wanted:
                self._taps[layer] = (output[0] if isinstance(output, tuple) else output)[0]

        return keep

    def embed(self, ids: Any) -> Any:
        """Rows of the input embedding."""
        return self.model.get_input_embeddings()(ids)

    def logits(self, hidden: Any) -> Any:
        """Float32 [R, V] from rows [R, D]."""
        return self.model.lm_head(hidden[None])[0].astype("float32")

    def _survey(self) -> Survey:
        model = self.model
        names = {module: name for name, module in model.named_sublayers()}
        recorder = _Recorder(model)
        for module in names:
            bind(module, None, recorder)
        self.hidden(trial_ids(self.config.vocab_size, 0), paddle.arange(TRIED))
        for module in names:
            release(module)
        if not recorder.found:
            raise refused(model, "none of its layers called its attention")
        attentions, layers = zip(*recorder.found, strict=True)
        blocks = blocks_of(model, names, paddle.nn.LayerList, attentions)
        if blocks is None:
            raise refused(model, "its attention layers are in several lists of layers")
        length = min(_LONGEST, max(TRIED, *(layer.window + 2 for layer in layers)))  # so that windows show
        ids, positions = trial_ids(self.config.vocab_size, 0, length), paddle.arange(length)
        with library_attention(model):
            hidden = self.hidden(ids, positions)[FINAL_NORM]
            self._check_head(ids[None], positions[None])
        return Survey(
            layers=layers, attentions=attentions, recurrences=(), mixers=(), blocks=blocks, tappable=True, ids=ids,
            hidden=hidden, hidden_size=hidden.shape[-1], vocab_size=self.config.vocab_size,
        )  # fmt: skip

    def _check_head(self, ids: Any, positions: Any) -> None:
        """UnsupportedError unless the head's logits are those of the whole model."""
        output = self.model(input_ids=ids, position_ids=positions, use_cache=False)
        logits = output[0] if isinstance(output, tuple) else output.logits
        hidden = self.base(input_ids=ids, position_ids=positions, use_cache=False)[0][0]
        reason = "its logits are computed from more than its last hidden states"
        compare(self.model, logits[0].astype("float32"), self.logits(hidden), reason)


class _Recorder(LayerRecorder):
    """Serves attention layers by zeros; what it records does not depend on values."""

    def record(self, module: Any, query: Any, key: Any, value: Any, arguments: dict[str, Any]) -> Any:
        layer = self.layer(module, query, key, value, _window(module), arguments)
        return paddle.zeros([len(query), layer.heads, layer.value_dim], query.dtype)


def _window(module: Any) -> int:
    """Number of keys that a query sees, itself included; 0: all. The library's masks say it, not the arguments."""
    config, found = module.config, getattr(module, "sliding_window", None)
    if not hasattr(module, "sliding_window"):
        kinds = getattr(config, "layer_types", None) or ()
        index = getattr(module, "layer_idx", 0)
        if index < len(kinds) and kinds[index] == "sliding_attention":
            found = config.sliding_window
    return int(found or 0)


def trial_ids(vocabulary: int, text: int, length: int = TRIED) -> Any:
    """Ids of a text of the trial, 0 or 1."""
    return paddle.arange(1 + text * length, 1 + (text + 1) * length) * 7919 % vocabulary
