"""Which keys a query sees in the pool: by hand, for each kind of mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'specdec-hal[torch]')")

# Two slots, whose rows of this step begin at positions 6 and 2: three rows and two.
FIRST, ROWS = (6, 2), (3, 2)
SEEN: dict[str, tuple[dict[str, Any], list[range]]] = {
    "causal": ({}, [range(7), range(8), range(9), range(3), range(4)]),
    "all rows": ({"causal": False}, [range(9)] * 3 + [range(4)] * 2),
    "window of 4": ({"window": 4}, [range(3, 7), range(4, 8), range(5, 9), range(3), range(4)]),
    "window of 2, both sides": (
        {"window": 2, "causal": False},
        [range(5, 8), range(6, 9), range(7, 9), range(1, 4), range(2, 4)],
    ),
    "chunks of 4": (
        {"window": 4, "chunked": True},
        [range(4, 7), range(4, 8), range(8, 9), range(3), range(4)],
    ),
    "anchored window of 4": (
        {"window": 4, "anchored": True},
        [range(2, 7), range(2, 8), range(2, 9), range(3), range(4)],
    ),
    "anchored window of 1, all rows": (
        {"window": 1, "anchored": True, "causal": False},
        [range(5, 9)] * 3 + [range(1, 4)] * 2,
    ),
}


@pytest.mark.parametrize("kind", SEEN)
def test_keys_that_a_query_sees(kind: str) -> None:
    """Queries of zeros weigh all keys alike; values are unit vectors, so a row names them."""
    from specdec_hal.models.attention import Layer
    from specdec_hal.models.paged import PagedStore
    from specdec_hal.plugin.model import DeviceBatch

    changes, seen = SEEN[kind]
    layer, size = Layer(0, 1, 1, 16, 16, 1.0, **changes), 4
    store = PagedStore([layer], 6, size, dtype=torch.float32, device="cpu")
    tables = torch.tensor([[4, 1, 3], [0, 5, 2]])
    for slot in range(2):
        for position in range(FIRST[slot] + ROWS[slot]):
            store.pool[0][tables[slot, position // size], 1, position % size, 0] = torch.eye(16)[position]
    batch = DeviceBatch(
        token_ids=torch.zeros(sum(ROWS), 1, dtype=torch.int64),
        batch_id_per_token=torch.tensor(np.repeat([0, 1], ROWS)),
        cu_seqlens_q=torch.tensor([0, ROWS[0], sum(ROWS)]),
        seq_lens_decoder=torch.tensor(FIRST),
        block_tables=tables,
        max_seq_len=12,
        max_query_len=max(ROWS),
    )
    rows = store.look(layer, store.place(batch), torch.zeros(sum(ROWS), 1, 16))[:, 0]
    wanted = np.zeros((sum(ROWS), 16))
    for row, keys in zip(wanted, seen, strict=True):
        row[list(keys)] = 1 / len(keys)
    np.testing.assert_allclose(rows.numpy(), wanted, atol=1e-6)
