"""Keys of a drafter's config.json that the readers do not look up, and the values at which they change nothing.

One table for all formats. Their reference classes have the layers of Llama or Qwen3, and ignore keys that a trainer
copied from a target of another family.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from specdec_hal.models.checkpoint import Fields

OTHER = "use a drafter of another kind"
ANY = None

NEUTRAL: Mapping[str, tuple[Any, ...] | None] = {
    # Factors.
    **dict.fromkeys(
        ("attention_value_scale", "embedding_multiplier", "input_embedding_scale", "logit_scale", "logits_scaling",
         "output_multiplier", "residual_multiplier"),
        (1,),
    ),
    # ModelOpt's EAGLE-3: the head that is computed. Heads of Medusa beside it are none with one step.
    "use_aux_hidden_state": (True,),
    "use_input_layernorm_in_first_layer": (True,),
    "use_last_layernorm": (True,),
    "use_mtp_layernorm": (False,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (1,),
    "parallel_draft_heads_num_layers": ANY,
    # SpecForge's DSpark: the shapes of keys and values say it; the loss's weight.
    "attention_mode": ("gqa", "mha"),
    "confidence_head_alpha": ANY,
    # XPress: passes over a block whose drafts become those of one after the other, as they are drawn here.
    "num_jacobi_passes": ANY,
    # DFlash: the name of `mask_token_id`; its additions.
    "mask_token": ANY,
    "projector_type": ("dflash",),
    "attention_sink_bias": (False,),
    "shift_label": (False,),
    "pure_draft_prefix_len": (0,),
    "swa_window_size": ANY,
    # Rotary embeddings: the form that is computed. `rope_scaling` says more than these.
    "is_neox_style": (True,),
    **dict.fromkeys(("rope_parameters", "rope_theta"), ANY),
    # Of other families, or of training.
    "aux_loss_alpha": ANY,
    "norm_topk_prob": ANY,
    "rope_local_base_freq": ANY,
    "router_aux_loss_coef": ANY,
    "sliding_window_pattern": ANY,
    "_sliding_window_pattern": ANY,
}  # fmt: skip
"""Values of a key that leave the pass as it is; ANY: all of them."""

_ARITHMETIC = re.compile(
    r"norm|bias|scale|scaling|rope|rotary|causal|window|swa|conv|selector|markov|projector|softcap|multiplier|sink|gate"
    r"|act$|quant|partial|residual|aux|^fc|anchor|confidence|layer_types|logit"
)
"""Names of keys that change the arithmetic. Experts need no name here: every tensor is checked, and theirs would be
unknown.
"""


def refuse_unread(*sections: Fields, every: bool = False) -> None:
    """CheckpointError for a key that nothing has looked up, unless it changes nothing at its value.

    `every`: in these sections, which belong to the format, also keys whose names tell nothing.
    """
    for section in sections:
        for key in sorted(section.unread):
            value, known = section.value(key), NEUTRAL.get(key, (False, [], {}))
            if known is ANY or any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in known):
                continue
            if key in NEUTRAL or every or _ARITHMETIC.search(key):
                named = "".join(f"{json.dumps(one)} or " for one in known if key in NEUTRAL)
                raise section.error(key, f"{named}no such key, since it may change what is computed", OTHER)
