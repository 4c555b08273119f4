"""Sampling from parts of a vocabulary gives what sampling from whole rows gives, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_hal.backends.reference import output, primitives, sampling
from specdec_hal.ops import LogprobMode, Purpose
from tests.parallel.ranks import Threads

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode  # noqa: E402

from specdec_hal.parallel.sampling import VocabularyPart  # noqa: E402
from specdec_hal.parallel.work import RowParams, Work  # noqa: E402

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

ONE_SIDED = 10
"""The row of :func:`rows_of` whose likely tokens all are on one rank."""

VOCABULARIES = [5000, 1500, 100]
"""The last rank has a part of a chunk; some have none."""

KINDS: dict[str, tuple[float, float, int, float]] = {
    "greedy": (0, 0.5, 3, 0.5),
    "negative temperature": (-1, 1, 0, 0),
    "no temperature": (np.nan, 1, 0, 0),
    "unfiltered": (1, 1, 0, 0),
    "tempered": (0.7, 1, 0, 0),
    "hot": (np.inf, 1, 0, 0),
    "cold": (1e-42, 1, 0, 0),
    "top_k": (0.8, 1, 7, 0),
    "top_k 1": (1, 1, 1, 0),
    "top_k as listed": (1.3, 1, 32, 0),
    "top_k beyond the list": (1.3, 1, 33, 0),
    "top_k beyond a part": (1, 1, 1300, 0),
    "top_k all but one": (5, 1, -1, 0),
    "top_k all": (1, 1, 10**6, 0),
    "top_k and top_p": (0.8, 0.6, 20, 0),
    "large top_k and top_p": (2, 0.9, 200, 0),
    "large top_k, top_p 0": (2, 0, 300, 0),
    "top_p": (1, 0.4, 0, 0),
    "top_p wide": (3, 0.99, 0, 0),
    "top_p 0": (1, 0, 0, 0),
    "top_p below 0": (1, -1, 0, 0),
    "top_p 1": (1, 1, 0, 0),
    "top_p almost 1": (2, np.nextafter(np.float32(1), np.float32(0)), 0, 0),
    "top_p NaN": (1, np.nan, 0, 0),
    "min_p": (1, 1, 0, 0.02),
    "min_p NaN": (1, 1, 0, np.nan),
    "min_p 1": (1, 1, 0, 1),
    "all": (1.5, 0.9, 15, 0.01),
    "all, large": (1.5, 0.95, 500, 0.001),
    "top_p and min_p": (2, 0.98, 0, 0.005),
}


def rows_of(vocab: int) -> Any:
    """Logits [rows, vocab]: spread, peaked, tied, with -inf, infinities, NaN."""
    rng = np.random.default_rng(vocab)
    normal = rng.normal(0, 2, vocab)
    tied = np.round(normal)
    equal_maxima = normal.copy()
    equal_maxima[[vocab // 5, vocab // 2, vocab - 1]] = 11
    masked, only_last, one_part = normal.copy(), np.full(vocab, -np.inf), np.full(vocab, -np.inf)
    masked[rng.random(vocab) < 0.9] = -np.inf
    masked[: vocab // 3] = -np.inf  # whole chunks
    only_last[-1] = -3
    one_part[vocab // 2 : vocab // 2 + 40] = rng.normal(0, 1, 40)
    infinite, nan = normal.copy(), normal.copy()
    infinite[[vocab // 3, vocab - 2]] = np.inf
    nan[vocab - 5] = np.nan
    peaked, one_sided = normal * 5, normal.copy()
    one_sided[: vocab // 6] += 30
    zeros = np.where(rng.random(vocab) < 0.5, 0.0, -0.0)
    rows = [normal, peaked, tied, equal_maxima, masked, only_last, one_part, infinite, nan, zeros, one_sided]
    return np.float32([*rows, np.full(vocab, -np.inf)])


def params_of(kinds: list[str], rows: int, vocab: int) -> dict[str, Any]:
    """Row i*K+k: logits i under kind k."""
    table = np.array([KINDS[kind] for kind in kinds] * rows, np.float64)
    count, rng = len(table), np.random.default_rng(7)
    top_k = np.where(table[:, 2] < 0, vocab - 1, table[:, 2])
    position = rng.integers(0, 1 << 40, count)
    position[::9] = -1  # tails, and a word of seeds
    return {
        "row_temperature": table[:, 0].astype(np.float32),
        "row_top_p": table[:, 1].astype(np.float32),
        "row_top_k": top_k.astype(np.int32),
        "row_min_p": table[:, 3].astype(np.float32),
        "row_seed": rng.integers(-(1 << 63), 1 << 63, count),
        "position": position,
    }


def tensors(params: dict[str, Any]) -> RowParams:
    return RowParams(*(torch.from_numpy(array) for array in params.values()))


class Counted:
    """A group that counts the bytes a rank sends."""

    def __init__(self, group: Any) -> None:
        self.rank, self.size, self._group, self.sent, self.rounds = group.rank, group.size, group, 0, 0

    def gather(self, tensor: Any) -> Any:
        self.sent += tensor.numel() * tensor.element_size()
        self.rounds += 1
        return self._group.gather(tensor)


def on_parts(group: Any, logits: Any, params: dict[str, Any], look: bool, **options: Any) -> dict[str, Any]:
    """`sample_target` by one rank."""
    part = VocabularyPart(group, logits.shape[1])
    count = len(logits)
    found = {
        "target_tokens": torch.full((count,), -7),
        "logprobs": torch.full((count,), 7.0),
        "ranks": torch.full((count,), -7),
    }
    mine = torch.from_numpy(logits[:, part.first : part.first + part.width].copy())
    rows = tensors(params)
    part.sample_target(mine, rows, **found, **options, work=None if look else Work.of(rows, logits.shape[1]))
    return {name: tensor.numpy() for name, tensor in found.items()}


def on_whole_rows(logits: Any, params: dict[str, Any], **options: Any) -> dict[str, Any]:
    count = len(logits)
    found = {"target_tokens": np.zeros(count, np.int64), "logprobs": np.zeros(count, np.float32)}
    found["ranks"] = np.zeros(count, np.int64)
    sampling.sample_target(logits, **params, **found, **options)
    return found


def check(found: list[dict[str, Any]], wanted: dict[str, Any], kinds: list[str]) -> None:
    for rank, outputs in enumerate(found):
        for name, array in wanted.items():
            bits = f"u{array.itemsize}"
            wrong = np.flatnonzero(outputs[name].view(bits) != array.view(bits))
            told = [(kinds[r % len(kinds)], r // len(kinds), outputs[name][r], array[r]) for r in wrong[:5]]
            assert not len(wrong), f"rank {rank}, {name}: (kind, row, found, wanted) {told}"


@pytest.mark.parametrize(
    ("look", "mode"), [(True, LogprobMode.RAW), (False, LogprobMode.PROCESSED)], ids=["looking", "not looking"]
)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_tokens_and_logprobs(vocab: int, ranks: int, look: bool, mode: LogprobMode) -> None:
    kinds, logits = list(KINDS), rows_of(vocab)
    params = params_of(kinds, len(logits), vocab)
    options = {"purpose": Purpose.DRAFT if mode else Purpose.SAMPLE, "logprob_mode": mode}
    logits = np.repeat(logits, len(kinds), 0)
    found = Threads(ranks).run(lambda group: on_parts(group, logits, params, look, **options))
    check(found, on_whole_rows(logits, params, **options), kinds)


def test_processes(tmp_path: Path) -> None:
    """Over gloo; each compares with whole rows."""
    command = [sys.executable, "-m", "tests.parallel.on_gloo"]
    started = [
        subprocess.Popen([*command, str(rank), "4", str(tmp_path / "met")], cwd=ROOT, env=ONE_THREAD)
        for rank in range(4)
    ]
    assert [process.wait(240) for process in started] == [0] * 4


def test_benchmark(tmp_path: Path) -> None:
    """Two processes, which compare tokens with those of the gathered rows. Nothing is said about times."""
    sizes = ["--rows", "5", "--vocabulary", "3000", "--repeats", "1"]
    command = [sys.executable, "benchmarks/vocabulary_parallel.py", "--device", "cpu", *sizes]
    run = subprocess.run(command, cwd=ROOT, env=ONE_THREAD, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    kinds = json.loads(run.stdout)["figures"]["kinds"]
    found = {kind: (told["parts"]["bytes_per_row"], told["parts"]["exchanges"]) for kind, told in kinds.items()}
    assert found == {
        "greedy": (8, 1),
        "unfiltered": (24, 3),
        "top_k 20, top_p 0.9": (256, 1),
        "top_p 0.9": (1312, 13),
        "min_p 0.05": (24, 3),
    }


def test_benchmark_of_one_rank() -> None:
    """On a CPU there are no kernels to compare with."""
    sizes = ["--rows", "3", "--vocabulary", "3000", "--repeats", "1", "--dtype", "bfloat16"]
    command = [sys.executable, "benchmarks/vocabulary_parallel.py", "--device", "cpu", "--local", *sizes]
    run = subprocess.run(command, cwd=ROOT, env=ONE_THREAD, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert {kind: set(told) for kind, told in json.loads(run.stdout)["figures"]["local"].items()} == {
        kind: {"operators"} for kind in ("greedy", "unfiltered", "top_k 20, top_p 0.9", "top_p 0.9", "min_p 0.05")
    }


def test_a_captured_step_reads_nothing() -> None:
    """Fake tensors have shapes and no values: whoever asks for one fails."""
    logits, kinds = rows_of(5000), list(KINDS)
    params = params_of(kinds, len(logits), 5000)
    work = Work.of(tensors(params), 5000)
    assert all(work), "a step that needs everything"

    class Twice:
        rank, size = 1, 2

        def gather(self, tensor: Any) -> Any:
            return torch.stack([tensor, tensor])

    part, count = VocabularyPart(Twice(), 5000), len(logits) * len(kinds)  # type: ignore[arg-type]
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        rows = RowParams(*(mode.from_tensor(tensor) for tensor in tensors(params)))
        mine, scores = torch.zeros(count, part.width), torch.zeros(count, 4)
        ids = torch.zeros(count, 4, dtype=torch.int64)
        token, rank, logprob = ids[:, 0], ids[:, 1], scores[:, 0]
        part.sample_target(mine, rows, token, logprob, rank, work=work)
        part.token_logprobs(mine, rank.int(), token, torch.zeros(2, dtype=torch.int32), ids, scores, rank)
        with pytest.raises(DataDependentOutputException):
            part.sample_target(mine, rows, token, logprob, rank)


@pytest.mark.parametrize("look", [True, False], ids=["looking", "not looking"])
def test_a_cut_anywhere(look: bool) -> None:
    """Among the candidates, at the last of them that is certain, behind it, with and without ties."""
    rng, vocab, count = np.random.default_rng(0), 2048, 400
    # Whose log-probabilities tell what all of the kept weigh.
    options = {"logprob_mode": LogprobMode.PROCESSED, "purpose": Purpose.SAMPLE}
    kept = np.arange(count)
    for digits in (0, 6):
        row = np.round(rng.normal(0, 1, vocab), digits).astype(np.float32)
        row[1024:] -= 1 - digits / 6  # of some candidates of the other rank, nobody knows what stands between
        shares = np.sort(np.exp(row.astype(np.float64)))[::-1].cumsum()
        params = params_of(["top_p"], count, vocab)
        params["row_top_p"] = np.float32((shares[kept] - 0.5 * np.diff(shares, prepend=0)[kept]) / shares[-1])
        params["row_top_k"] = np.where(kept % 2, 0, kept // 2).astype(np.int32)
        params["row_top_p"][::4] = 1
        logits = np.tile(row, (count, 1))
        found = Threads(2).run(
            lambda group, logits=logits, params=params: on_parts(group, logits, params, look, **options)
        )
        check(found, on_whole_rows(logits, params, **options), ["cut"])


def test_a_share_that_nothing_reaches() -> None:
    """Masses by chunks may sum to more than those relative to the row's largest logit: then everything is kept."""
    count, vocab = 40, 3000
    row = np.zeros(vocab, np.float32)
    row[[0, 1500, 2500]] = 3, 1.7, 0.4
    params = params_of(["top_p almost 1"], count, vocab)
    params["row_temperature"] = np.linspace(0.5, 3, count, dtype=np.float32)
    inverses = np.float32(1) / params["row_temperature"]
    totals = np.array([primitives.chunk_masses(row, inverse).total for inverse in inverses])
    masses = primitives.exp2_mass(primitives.softmax_t(np.tile(row, (count, 1)), np.full(count, 3), inverses)).sum(1)
    unreached = primitives.threshold(params["row_top_p"], totals) > masses
    assert 2 < unreached.sum() < count - 2
    logits, options = np.tile(row, (count, 1)), {"logprob_mode": LogprobMode.PROCESSED, "purpose": Purpose.SAMPLE}
    found = Threads(2).run(lambda group: on_parts(group, logits, params, True, **options))
    check(found, on_whole_rows(logits, params, **options), ["top_p"])


