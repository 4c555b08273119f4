"""The network of tiny-py-lm: a Llama-style decoder and one multi-token-prediction (MTP) module, for training.

Parameter names are those of the checkpoint: Hugging Face Llama's, and DeepSeek-V3's for the MTP module, which sits at
``model.layers.{num_hidden_layers}``. Rotary embeddings use Hugging Face's rotate-half convention.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """config.json, key for key."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True
    num_nextn_predict_layers: int = 1
    bos_token_id: int = 0
    eos_token_id: int = 0
    torch_dtype: str = "float16"
    model_type: str = "llama"
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)

    def write(self, path: Path) -> None:
        """Write config.json."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Float32, shape of x."""
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, c.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, D] from normed x [B, T, D] and the rotary tables [T, head_dim / 2]."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        group = self.heads // self.kv_heads  # query heads [i * group, (i + 1) * group) share key head i
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, self.heads * self.head_dim))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] from normed x [..., D]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm decoder layer; dropout acts on what each half adds to the residual stream."""

    def __init__(self, c: Config, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The residual stream [B, T, D] after this layer."""
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class MTPLayer(Layer):
    """One more decoder layer over eh_proj([enorm(embedding of t + 1), hnorm(main hidden state of t)])."""

    def __init__(self, c: Config, dropout: float) -> None:
        super().__init__(c, dropout)
        self.enorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hnorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(c.hidden_size, c.rms_norm_eps)})


class TinyPyLM(nn.Module):
    """The decoder plus its MTP module. Both share the embedding, which is the head too."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = c = config
        layers = [Layer(c, dropout) for _ in range(c.num_hidden_layers)]
        layers += [MTPLayer(c, dropout) for _ in range(c.num_nextn_predict_layers)]
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(c.vocab_size, c.hidden_size),
                "layers": nn.ModuleList(layers),
                "norm": RMSNorm(c.hidden_size, c.rms_norm_eps),
            }
        )
        self.dropout = nn.Dropout(dropout)
        frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings, dtype=torch.float64), frequency)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / ((2 * c.num_hidden_layers) ** 0.5 if residual else 1.0))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Hidden states [B, T, D] after the final norm, for token ids int64 [B, T]."""
        length = tokens.shape[1]
        x = self.dropout(self.model["embed_tokens"](tokens))
        for layer in self.model["layers"][: self.config.num_hidden_layers]:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.model["norm"](x)

    def mtp_hidden(self, hidden: Tensor, next_tokens: Tensor) -> Tensor:
        """The MTP module's normed output [B, T, D]: feed it to `logits` for the token after next.

        `hidden` is what `hidden()` returns for positions t (AFTER the model's final norm, which is what a serving
        engine hands on), `next_tokens` int64 [B, T] are the tokens at t + 1. Row t predicts the token at t + 2 and
        attends to rows <= t; only differences of positions enter, so counting from t or from t + 1 is the same.
        """
        length = next_tokens.shape[1]
        mtp = self.model["layers"][-1]
        embedded = self.dropout(self.model["embed_tokens"](next_tokens))
        x = mtp.eh_proj(torch.cat((mtp.enorm(embedded), mtp.hnorm(hidden)), dim=-1))
        return mtp.shared_head["norm"](mtp(x, self.cos[:length], self.sin[:length]))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of normed hidden states."""
        return F.linear(hidden, self.model["embed_tokens"].weight)

    def losses(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropies (t + 1 by the decoder, t + 2 by the MTP module) in nats; windows int64 [B, T + 2]."""
        hidden = self.hidden(windows[:, :-2])
        main = self.logits(hidden).flatten(0, 1).float()
        ahead = self.logits(self.mtp_hidden(hidden, windows[:, 1:-1])).flatten(0, 1).float()
        return (
            F.cross_entropy(main, windows[:, 1:-1].flatten()),
            F.cross_entropy(ahead, windows[:, 2:].flatten()),
        )


def save_float16(model: TinyPyLM, path: Path) -> None:
    """Write the parameters as float16 safetensors."""
    tensors = {name: p.detach().to("cpu", torch.float16).contiguous() for name, p in model.named_parameters()}
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise SystemExit(f"not finite in float16: {', '.join(bad)}")
    save_file(tensors, path, metadata={"format": "pt"})


def load_float16(config: Config, path: Path, device: torch.device) -> TinyPyLM:
    """The checkpoint as a float32 model ready for evaluation."""
    model = TinyPyLM(config).to(device).eval()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
    return model
