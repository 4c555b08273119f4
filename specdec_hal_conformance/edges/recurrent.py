"""Section 12: states and inputs by position. Many edges are faults that engines have had with drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_hal.ops import Activation, Storage
from specdec_hal_conformance.building import logits
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge
from specdec_hal_conformance.expectations import Close, Where

CONV, DELTA, MAMBA, ADVANCE = "causal_conv1d", "gated_delta_rule", "mamba2_step", "advance_checkpoints"
NAN, INF = np.nan, np.inf
MOST = 2**31 - 1
NEAR = 1 + 2.0**-12
"""NEAR * NEAR is 1 + 2^-11 in float32, 2^-24 less than exactly."""
HUGE = 2.0**24
"""HUGE + 1 is HUGE in float32."""
Numbers = list[float]


def _floats(values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


STEPS: tuple[tuple[str, str, int, Numbers, Numbers, Numbers], ...] = (
    ("the first token of a request", "zero position", 0, [3], [97, 98, 99], [3, 98, 99]),
    ("a position below 0", "position zero", -5, [3], [97, 98, 99], [3, 98, 99]),
    ("no drafts after two of three were accepted", "state stored", 7, [5], [30, 40, 98, 99, 10], [30, 40, 45, 99, 10]),
    ("no draft of three was accepted", "state stored", 3, [1, 2, 3, 4], [97, 98, 10, 96, 95], [16, 20, 10, 11, 13]),
    ("all of three drafts were accepted", "state stored", 8, [1, 2, 3, 4], [96, 7, 10, 4, 5], [16, 20, 10, 11, 13]),
    ("fewer drafts than before", "state stored sequence", 5, [1, 2], [10, 97, 98, 99, 10], [11, 13, 98, 99, 10]),
    ("a length at the end of the ring", "state stored", 8, [5, 2], [96, 97, 98, 10], [15, 17, 98, 10]),
    ("a length before the end of the ring", "state stored", 7, [5, 2], [96, 97, 10, 99], [17, 97, 10, 15]),
    ("a length after the end of the ring", "state stored", 9, [5, 2], [10, 97, 98, 99], [10, 15, 17, 99]),
    ("a prompt's last chunk has one token", "state stored", 100, [2], [40, 97, 98], [40, 42, 98]),
    ("rows up to 1 + K that no token has", "sequence stored", 4, [2, 0, 0, 0], [96, 97, 98, 10, 99],
     [12, 12, 12, 10, 12]),
    ("a chunk longer than the ring", "sequence stored", 0, [1, 2, 3, 4, 5], [96, 97, 98], [10, 15, 6]),
    ("a later chunk longer than the ring", "sequence stored", 2, [1, 2, 3, 4, 5], [96, 10, 98], [25, 16, 20]),
    ("a ring of one state", "state stored", 5, [1, 2], [10], [13]),
    ("positions beyond 31 bits", "state stored position", MOST, [1, 2, 3], [10, 97, 98], [16, 11, 13]),
)  # fmt: skip
"""Name, rules, position of the first token, what each token adds to a state of one number, the ring before and after.

90 and more are states of rejected drafts and of earlier requests.
"""


# As STEPS with REPLAY; the ring has the updates by position. `known`: checkpoint_lens, and the checkpoint.
REPLAYS: tuple[tuple[str, str, int, Numbers, tuple[int, float], float, Numbers, Numbers], ...] = (
    ("two tokens are folded", "checkpoint fold recorded unmoved", 7, [4], (5, 10), 10, [2, 97, 98, 99, 96, 1],
     [2, 4, 98, 99, 96, 1]),
    ("the checkpoint moves to the step", "moved recorded", 7, [4, 5], (5, 10), 13, [2, 97, 98, 99, 96, 1],
     [2, 4, 5, 99, 96, 1]),
    ("rejected drafts are not folded", "fold recorded moved", 8, [4, 5], (5, 10), 16, [2, 3, 98, 99, 96, 1],
     [2, 3, 4, 5, 96, 1]),
    ("a step longer than half the ring", "long", 7, [4, 5, 6, 7], (5, 10), 35, [2, 97, 98, 99, 96, 1],
     [2, 97, 98, 99, 96, 1]),
    ("a chunk longer than the ring", "long", 0, [1, 2, 3, 4, 5, 6, 7], (4, 97), 28, [97] * 6, [97] * 6),
    ("a checkpoint too far behind", "checkpoint-clamp moved", 7, [4], (0, 10), 16, [2, 97, 98, 99, 3, 1],
     [2, 4, 98, 99, 3, 1]),
    ("a checkpoint ahead", "checkpoint-clamp unmoved", 7, [4], (9, 10), 10, [97] * 6, [97, 4, 97, 97, 97, 97]),
    ("a checkpoint at the step", "checkpoint unmoved", 7, [4], (7, 10), 10, [97] * 6, [97, 4, 97, 97, 97, 97]),
    ("a slot used again", "checkpoint checkpoint-clamp recorded", 0, [3], (5, 98), 98, [97] * 6,
     [3, 97, 97, 97, 97, 97]),
    ("a second token", "checkpoint fold", 1, [3], (0, 98), 98, [2, 97, 97, 97], [2, 3, 97, 97]),
    ("a ring of one", "long", 5, [2], (3, 10), 12, [97], [97]),
)  # fmt: skip
"""Name, rules, position, what each token adds, checkpoint_lens and checkpoint before, checkpoint after, the ring."""


def edges() -> Iterator[Case]:
    """The section's ops."""
    yield from _advances()
    for op in (DELTA, MAMBA):
        yield from _replays(op)
        yield from _steps(op)
        yield from _rows(op)
        yield from _arithmetic(op)
    yield from _delta()
    yield from _mamba()
    yield from _conv_positions()
    yield from _conv_arithmetic()


