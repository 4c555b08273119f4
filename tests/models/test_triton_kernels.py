"""The GPU kernels against float64, interpreted by Triton where there is no GPU, compiled where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch

Doubles = npt.NDArray[np.float64]
MakeLauncher = Callable[..., Any]


@pytest.fixture
def make_launcher(triton_device: str) -> MakeLauncher:
    """make_launcher(dtype): launches on the place that this run tests."""
    import torch

    from specdec_hal.models.triton_kernels.launcher import Launcher

    def make(dtype: str = "float32") -> Any:
        if dtype == "bfloat16" and triton_device == "cpu":
            pytest.skip("Triton's interpreter multiplies the bits of bfloat16 numbers as integers")
        return Launcher(torch.device(triton_device), getattr(torch, dtype))

    return make


@pytest.fixture
def compiled(triton_device: str) -> None:
    """Skips where Triton's interpreter runs."""
    if triton_device == "cpu":
        pytest.skip("the interpreter multiplies by NumPy, whose order of summation depends on shapes")


def random(launcher: Any, *shape: int, seed: int = 0) -> Any:
    """Normal numbers in the launcher's dtype and place."""
    import torch

    values = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))
    return values.to(launcher.arena.device, launcher.dtype)


def ints(launcher: Any, values: Any) -> Any:
    import torch

    return torch.as_tensor(np.asarray(values), dtype=torch.int32).to(launcher.arena.device)


def doubles(tensor: Any) -> Doubles:
    array: Doubles = tensor.double().cpu().numpy()
    return array


# ---- rows by themselves


@pytest.mark.parametrize(("columns", "count"), [(40, 5), (9000, 1), (2 * 4096, 32), (70000, 16)])
def test_candidates(make_launcher: MakeLauncher, columns: int, count: int) -> None:
    """Of a few values, both zeros and infinities among them: equal ones by their ids, in one part and in several.

    Two slots of three drafts go to other rows, with one more draft, beside their hidden rows and first tokens.
    """
    import torch

    launcher, generator = make_launcher(), np.random.default_rng(columns)
    values = np.array([-np.inf, -2.5, -0.0, 0.0, 1e-38, 1.5, 3.0, np.inf], np.float32)
    logits = values[generator.integers(0, 8 - (columns > 40), (2, 3, columns))]
    logits[0, 1] = np.where(generator.random(columns) < 3 / columns, 3.0, -0.0)  # equal ones at the end
    device, hidden = launcher.arena.device, random(launcher, 6, 5)
    path = SimpleNamespace(
        path_logits=torch.full((3, 4, count), 7.0, device=device), path_hidden=torch.zeros((3, 4, 5), device=device),
        path_ids=torch.full((3, 4, count), -1, device=device), anchor_tokens=torch.full((3,), -1, device=device),
    )  # fmt: skip
    tokens, owners = (torch.tensor(x, device=device) for x in ([10, 11, 12, 13], [2, 0]))
    for _ in range(2):  # the counters are 0 again
        launcher.candidates(
            torch.from_numpy(logits).to(device), hidden, tokens, ints(launcher, [0, 4, 4]), owners, path
        )
    wanted = np.argsort(-logits, axis=2, kind="stable")[..., :count]
    found = {name: x.cpu().numpy() for name, x in vars(path).items()}
    np.testing.assert_array_equal(found["path_ids"][[2, 0], :3], wanted)
    np.testing.assert_array_equal(found["path_logits"][[2, 0], :3], np.take_along_axis(logits, wanted, 2))
    np.testing.assert_array_equal(found["path_hidden"][[2, 0], :3].reshape(6, 5), doubles(hidden))
    assert found["anchor_tokens"].tolist() == [13, -1, 10]
    assert (found["path_ids"][1] == -1).all() and (found["path_logits"][:, 3] == 7).all()


def convolution(launcher: Any, lengths: list[int], dims: tuple[int, int], seed: int = 0) -> tuple[Any, ...]:
    """Rows, a norm, a projection, base kernels of three taps, and blocks of these lengths."""
    rows, (width, groups) = sum(lengths), dims
    shapes = (rows, width), (width,), (6 * groups, width), (2, 3, width)
    x, norm, projection, base = (random(launcher, *shape, seed=seed + i) for i, shape in enumerate(shapes))
    owners = ints(launcher, np.repeat(np.arange(len(lengths)), lengths))
    return x, norm, projection * width**-0.5, base, owners, ints(launcher, np.cumsum([0, *lengths]))


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 2e-4), ("bfloat16", 0.4)])
@pytest.mark.parametrize("split", [False, True])
def test_convolutions_around_a_product(
    make_launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch, dtype: str, atol: float, split: bool
) -> None:
    """Blocks of up to 20 rows, so that one goes through two tiles; sums of parts of K too."""
    import torch

    from specdec_hal.models.triton_kernels import launcher as launches

    monkeypatch.setattr(launches, "split_parts", lambda programs: split)
    launcher, lengths = make_launcher(dtype), [4, 1, 20, 2]
    x, norm, projection, base, owners, starts = convolution(launcher, lengths, (24, 6))
    out, y = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
    kernels = launcher.norm_convolve(x, norm, projection * norm, base, owners, starts, out, 1e-6)
    given, weight = random(launcher, len(x), 640, seed=7), random(launcher, 24, 640, seed=8) * 640**-0.5
    launcher.linear(given, weight, y, None, residual=x, kernels=kernels)
    n = doubles(x) / np.sqrt((doubles(x) ** 2).mean(1, keepdims=True) + 1e-6) * doubles(norm)
    own = (n @ doubles(projection).T).reshape(-1, 2, 3, 6).repeat(4, 3) + doubles(base)
    product, first = doubles(given) @ doubles(weight).T, np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
    before, after = np.zeros((27, 24)), doubles(x)
    for row in range(27):
        for tap in range(min(3, row - first[row] + 1)):
            before[row] += own[row, 0, tap] * n[row - tap]
            after[row] += own[row, 1, tap] * product[row - tap]
    np.testing.assert_allclose(doubles(out), before, atol=atol)
    np.testing.assert_allclose(doubles(y), after, atol=atol)


