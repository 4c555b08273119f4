"""Choice of tiles.

A tile's rows, columns, depth, warps and stages only affect speed. The parts of K, the chunks of a context and
attention's keys per step affect bits, so they depend only on the model and dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Programs that fill a large GPU in steps of few rows; constant, so that parts of K are the same on all GPUs.
_FILL = 256
# Above this number of programs, about one per multiprocessor, larger tiles gain more.
_ENOUGH, _ONE_EACH = 72, 128
# The shortest part of K with its own program. Parts are multiples of the depth of tiles with descriptors.
_SHORTEST_PART, _PART_STEP = 256, 128
# Columns, and length of a part of K, up to which 97 to 128 rows take the first tile of `cut` (NVIDIA H200).
_CUT_COLUMNS, _CUT_PART = 3072, 1536
# Multiprocessors of an NVIDIA H100 or H200, and bytes of shared memory that programs can have in one.
_MULTIPROCESSORS, _SHARED_MEMORY = 132, 227 * 1024
# Rows of a step up to which overlapping launches were faster (NVIDIA H100, 1.2 to 8 B parameters).
PDL_ROWS = 128
# Slots with at most this many tokens in a step get a program per chunk of their context.
FEW_TOKENS = 16


@dataclass(frozen=True)
class ProductTile:
    """Rows, columns and depth of a tile of a product; `described`: fetched through tensor descriptors, if possible;
    `swap`: computed transposed (see :func:`.product.product`)."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    described: bool = False
    swap: bool = False

    @property
    def at_once(self) -> int:
        """How many programs run at once, of 16-bit floats on an NVIDIA H100 or H200."""
        return _MULTIPROCESSORS * (_SHARED_MEMORY // (2 * (self.m + self.n) * self.k * self.stages))


@dataclass(frozen=True)
class AttentionTile:
    """Rows (tokens times heads of a KV head) of a tile of attention."""

    m: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Tiles:
    """The tiles of one dtype, by ascending size; `keys` of attention at a time, `chunk` its shortest chunk.

    `large`: for products of more than 128 rows; empty: `products`. `together`: replace tiles with the same number of
    rows if all programs run at once with these only. `cut`: replace tiles of 128 columns for 97 to 128 rows, if K has
    several parts: one for narrow weights with short parts, one for the others. `enough`: programs from which on a
    larger tile of `large` is chosen. `around`: of :func:`.second.norm_convolve`, its columns groups; affects bits.

    `precision` is what Triton calls ``input_precision``. With "tf32x3" float32 numbers are split into two of TF32 each,
    and three of the four products are added up on tensor cores, so that about 22 of 24 bits count (Ootomo and Yokota,
    arXiv:2203.03341). It first sums over the depth of a tile, in another order if swapped, so all product tiles of a
    dtype must have the same `k` and `swap`.
    """

    products: tuple[ProductTile, ...]
    attention: tuple[AttentionTile, ...]
    keys: int
    chunk: int
    precision: str = "ieee"
    large: tuple[ProductTile, ...] = ()
    together: tuple[ProductTile, ...] = ()
    cut: tuple[ProductTile, ...] = ()
    enough: int = _ENOUGH
    around: ProductTile = ProductTile(16, 4, 256, 4, 5)

    def product(self, rows: int, columns: int, depth: int) -> ProductTile:
        """The largest tile that leaves enough programs, or else the smallest."""
        tiles, length, enough = self.products, part_length(columns, depth), _ENOUGH
        parts = -(-depth // length)
        if self.large and rows > 128:  # passing sums between programs costs more than idle multiprocessors
            tiles, parts, enough = self.large, 1, self.enough

        def programs(tile: ProductTile) -> int:
            return -(-rows // tile.m) * -(-columns // tile.n) * parts

        fitting = (t for t in reversed(tiles) if t.m <= max(power_of_2(rows), tiles[0].m))
        tile = next((t for t in fitting if programs(t) >= enough), tiles[0])
        if self.cut and 96 < rows <= 128 and parts > 1 and tile.n == 128:
            return self.cut[0 if columns <= _CUT_COLUMNS and length <= _CUT_PART else 1]
        if programs(tile) <= tile.at_once:
            return tile
        return next((t for t in self.together if t.m == tile.m and programs(t) <= t.at_once), tile)

    def attend(self, group: int, tokens: int, head_dim: int) -> AttentionTile:
        """The smallest tile that holds `tokens` tokens with `group` heads each, or the largest that fits on the chip.

        Rows of wide heads take the registers of several. At least one token must fit.
        """
        most = max(self.attention[-1].m * 64 // max(64, head_dim), self.attention[0].m)
        fitting = [tile for tile in self.attention if tile.m <= most]
        tile = next((tile for tile in fitting if group * tokens <= tile.m), fitting[-1])
        return tile if group <= tile.m else AttentionTile(power_of_2(group), 8, tile.stages)


_FLOAT32 = Tiles(
    products=(ProductTile(16, 32, 64, 4, 3), ProductTile(32, 64, 64, 4, 3), ProductTile(64, 64, 64, 4, 3)),
    attention=tuple(AttentionTile(m, 4, 1) for m in (16, 32)),
    keys=64,
    chunk=64,
    precision="tf32x3",
    around=ProductTile(16, 4, 64, 4, 3),
)
_HALF = Tiles(
    products=(
        ProductTile(16, 32, 128, 4, 4),
        ProductTile(16, 64, 128, 4, 5, described=True, swap=True),
        ProductTile(32, 64, 128, 4, 6, described=True, swap=True),
        ProductTile(32, 128, 128, 4, 4, described=True, swap=True),
        ProductTile(64, 32, 128, 4, 4),
        ProductTile(64, 64, 128, 4, 5, described=True, swap=True),
        ProductTile(64, 128, 128, 4, 4, described=True),
        ProductTile(128, 128, 128, 8, 3, described=True),
    ),
    large=(ProductTile(64, 128, 64, 4, 4, described=True), ProductTile(128, 256, 64, 8, 4, described=True)),
    together=(
        ProductTile(16, 128, 128, 4, 3, described=True, swap=True),
        ProductTile(64, 128, 64, 4, 4, described=True),
    ),
    cut=(
        ProductTile(64, 64, 64, 4, 6, described=True, swap=True),
        ProductTile(128, 64, 128, 4, 4, described=True, swap=True),
    ),
    attention=tuple(AttentionTile(m, 4, 2) for m in (16, 32, 64)),
    keys=64,
    chunk=128,
)


def _swapped(*sizes: tuple[int, int, int, int, int]) -> tuple[ProductTile, ...]:
    return tuple(ProductTile(*size, described=True, swap=True) for size in sizes)


def _of_fp8(products: tuple[ProductTile, ...], large: tuple[ProductTile, ...], enough: int = _ENOUGH) -> Tiles:
    return replace(_HALF, products=products, large=large, together=(), cut=(), enough=enough)


_WIDE = ProductTile(128, 256, 128, 8, 4, described=True)
# Of products in FP8 (NVIDIA H200), with one number of FP8 for each of a row, or with two; with scales by row of the
# weight, or by group, whose depth is that of a group.
_ONE = _of_fp8(
    _swapped(
        (16, 64, 256, 4, 5), (16, 128, 128, 4, 6), (32, 64, 256, 4, 5), (32, 128, 128, 4, 6), (64, 64, 256, 4, 5),
        (64, 128, 128, 4, 5), (128, 64, 128, 4, 6), (128, 128, 128, 4, 5),
    ),
    (*_swapped((128, 128, 128, 4, 5)), _WIDE),
)  # fmt: skip
_ONE_GROUPS = _of_fp8(
    _swapped(
        (16, 64, 128, 4, 8), (16, 128, 128, 4, 6), (32, 64, 128, 4, 8), (32, 128, 128, 4, 6), (64, 64, 128, 4, 7),
        (64, 128, 128, 4, 5), (128, 64, 128, 4, 6), (128, 128, 128, 8, 4),
    ),
    _swapped((128, 128, 128, 8, 4)),
)  # fmt: skip
_TWO = _of_fp8(
    _swapped(
        (16, 64, 256, 4, 4), (16, 128, 128, 4, 5), (32, 64, 128, 4, 6), (32, 128, 128, 4, 5), (64, 64, 128, 4, 6),
        (64, 128, 128, 4, 4), (128, 64, 128, 4, 4),
    ),
    _swapped((128, 64, 128, 4, 4), (128, 128, 128, 8, 4)),
    enough=200,
)  # fmt: skip
_TWO_GROUPS = _of_fp8(
    _swapped(
        (16, 64, 128, 4, 6), (16, 128, 128, 4, 5), (32, 64, 128, 4, 6), (32, 128, 128, 4, 5), (64, 64, 128, 4, 6),
        (64, 128, 128, 4, 4), (128, 128, 128, 8, 4),
    ),
    _swapped((128, 128, 128, 8, 4)),
)  # fmt: skip
# Of weights in FP8 that are widened to float16 in the registers of tensor cores.
_WIDENED = _of_fp8(_swapped((16, 64, 128, 4, 6), (64, 64, 128, 4, 5), (128, 128, 128, 8, 4)), ())


def tiles_of(dtype: str) -> Tiles:
    """The tiles of "float32", "float16" or "bfloat16"."""
    return _FLOAT32 if dtype == "float32" else _HALF


def fp8_tiles(tiles: Tiles, *, in_fp8: bool, by_two: bool, by_group: bool) -> Tiles:
    """The tiles of products with weights in FP8, where others have `tiles`. `in_fp8`: rows are in FP8, `by_two` as two
    numbers each; `by_group`: scales are of groups."""
    if tiles.precision == "tf32x3":
        return tiles
    if not in_fp8:
        return _WIDENED
    one, two = (_ONE_GROUPS, _TWO_GROUPS) if by_group else (_ONE, _TWO)
    return two if by_two else one


def expert_tile(pairs: int, experts: int, precision: str, in_fp8: bool) -> ProductTile:
    """That of products of so many pairs of a row and an expert. Its depth affects bits, and in FP8 `swap` does."""
    m = 16 if pairs <= 16 * experts else 64
    if in_fp8:
        return ProductTile(m, 128, 128, 8, 4, swap=True)
    return ProductTile(m, 32, 64, 4, 4) if precision == "tf32x3" else ProductTile(m, 64, 128, 4, 4)


def part_length(columns: int, depth: int) -> int:
    """Length of the parts of K for a weight [columns, depth]: the same whatever it is multiplied with."""
    parts = max(1, min(_FILL // -(-columns // 32), depth // _SHORTEST_PART))
    return -(-depth // (parts * _PART_STEP)) * _PART_STEP


def split_parts(programs: int) -> bool:
    """Whether each part of K gets a program of its own, with this many programs otherwise."""
    return programs < _ONE_EACH


def chunks_each(programs: int, chunks: int, prompts: bool) -> int:
    """Chunks of a context per program of attention, with `programs` otherwise, if all contexts of the batch may have
    `chunks`: 1, 4, or 0 for all. Programs of `prompts` have larger tiles, so fewer of them fill the GPU.
    """
    if prompts and programs >= 2 * _ONE_EACH:
        return 0
    return 4 if programs * chunks >= (8 if prompts else 16) * _ONE_EACH else 1


def power_of_2(value: int) -> int:
    """The smallest power of 2 that is >= `value`."""
    return 1 << (value - 1).bit_length() if value > 1 else 1
