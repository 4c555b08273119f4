"""Kernels over a rank's part of a vocabulary (`specdec_hal.parallel.vocabulary`), bound like ops.

They are not ops of the contract, since messages of ranks are internal to the engine, but use its arithmetic (section
0). A *sort key* is an int64 that orders the elements of a row, order key << 32 | (2^32 - 1 - token): the first element
has the largest; -2^63 is smaller than every sort key. `masses` of greedy rows (temperature not above 0) are at
temperature 1. Rows with position < 0 have tops of -inf, masses of 0 and sort keys of -2^63.
"""

from __future__ import annotations

from collections.abc import Mapping

from specdec_hal.ops.build import inp, op
from specdec_hal.ops.enums import Purpose
from specdec_hal.ops.spec import AttrSpec, Operand, OpSpec, Role, TensorSpec
from specdec_hal.ops.vocabulary import F32, I64, MAXIMUM


def _tensor(
    role: Role, name: str, dtypes: tuple[str, ...], *shape: str, doc: str, optional: bool = False
) -> tuple[Operand, ...]:
    return (Operand(TensorSpec(name, dtypes, shape, doc), role, optional),)


_CHUNKS = ("R_cap", "Chunks")
_FIRST_OF_RANKS = _tensor(
    Role.IN,
    "first_of_ranks",
    I64,
    "Ranks",
    "R_cap",
    "Listed",
    doc="First elements of every rank's part: sort keys, descending.",
)
_TOPS = _tensor(Role.IN, "chunk_tops", F32, *_CHUNKS, doc="Largest logit of each chunk.")
_SHARES = "Each chunk's share of the draw's total."
_TEMPERATURE = _tensor(Role.IN, "row_temperature", F32, "R_cap", doc="As in `sample_target`; absent: 1.", optional=True)
_FIRST_TOKEN = AttrSpec("first_token", int, "The token of column 0.", 0, 0, 2**31 - 1)
_VOCAB_SIZE = AttrSpec("vocab_size", int, "Tokens of all ranks.", None, 1, MAXIMUM["V"])
_PURPOSE = AttrSpec("purpose", Purpose, "What the random numbers are drawn for.", Purpose.SAMPLE)

PART_CHUNKS = op(
    "part_chunks",
    3,
    "Read this rank's part of each row once.",
    """
    chunk_tops and chunk_masses: for each chunk of the part, the largest logit and the sum of its elements' masses
    relative to it; NaN and 0 in a chunk with a NaN, mass 0 in a chunk of only -inf. first: sort keys of the part's
    first elements, padded with tokens at -inf after the part; in a part with a NaN, that of a NaN at `first_token`.
    """,
    inp("logits", "position"),
    _TEMPERATURE,
    _tensor(Role.OUT, "chunk_tops", F32, *_CHUNKS, doc="Largest logit of each chunk.", optional=True),
    _tensor(Role.OUT, "chunk_masses", I64, *_CHUNKS, doc="Sum of each chunk's masses.", optional=True),
    _tensor(Role.OUT, "first", I64, "R_cap", "Listed", doc="The part's first elements, as sort keys.", optional=True),
    attrs=(_FIRST_TOKEN,),
)

PART_SHARES = op(
    "part_shares",
    3,
    "Each chunk's share of the row's total, once its largest logit is known.",
    """
    shares: S of each chunk, relative to the largest logit of all ranks. sums: their sum.
    """,
    inp("position"),
    _TEMPERATURE,
    _TOPS,
    _tensor(Role.IN, "chunk_masses", I64, *_CHUNKS, doc="Sum of each chunk's masses."),
    _FIRST_OF_RANKS,
    _tensor(Role.OUT, "shares", I64, *_CHUNKS, doc=_SHARES),
    _tensor(Role.OUT, "sums", I64, "R_cap", doc="This rank's share of it."),
)

PART_KEPT = op(
    "part_kept",
    3,
    "The mass that min_p keeps in this rank's chunks.",
    """
    In rows with min_p and without top_k, shares become sums of masses relative to the row's largest logit, over the
    elements that min_p keeps. The shares of other rows are unchanged.
    """,
    inp("logits", "row_temperature", "row_top_p", "row_top_k", "row_min_p", "position"),
    _TOPS,
    _FIRST_OF_RANKS,
    _tensor(Role.INOUT, "shares", I64, *_CHUNKS, doc=_SHARES),
    attrs=(_VOCAB_SIZE,),
)

PART_DRAW = op(
    "part_draw",
    3,
    "Draw in the chunk that holds the row's point, on the rank that has it.",
    """
    The point follows from the row's random word and the sums of all ranks, in the order of ranks. drawn: the token's
    sort key if the point falls on this rank; otherwise, and in rows with top_k, -2^63.
    """,
    inp("logits", "row_temperature", "row_top_p", "row_top_k", "row_min_p", "row_seed", "position"),
    _TOPS,
    _FIRST_OF_RANKS,
    _tensor(Role.IN, "shares", I64, *_CHUNKS, doc=_SHARES),
    _tensor(Role.IN, "sums_of_ranks", I64, "Ranks", "R_cap", doc="Every rank's share of it."),
    _tensor(Role.OUT, "drawn", I64, "R_cap", doc="Sort key of the row's token."),
    attrs=(_FIRST_TOKEN, _VOCAB_SIZE, AttrSpec("rank", int, "This rank's number.", None, 0, 2**31 - 1), _PURPOSE),
)

PART_LISTED = op(
    "part_listed",
    3,
    "Draw from the first elements of all ranks, in rows with a top_k of at most `Listed`.",
    """
    drawn: the token's sort key; -2^63 in other rows and in rows without a distribution (NaN, or all -inf).
    """,
    inp("row_temperature", "row_top_p", "row_top_k", "row_min_p", "row_seed", "position"),
    _FIRST_OF_RANKS,
    _tensor(Role.OUT, "drawn", I64, "R_cap", doc="Sort key of the row's token."),
    attrs=(_VOCAB_SIZE, _PURPOSE),
)

PART_OPS: Mapping[str, OpSpec] = {
    spec.name: spec for spec in (PART_CHUNKS, PART_SHARES, PART_KEPT, PART_DRAW, PART_LISTED)
}