def test_convolutions_do_not_depend_on_other_blocks(make_launcher: MakeLauncher, compiled: None) -> None:
    import torch

    launcher = make_launcher("bfloat16")
    x, norm, projection, base, owners, starts = convolution(launcher, [7] * 20, (2560, 160))
    given, weight = random(launcher, 140, 4096, seed=7), random(launcher, 2560, 4096, seed=8)
    found = []
    for blocks in (1, 9, 20):  # one tile of rows, several, and other tiles of products
        rows = slice(140 - 7 * blocks, None)
        out, y = torch.empty_like(x[rows]), torch.empty_like(x[rows])
        kernels = launcher.norm_convolve(x[rows], norm, projection, base, owners[: 7 * blocks], starts, out, 1e-6)
        launcher.linear(given[rows], weight, y, None, residual=x[rows], kernels=kernels)
        found.append(torch.stack([out[-7:], y[-7:]]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


# ---- products


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(1, 48, 33), (9, 130, 640), (72, 512, 256), (130, 200, 704), (16, 96, 2048)]
)
def test_linear(make_launcher: MakeLauncher, dtype: str, rows: int, columns: int, depth: int) -> None:
    """Stored and added, with a count on the device; rows after it stay as they were."""
    import torch

    launcher = make_launcher(dtype)
    if dtype == "float16" and rows * columns * depth > 10**6 and launcher.arena.device.type == "cpu":
        pytest.skip("takes seconds in Triton's interpreter and covers nothing that float32 does not")
    x, weight = random(launcher, rows + 3, depth), random(launcher, columns, depth, seed=1)
    want = doubles(x)[:rows] @ doubles(weight).T
    out = torch.full((rows + 3, columns), float("nan"), dtype=torch.float32, device=x.device)
    launcher.linear(x, weight, out, ints(launcher, [rows]))
    assert out[rows:].isnan().all()
    np.testing.assert_allclose(doubles(out)[:rows], want, rtol=0, atol=2e-6 * depth)
    launcher.linear(x, weight, out, ints(launcher, [rows]), residual=out)
    assert out[rows:].isnan().all()
    np.testing.assert_allclose(doubles(out)[:rows], 2 * want, rtol=0, atol=4e-6 * depth)
    bias = random(launcher, columns, seed=2)
    launcher.linear(x, weight, out, None, bias=bias, residual=torch.ones_like(out))
    np.testing.assert_allclose(doubles(out)[:rows], want + doubles(bias) + 1, rtol=0, atol=2e-6 * depth)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("described", "swap"), [(False, False), (True, False), (True, True)])
def test_ways_to_compute_a_product(
    make_launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch, split: bool, described: bool, swap: bool
) -> None:
    """Parts of K in one program or in several, tiles by pointers or by descriptors, plain or transposed."""
    import torch

    from specdec_hal.models.triton_kernels import launcher as launches
    from specdec_hal.models.triton_kernels.tiles import ProductTile

    monkeypatch.setattr(launches, "split_parts", lambda programs: split)
    launcher = make_launcher()
    launcher.tiles = replace(launcher.tiles, products=(ProductTile(64, 32, 64, 4, 3, described, swap),))
    x, weight = random(launcher, 70, 576), random(launcher, 50, 576, seed=1)
    out = torch.empty((70, 50), dtype=torch.float32, device=x.device)
    for _ in range(2):  # the second launch finds the counters as the first one did
        launcher.linear(x, weight, out.fill_(float("nan")), None)
        np.testing.assert_allclose(doubles(out), doubles(x) @ doubles(weight).T, rtol=0, atol=1e-3)


@pytest.mark.usefixtures("compiled")
def test_bits_of_a_product_do_not_depend_on_its_tile(make_launcher: MakeLauncher) -> None:
    import torch

    from specdec_hal.models.triton_kernels.tiles import ProductTile

    launcher = make_launcher()
    x, weight = random(launcher, 150, 1024), random(launcher, 96, 1024, seed=1)
    results = []
    for m, n, described in ((16, 32, False), (32, 64, False), (64, 64, False), (64, 64, True)):
        launcher.tiles = replace(launcher.tiles, products=(ProductTile(m, n, 64, 4, 3, described),))
        results.append(torch.empty((150, 96), dtype=torch.float32, device=x.device))
        launcher.linear(x, weight, results[-1], None)
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bits_of_a_row_do_not_depend_on_the_number_of_rows(make_launcher: MakeLauncher, dtype: str) -> None:
    """The tiles that are chosen for each number of rows, with one and with several parts of K."""
    import torch

    launcher = make_launcher(dtype)
    for columns, depth in ((6144, 2048), (2048, 1024), (4096, 1024), (384, 1024), (16640, 512), (19456, 512)):
        x, weight = random(launcher, 400, depth), random(launcher, columns, depth, seed=1)
        whole = torch.empty((400, columns), dtype=torch.float32, device=x.device)
        launcher.linear(x, weight, whole, None)
        for rows in (1, 2, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 200):
            out = torch.full((rows, columns), float("nan"), dtype=torch.float32, device=x.device)
            launcher.linear(x[:rows], weight, out, None)
            assert torch.equal(out, whole[:rows]), (columns, depth, rows)


