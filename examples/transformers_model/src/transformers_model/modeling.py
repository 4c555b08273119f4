"""The model, as one writes it for `transformers`: attention and MLP of a layer side by side, and learned sinks.

Two things make it run over specdec_hal's KV cache: attention goes through `ALL_ATTENTION_FUNCTIONS`, and positions come
from `position_ids`. There is no cache here: the engine has one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward


class SideBySideConfig(PreTrainedConfig):
    """`num_attention_heads` share one head of keys and values."""

    model_type = "side_by_side"
    vocab_size: int = 4096
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    max_position_embeddings: int = 512


class Attention(nn.Module):
    """Rotary embeddings over whole heads; sinks take a part of the softmax."""

    is_causal = True

    def __init__(self, config: SideBySideConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, config.hidden_size + 2 * self.head_dim, bias=False)
        self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads))

    def forward(self, x: Any, turns: Any, mask: Any, **kwargs: Any) -> Any:
        """Before the output projection, which the layer has."""
        widths = (self.config.hidden_size, self.head_dim, self.head_dim)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in self.qkv(x).split(widths, -1))
        name = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
        scaling = self.head_dim**-0.5
        out, _ = attend(
            self, _turned(q, turns), _turned(k, turns), v, mask, scaling=scaling, s_aux=self.sinks, **kwargs
        )
        return out.reshape(*x.shape[:-1], -1)


def _turned(x: Any, turns: Any) -> Any:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(x.dtype)


class Layer(nn.Module):
    """x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, config: SideBySideConfig, layer_idx: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(config, layer_idx)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, turns: Any, mask: Any, **kwargs: Any) -> Any:
        """`turns`: complex rotations of each position."""
        normed = self.norm(x)
        middle = torch.relu(self.up(normed)) ** 2
        return x + self.down(torch.cat([self.attention(normed, turns, mask, **kwargs), middle], -1))


class _Model(PreTrainedModel):
    config_class = SideBySideConfig
    base_model_prefix = "model"
    _supports_attention_backend = True


class SideBySideModel(_Model):
    """Up to the final norm."""

    def __init__(self, config: SideBySideConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-6)
        self.post_init()

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kwargs: Any
    ) -> BaseModelOutput:
        """Hidden states [B, T, D]."""
        x = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        mask = create_causal_mask(self.config, x, attention_mask, None, position_ids)
        half = self.config.hidden_size // self.config.num_attention_heads // 2
        angles = position_ids[..., None].float() * 10_000.0 ** (-torch.arange(half, device=x.device) / half)
        turns = torch.polar(torch.ones_like(angles), angles)
        for layer in self.layers:
            x = layer(x, turns, mask)
        return BaseModelOutput(last_hidden_state=self.norm(x))


class SideBySideForCausalLM(_Model, GenerationMixin):
    """With the output embeddings."""

    def __init__(self, config: SideBySideConfig) -> None:
        super().__init__(config)
        self.model = SideBySideModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: Any = None, **kwargs: Any) -> CausalLMOutput:
        """Logits [B, T, V]."""
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids, **kwargs).last_hidden_state))


AutoConfig.register(SideBySideConfig.model_type, SideBySideConfig)
AutoModelForCausalLM.register(SideBySideConfig, SideBySideForCausalLM)
