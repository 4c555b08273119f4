"""Launches of the kernels on PyTorch tensors: grids, tiles and scratch memory.

Tensors are contiguous and on one device; x [rows, *] and weights [out, in] are of one dtype. `count`, int32 [1] on the
device: number of valid rows; others are untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, inf, log2
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from specdec_hal.models.arena import Arena
from specdec_hal.models.fp8 import DTYPE, GROUP, LARGEST, Fp8Weight
from specdec_hal.models.rope import Norms, Rotation
from specdec_hal.models.triton_kernels.attention import chunk_count, paged_attention
from specdec_hal.models.triton_kernels.experts import combine, expert_linear
from specdec_hal.models.triton_kernels.gate_up import gate_up
from specdec_hal.models.triton_kernels.gates import delta_inputs, mamba2_gates
from specdec_hal.models.triton_kernels.linear import linear
from specdec_hal.models.triton_kernels.norm import gated_norm, rms_norm, row_sum, sum_norm
from specdec_hal.models.triton_kernels.quantise import quantise_rows
from specdec_hal.models.triton_kernels.ranks import PROGRAMS, barrier, gather_columns
from specdec_hal.models.triton_kernels.rows import places, rotate, store
from specdec_hal.models.triton_kernels.second import FAN, MAXIMA, candidates, maxima, norm_convolve
from specdec_hal.models.triton_kernels.tiles import (
    FEW_TOKENS,
    PDL_ROWS,
    Tiles,
    chunks_each,
    expert_tile,
    fp8_tiles,
    part_length,
    power_of_2,
    split_parts,
    tiles_of,
)
from specdec_hal.plugin.model import DeviceBatch

CANDIDATE_WARPS = 4
_ONE_TILE = 16
"""Rows that every tile of a product holds."""


@dataclass(frozen=True)
class Heads:
    """Numbers of query heads and of KV heads, and the even width of a head."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class RankParts:
    """Results of ranks: `parts` [ranks, rows, width], or their addresses and synchronisation `cells`."""

    parts: Any
    cells: Any | None
    rank: int
    ranks: int

    @property
    def shared(self) -> bool:
        """Whether kernels read other ranks' memory."""
        return self.cells is not None

    @property
    def constants(self) -> dict[str, int]:
        """Of the kernels that read it."""
        return {"RANK": self.rank, "RANKS": self.ranks, "MOST": PROGRAMS}