@given(columns=st.integers(1, 200_000), depth=st.integers(1, 20_000))
def test_parts_cover_the_depth(columns: int, depth: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.triton_kernels.tiles import part_length

    part = part_length(columns, depth)
    parts = -(-depth // part)
    assert part % 128 == 0 and (parts - 1) * part < depth <= parts * part


@given(rows=st.integers(1, 5000), columns=st.integers(1, 130_000), depth=st.integers(1, 9000))
def test_choice_of_a_tile(rows: int, columns: int, depth: int) -> None:
    """No tile wastes half of its rows on nothing but the smallest; those of float32 have one depth."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.triton_kernels.tiles import tiles_of

    for dtype in ("float32", "bfloat16"):
        tiles = tiles_of(dtype)
        tile = tiles.product(rows, columns, depth)
        assert tile in tiles.products + tiles.large + tiles.together + tiles.cut and (tile.m == 16 or tile.m < 2 * rows)
    assert len({(tile.k, tile.swap) for tile in tiles_of("float32").products}) == 1


@pytest.mark.parametrize(
    ("columns", "depth", "tile"),
    [
        (3072, 2048, (64, 64, 64)),
        (2048, 2048, (64, 64, 64)),
        (2048, 8192, (128, 64, 128)),
        (4096, 4096, (128, 64, 128)),
        (6144, 4096, (64, 128, 128)),
        (128_256, 4096, (128, 128, 128)),
    ],
)
def test_tiles_of_more_rows_depend_on_the_parts_of_k(columns: int, depth: int, tile: tuple[int, int, int]) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.triton_kernels.tiles import tiles_of

    for rows in (97, 128):
        got = tiles_of("bfloat16").product(rows, columns, depth)
        assert (got.m, got.n, got.k) == tile
    assert tiles_of("bfloat16").product(96, columns, depth).m <= 64 or columns > 100_000


@pytest.mark.parametrize("columns", [16384, 19456, 28672])
@pytest.mark.parametrize("rows", [1, 16, 33, 64])
def test_all_programs_of_a_wide_product_run_at_once(rows: int, columns: int) -> None:
    """On a GPU with 132 multiprocessors, each with room for two or for one of them."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.triton_kernels.tiles import tiles_of

    tile = tiles_of("bfloat16").product(rows, columns, 2560)
    room = 227 * 1024 // ((tile.m + tile.n) * tile.k * 2 * tile.stages)
    assert columns / tile.n <= 132 * room


# ---- products of weights in FP8


def fp8_weight(launcher: Any, columns: int, depth: int, *, by_group: bool, by_row: bool, seed: int = 1) -> Any:
    """A random weight in FP8, whose scales differ by powers of ten."""
    import torch

    from specdec_hal.models.fp8 import GROUP, Fp8Weight

    generator, place = np.random.default_rng(seed), launcher.arena.device
    values = torch.from_numpy(generator.standard_normal((columns, depth)) * 50).to(torch.float8_e4m3fn)
    shape = (-(-depth // GROUP), columns) if by_group else (columns,)
    scales = torch.from_numpy(10 ** generator.uniform(-3, -1, shape)).float()
    return Fp8Weight(values.to(place), scales.to(place), by_row)


def rounded(x: Any) -> Doubles:
    """Rows in FP8 by PyTorch's own cast, times their scales."""
    from specdec_hal.models.fp8 import quantised, widened

    return doubles(widened(*quantised(x)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 48, 48), (9, 130, 640), (40, 96, 576), (130, 72, 256)])
def test_products_of_weights_in_fp8(
    make_launcher: MakeLauncher, dtype: str, by_group: bool, by_row: bool, rows: int, columns: int, depth: int
) -> None:
    """With scales of rows or of groups, and rows in their own dtype or in FP8; rows after the count stay."""
    import torch

    from specdec_hal.models.fp8 import widened

    launcher = make_launcher(dtype)
    weight = fp8_weight(launcher, columns, depth, by_group=by_group, by_row=by_row)
    x, residual = random(launcher, rows + 2, depth), random(launcher, rows + 2, columns, seed=2)
    bias = random(launcher, columns, seed=3)
    whole = doubles(widened(weight.values, weight.scales))
    want = (rounded(x) if by_row else doubles(x)) @ whole.T
    interpreted = launcher.arena.device.type == "cpu"  # its cast to FP8 loses the carry of what it rounds up
    size = np.abs(doubles(x)) @ np.abs(whole).T
    coarse = interpreted or dtype == "bfloat16"  # tensor cores add products of FP8 with 14 bits
    slack = ((0.05 if interpreted else 1e-3) if by_row else 1e-4 if not coarse else 2e-4) * size + 1e-6
    out = torch.full((rows + 2, columns), float("nan"), dtype=torch.float32, device=x.device)
    launcher.linear(x, weight, out, ints(launcher, [rows]))
    assert out[rows:].isnan().all()
    assert (np.abs(doubles(out) - want)[:rows] <= slack[:rows]).all()
    launcher.linear(x, weight, out, None, bias=bias, residual=residual)
    assert (np.abs(doubles(out) - want - doubles(bias) - doubles(residual)) <= slack + 1e-5).all()


@pytest.mark.parametrize("by_group", [False, True])
def test_gate_and_up_in_fp8(make_launcher: MakeLauncher, by_group: bool) -> None:
    import torch

    from specdec_hal.models.fp8 import in_turns, widened

    launcher = make_launcher()
    gate, up = (fp8_weight(launcher, 48, 256, by_group=by_group, by_row=False, seed=i) for i in (1, 2))
    x, out = random(launcher, 5, 256) / 64, torch.empty((5, 48), device=launcher.arena.device)
    launcher.gate_up(x, in_turns([gate, up]), out, None)
    g, u = (doubles(x) @ doubles(widened(part.values, part.scales)).T for part in (gate, up))
    np.testing.assert_allclose(doubles(out), g / (1 + np.exp(-g)) * u, rtol=1e-4, atol=1e-3)


def experts_in_fp8(launcher: Any, columns: int, depth: int, *, by_group: bool, by_row: bool, count: int) -> Any:
    import torch

    from specdec_hal.models.fp8 import Fp8Weight

    kind = {"by_group": by_group, "by_row": by_row}
    each = [fp8_weight(launcher, columns, depth, seed=1 + i, **kind) for i in range(count)]
    return Fp8Weight(torch.stack([one.values for one in each]), torch.stack([one.scales for one in each]), by_row)


def by_expert(chosen: Any, count: int) -> tuple[Any, Any]:
    """Pairs by their expert, and where each expert's begin."""
    import torch

    order = chosen.flatten().argsort(stable=True)
    bounds = torch.arange(count + 1, device=chosen.device)
    return order, torch.searchsorted(chosen.flatten()[order], bounds, out_int32=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 90])
def test_experts_in_fp8(make_launcher: MakeLauncher, dtype: str, by_group: bool, by_row: bool, rows: int) -> None:
    """Also where nobody chooses one; a pair with none of them, of another rank, is left alone."""
    import torch

    from specdec_hal.models.fp8 import widened

    launcher, count = make_launcher(dtype), 5
    weight = experts_in_fp8(launcher, 72, 320, by_group=by_group, by_row=by_row, count=count)
    x, bias = random(launcher, rows, 320), random(launcher, count, 72, seed=3)
    chosen = torch.from_numpy(np.random.default_rng(rows).choice([0, 1, 3, 4, 5], (rows, 2))).to(x.device)
    out = torch.full((2 * rows, 72), float("nan"), dtype=torch.float32, device=x.device)
    launcher.experts(x, weight, bias, out, *by_expert(chosen, count))
    wide, pairs = doubles(widened(weight.values, weight.scales)), chosen.flatten().tolist()
    known = np.array(pairs) < count
    which = np.minimum(pairs, count - 1)
    each = np.repeat(rounded(x) if by_row else doubles(x), 2, 0)
    want = np.einsum("pk,pnk->pn", each, wide[which]) + doubles(bias)[which]
    size = np.einsum("pk,pnk->pn", np.abs(each), np.abs(wide[which]))
    interpreted = launcher.arena.device.type == "cpu"  # its cast to FP8 loses the carry of what it rounds up
    slack = ((0.06 if interpreted else 1e-3) if by_row else 2e-4) * size + 1e-5
    assert np.isnan(doubles(out)[~known]).all()
    assert (np.abs(doubles(out) - want) <= slack)[known].all()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
def test_bits_of_experts_in_fp8_do_not_depend_on_the_number_of_rows(
    make_launcher: MakeLauncher, by_group: bool, by_row: bool
) -> None:
    import torch

    launcher, count = make_launcher("bfloat16"), 8
    for columns, depth in ((1536, 2048), (200, 768), (96, 80)):
        weight = experts_in_fp8(launcher, columns, depth, by_group=by_group, by_row=by_row, count=count)
        x = random(launcher, 400, depth)
        chosen = torch.from_numpy(np.random.default_rng(0).integers(0, count, (400, 2))).to(x.device)
        whole = torch.empty((800, columns), dtype=torch.float32, device=x.device)
        launcher.experts(x, weight, None, whole, *by_expert(chosen, count))
        for rows in (1, 2, 17, 64, 65, 200):
            out = torch.empty((2 * rows, columns), dtype=torch.float32, device=x.device)
            launcher.experts(x[:rows], weight, None, out, *by_expert(chosen[:rows], count))
            assert torch.equal(out, whole[: 2 * rows]), (columns, depth, rows)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_number_in_fp8_is_widened_exactly(make_launcher: MakeLauncher, dtype: str) -> None:
    import torch

    from specdec_hal.models.fp8 import Fp8Weight

    launcher = make_launcher(dtype)
    place = launcher.arena.device
    codes = torch.tensor([code for code in range(256) if code & 127 != 127], dtype=torch.uint8)
    values = codes.view(torch.float8_e4m3fn).view(127, 2).repeat(1, 8).contiguous().to(place)
    out = torch.empty((16, 127), device=place)
    weight = Fp8Weight(values, torch.ones(127, device=place), by_row=False)
    launcher.linear(torch.eye(16, dtype=launcher.dtype, device=place), weight, out, None)
    assert torch.equal(out, values.float().T)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
def test_bits_in_fp8_do_not_depend_on_the_number_of_rows(
    make_launcher: MakeLauncher, by_group: bool, by_row: bool
) -> None:
    import torch

    from specdec_hal.models.triton_kernels.compiling import compiling

    launcher = make_launcher("bfloat16")

    def different() -> list[tuple[int, int, int]]:
        found = []
        for columns, depth in ((6144, 2048), (2048, 1024), (4096, 4096), (384, 1024), (16640, 512), (2048, 8192)):
            x = random(launcher, 600, depth)
            weight = fp8_weight(launcher, columns, depth, by_group=by_group, by_row=by_row)
            whole = torch.empty((600, columns), dtype=torch.float32, device=x.device)
            launcher.linear(x, weight, whole, None)
            for rows in (1, 2, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 200, 257, 384, 513):
                out = torch.full((rows, columns), float("nan"), dtype=torch.float32, device=x.device)
                launcher.linear(x[:rows], weight, out, None)
                if not torch.equal(out, whole[:rows]):
                    found.append((columns, depth, rows))
        return found

    with compiling():
        different()
    assert different() == []


@pytest.mark.parametrize("by_two", [False, True])
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize(("columns", "depth"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)])
def test_few_rows_in_fp8_read_weights_once(columns: int, depth: int, by_group: bool, by_two: bool) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.triton_kernels.tiles import fp8_tiles, tiles_of

    tiles = fp8_tiles(tiles_of("bfloat16"), in_fp8=True, by_two=by_two, by_group=by_group)
    for rows, m in ((1, 16), (16, 16), (17, 32), (48, 64), (64, 64)):
        assert tiles.product(rows, columns, depth).m == m


@given(rows=st.integers(1, 5000), columns=st.integers(1, 130_000), depth=st.integers(1, 9000))
def test_tiles_of_products_in_fp8(rows: int, columns: int, depth: int) -> None:
    """None wastes half of its rows but the smallest; a scale is that of a whole tile, and all fit on the chip."""
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.fp8 import GROUP
    from specdec_hal.models.triton_kernels.tiles import fp8_tiles, tiles_of

    for by_two in (False, True):
        for by_group in (False, True):
            tiles = fp8_tiles(tiles_of("bfloat16"), in_fp8=True, by_two=by_two, by_group=by_group)
            tile = tiles.product(rows, columns, depth)
            assert tile in tiles.products + tiles.large and (tile.m == 16 or tile.m < 2 * rows)
            assert not by_group or GROUP % tile.k == 0
            assert ((1 + by_two) * tile.m + tile.n) * tile.k * tile.stages <= 227 * 1024
    assert fp8_tiles(tiles_of("float32"), in_fp8=True, by_two=False, by_group=True) == tiles_of("float32")


def test_rows_in_fp8_are_those_of_pytorch(make_launcher: MakeLauncher, triton_device: str) -> None:
    """Zeros keep a scale of 1."""
    import torch

    from specdec_hal.models.fp8 import quantised

    launcher = make_launcher()
    x = random(launcher, 5, 200) * torch.tensor([1e-3, 1, 0, 1e4, 7], device=triton_device)[:, None]
    values, _, scales = launcher.quantise(x, None, by_two=False)
    want, want_scales = quantised(x)
    np.testing.assert_allclose(doubles(scales), doubles(want_scales), rtol=1e-6)
    if triton_device != "cpu":  # where the interpreter's cast loses the carry of what it rounds up
        assert torch.equal(values.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize(("dtype", "by_row"), [("float32", True), ("bfloat16", True), ("bfloat16", False)])
def test_a_norm_quantises_for_the_next_product(make_launcher: MakeLauncher, dtype: str, by_row: bool) -> None:
    """Other rows, and those of an earlier norm, are quantised by themselves."""
    import torch

    launcher = make_launcher(dtype)
    weight = fp8_weight(launcher, 48, 96, by_group=False, by_row=by_row)
    x, scale = random(launcher, 5, 96), random(launcher, 96, seed=1)
    norms = [torch.empty_like(x) for _ in range(3)]
    results = [torch.empty((5, 48), device=x.device) for _ in range(6)]
    launcher.linear(x, weight, results[0], None)
    for norm, factor in zip(norms, (1, 2, 3), strict=True):
        launcher.rms_norm(x, scale * factor, norm, None, 1e-5)
    assert launcher.quantised is not None and launcher.quantised[0] is norms[2]
    for norm, out in zip(reversed(norms), results[1:4], strict=True):  # the last one is known
        launcher.linear(norm, weight, out, None)
    assert launcher.quantised is None
    launcher.linear(norms[2].clone(), weight, results[4], None)
    launcher.linear(norms[0].clone(), weight, results[5], None)
    assert torch.equal(results[1], results[4]) and torch.equal(results[3], results[5])
    assert not torch.equal(results[1], results[2])


def test_rows_of_bfloat16_are_sums_of_two_in_fp8(make_launcher: MakeLauncher) -> None:
    """Exactly, from 2^-13 of a row's largest number on."""
    import torch

    launcher = make_launcher("bfloat16")
    x = random(launcher, 6, 2000)
    x[1] *= 1e4
    x[2] = x[2] * 2.0 ** torch.arange(-30, 10, 0.02, device=x.device)
    x[3] = 0
    x[4] = 1e-38
    x[5, :7] = torch.tensor([448, 449, 3e38, 2.0**-126, -1, 1.75, 7], device=x.device)
    high, low, scales = launcher.quantise(x, None, by_two=True)
    got = (high.double() + low.double() / 16) * scales.double()[:, None]
    largest = x.double().abs().amax(1, keepdim=True)
    error = (got - x.double()).abs()
    assert (error[x.abs().double() >= largest * 2.0**-13] == 0).all()
    assert (error <= largest * 2.0**-21).all()


# ---- rows by themselves


@pytest.mark.parametrize("with_residual", [True, False])
def test_sums_over_ranks_and_their_norm(make_launcher: MakeLauncher, with_residual: bool) -> None:
    """The norm has the bits of the one by itself; rows after the count stay as they were."""
    import torch

    from specdec_hal.models.triton_kernels.launcher import RankParts

    launcher = make_launcher()
    parts, weight = random(launcher, 3, 6, 33), random(launcher, 33, seed=1)
    residual = random(launcher, 6, 33, seed=2) if with_residual else None
    total, out, again = (torch.full((6, 33), float("nan"), device=parts.device) for _ in range(3))
    count, ranks = ints(launcher, [5]), RankParts(parts, None, 0, 3)
    launcher.sum_norm(ranks, residual, total, count, weight=weight, out=out, epsilon=1e-5)
    want = doubles(parts).sum(0) + (doubles(residual) if residual is not None else 0)
    np.testing.assert_allclose(doubles(total)[:5], want[:5], rtol=0, atol=1e-5)
    normed = want / np.sqrt((want**2).mean(1, keepdims=True) + 1e-5) * doubles(weight)
    np.testing.assert_allclose(doubles(out)[:5], normed[:5], rtol=0, atol=1e-4)
    launcher.rms_norm(total, weight, again, count, 1e-5)
    assert torch.equal(again[:5], out[:5])
    assert total[5].isnan().all() and out[5].isnan().all() and again[5].isnan().all()
    launcher.sum_norm(ranks, residual, again, None)
    assert torch.equal(again[:5], total[:5]) and not again[5].isnan().any()


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_norms_with_a_gate(make_launcher: MakeLauncher, gate_first: bool, sigmoid: bool, shared: bool) -> None:
    """Of parts of rows that other values follow; one weight for all parts, or one of each part."""
    import torch

    launcher = make_launcher()
    lines = random(launcher, 5, 100)
    x, gate = lines[:, :36].unflatten(1, (3, 12)), lines[:, 40:76].unflatten(1, (3, 12))
    weight = random(launcher, 12 if shared else 36, seed=1)
    out = torch.full((15, 12), float("nan"), device=x.device)
    launcher.gated_norm(x, gate, weight, out, 1e-3, gate_first=gate_first, sigmoid=sigmoid)
    act = 1 / (1 + np.exp(-doubles(gate))) * (1 if sigmoid else doubles(gate))
    values = doubles(x) * act if gate_first else doubles(x)
    want = values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-3) * doubles(weight).reshape(-1, 12)
    want = want if gate_first else want * act
    np.testing.assert_allclose(doubles(out), want.reshape(15, 12), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("heads", "each"), [(6, 2), (3, 1)])
def test_inputs_of_a_gated_delta_rule(make_launcher: MakeLauncher, heads: int, each: int) -> None:
    """Queries and keys of fewer heads than values; gates of numbers far from 0 too."""
    import torch

    launcher, d_k, d_v = make_launcher(), 5, 9
    keys = heads // each * d_k
    mixed = random(launcher, 4, 2 * keys + heads * d_v)
    gates = 12 * random(launcher, 4, 2 * heads + 3, seed=1)
    a, b = gates[:, :heads], gates[:, heads : 2 * heads]
    rate, dt_bias = -random(launcher, heads, seed=2).exp(), random(launcher, heads, seed=3)
    shapes = (heads // each, d_k), (heads // each, d_k), (heads, d_v), (heads,), (heads,)
    out = tuple(torch.full((4, *shape), float("nan"), device=mixed.device) for shape in shapes)
    launcher.delta_inputs(mixed, a, b, rate, dt_bias, out)
    q, k, v = mixed.split([keys, keys, heads * d_v], 1)
    for got, x in zip(out, (q, k), strict=False):
        assert torch.equal(got, x.view(4, -1, d_k))
    assert torch.equal(out[2], v.reshape(4, heads, d_v))
    soft = np.logaddexp(0, doubles(a) + doubles(dt_bias))
    np.testing.assert_allclose(doubles(out[3]), np.exp(doubles(rate) * soft), rtol=2e-6, atol=1e-30)
    np.testing.assert_allclose(doubles(out[4]), 1 / (1 + np.exp(-doubles(b))), rtol=2e-6)


@pytest.mark.parametrize("limits", [None, (0.25, 2.0)])
@pytest.mark.parametrize("biased", [False, True])
def test_gates_of_mamba2(make_launcher: MakeLauncher, limits: Any, biased: bool) -> None:
    """Against what computes them on a CPU."""
    import torch

    from specdec_hal.models.states import mamba2_gates

    launcher = make_launcher()
    dt, a = (12 * random(launcher, 4, 40))[:, 8:29], -random(launcher, 21, seed=1).exp()
    bias = random(launcher, 21, seed=2) if biased else None
    decay, out = (torch.full((4, 21), float("nan"), device=a.device) for _ in range(2))
    launcher.mamba2_gates(dt, a, bias, limits, decay, out)
    want = mamba2_gates(dt.double(), a, bias, limits)
    np.testing.assert_allclose(doubles(decay), doubles(want[0]), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(doubles(out), doubles(want[1]), rtol=2e-6)


@pytest.mark.parametrize("dims", [0, 4, 10])
@pytest.mark.parametrize("normed", [False, True])
def test_rotations_of_some_dimensions(make_launcher: MakeLauncher, dims: int, normed: bool) -> None:
    """The others of a head are normed and kept; heads lie beside other values."""
    import torch

    launcher, width = make_launcher(), 12
    turned = dims or width
    rows = random(launcher, 5, 60)
    q, k = rows[:, :36].view(5, 3, 12), rows[:, 36:].view(5, 2, 12)
    angle = 7 * random(launcher, 5, turned // 2, seed=1)
    cos, sin = (torch.cat([x, x], 1) for x in (angle.cos(), angle.sin()))
    weights = random(launcher, 2, width, seed=2)
    out = [torch.full(x.shape, float("nan"), device=x.device) for x in (q, k)]
    launcher.rotate(q, k, cos, sin, *out, norms=(*weights, 1e-3) if normed else None, dims=dims)
    for x, weight, got in zip((q, k), weights, out, strict=True):
        want = doubles(x)
        if normed:
            want = want / np.sqrt((want**2).mean(-1, keepdims=True) + 1e-3) * doubles(weight)
        pairs = want[..., : turned // 2] + 1j * want[..., turned // 2 : turned]
        pairs = pairs * np.exp(1j * doubles(angle))[:, None]
        want[..., :turned] = np.concatenate([pairs.real, pairs.imag], -1)
        np.testing.assert_allclose(doubles(got), want, rtol=0, atol=1e-5)


# ---- attention


def attended(
    q: Doubles, keys: Doubles, values: Doubles, positions: list[int], group: int, scale: float | None = None,
    window: int = 0, softcap: float = 0.0, sinks: Any = None, bias: Any = None,
) -> Doubles:  # fmt: skip
    """Causal attention of q [n, heads, d] at `positions` to keys and values [context, kv_heads, d]."""
    out = np.empty_like(q)
    for i, position in enumerate(positions):
        for head in range(q.shape[1]):
            seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
            k, v = keys[seen, head // group], values[seen, head // group]
            scores = k @ q[i, head] * (q.shape[2] ** -0.5 if scale is None else scale)
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            scores += 0 if bias is None else doubles(bias)[head, seen] - doubles(bias)[head, position]
            weights = np.exp(scores)
            out[i, head] = weights @ v / (weights.sum() + (0 if sinks is None else np.exp(float(sinks[head]))))
    return out


def run_attention(
    launcher: Any, parts: list[tuple[int, int]], heads: Any, block_size: int, bound: int, padding: int = 0, **rule: Any
) -> tuple[Any, Doubles]:
    """`parts`: position and number of tokens of each slot. The kernel's result, and the expected one."""
    import torch

    from specdec_hal.plugin.model import DeviceBatch

    width = -(-bound // block_size)
    pool = torch.full((len(parts) * width, 2, block_size, heads.kv_heads, heads.head_dim), float("nan"))
    pool = pool.to(launcher.arena.device, launcher.dtype)
    tables = np.random.default_rng(0).permutation(len(pool)).reshape(len(parts), width)
    offsets = np.concatenate([[0], np.cumsum([count for _, count in parts])])
    rows = int(offsets[-1])
    q = random(launcher, rows + padding, heads.heads * heads.head_dim)
    want = np.zeros((rows, heads.heads, heads.head_dim))
    for slot, (position, count) in enumerate(parts):
        lines = random(launcher, 2, position + count, heads.kv_heads, heads.head_dim, seed=slot)
        for p in range(position + count if count else 0):
            pool[tables[slot, p // block_size], :, p % block_size] = lines[:, p]
        keys, values = doubles(lines)
        mine = doubles(q)[offsets[slot] : offsets[slot + 1]].reshape(count, heads.heads, heads.head_dim)
        where = list(range(position, position + count))
        group = heads.heads // heads.kv_heads
        want[offsets[slot] : offsets[slot + 1]] = attended(mine, keys, values, where, group, **rule)
    out = torch.full_like(q, float("nan"))
    most = max(count for _, count in parts)
    batch = DeviceBatch(
        q, q, ints(launcher, offsets), ints(launcher, [p for p, _ in parts]), ints(launcher, tables), bound, most
    )
    for _ in range(2):  # the second launch finds the counters as the first one did
        launcher.attention(q, out, pool, batch, heads, **rule)
    assert out[rows:].isnan().all()
    return out[:rows], want.reshape(rows, -1)


BATCHES = {
    "one token at the start": [(0, 1)],
    "edges of blocks and chunks": [(15, 1), (16, 1), (63, 1), (64, 1), (127, 2)],
    "drafts and idle slots": [(0, 0), (100, 9), (0, 0), (3, 5), (64, 1)],
    "a prompt": [(0, 70)],
    "chunks of prompts beside decoding": [(130, 1), (0, 0), (40, 33), (77, 9), (0, 17)],
}


@pytest.mark.parametrize("parts", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (3, 1, 10)])
@pytest.mark.parametrize("each", [0, 1, 4])
def test_attention(
    make_launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch, parts: list[tuple[int, int]], heads: int,
    kv_heads: int, head_dim: int, each: int,
) -> None:  # fmt: skip
    """Chunks of 16 positions, so that short texts have many; blocks of them in every order; other slots' are NaN."""
    from specdec_hal.models.triton_kernels import launcher as launches

    monkeypatch.setattr(launches, "chunks_each", lambda *_: each)
    launcher = make_launcher()
    launcher.tiles = replace(launcher.tiles, chunk=16, keys=16)
    got, want = run_attention(launcher, parts, launches.Heads(heads, kv_heads, head_dim), 16, 160, padding=2)
    np.testing.assert_allclose(doubles(got), want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("each", [0, 1])
def test_attention_of_other_models(make_launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch, each: int) -> None:
    """A scale, a window over several chunks, a soft cap, sinks and biases by key."""
    from specdec_hal.models.triton_kernels import launcher as launches

    monkeypatch.setattr(launches, "chunks_each", lambda *_: each)
    launcher = make_launcher()
    launcher.tiles = replace(launcher.tiles, chunk=32, keys=16)
    rule = {"scale": 0.4, "window": 37, "softcap": 1.5, "sinks": random(launcher, 4, seed=9) * 2}
    rule["bias"] = random(launcher, 4, 192, seed=8) * 2
    parts = [(130, 1), (0, 0), (40, 20), (3, 2)]
    got, want = run_attention(launcher, parts, launches.Heads(4, 2, 16), 16, 160, padding=2, **rule)
    np.testing.assert_allclose(doubles(got), want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("each", [1, 4])
def test_attention_to_long_contexts(make_launcher: MakeLauncher, monkeypatch: pytest.MonkeyPatch, each: int) -> None:
    """Chunks of all three lengths: 32 of 16 positions, 32 of 64, then of 256."""
    from specdec_hal.models.triton_kernels import launcher as launches

    monkeypatch.setattr(launches, "chunks_each", lambda *_: each)
    launcher = make_launcher()
    launcher.tiles = replace(launcher.tiles, chunk=16, keys=16)
    parts = [(511, 2), (2700, 1)]
    got, want = run_attention(launcher, parts, launches.Heads(2, 1, 16), 64, 2800)
    np.testing.assert_allclose(doubles(got), want, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("compiled")
def test_bits_of_attention_do_not_depend_on_the_batch(make_launcher: MakeLauncher) -> None:
    import torch

    from specdec_hal.models.triton_kernels.launcher import Heads

    launcher = make_launcher()
    heads = Heads(4, 2, 64)
    alone, _ = run_attention(launcher, [(700, 9)], heads, 64, 800)
    for others in ([(0, 300)], [(0, 1500)], [(650, 1)] * 200, [(900, 17), (0, 1), (9, 50)]):
        beside, _ = run_attention(launcher, [(700, 9), *others], heads, 64, 2000)
        assert torch.equal(beside[:9], alone)


@given(context=st.integers(1, 100_000), chunk=st.sampled_from([16, 64, 128]))
def test_chunks_tile_the_context(context: int, chunk: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton)")
    from specdec_hal.models.triton_kernels.attention import chunk_count, chunk_start

    count = int(chunk_count.fn(context, chunk))
    assert int(chunk_start.fn(count - 1, chunk)) < context <= int(chunk_start.fn(count, chunk))


# ---- rows that see all of their slot, and windows of drafters


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("window", "how"), [(0, ""), (3, ""), (3, "anchored"), (3, "chunked"), (12, ""), (12, "anchored"), (12, "chunked")]
)
def test_a_layer_that_sees_other_keys_is_that_of_pytorch(
    make_launcher: MakeLauncher, window: int, how: str, causal: bool
) -> None:
    """Slots of some rows, of one and of none, after contexts of several blocks."""
    import torch

    from specdec_hal.models.attention import Layer
    from specdec_hal.models.paged import PagedStore
    from specdec_hal.plugin.model import DeviceBatch

    launcher = make_launcher()
    layer = Layer(0, 4, 2, 16, 16, 0.25, window=window, causal=causal, **({how: True} if how else {}))
    place = launcher.arena.device
    stores = [PagedStore([layer], 9, 8, dtype=torch.float32, device=place, launcher=one) for one in (launcher, None)]
    for store in stores:
        store.pool[0].copy_(random(launcher, *store.pool[0].shape))
    lengths = np.array([5, 0, 1, 4])
    batch = DeviceBatch(
        token_ids=ints(launcher, np.zeros((11, 1))),
        batch_id_per_token=ints(launcher, [*np.repeat(np.arange(4), lengths), -1]),
        cu_seqlens_q=ints(launcher, [0, *np.cumsum(lengths)]),
        seq_lens_decoder=ints(launcher, [14, 3, 0, 9]),
        block_tables=ints(launcher, [[3, 0, 5], [1, 6, 2], [4, 1, 1], [7, 8, 1]]),
        max_seq_len=24,
        max_query_len=5,
    )
    bias = random(launcher, 4, 64, seed=2) if window == 3 else None
    ours, theirs = (
        store.look(layer, store.place(batch), random(launcher, 11, 4, 16, seed=1), None, bias) for store in stores
    )
    np.testing.assert_allclose(doubles(ours)[:10], doubles(theirs)[:10], atol=1e-5)
    other = replace(layer, causal=not causal)
    changed = stores[1].look(other, stores[1].place(batch), random(launcher, 11, 4, 16, seed=1), None, bias)
    assert not np.allclose(doubles(changed)[:4], doubles(theirs)[:4], atol=1e-2)
