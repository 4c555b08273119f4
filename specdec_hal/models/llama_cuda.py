"""The Llama decoder on CUDA GPUs, in PyTorch and Triton: a step is launches, without host synchronisation.

The kernels read lengths, offsets and block tables, so the launches of a step do not depend on the batch and can be
captured in a CUDA graph. Keys and values are in a pool of blocks that slots share by block tables. A layer is seven
launches: norm, q/k/v with rotary embeddings and the writes to the pool, attention, output projection onto the residual,
norm, gate and up with SwiGLU, down projection onto the residual.

Bits. A token's hidden state and logits have the same bits whatever else is in the batch, however large the buffers are,
and whether a prompt comes at once or in chunks: :mod:`.triton_kernels` says how. So greedy and seeded decoding give the
same tokens with and without drafts, in every dtype.

The residual has the weights' dtype; sums are float32. Float32 weights are multiplied on tensor cores in three passes of
TF32, which lose two of 24 bits: logits are as close to float64 as those of float32 multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specdec_hal.models.batch import check_positive, no_cache, refused
from specdec_hal.models.checkpoint import DTYPES, LlamaConfig
from specdec_hal.models.from_host import FromHost, gpu
from specdec_hal.models.rope import rotations
from specdec_hal.models.triton_kernels.launcher import Heads, Launcher
from specdec_hal.models.weights import EMBEDDING, HEAD, Slices, load_weights
from specdec_hal.plugin.model import FINAL_NORM, DeviceBatch, ModelCapabilities


@dataclass(frozen=True)
class _Layer:
    """Weights [out, in], the rows of `qkv` and `gate_up` in the order of their kernels."""

    attention_norm: Any
    qkv: Any
    out: Any
    mlp_norm: Any
    gate_up: Any
    down: Any


@dataclass(frozen=True)
class _Pool:
    """The KV cache: per layer [num_blocks, 2, block_size, kv_heads, head_dim].

    `rotary`: cosines and sines [positions, head_dim / 2].
    """

    layers: list[Any]
    rotary: tuple[Any, Any]


class LlamaCuda(FromHost):
    """`weights` by the checkpoint's names, of one dtype and device; they are removed from the mapping.

    `pdl_rows`: in steps of up to this many rows launches overlap (programmatic dependent launch); None: the measured
    optimum, on capable GPUs. `load_mtp` loads the weights of the MTP modules on demand; None: unsupported.
    """

    config: LlamaConfig

    def __init__(
        self,
        config: LlamaConfig,
        weights: dict[str, Any],
        *,
        pdl_rows: int | None = None,
        load_mtp: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self.config, self._load_mtp = config, load_mtp
        self._embedding = weights[EMBEDDING]
        self.device, self.dtype = self._embedding.device, self._embedding.dtype
        self._head = self._embedding if config.tie_word_embeddings else weights.pop(HEAD)
        self._final_norm = weights.pop("model.norm.weight")
        self._layers = [_layer(weights, i, config.head_dim) for i in range(config.num_hidden_layers)]
        self.launcher = Launcher(self.device, self.dtype, pdl_rows)
        self._heads = Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self._pool: _Pool | None = None

    @property
    def capabilities(self) -> ModelCapabilities:
        """Every layer can be tapped; a step is launches that depend on its capacity alone."""
        return ModelCapabilities(
            hidden_layers=(FINAL_NORM, *range(self.config.num_hidden_layers)),
            mtp_modules=0 if self._load_mtp is None else self.config.num_nextn_predict_layers,
            static_shapes=True,
            device_lengths=True,
            stable_row_counts=None,
            hidden_dtype=str(self.dtype).removeprefix("torch."),
        )

    # ---- on the device: see specdec_hal.plugin.model.DeviceModel

    def bytes_per_block(self, block_size: int) -> int:
        """See DeviceModel.bytes_per_block."""
        return self.config.num_hidden_layers * self.mtp_bytes_per_block(block_size)

    @property
    def cache_bytes(self) -> int:
        """Memory of the current pool."""
        return 0 if self._pool is None else sum(layer.nbytes for layer in self._pool.layers)

    def allocate_blocks(self, num_blocks: int, block_size: int, max_model_len: int | None = None) -> None:
        """See DeviceModel.allocate_blocks. The pool is uninitialised: steps read only what steps have written."""
        config = self.config
        positions = config.max_position_embeddings if max_model_len is None else max_model_len
        check_positive(self.framework, num_blocks=num_blocks, block_size=block_size, max_model_len=positions)
        table = rotations(config, positions)
        self._slots = None
        shape = (num_blocks, 2, block_size, config.num_key_value_heads, config.head_dim)
        self._pool = None  # freed first: both may not fit
        self._pool = _Pool(
            [torch.empty(shape, dtype=self.dtype, device=self.device) for _ in self._layers],
            (self._upload(table.real, torch.float32), self._upload(table.imag, torch.float32)),
        )

    def pool_layers(self) -> list[Any]:
        """The KV pool: per layer [num_blocks, 2, block_size, kv_heads, head_dim], keys and values."""
        return self._pool_for("pool_layers").layers

    def forward_device(self, batch: DeviceBatch, out: Mapping[int, Any]) -> None:
        """See DeviceModel.forward_device. Tail rows are left alone; in decoder layers' tensors they are undefined.

        Writes the keys and values of the batch's tokens into the pool. Ids outside the vocabulary count as zeros;
        positions without a block, or beyond `max_seq_len`, are neither written nor read.

        Launches only, on the current stream; calls share scratch memory and must use one stream. Run the same shapes
        once before a capture, to compile kernels and allocate scratch memory.
        """
        pool, launch = self._pool_for("forward_device"), self.launcher
        final, first = out[FINAL_NORM], self._layers[0]
        residual, normed = self.rows("residual", len(final)), self.rows("normed", len(final))
        count, epsilon = batch.cu_seqlens_q[-1:], self.config.rms_norm_eps
        launch.embed_norm(batch.token_ids, self._embedding, residual, first.attention_norm, normed, count, epsilon)
        following = [(layer.attention_norm, normed) for layer in self._layers[1:]] + [(self._final_norm, final)]
        for i, (layer, (norm, target)) in enumerate(zip(self._layers, following, strict=True)):
            self._run(layer, pool.layers[i], residual, normed, batch, norm, target)
            if i in out:
                out[i].copy_(residual)

    def rows(self, name: str, count: int) -> Any:
        """Scratch memory [count, D] of that name."""
        return self.launcher.arena.take(name, (count, self.config.hidden_size), self.dtype)

    def _run(
        self, layer: _Layer, pool: Any, residual: Any, normed: Any, batch: DeviceBatch, norm: Any, out: Any
    ) -> None:
        """One layer after its first norm, onto the residual; `normed` is overwritten. `out`: the residual's `norm`."""
        launch, config, heads, take = self.launcher, self.config, self._heads, self.launcher.arena.take
        count, width = batch.cu_seqlens_q[-1:], config.num_attention_heads * config.head_dim
        queries, attended = (take(name, (len(residual), width), self.dtype) for name in ("queries", "attended"))
        gated = take("gated", (len(residual), config.intermediate_size), self.dtype)
        launch.qkv(normed, layer.qkv, queries, pool, self._pool_for("forward_device").rotary, batch, heads)
        launch.attention(queries, attended, pool, batch, heads)
        self._add_norm(attended, layer.out, residual, layer.mlp_norm, normed, count)
        launch.gate_up(normed, layer.gate_up, gated, count)
        self._add_norm(gated, layer.down, residual, norm, out, count)

    def _add_norm(self, x: Any, weight: Any, residual: Any, norm: Any, out: Any, count: Any) -> None:
        """`residual` += x weight^T, `out` = its norm. In a tensor-parallel model x and `weight` are a rank's part."""
        self.launcher.linear(x, weight, residual, count, residual=residual)
        self.launcher.rms_norm(residual, norm, out, count, self.config.rms_norm_eps)

    def mtp_bytes_per_block(self, block_size: int) -> int:
        """See MTPModel.mtp_bytes_per_block: those of one layer."""
        return block_size * self.config.kv_width * int(self.dtype.itemsize)

    def mtp_module(self) -> LlamaCudaMTP:
        """See MTPModel.mtp_module."""
        assert self._load_mtp is not None  # else its capabilities have none
        return LlamaCudaMTP(self, self._load_mtp())

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceModel.compute_logits_device. Rows from `num_rows` on are left alone; captures as forward_device."""
        self.launcher.linear(hidden, self._head, out, num_rows)

    def embed(self, ids: Any) -> Any:
        """See LendingModel.embed."""
        return self._embedding[ids]

    # ---- checks

    def _pool_for(self, op: str) -> _Pool:
        if self._pool is None:
            raise no_cache(self.framework, op, "allocate_blocks")
        return self._pool


class LlamaCudaMTP:
    """The first MTP module of a :class:`LlamaCuda`; see :class:`specdec_hal.plugin.model.DeviceMTPModule`.

    One more layer over ``eh_proj([enorm(embedding of p + 1), hnorm(hidden state of p)])`` (DeepSeek-V3,
    arXiv:2412.19437, equation 21), as two products onto one residual. Bits are as the model's.
    """

    def __init__(self, model: LlamaCuda, weights: dict[str, Any]) -> None:
        self._model = model
        config = model.config

        def take(name: str) -> Any:
            return weights.pop(f"model.layers.{config.num_hidden_layers}.{name}.weight")

        self._embedding_norm, self._hidden_norm, self._final_norm = map(take, ("enorm", "hnorm", "shared_head.norm"))
        self._embedding_in, self._hidden_in = (half.contiguous() for half in take("eh_proj").chunk(2, dim=1))
        self._layer = _layer(weights, config.num_hidden_layers, config.head_dim)
        self._pool = torch.empty_like(model.pool_layers()[0])

    def forward_device(self, batch: DeviceBatch, hidden: Any, out: Any) -> None:
        """See DeviceMTPModule.forward_device."""
        model, launch = self._model, self._model.launcher
        count, epsilon = batch.cu_seqlens_q[-1:], model.config.rms_norm_eps
        embedded, residual, normed = (model.rows(name, len(out)) for name in ("embedded", "residual", "normed"))
        launch.embed_norm(batch.token_ids, model._embedding, embedded, self._embedding_norm, normed, count, epsilon)
        launch.linear(normed, self._embedding_in, residual, count)
        launch.rms_norm(hidden, self._hidden_norm, normed, count, epsilon)
        launch.linear(normed, self._hidden_in, residual, count, residual=residual)
        launch.rms_norm(residual, self._layer.attention_norm, normed, count, epsilon)
        model._run(self._layer, self._pool, residual, normed, batch, self._final_norm, out)

    def compute_logits_device(self, hidden: Any, out: Any, num_rows: Any | None = None) -> None:
        """See DeviceMTPModule.compute_logits_device."""
        self._model.compute_logits_device(hidden, out, num_rows)


def load(
    path: str | Path,
    config: LlamaConfig,
    *,
    device: str = "cuda",
    dtype: str | None = None,
    make: Callable[..., LlamaCuda] = LlamaCuda,
    part: Callable[[str], Slices] | None = None,
    **options: Any,
) -> LlamaCuda:
    """The decoder of a checkpoint folder. `dtype` and `part`: see :func:`specdec_hal.models.weights.load_weights`.

    `make` is called as the class is; `options` are its own. `device`: of a GPU, or "cpu" for Triton's interpreter.
    """
    if dtype not in (None, *DTYPES):
        raise refused("torch", "load_model", "dtype", f"one of {', '.join(DTYPES)}", repr(dtype), "choose one of them")
    place = device if device == "cpu" else gpu(device)
    weights = load_weights(path, config, device=place, dtype=dtype, part=part)
    # In the decoder's dtype, by default that of the checkpoint's first weight.
    chosen = str(weights[EMBEDDING].dtype).removeprefix("torch.")
    load_mtp = partial(load_weights, path, config, device=place, dtype=chosen, mtp=True, part=part)
    return make(config, weights, load_mtp=load_mtp, **options)


def _layer(weights: dict[str, Any], index: int, head_dim: int) -> _Layer:
    """Layer `index`, taken out of a checkpoint's weights; an MTP module's layer too."""

    def take(name: str) -> Any:
        return weights.pop(f"model.layers.{index}.{name}.weight").contiguous()

    heads = torch.cat([take(f"self_attn.{name}_proj") for name in "qkv"]).unflatten(0, (-1, 2, head_dim // 2))
    return _Layer(
        attention_norm=take("input_layernorm"),
        qkv=heads.transpose(1, 2).flatten(0, 2),
        out=take("self_attn.o_proj"),
        mlp_norm=take("post_attention_layernorm"),
        gate_up=torch.stack([take("mlp.gate_proj"), take("mlp.up_proj")], 1).flatten(0, 1),
        down=take("mlp.down_proj"),
    )
