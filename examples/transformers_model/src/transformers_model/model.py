"""A causal language model of transformers as a target model: one DynamicCache a slot, cut back to what was accepted."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from specdec_hal.errors import UnsupportedError
from specdec_hal.models.batch import Limits, check_hidden_layers
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, ModelCapabilities, ModelConfig


class TransformersModel:
    """See :class:`specdec_hal.plugin.model.TargetModel`. `device`: where it computes ("cpu", "cuda:0").

    Slots run one after the other. The bits of a token's logits depend on how many tokens its slot feeds, as they do in
    transformers; `capabilities` promises nothing else.
    """

    framework = "torch"

    def __init__(self, path: str | Path, *, device: str = "cpu") -> None:
        self._device = torch.device(device)
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
        self._model = loaded.to(self._device).eval()
        if getattr(self._model, "_is_stateful", False):
            raise UnsupportedError(f"{type(loaded).__name__} keeps a state that cannot forget rejected drafts")
        # Since transformers 5.24 the argument is named "cache".
        parameters = signature(self._model.base_model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        text = loaded.config.get_text_config()
        ends = text.eos_token_id
        self.config = ModelConfig(
            vocab_size=text.vocab_size,
            hidden_size=text.hidden_size,
            max_position_embeddings=text.max_position_embeddings,
            eos_token_ids=() if ends is None else tuple(ends) if isinstance(ends, list) else (ends,),
            bos_token_id=text.bos_token_id,
        )
        # transformers gives the last layer's state behind the final norm only.
        self.capabilities = ModelCapabilities(hidden_layers=(FINAL_NORM, *range(text.num_hidden_layers - 1)))
        self._limits = Limits("transformers", text.vocab_size, 0, 0)
        self._caches: list[DynamicCache] = []
        self._check_head()

    def allocate(self, max_num_seqs: int, max_model_len: int) -> None:
        """Empty caches; they grow with their contexts."""
        self._limits = Limits("transformers", self.config.vocab_size, max_num_seqs, max_model_len)
        self._caches = [DynamicCache() for _ in range(max_num_seqs)]

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> dict[int, torch.Tensor]:
        """Each slot's tokens behind the positions that its cache keeps."""
        ids = torch.from_numpy(self._limits.check(batch)).to(self._device)
        layers = check_hidden_layers(batch, self.capabilities, "transformers")
        parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}
        for segment in batch.segments:
            cache = self._caches[segment.slot] if segment.position else DynamicCache()
            if rejected := cache.get_seq_length() - segment.position:
                cache.crop(-rejected)
            tokens = ids[segment.start : segment.start + segment.length]
            output = self._model.base_model(
                input_ids=tokens[None],
                use_cache=True,
                output_hidden_states=len(layers) > 1,
                **{self._cache_name: cache},
            )
            self._caches[segment.slot] = cache
            for layer, part in parts.items():
                # hidden_states begins with the embeddings.
                states = output.last_hidden_state if layer == FINAL_NORM else output.hidden_states[layer + 1]
                part.append(states[0])
        empty = torch.zeros((0, self.config.hidden_size), device=self._device)
        return {layer: torch.cat(part) if part else empty for layer, part in parts.items()}

    @torch.inference_mode()
    def compute_logits(self, hidden: Any) -> torch.Tensor:
        """Through the output embeddings."""
        tensor = hidden if isinstance(hidden, torch.Tensor) else torch.from_dlpack(hidden)
        logits: torch.Tensor = self._model.get_output_embeddings()(tensor.to(self._device, torch.float32))
        return logits

    @torch.inference_mode()
    def _check_head(self) -> None:
        """Some models do more to their logits than a product (soft caps, scales); these are refused, not guessed."""
        ids = torch.arange(2, device=self._device)[None]
        expected = self._model(input_ids=ids, use_cache=False).logits[0]
        hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        if expected.shape != (2, self.config.vocab_size) or not torch.allclose(self.compute_logits(hidden), expected):
            raise UnsupportedError(
                f"{type(self._model).__name__} computes its logits in another way than from the last hidden state by "
                "its output embeddings; write a loader for it"
            )