class Launcher:
    """Launches for tensors of one dtype; they share scratch memory and must use one stream.

    `tiles` may be replaced by others with the same `keys`, `chunk` and `precision` at any time: bits stay. For steps of
    up to `pdl_rows` rows, the programs of a kernel start while the kernel before ends (programmatic dependent launch,
    compute capability 9.0 and newer); None: up to as many as were measured to gain.
    """

    def __init__(self, device: Any, dtype: Any, pdl_rows: int | None = None) -> None:
        self.arena, self.dtype = Arena(device), dtype
        self.pending: Rotation | None = None
        self.step: tuple[int, Any] | None = None
        """Of a running step: its rows, and int32 [1] on the device, how many of them are used."""
        self.quantised: tuple[Any, Any] | None = None
        """The last norm's result, and that in FP8, until rows are quantised again."""
        self._by_two: bool | None = None
        self._all = torch.full((1,), torch.iinfo(torch.int32).max, dtype=torch.int32, device=device)
        hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
        self._can_describe = hopper or device.type != "cuda"
        self.tiles = tiles_of(str(dtype).removeprefix("torch."))
        self._meeting = PROGRAMS if device.type == "cuda" else 2  # programs, which the interpreter runs one by one
        self._overlaps = hopper
        self._pdl_rows = (PDL_ROWS if pdl_rows is None else pdl_rows) if hopper else 0

    def used(self, rows: int) -> Any:
        """The count of so many rows: those that the step uses, or all if it has another number of rows."""
        return self.step[1] if self.step is not None and self.step[0] == rows else self._all

    def used_of_tiles(self, rows: int) -> Any | None:
        """The same for a product, where a single tile of rows takes as long without a count."""
        return self.used(rows) if rows > _ONE_TILE else None

    # ---- rows by themselves

    def rms_norm(self, x: Any, weight: Any, out: Any, count: Any | None, epsilon: float) -> None:
        """`out` [rows, D] = RMSNorm of `x` times `weight`; all rows without `count`.

        `x`: [rows, D], or [T, heads, D] whose first dimension has any stride. Once products with weights in FP8 were
        launched, rows are quantised for the next one too.
        """
        rows, line, group = len(out), x.stride(0), 1 if x.ndim == 2 else x.shape[1]
        in_fp8 = (None, None, None)
        if self._by_two is not None and x.ndim == 2 and count is None:
            in_fp8 = self._take_fp8(out, self._by_two)
            self.quantised = out, in_fp8
        rms_norm[(rows,)](
            x, weight, out, *in_fp8, count, rows, epsilon, line, GROUP=group, LARGEST=LARGEST, **self._of_rows(out)
        )

    def gated_norm(
        self, x: Any, gate: Any, weight: Any, out: Any, epsilon: float, *, gate_first: bool, sigmoid: bool
    ) -> None:
        """`out` [rows, D] = RMSNorm(x) * `weight` * act(gate), or with `gate_first` RMSNorm(x * act(gate)) * `weight`.

        `x`, `gate`: [T, n, D] whose first dimension has any stride; `weight` [D], or [n * D] of each of the n rows.
        """
        gated_norm[(len(out),)](
            x, gate, weight, out, epsilon, x.stride(0), gate.stride(0), GROUP=x.shape[1], WEIGHTS=len(weight),
            GATE_FIRST=gate_first, SIGMOID=sigmoid, **self._of_rows(out),
        )  # fmt: skip

    def delta_inputs(self, mixed: Any, a: Any, b: Any, rate: Any, dt_bias: Any, out: tuple[Any, ...]) -> None:
        """`out` = queries and keys [T, key_heads, d_k], values [T, heads, d_v], decay and beta [T, heads] of a gated
        delta rule. `mixed` [T, channels]; `a`, `b` [T, heads] with one stride; see :func:`.gates.delta_inputs`.
        """
        q, _, v, decay, _ = out
        tokens, heads = decay.shape
        d_k, d_v = q.shape[2], v.shape[2]
        each = heads // q.shape[1]
        delta_inputs[(tokens, heads)](
            mixed, a, b, rate, dt_bias, *out, a.stride(0), HEADS=heads, EACH=each, D_K=d_k, D_V=d_v,
            BLOCK_K=power_of_2(d_k), BLOCK_V=power_of_2(d_v), num_warps=1, **self._options(tokens),
        )  # fmt: skip

    def mamba2_gates(self, dt: Any, a: Any, dt_bias: Any, limits: Any, decay: Any, out: Any) -> None:
        """`decay` and `out` [T, heads] of `dt` [T, heads], whose first dimension has any stride: see
        :func:`.gates.mamba2_gates`. `limits`: the least and largest, or None."""
        tokens, heads = out.shape
        least, most = (0.0, inf) if limits is None else limits
        mamba2_gates[(tokens,)](
            dt, a, dt_bias, decay, out, dt.stride(0), float(least), float(most), HEADS=heads, BLOCK=power_of_2(heads),
            num_warps=1, **self._options(tokens),
        )  # fmt: skip

    def norm_convolve(
        self, x: Any, norm: Any, projection: Any, base: Any, owners: Any, starts: Any, out: Any, epsilon: float
    ) -> Any:
        """`out` [rows, D] = the convolution before a sublayer of RMSNorm(x) times `norm`; returns kernels after it.

        `projection` [2 T groups, D]: of the rows' kernels, times `norm`; see :func:`.second.norm_convolve`. The result
        is valid until the next call.
        """
        (rows, width), taps = x.shape, base.shape[1]
        groups = len(projection) // (2 * taps)
        kernels = self.arena.take("kernels", (rows, taps, width), torch.float32)
        tile = self.tiles.around
        norm_convolve[(max(1, -(-(rows - taps + 1) // (tile.m - taps + 1))), -(-groups // tile.n))](
            x, norm, projection, base, owners, starts, out, kernels, rows, epsilon, TAPS=taps, GROUP=width // groups,
            D=width, BLOCK_M=tile.m, BLOCK_T=power_of_2(max(2 * taps, 4)), BLOCK_G=tile.n,
            BLOCK_C=power_of_2(width // groups), BLOCK_K=tile.k, STAGES=tile.stages,
            PRECISION=self.tiles.precision, num_warps=tile.warps, **self._options(rows),
        )  # fmt: skip
        return kernels

    def candidates(self, logits: Any, hidden: Any, ids: Any, starts: Any, owners: Any, path: Any) -> None:
        """Write what `path`, a DraftPath, keeps of float32 `logits` [slots, K, V] to its rows `owners` [slots].

        `hidden` [slots K, rank]; int64 `ids` [tokens] of blocks that begin at int32 `starts`: see
        :func:`.second.candidates`.
        """
        (slots, drafts, columns), (_, line, count) = logits.shape, path.path_ids.shape
        rows, kept, parts, rank = slots * drafts, power_of_2(count), -(-columns // FAN**4), hidden.shape[1]
        eights = self.arena.take("maxima", (rows, parts, MAXIMA), torch.int32)
        maxima[(rows, parts)](logits, eights, columns, PARTS=parts, num_warps=4, **self._options(rows))
        candidates[(rows,)](
            logits, eights, hidden, ids, starts, owners, path.path_logits, path.path_ids, path.path_hidden,
            path.anchor_tokens, columns, len(ids), line, count, DRAFTS=drafts, KEPT=kept, PARTS=parts,
            BLOCK_P=max(kept, power_of_2(parts)), RANK=rank, BLOCK_R=power_of_2(rank), num_warps=CANDIDATE_WARPS,
            **self._options(rows),
        )  # fmt: skip

    def row_sum(self, x: Any, out: Any) -> None:
        """`out` [rows] = sums of the rows of `x`, in float32."""
        row_sum[(len(x),)](x, out, len(x), **self._of_rows(x))

    def sum_norm(
        self, parts: RankParts, residual: Any | None, total: Any, count: Any | None, *,
        weight: Any | None = None, out: Any | None = None, epsilon: float = 0.0,
    ) -> None:  # fmt: skip
        """`total` = the ranks' parts in their order + `residual`, which may be `total`, rounded once.

        With `weight`, `out` is its RMSNorm. All rows without `count`.
        """
        rows = len(total)
        sum_norm[(min(rows, self._meeting) if parts.shared else rows,)](
            parts.parts, parts.cells, residual, total, weight, out, count, rows, epsilon,
            SHARED=parts.shared, **parts.constants, **self._of_rows(total),
        )  # fmt: skip

    def barrier(self, cells: Any, rank: int, ranks: int) -> None:
        """Wait on the device until all ranks have ended what they launched before."""
        barrier[(1,)](cells, **RankParts(None, cells, rank, ranks).constants, **self._options(1), num_warps=1)

    def gather_columns(self, parts: RankParts, width: int, out: Any, count: Any | None) -> None:
        """`out` [rows, V]: the ranks' shared parts, `width` columns each, side by side; all rows without `count`."""
        rows, columns = out.shape
        counted = count is not None
        gather_columns[(self._meeting,)](
            parts.parts, parts.cells, out, count if counted else out, rows, width, columns, out.stride(0),
            COUNTED=counted, BLOCK=4096, num_warps=8, **parts.constants, **self._options(rows),
        )  # fmt: skip

    def _of_rows(self, x: Any) -> dict[str, Any]:
        rows, width = x.shape
        block = power_of_2(width)
        return {"D": width, "BLOCK_D": block, "num_warps": min(max(block // 256, 1), 16), **self._options(rows)}

    def _options(self, rows: int) -> dict[str, Any]:
        pdl = rows <= self._pdl_rows
        return {"PDL": pdl, "launch_pdl": pdl, "enable_fp_fusion": False}

    # ---- products

    def linear(
        self, x: Any, weight: Any, out: Any, count: Any | None, *, bias: Any | None = None,
        residual: Any | None = None, kernels: Any | None = None,
    ) -> None:  # fmt: skip
        """`out` = x weight^T + `bias` + `residual`, rounded once to its dtype; all rows without `count`.

        `weight`: a tensor or an Fp8Weight. `residual` [rows, N] may be `out`. `kernels` [rows, T, N]: of
        `norm_convolve`, for the product.
        """
        taps = 0 if kernels is None else kernels.shape[1]
        operands, scratch, options, grid = self._product(x, weight, count, max(0, taps - 1))
        counted = count is not None
        linear[grid](
            *operands, bias, residual, out, count if counted else out, *scratch, kernels, len(x), N=len(weight),
            COUNTED=counted, TAPS=taps, **options,
        )  # fmt: skip

    def gate_up(self, x: Any, weight: Any, out: Any, count: Any | None, *, gelu: bool = False) -> None:
        """`out` [rows, F] = silu(x gate^T) * (x up^T) for `weight` [2F, in]: rows of gate and up in turns.

        `weight`: a tensor or an Fp8Weight. `gelu`: the tanh approximation of GELU instead of SiLU. All rows without
        `count`.
        """
        operands, scratch, options, grid = self._product(x, weight, count)
        counted = count is not None
        gate_up[grid](
            *operands, out, count if counted else out, *scratch, len(x), N=len(weight) // 2, GELU=gelu,
            COUNTED=counted, **options,
        )  # fmt: skip

    def experts(self, x: Any, weight: Any, bias: Any | None, out: Any, order: Any, starts: Any) -> None:
        """`out` [pairs, N] of `x` [T, K] by the experts of each row: see :func:`.experts.expert_linear`.

        `weight`: a tensor or an Fp8Weight [experts, N, K].
        """
        (pairs, columns), (experts, _, depth) = out.shape, weight.shape
        share = pairs // len(x)
        x, low, weight, scales, x_scales, group, _ = self._operands(x, weight, None)
        tile = expert_tile(pairs, experts, self.tiles.precision, scales is not None)
        expert_linear[(min(pairs, pairs // tile.m + experts), -(-columns // tile.n))](
            x, low, weight, scales, x_scales, bias, out, order, starts, pairs, *weight.stride(), EXPERTS=experts,
            SHARE=share, N=columns, K=depth, GROUP=group, STAGES=tile.stages if group else None,
            BLOCK_E=power_of_2(experts), BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k,
            PRECISION=self.tiles.precision, num_warps=tile.warps, num_stages=tile.stages, **self._options(pairs),
        )  # fmt: skip

    def combine(self, x: Any, weight: Any, out: Any, chosen: Any, experts: int) -> None:
        """`out` [T, D] = the weighted sum of each row's experts: see :func:`.experts.combine`."""
        rows, width = out.shape
        combine[(rows, -(-width // 1024))](
            x, weight, out, chosen, EXPERTS=experts, SHARE=weight.shape[1], D=width, BLOCK=1024, **self._options(rows)
        )

    def quantise(self, x: Any, count: Any | None, *, by_two: bool) -> tuple[Any, Any | None, Any]:
        """`x` [rows, D] in FP8, and `by_two` the rest of that, and float32 scales [rows], until the next call: see
        :mod:`.quantise`. All rows without `count`.
        """
        out, low, scales = self._take_fp8(x, by_two)
        quantise_rows[(len(x),)](x, out, low, scales, count, len(x), LARGEST=LARGEST, **self._of_rows(x))
        return out, low, scales

    def _known(self, x: Any) -> Any | None:
        """`x` in FP8 if it is the last norm's result."""
        norm, in_fp8 = self.quantised or (None, None)
        return in_fp8 if norm is not None and norm.data_ptr() == x.data_ptr() and norm.shape == x.shape else None

    def _take_fp8(self, x: Any, by_two: bool) -> tuple[Any, Any | None, Any]:
        """Memory for :meth:`quantise`."""
        self.quantised = None
        out = self.arena.take("rows in FP8", x.shape, DTYPE)
        low = self.arena.take("low parts of rows", x.shape, DTYPE) if by_two else None
        return out, low, self.arena.take("scales of rows", (len(x),), torch.float32)

    def _operands(self, x: Any, weight: Any, count: Any | None) -> tuple[Any, Any, Any, Any, Any, int, Tiles]:
        """Rows, their low parts, the weight, scales of both, a group's size, and tiles: see :mod:`.product`."""
        if not isinstance(weight, Fp8Weight):
            return x, None, weight, None, None, 0, self.tiles
        low, x_scales, by_two = None, None, not weight.by_row and self.dtype == torch.bfloat16
        if in_fp8 := weight.by_row or by_two:
            self._by_two = by_two
            x, low, x_scales = self._known(x) or self.quantise(x, count, by_two=by_two)
        tiles = fp8_tiles(self.tiles, in_fp8=in_fp8, by_two=by_two, by_group=weight.by_group)
        return x, low, weight.values, weight.scales, x_scales, GROUP if weight.by_group else 0, tiles

    def _product(
        self, x: Any, weight: Any, count: Any | None, overlap: int = 0
    ) -> tuple[tuple[Any, ...], tuple[Any, Any], dict[str, Any], tuple[int, int, int]]:
        """Operands, scratch memory, constants and grid of a kernel that tiles x weight^T; `overlap`: of row tiles."""
        x, low, weight, scales, x_scales, group, tiles = self._operands(x, weight, count)
        (rows, depth), columns = x.shape, len(weight)
        tile = tiles.product(rows, columns, depth)
        part = part_length(columns, depth)
        parts = -(-depth // part)
        row_tiles = max(1, -(-(rows - overlap) // (tile.m - overlap)))
        column_tiles = -(-columns // tile.n)
        split = parts > 1 and split_parts(row_tiles * column_tiles)
        joined = row_tiles * column_tiles if split else 1
        partials = self.arena.take("partials", (joined, parts if split else 1, tile.m, tile.n), torch.float32)
        counters = self.arena.take("product counters", (joined,), torch.int32)
        # Descriptors take rows of whole 16 bytes that start at such a multiple.
        described = (
            tile.described
            and self._can_describe
            and part % tile.k == 0
            and depth * weight.itemsize % 16 == 0
            and (x.data_ptr() | weight.data_ptr()) % 16 == 0
        )
        if described:
            x, low, weight = (
                None if tensor is None else TensorDescriptor.from_tensor(tensor, [lines, tile.k])
                for tensor, lines in ((x, tile.m), (low, tile.m), (weight, tile.n))
            )
        options = {
            "K": depth,
            "PART": part,
            "SPLIT": split,
            "GROUP": group,
            "STAGES": tile.stages if group else None,
            "DESCRIBED": described,
            "BLOCK_M": tile.m,
            "BLOCK_N": tile.n,
            "BLOCK_K": tile.k,
            "PRECISION": tiles.precision,
            "SWAP": tile.swap,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            **self._options(rows),
        }
        grid = row_tiles, column_tiles, parts if split else 1
        return (x, low, weight, scales, x_scales), (partials, counters), options, grid

    # ---- rows and the cache

    def places(
        self,
        batch: DeviceBatch,
        ids: Any,
        positions: Any,
        lines: Any,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
    ) -> None:
        """What each row is: see :func:`.rows.places`."""
        rows = len(ids)
        places[(-(-rows // 128),)](
            batch.token_ids, batch.batch_id_per_token, batch.cu_seqlens_q, batch.seq_lens_decoder, batch.block_tables,
            ids, positions, lines, rows, len(batch.cu_seqlens_q) - 1, batch.block_tables.shape[1], num_blocks,
            batch.max_seq_len, vocab_size, BLOCK_SIZE=block_size, BLOCK=128, **self._options(rows),
        )  # fmt: skip

    def rotate(
        self, q: Any, k: Any, cos: Any, sin: Any, q_out: Any, k_out: Any, *, norms: Norms | None = None,
        value: Any | None = None, lines: Any | None = None, positions: Any | None = None,
        dims: int = 0,
    ) -> None:  # fmt: skip
        """`q_out` and `k_out` = rotated `q` and `k` [T, heads, width], whose last stride is 1: :func:`.rows.rotate`.

        With `lines` `k_out` is the cache, which takes `value` too. `norms`: of the heads before. `positions`: of the
        rows, if `cos` and `sin` are by position. `dims`: of a head, which are rotated; 0: all.
        """
        rows, heads, width = q.shape
        q_weight, k_weight, epsilon = norms or (None, None, 0.0)
        v = k if value is None else value
        half = (dims or width) // 2
        rotate[(rows, 2 if lines is None else 3)](
            q, k, v, cos, sin, positions, len(cos), q_weight, k_weight, q_out, k_out, lines, *q.stride()[:2],
            *k.stride()[:2], *v.stride()[:2], cos.stride(0), epsilon, HEADS=heads, KV_HEADS=k.shape[1], DIM=width,
            HALF=half, SECOND=cos.shape[1] - half, VALUE_DIM=v.shape[2],
            BLOCK_SIZE=1 if lines is None else k_out.shape[2], BLOCK_H=power_of_2(max(heads, k.shape[1])),
            BLOCK_D=power_of_2(half), BLOCK_REST=power_of_2(max(width - 2 * half, 1)), BLOCK_V=power_of_2(width),
            **self._options(rows),
        )  # fmt: skip

    def store(self, key: Any, value: Any, pool: Any, lines: Any) -> None:
        """`key` and `value` [T, kv_heads, width] to the cache: see :func:`.rows.store`."""
        rows, (*_, size, heads, width) = len(key), pool.shape
        store[(rows,)](
            key, value, pool, lines, *key.stride()[:2], *value.stride()[:2], KV_HEADS=heads, HEAD_DIM=width,
            VALUE_DIM=value.shape[2], BLOCK_SIZE=size, BLOCK_H=power_of_2(heads), BLOCK_D=power_of_2(width),
            **self._options(rows),
        )  # fmt: skip

    # ---- attention

    def attention(
        self,
        q: Any,
        out: Any,
        pool: Any,
        batch: DeviceBatch,
        heads: Heads,
        *,
        scale: float | None = None,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Any | None = None,
        causal: bool = True,
        anchored: bool = False,
        chunked: bool = False,
        bias: Any | None = None,
    ) -> None:
        """`out` = attention of `q` [rows, heads * head_dim] to the slots' positions in `pool`, up to a row's own.

        `scale` None: head_dim^-1/2. `window`: positions that a token sees, its own included, 0 for all. `softcap`:
        scores become softcap * tanh(score / softcap), unless it is 0. `sinks` [heads]: a score each without a value,
        in the softmax's sum. Not `causal`: up to the last of the slot's rows, in a window to `window` - 1 after it.
        `anchored`: the window is that of the slot's first row, `window` positions before it and all rows. `chunked`: a
        token sees the positions from the last multiple of `window` on. `bias`
        float32 [heads, positions]: a score of key j at position i changes by bias[j] - bias[i].
        """
        rows, slots, group = len(q), len(batch.cu_seqlens_q) - 1, heads.heads // heads.kv_heads
        tokens, chunks = min(batch.max_query_len, rows), int(chunk_count.fn(batch.max_seq_len, self.tiles.chunk))
        mixed, block_d = tokens > FEW_TOKENS, max(16, power_of_2(heads.head_dim))
        few = min(batch.decode_len if mixed else tokens, FEW_TOKENS)
        options = {"BESIDE": mixed and self._overlaps, **self._options(rows)}
        for prompts in (True, False) if mixed else (False,):
            tile = self.tiles.attend(group, tokens if prompts else few, heads.head_dim)
            tokens_a_tile = tile.m // group
            if prompts:
                tiles = rows // tokens_a_tile + min(slots, rows // (FEW_TOKENS + 1))
            else:
                tiles = slots * -(-min(tokens, FEW_TOKENS) // tokens_a_tile)
                tiles = min(tiles, rows // tokens_a_tile + slots) if mixed else tiles
            each = chunks_each(tiles * heads.kv_heads, chunks, prompts)
            splits = max(1, -(-chunks // each)) if each else 1
            groups, name = tiles * heads.kv_heads if splits > 1 else 1, f"attention of prompts {prompts}"
            options["launch_pdl"] |= options["BESIDE"] and not prompts
            paged_attention[(heads.kv_heads, tiles, splits)](
                q,
                out,
                pool,
                batch.block_tables,
                batch.cu_seqlens_q,
                batch.seq_lens_decoder,
                # The two launches of a mixed step run at the same time.
                self.arena.take(f"{name} values", (groups * splits, tile.m, block_d), torch.float32),
                self.arena.take(f"{name} statistics", (groups * splits, 2, tile.m), torch.float32),
                self.arena.take(f"{name} counters", (groups,), torch.int32),
                rows,
                slots,
                tiles // slots,
                splits,
                batch.block_tables.shape[1],
                len(pool),
                (heads.head_dim**-0.5 if scale is None else scale) * log2(e),
                sinks,
                bias,
                0 if bias is None else bias.shape[1],
                HEADS=heads.heads,
                KV_HEADS=heads.kv_heads,
                HEAD_DIM=heads.head_dim,
                BLOCK_SIZE=pool.shape[2],
                WINDOW=window,
                SOFTCAP=softcap * log2(e),
                CHUNK=self.tiles.chunk,
                SPLIT=splits > 1,
                EACH=each,
                MIXED=mixed,
                PROMPTS=prompts,
                FEW=FEW_TOKENS,
                CAUSAL=causal,
                ANCHORED=anchored,
                CHUNKED=chunked,
                BLOCK_B=power_of_2(slots) if mixed else 1,
                BLOCK_M=tile.m,
                BLOCK_N=self.tiles.keys,
                BLOCK_D=block_d,
                PRECISION=self.tiles.precision,
                num_warps=tile.warps,
                num_stages=tile.stages,
                **options,
            )