def _ones(op: str, values: Any, **given: Any) -> dict[str, Any]:
    """Tokens of one head and one channel with keys, queries, decays and rates of 1, in one slot at position 0."""
    v = np.array(values, np.float32).reshape(-1, 1, 1)
    one, scalar = np.ones_like(v), np.ones_like(v[:, 0])
    rate: dict[str, Any] = {"beta": scalar, "qk_l2norm": False} if op == DELTA else {"dt": scalar}
    rows = {"seq_lens_decoder": [0], "cu_seqlens_q": [0, len(v)], "states": _rings([9, 9, 9, 9])}
    return {"q": one, "k": one, "v": v, "decay": scalar, **rate, **rows, **given}


def _rings(*slots: Numbers) -> Any:
    return np.array(slots, np.float32)[:, :, None, None, None]


def _adding(op: str, increments: Numbers, before: float) -> dict[str, Any]:
    """Tokens that add the numbers to a state of one number, `before` at first.

    The delta rule adds beta (v - S): with beta 1/2 and v = S + 2 x it adds x.
    """
    if op == MAMBA:
        return _ones(op, increments)
    states = before + np.cumsum([0, *increments[:-1]])
    beta = np.full((len(increments), 1), 0.5, np.float32)
    return _ones(op, states + 2 * np.array(increments), beta=beta)


def _steps(op: str) -> Iterator[Case]:
    for name, rules, position, increments, before, after in STEPS:
        first = before[(position - 1) % len(before)] if position > 0 else 0
        tokens = _adding(op, increments, first)
        yield edge(
            op, name, rules, {"core_out": (first + np.cumsum(increments))[:, None, None], "states": _rings(after)},
            **{**tokens, "seq_lens_decoder": [position], "states": _rings(before)},
        )  # fmt: skip
    yield edge(
        op, "a slot used again, with NaN in its states", "zero",
        {
            "core_out": [[[3]]],
            "states": Where("3, NaN, NaN", lambda s: bool(s[0, 0] == 3 and np.isnan(s[0, 1:]).all())),
        },
        **_ones(op, [3], states=_rings([NAN, NAN, NAN])),
    )  # fmt: skip