BYTES = {
    "greedy": (8, 8, 1),
    "unfiltered": (24, 24, 3),
    "tempered": (24, 24, 3),
    "top_k": (256, 256, 1),
    "top_k as listed": (256, 256, 1),
    "top_k beyond the list": (256, 1304, 12),
    "top_k beyond a part": (1304, 1304, 12),
    "top_k and top_p": (256, 256, 1),
    "all": (256, 256, 1),
    "top_p": (264, 1312, 13),
    "top_p wide": (1312, 1312, 13),
    "large top_k and top_p": (2336, 2336, 21),
    "min_p": (24, 24, 3),
    "top_p and min_p": (1312, 1312, 13),
}
"""Bytes where the host looks and where it does not, and exchanges where it does not."""


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_and_bits_of_a_kind_by_itself(kind: str) -> None:
    """What the docs say that a rank sends for a row, looking and not, without and with log-probability and rank."""
    # 33 tokens of one rank cannot be among the 32 that it tells.
    logits = rows_of(5000)[[0, 0 if kind == "top_k beyond the list" else ONE_SIDED]]
    params = params_of([kind], 3, 5000)
    params = {name: array[1:] for name, array in params.items()}  # not a tail
    wanted = on_whole_rows(logits, params, logprob_mode=LogprobMode.RAW, purpose=Purpose.SAMPLE)

    def work(group: Any) -> Any:
        counts = []
        for look in (True, False):
            for told in (False, True):
                counted, rows = Counted(group), tensors(params)
                part = VocabularyPart(counted, 5000)
                mine = torch.from_numpy(logits[:, part.first : part.first + part.width].copy())
                token, rank, logprob = *torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2)
                extra = (logprob, rank) if told else ()
                part.sample_target(mine, rows, token, *extra, work=None if look else Work.of(rows, 5000))
                assert token.tolist() == wanted["target_tokens"].tolist()
                if told:
                    assert (logprob.tolist(), rank.tolist()) == (wanted["logprobs"].tolist(), wanted["ranks"].tolist())
                counts.append((counted.sent / 2, counted.rounds))
        return counts

    (looking, _), (both, _), fixed, _ = Threads(2).run(work)[0]
    assert (looking, *fixed) == BYTES[kind]
    known = KINDS[kind][0] == 1 and looking in (24, 264, 1312) and kind != "min_p"  # the shares at temperature 1
    assert both - looking == (8 if known else 16)


