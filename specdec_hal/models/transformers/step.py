"""Step-3.5, whose decoder `transformers` has only inside Step-3.7, which sees too."""

from __future__ import annotations

from typing import Any

import torch
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7PreTrainedModel, Step3p7TextModel


class Step3p5ForCausalLM(Step3p7PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The library's decoder and a head; :mod:`specdec_hal.models.mtp` names the MTP modules."""

    config_class = Step3p7TextConfig
    _keys_to_ignore_on_load_unexpected = [r"^vision_model\.", r"^vit_large_projector\."]  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Step3p7TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, *args: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        """Logits of every row; arguments are the decoder's."""
        return CausalLMOutputWithPast(logits=self.lm_head(self.model(*args, **kwargs)[0]))


# The library's conversions of names, without those of parts of the whole.
known = [one for one in get_checkpoint_conversion_mapping("step3p7") if not one.source_patterns[0].startswith("^")]
register_checkpoint_conversion_mapping(Step3p5ForCausalLM.__name__, known, overwrite=True)