def _replayed(op: str, tokens: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The tokens with REPLAY instead of STATES; keys and decays of earlier tokens are 1."""
    del tokens["states"]
    updates = np.array(given.pop("replay_u"), np.float32).reshape(1, -1, 1, 1)
    ones = {"replay_k": np.ones_like(updates), "replay_decay": np.ones_like(updates[..., 0])}
    return {**tokens, "storage": Storage.REPLAY, "replay_u": updates, **ones, **given}


def _replays(op: str) -> Iterator[Case]:
    for name, rules, position, increments, (known, checkpoint), moved, before, after in REPLAYS:
        half, ring = len(before) // 2, len(before)
        at = min(max(known, position - half, 0), position)
        first = (checkpoint if at > 0 else 0) + sum(before[j % ring] for j in range(at, position))
        yield edge(
            op, f"replay: {name}", rules,
            {
                "core_out": (first + np.cumsum(increments))[:, None, None], "checkpoint": [[[[moved]]]],
                "replay_u": np.array(after).reshape(1, -1, 1, 1),
            },
            **_replayed(op, _adding(op, increments, first), replay_u=before, checkpoint=[[[[checkpoint]]]],
                        checkpoint_lens=[known], seq_lens_decoder=[position]),
        )  # fmt: skip
    still: dict[str, Any] = {"beta": np.zeros((1, 1), np.float32)} if op == DELTA else {}  # a token adds nothing
    nan = np.full((1, 1, 1, 1), NAN, np.float32)
    yield edge(
        op, "replay: a slot used again, whose checkpoint is NaN", "checkpoint", {"core_out": [[[3]]]},
        **_replayed(op, _ones(op, [3]), replay_u=[NAN] * 4, checkpoint=nan, checkpoint_lens=[7]),
    )  # fmt: skip
    yield edge(
        op, "replay: keys and decays are folded", "fold", {"core_out": [[[10]]], "checkpoint": [[[[8]]]]},
        **_replayed(op, _ones(op, [0], **still), replay_u=[97, 3, 97, 97], checkpoint=[[[[8]]]],
                    checkpoint_lens=[1], seq_lens_decoder=[2], replay_k=_floats([9, 2, 9, 9]).reshape(1, 4, 1, 1),
                    replay_decay=_floats([9, 0.5, 9, 9]).reshape(1, 4, 1)),
    )  # fmt: skip
    # With a checkpoint of -1, a fused k u + S would be 2^-11 + 2^-24.
    yield edge(
        op, "replay: the fold is rounded twice", "fold unfused", {"core_out": [[[2.0**-11]]]},
        **_replayed(op, _ones(op, [0], **still), replay_u=[97, NEAR, 97, 97],
                    checkpoint=[[[[-1]]]], checkpoint_lens=[1], seq_lens_decoder=[2],
                    replay_k=np.full((1, 4, 1, 1), NEAR, np.float32)),
    )  # fmt: skip
    yield edge(
        op, "replay: keys and decays are recorded", "recorded",
        {"replay_k": np.reshape([1, 1, 3, 1], (1, 4, 1, 1)), "replay_decay": np.reshape([1, 1, 0.5, 1], (1, 4, 1))},
        **_replayed(op, _ones(op, [1], k=_floats([[[3]]]), decay=_floats([[0.5]])), replay_u=[0] * 4,
                    checkpoint=[[[[1]]]], checkpoint_lens=[2], seq_lens_decoder=[2]),
    )  # fmt: skip
    # Value heads 0 and 1 have key head 0: 1 + 2 * 3, 1 + 2 * 4, 1 + 5 * 6.
    rate = {"beta": np.zeros((1, 3), np.float32)} if op == DELTA else {"dt": np.ones((1, 3), np.float32)}
    heads = {
        "q": np.ones((1, 2, 1), np.float32), "k": _floats([[[11], [13]]]), "v": np.zeros((1, 3, 1), np.float32),
        "decay": np.ones((1, 3), np.float32), "replay_decay": np.ones((1, 4, 3), np.float32),
        "checkpoint": np.ones((1, 3, 1, 1), np.float32),
    }  # fmt: skip
    kept = {"replay_k": _floats([[[[97]] * 2, [[2], [5]], [[97]] * 2, [[97]] * 2]]),
            "replay_u": _floats([[[[97]] * 3, [[3], [4], [6]], [[97]] * 3, [[97]] * 3]])}  # fmt: skip
    recorded = kept["replay_k"].copy()
    recorded[0, 2, :, 0] = 11, 13
    call = {**_replayed(op, _ones(op, [0]), replay_u=[0] * 4), **heads, **rate, **kept}
    yield edge(
        op, "replay: value heads share the keys of their key head", "heads fold recorded",
        {"core_out": [[[7], [9], [31]]], "replay_k": recorded},
        **{**call, "checkpoint_lens": [1], "seq_lens_decoder": [2]},
    )  # fmt: skip
    if op == DELTA:
        yield edge(
            op, "replay: keys are recorded as they are used", "recorded",
            {"replay_k": Where("0.6, 0.8", lambda k: bool(np.allclose(k[0, 0, 0], [0.6, 0.8], rtol=1e-6)))},
            **_replayed(op, _ones(op, [1], k=_floats([[[3, 4]]]), q=_floats([[[1, 1]]]), qk_l2norm=True),
                        replay_u=[0] * 4, replay_k=np.zeros((1, 4, 1, 2), np.float32),
                        checkpoint=np.zeros((1, 1, 2, 1), np.float32), checkpoint_lens=[0]),
        )  # fmt: skip


def _advances() -> Iterator[Case]:
    cases = (
        # Rows, position, before, after; the ring has 6 entries.
        ("kept clamp", 1, 7, 5, 5), ("moved", 2, 7, 5, 7), ("long", 4, 7, 5, 11), ("clamp moved", 1, 7, 0, 7),
        ("clamp kept", 1, 7, 9, 7), ("clamp kept", 3, 0, 9, 0), ("idle", 0, 7, 1, 1), ("long", 4, 0, 0, 4),
        ("kept", 3, 7, 7, 7), ("clamp kept", 1, -4, 3, 0), ("saturate long", 4, MOST, 5, MOST),
    )  # fmt: skip
    rows, positions, before, after = (list(column) for column in zip(*(case[1:] for case in cases), strict=True))
    rules = " ".join(dict.fromkeys(rule for case in cases for rule in case[0].split()))
    given: dict[str, Any] = {"seq_lens_decoder": [*positions, 7], "checkpoint_lens": [*before, 1], "ring": 6}
    offsets = [0, *np.cumsum(rows).tolist()]
    yield edge(ADVANCE, "a slot of each kind", rules, {"checkpoint_lens": [*after, 1]}, cu_seqlens_q=offsets,
               num_rows=offsets[-1], **given)  # fmt: skip
    yield edge(ADVANCE, "offsets beyond the rows", "clamp idle", {"checkpoint_lens": [5, 1]}, cu_seqlens_q=[0, 9, 12],
               num_rows=1, seq_lens_decoder=[7, 7], checkpoint_lens=[5, 1], ring=6)  # fmt: skip
    yield edge(ADVANCE, "an odd ring", "moved kept", {"checkpoint_lens": [5, 7]}, cu_seqlens_q=[0, 1, 3], num_rows=3,
               seq_lens_decoder=[7, 7], checkpoint_lens=[5, 5], ring=7)  # fmt: skip


def _rows(op: str) -> Iterator[Case]:
    """States [slot 0, 1, ...] hold 10, 20, ... at position 1; tokens add 1, 2, 3, ..."""

    def slots(name: str, rules: str, offsets: list[int], owners: Numbers, after: Any, m: int, **given: Any) -> Case:
        """`owners`: the state before each row."""
        increments = np.arange(1.0, len(owners) + 1)
        states = np.array(owners)
        values = states + 2 * increments if op == DELTA else increments
        tokens = _ones(op, values)
        if op == DELTA:
            tokens["beta"] = np.full((len(owners), 1), 0.5, np.float32)
        rings = _rings(*([97, 10.0 * (b + 1), 98] for b in range(m)))
        out = given.pop("out", states + increments)
        return edge(
            op, name, rules, {"core_out": np.array(out)[:, None, None], "states": _rings(*after)},
            **{**tokens, "states": rings, "seq_lens_decoder": [2] * m, "cu_seqlens_q": offsets, **given},
        )  # fmt: skip

    yield slots("idle and padding slots", "idle rows", [0, 1, 1, 2], [10, 30],
                [[97, 10, 11], [97, 20, 98], [97, 30, 32], [97, 40, 98]], 4)  # fmt: skip
    yield slots("rows of no slot", "tail", [1, 2], [0, 10, 0], [[97, 10, 12]], 1, out=[0, 12, 0])
    yield slots("no slots", "tail idle", [0], [0, 0], [[97, 10, 98]], 1, out=[0, 0])
    yield slots("offsets that fall", "rows", [0, 2, 1, 3], [10, 11, 30], [[13, 10, 11], [97, 20, 98], [97, 30, 33]],
                3)  # fmt: skip
    yield slots("offsets outside", "rows", [-3, 1, 9], [10, 20], [[97, 10, 11], [97, 20, 22]], 2)
    yield edge(
        op, "a NaN stays in its slot", "idle conventions#independent",
        {"core_out": Where("NaN, 21", lambda out: bool(np.isnan(out[0, 0, 0]) and out[1, 0, 0] == 21))},
        **_ones(op, [NAN, 21 if op == DELTA else 1], states=_rings([97, 10], [97, 20]), seq_lens_decoder=[2, 2],
                cu_seqlens_q=[0, 1, 2]),
    )  # fmt: skip
    heads = {
        "q": np.ones((1, 2, 1), np.float32), "k": np.array([[[1], [10]]], np.float32), "v": np.ones((1, 3, 1)),
        "decay": np.ones((1, 3)), "states": np.zeros((1, 2, 3, 1, 1), np.float32),
    }  # fmt: skip
    rate = "beta" if op == DELTA else "dt"
    call = {**_ones(op, [1]), **heads, rate: np.ones((1, 3), np.float32)}
    call = {n: v.astype(np.float32) if isinstance(v, np.ndarray) else v for n, v in call.items()}
    yield edge(op, "three value heads for two key heads", "heads", {"core_out": [[[1], [1], [10]]]}, **call)
    four = {
        "v": np.ones((1, 4, 1), np.float32), "decay": np.ones((1, 4), np.float32), rate: np.ones((1, 4), np.float32),
        "states": np.zeros((1, 2, 4, 1, 1), np.float32), "k": _floats([[[1], [2]]]),
    }  # fmt: skip
    yield edge(op, "value heads share a key head with their neighbours", "heads", {"core_out": [[[1], [1], [2], [2]]]},
               **{**call, **four})  # fmt: skip
    columns: dict[str, Any] = {
        "v": np.array([[[1, 2, 4]]], np.float32), "states": np.zeros((1, 2, 1, 2, 3), np.float32),
        "q": np.array([[[1, 10]]], np.float32) * (np.sqrt(np.float32(2)) if op == DELTA else 1),
        "k": np.array([[[1, 0]]], np.float32),
    }  # fmt: skip
    yield edge(op, "rows are key channels and columns value channels", "update output",
               {"states": [[[[[1, 2, 4], [0] * 3]], [[[0] * 3] * 2]]]}, **_ones(op, [1], **columns))  # fmt: skip


def _dot_of(op: str, products: dict[int, float], size: int = 16) -> dict[str, Any]:
    """One token whose state is 1 in all rows and whose output is the sum of the products, by key channel."""
    q = np.zeros((1, 1, size), np.float32)
    for i, product in products.items():
        q[0, 0, i] = product * (np.sqrt(size) if op == DELTA else 1)
    given = {"q": q, "k": np.zeros_like(q), "states": np.ones((1, 2, 1, size, 1), np.float32), "seq_lens_decoder": [1]}
    return _ones(op, [0], **given)


def _arithmetic(op: str) -> Iterator[Case]:
    for name, products, total in (
        ("partial sums have every eighth element", {0: HUGE, 1: -HUGE, 8: 1}, 0),
        ("there are eight partial sums", {0: HUGE, 4: -HUGE, 8: 1}, 0),
        ("partial sums ascend", {0: 1, 8: HUGE, 1: -HUGE}, 0),
        ("the first and the fifth partial sum come first", {0: HUGE, 4: 1, 2: -HUGE}, 0),
        ("the third and the seventh partial sum come first", {2: HUGE, 6: 1, 0: -HUGE}, 0),
        ("even partial sums come before odd ones", {0: HUGE, 2: 1, 1: -HUGE}, 0),
        ("odd partial sums are summed before the last sum", {1: HUGE, 3: 1, 0: -HUGE}, 0),
        ("no product is fused", {0: HUGE, 1: 1, 8: -HUGE}, 1),
    ):
        yield edge(op, name, "dot unfused", {"core_out": [[[total]]]}, **_dot_of(op, products))
    # With S = -1 before, a fused k u + S would be 2^-11 + 2^-24. Of the delta rule, u = v - S k = v + k.
    near = np.full((1, 1, 1), NEAR, np.float32)
    values = 0 if op == DELTA else NEAR
    yield edge(
        op, "the update is rounded twice", "update unfused", {"states": _rings([-1, 2.0**-11])},
        **_ones(op, [values], k=near, states=_rings([-1, 0]), seq_lens_decoder=[1]),
    )  # fmt: skip
    # S a is 1 + 2^-11, and 2^-24 more where it is not rounded. Of the delta rule, u = v - S k.
    values = 2.0**-11 if op == DELTA else -1
    yield edge(
        op, "the decayed state is rounded", "decay unfused", {"states": _rings([NEAR, 2.0**-11])},
        **_ones(op, [values], decay=near[:, 0], states=_rings([NEAR, 0]), seq_lens_decoder=[1]),
    )  # fmt: skip
    for name, state, result in (
        ("up", 1 + 2.0**-8 + 2.0**-20, 1 + 2.0**-7),
        ("to even", 1 + 2.0**-8, 1.0),
        ("to even, upwards", 1 + 3 * 2.0**-8, 1 + 2.0**-6),
    ):
        cells = {n: logits(np.ones((1, 1, 1)) * (n != "v"), "bfloat16") for n in ("q", "k", "v")}
        cells["k"] = logits(np.zeros((1, 1, 1)), "bfloat16")
        rule = "output" if op == DELTA else "rounded"
        yield edge(
            op, f"bfloat16 is rounded {name}", rule, {"core_out": [[[result]]]},
            **_ones(op, [0], **cells, states=_rings([state, 0]), seq_lens_decoder=[1]),
        )  # fmt: skip
    yield edge(
        op, "a decay of 0 forgets", "decay", {"core_out": [[[3]]]},
        **_ones(op, [3], decay=np.zeros((1, 1), np.float32), states=_rings([7, 8]), seq_lens_decoder=[1]),
    )  # fmt: skip


def _delta() -> Iterator[Case]:
    def one(name: str, rules: str, expected: dict[str, Any], **given: Any) -> Case:
        cells = {n: np.array(v, np.float32) if isinstance(v, list) else v for n, v in given.items()}
        return edge(DELTA, name, rules, expected, **{**_ones(DELTA, [10]), "seq_lens_decoder": [1], **cells})

    # S = 4/2 = 2; u = 0.5 (10 - 2 * 3) = 2; S = 2 + 3 * 2 = 8; out = 8 * 5.
    yield one("decay, correction, update, output", "decay correction update output",
              {"core_out": [[[40]]], "states": _rings([4, 8])}, q=[[[5]]], k=[[[3]]], decay=[[0.5]], beta=[[0.5]],
              states=_rings([4, 0]))  # fmt: skip
    # u = 1 * (1 - (1 + 2^-12)^2) is -2^-11, and 2^-24 less where the product is not rounded.
    near = np.float32(NEAR)
    yield one("the product with the key is rounded", "correction unfused",
              {"states": _rings([NEAR, float(near + near * np.float32(-(2.0**-11)))])}, k=[[[NEAR]]], v=[[[1]]],
              states=_rings([NEAR, 0]))  # fmt: skip
    # 3 (v - S) is 3 * 2^-23; 3 v is rounded to 3 + 2^-21, so that 3 v - 3 S would be 2^-21.
    ulp = 2.0**-23
    yield one("beta multiplies the difference", "correction", {"core_out": [[[1 + 3 * ulp]]]}, beta=[[3]],
              k=[[[1]]], v=[[[1 + ulp]]], states=_rings([1, 0]))  # fmt: skip
    wide = {"states": np.zeros((1, 2, 1, 2, 1), np.float32), "v": [[[1]]], "qk_l2norm": True}
    yield one("keys and queries of length 1", "l2norm scale",
              {"states": Where("0.6, 0.8", lambda s: bool(np.allclose(s[0, 1, 0, :, 0], [0.6, 0.8], rtol=1e-6))),
               "core_out": Close([[[np.sqrt(0.5)]]])},
              q=[[[6, 8]]], k=[[[3, 4]]], **wide)  # fmt: skip
    yield one("a key of 0 stays 0", "l2norm", {"states": np.zeros((1, 2, 1, 2, 1)), "core_out": [[[0]]]},
              q=[[[0, 0]]], k=[[[0, 0]]], **wide)  # fmt: skip
    tiny = 1e-3 / np.sqrt(2e-6)
    yield one("the root has 1e-6 added", "l2norm",
              {"states": Where(f"{tiny}, 0", lambda s: bool(np.allclose(s[0, 1, 0, :, 0], [tiny, 0], rtol=1e-6)))},
              q=[[[0, 0]]], k=[[[1e-3, 0]]], **wide)  # fmt: skip
    four = {"states": np.zeros((1, 2, 1, 4, 1), np.float32), "v": [[[1]]]}
    yield one("queries are divided by the root of the width", "scale no-l2norm", {"core_out": [[[1.5]]]},
              q=[[[3, 0, 0, 0]]], k=[[[1, 0, 0, 0]]], **four)  # fmt: skip
    yield one("keys are not", "no-l2norm scale", {"states": [[[[[0]] * 4], [[[3], [0], [0], [0]]]]]},
              q=[[[0, 0, 0, 0]]], k=[[[3, 0, 0, 0]]], **four)  # fmt: skip
    yield one("a decay for each key channel", "decay", {"states": [[[[[8], [8]]], [[[2], [4]]]]]}, q=[[[0, 0]]],
              k=[[[0, 0]]], decay=[[[0.25, 0.5]]], decay_per_channel=True,
              states=np.array([8, 8, 0, 0], np.float32).reshape(1, 2, 1, 2, 1))  # fmt: skip
    yield one("decays of two heads", "decay", {"states": [[[[[8]], [[8]]], [[[2]], [[4]]]]]}, q=[[[0]]], k=[[[0]]],
              v=[[[0], [0]]], beta=[[1, 1]], decay=[[0.25, 0.5]],
              states=np.array([8, 8, 0, 0], np.float32).reshape(1, 2, 2, 1, 1))  # fmt: skip


def _mamba() -> Iterator[Case]:
    def one(name: str, rules: str, expected: dict[str, Any], **given: Any) -> Case:
        cells = {n: np.array(v, np.float32) if isinstance(v, list) else v for n, v in given.items()}
        return edge(MAMBA, name, rules, expected, **{**_ones(MAMBA, [10]), "seq_lens_decoder": [1], **cells})

    # S = 4/2 = 2; S = 2 + 3 * (0.5 * 10) = 17; y = 17 * 5 = 85.
    given: dict[str, Any] = {"q": [[[5]]], "k": [[[3]]], "decay": [[0.5]], "dt": [[0.5]], "states": _rings([4, 0])}
    yield one(
        "decay, update, output", "decay update output", {"core_out": [[[85]]], "states": _rings([4, 17])}, **given
    )
    yield one("with a skip", "skip", {"core_out": [[[105]]], "states": _rings([4, 17])}, **given, skip=_floats([2]))
    # dt v is 1 + 2^-11; times k = HUGE, 1 more where it is not rounded first.
    yield one("dt is multiplied with the value first", "update unfused",
              {"states": _rings([0, 3 * float(np.float32(NEAR) * np.float32(NEAR))])}, k=[[[3]]], dt=[[NEAR]],
              v=[[[NEAR]]], states=_rings([0, 0]))  # fmt: skip
    # y = -1, skip v = 1 + 2^-11, and 2^-24 more where it is not rounded.
    yield one("the skip is rounded twice", "skip unfused", {"core_out": [[[2.0**-11]]]}, q=[[[-1]]], k=[[[0]]],
              v=[[[NEAR]]], skip=_floats([NEAR]), states=_rings([1, 0]))  # fmt: skip


CONV_STEPS: tuple[tuple[str, str, int, Numbers, Numbers, Numbers, Numbers], ...] = (
    ("the first tokens of a request", "zero step", 0, [1, 2, 3, 4, 5], [9] * 8, [1, 12, 123, 1234, 2345],
     [1, 2, 3, 4, 5, 9, 9, 9]),
    ("a position below 0", "position zero", -1, [1], [9] * 4, [1], [1, 9, 9, 9]),
    ("a second token", "ring zero", 1, [2], [1, 9, 9, 9], [12], [1, 2, 9, 9]),
    ("no drafts after two of three were accepted", "ring stored", 7, [5], [9, 9, 9, 9, 2, 3, 4, 9], [2345],
     [9, 9, 9, 9, 2, 3, 4, 5]),
    ("no draft of three was accepted", "ring stored", 4, [5, 6, 7, 8], [9, 2, 3, 4, 9, 9, 9],
     [2345, 3456, 4567, 5678], [8, 2, 3, 4, 5, 6, 7]),
    ("a length at the end of the ring", "ring stored", 8, [4, 5], [9, 9, 9, 9, 9, 1, 2, 3], [1234, 2345],
     [4, 5, 9, 9, 9, 1, 2, 3]),
    ("a length after the end of the ring", "ring stored", 9, [4], [3, 9, 9, 9, 9, 9, 1, 2], [1234],
     [3, 4, 9, 9, 9, 9, 1, 2]),
    ("a prompt's last chunk has one token", "ring stored", 21, [4], [3, 9, 9, 1, 2], [1234], [3, 4, 9, 1, 2]),
    ("rows up to 1 + K that no token has", "step stored", 5, [4, 9, 9, 9], [9, 9, 1, 2, 3, 9, 9],
     [1234, 2349, 3499, 4999], [9, 9, 1, 2, 3, 4, 9]),
    ("a chunk longer than the ring", "step stored", 0, [1, 2, 3, 4, 5, 6], [9] * 4, [1, 12, 123, 1234, 2345, 3456],
     [5, 6, 3, 4]),
    ("a later chunk longer than the ring", "ring step stored", 3, [4, 5, 6, 7, 8], [1, 2, 3, 9],
     [1234, 2345, 3456, 4567, 5678], [5, 6, 7, 8]),
    ("positions beyond 31 bits", "position stored", MOST, [4, 5], [3, 9, 9, 9, 1, 2], [1234, 2345],
     [3, 4, 5, 9, 1, 2]),
)  # fmt: skip
"""As `STEPS`: inputs and what the ring holds are digits. The taps are 1000, 100, 10 and 1, so that the output at a
position shows the inputs of the last four positions. 9: of rejected drafts and earlier requests.
"""


def _inputs(values: Any) -> Any:
    return np.array(values, np.float32)[..., None]


def _conv_positions() -> Iterator[Case]:
    digits: dict[str, Any] = {"conv_weight": _floats([[1000, 100, 10, 1]]), "activation": Activation.NONE}
    for name, rules, position, values, before, out, after in CONV_STEPS:
        yield edge(
            CONV, name, f"{rules} taps", {"conv_out": _inputs(out), "conv_ring": _inputs([after])},
            conv_x=_inputs(values), conv_ring=_inputs([before]), seq_lens_decoder=[position],
            cu_seqlens_q=[0, len(values)], **digits,
        )  # fmt: skip
    nan = _inputs([[NAN] * 4])
    yield edge(
        CONV, "a slot used again, with NaN among its inputs", "zero", {"conv_out": _inputs([1, 12])},
        conv_x=_inputs([1, 2]), conv_ring=nan, seq_lens_decoder=[0], cu_seqlens_q=[0, 2], **digits,
    )  # fmt: skip

    def slots(name: str, rules: str, offsets: list[int], values: Numbers, out: Numbers, after: Any) -> Case:
        """Slots whose inputs at positions 1, 2 and 3 are 1, 2 and 3; positions start at 4."""
        rings = _inputs([[9, 1, 2, 3, 9, 9]] * len(after))
        return edge(
            CONV, name, rules, {"conv_out": _inputs(out), "conv_ring": _inputs(after)}, conv_x=_inputs(values),
            conv_ring=rings, seq_lens_decoder=[4] * len(after), cu_seqlens_q=offsets, **digits,
        )  # fmt: skip

    kept = [9, 1, 2, 3, 9, 9]
    yield slots("idle and padding slots", "idle rows", [0, 1, 1, 2], [4, 5], [1234, 1235],
                [[9, 1, 2, 3, 4, 9], kept, [9, 1, 2, 3, 5, 9], kept])  # fmt: skip
    yield slots("rows of no slot", "tail", [1, 2], [6, 4, 6], [0, 1234, 0], [[9, 1, 2, 3, 4, 9]])
    yield slots("no slots", "tail idle", [0], [6, 6], [0, 0], [kept])
    yield slots("offsets that fall", "rows", [0, 2, 1, 3], [4, 5, 6], [1234, 2345, 1236],
                [[9, 1, 2, 3, 4, 5], kept, [9, 1, 2, 3, 6, 9]])  # fmt: skip
    yield slots("offsets outside", "rows", [-3, 1, 9], [4, 5], [1234, 1235],
                [[9, 1, 2, 3, 4, 9], [9, 1, 2, 3, 5, 9]])  # fmt: skip
    yield edge(
        CONV, "channels have taps and inputs of their own", "taps", {"conv_out": [[21, 43]]},
        conv_x=_floats([[1, 3]]), conv_weight=_floats([[10, 1]] * 2), conv_ring=_floats([[[2, 4], [9, 9]]]),
        seq_lens_decoder=[1], cu_seqlens_q=[0, 1], activation=Activation.NONE,
    )  # fmt: skip


def _conv_arithmetic() -> Iterator[Case]:
    def one(
        name: str, rules: str, out: Any, taps: Numbers, bias: float | None = None, x: float = 1, **given: Any
    ) -> Case:
        """One input at position 0 of ring entries that are all 1, as if it were at position 8."""
        biases = {} if bias is None else {"conv_bias": _floats([bias])}
        return edge(
            CONV, name, rules, {"conv_out": out}, conv_x=_inputs([x]), conv_weight=_floats([taps]),
            conv_ring=_inputs([[1] * len(taps)]), seq_lens_decoder=[8], cu_seqlens_q=[0, 1],
            **{"activation": Activation.NONE, **biases, **given},
        )  # fmt: skip

    yield one("the oldest tap comes first", "taps", [[0]], [HUGE, 1, -HUGE])
    yield one("the bias comes first", "bias", [[0]], [1, -HUGE], HUGE)
    yield one("without a bias", "bias none", [[5]], [2, 3])
    yield one("products are rounded", "taps", [[2.0**-11]], [NEAR], -1, NEAR)
    yield one("one tap", "taps", [[6]], [2], x=3)
    for x, result in ((1.0, 0.731058579), (-1.0, -0.268941421), (20.0, 19.99999996), (-20.0, -4.12230724e-8),
                      (-80.0, -1.44388159e-33)):  # fmt: skip
        yield one(f"silu of {x}", "silu conventions#exp", Close([[result]]), [1], x=x, activation=Activation.SILU)
    for x, result in ((0.0, 0.0), (100.0, 100.0), (-100.0, 0.0), (INF, INF), (-3e38, 0.0)):
        yield one(f"silu of {x}", "silu", [[result]], [1], x=x, activation=Activation.SILU)
    yield one("silu of -inf", "silu", Where("NaN", lambda out: bool(np.isnan(out).all())), [1], x=-INF,
              activation=Activation.SILU)  # fmt: skip
    for name, earlier, result in (
        ("up", [2.0**-20, 2.0**-8], 1 + 2.0**-7),
        ("to even", [0, 2.0**-8], 1.0),
        ("to even, upwards", [2.0**-7, 2.0**-8], 1 + 2.0**-6),
    ):
        yield edge(
            CONV, f"bfloat16 is rounded {name}", "rounded", {"conv_out": [[result]]}, conv_x=logits([[1]], "bfloat16"),
            conv_weight=logits([[1, 1, 1]], "bfloat16"), conv_ring=logits([[*earlier, 9]], "bfloat16")[..., None],
            seq_lens_decoder=[2], cu_seqlens_q=[0, 1], activation=Activation.NONE,
        )  # fmt: skip