@pytest.mark.parametrize("columns", [1, 2, 6, 99])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_logprobs_of_given_tokens(vocab: int, ranks: int, columns: int) -> None:
    logits, rng = rows_of(vocab), np.random.default_rng(columns)
    count = 60
    rows = rng.integers(-1, len(logits) + 1, count).astype(np.int32)
    token_ids = rng.integers(0, vocab, count)
    token_ids[:4] = vocab - 1, vocab, -1, 0
    rows[:4] = 2, 2, 2, 5
    if vocab == 5000:
        token_ids[4:9], rows[4:9] = [1000, 2500, 4999, 0, 1], 3
    for accepted in (count - 7, count + 3, 0):
        offsets = np.array([0, accepted], np.int32)
        shapes = {"ids": (count, columns), "logprobs": (count, columns), "ranks": (count,)}
        dtypes = {"ids": np.int64, "logprobs": np.float32, "ranks": np.int64}
        wanted = {name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()}
        output.token_logprobs(logits, rows, token_ids, offsets, **wanted)

        def work(group: Any, offsets: Any = offsets, wanted: Any = wanted) -> Any:
            counted = Counted(group)
            part = VocabularyPart(counted, vocab)
            mine = torch.from_numpy(logits[:, part.first : part.first + part.width].copy())
            found = {name: torch.full_like(torch.from_numpy(array), 7) for name, array in wanted.items()}
            given = (torch.from_numpy(array) for array in (rows, token_ids, offsets))
            part.token_logprobs(mine, *given, **found)
            assert counted.sent == count * (8 * max(columns - 1, 1) + 24)
            return {name: tensor.numpy() for name, tensor in found.items()}

        for found in Threads(ranks).run(work):
            for name, array in wanted.items():
                np.testing.assert_array_equal(found[name].view(f"u{array.itemsize}"), array.view(f"u{array.itemsize}"))
