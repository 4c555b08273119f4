"""Kernels for what a rank finds in its part of a vocabulary (`specdec_hal.parallel.sampling`), bound as ops are.

No ops of the contract: what ranks tell each other is the engine's own affair, and where a backend has no kernels for it
PyTorch's operators compute the same. Arithmetic is the contract's, section 0. A *place* is where an element stands in
the order of a row, as an int64: its order key << 32 | (2^32 - 1 - token), so that the first is largest; -2^63 is behind
every place. `masses` of rows that are not drawn (temperature not above 0) are at temperature 1. Rows with position < 0
have tops of -inf, masses of 0 and places of -2^63.
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
    doc="The first of every rank's part: places, descending.",
)
_TOPS = _tensor(Role.IN, "chunk_tops", F32, *_CHUNKS, doc="Largest logit of each chunk.")
_LAST_KEPT = _tensor(
    Role.IN, "last_kept", I64, "R_cap", doc="Place of the last that top_k and top_p keep.", optional=True
)
_TEMPERATURE = _tensor(Role.IN, "row_temperature", F32, "R_cap", doc="As in `sample_target`; absent: 1.", optional=True)
_FIRST_TOKEN = AttrSpec("first_token", int, "The token of column 0.", 0, 0, 2**31 - 1)
_VOCAB_SIZE = AttrSpec("vocab_size", int, "Tokens of all ranks.", None, 1, MAXIMUM["V"])
_SETTLED = _tensor(Role.IN, "settled", ("bool",), "R_cap", doc="Rows that need no cut.", optional=True)
_BY_MASS = AttrSpec("by_mass", int, "1: top_p cuts, by what elements weigh; 0: top_k, by their number.", None, 0, 1)
_PURPOSE = AttrSpec("purpose", Purpose, "What the random numbers are drawn for.", Purpose.SAMPLE)

PART_CHUNKS = op(
    "part_chunks",
    3,
    "Read this rank's part of each row once.",
    """
    chunk_tops and chunk_masses: of each chunk of the part the largest logit, and the sum of its elements' masses
    relative to that; NaN and 0 where there is a NaN, 0 in a chunk of nothing but -inf. first: places of the part's
    first elements, filled up with tokens at -inf behind the part; of a part with a NaN, that of one at `first_token`.
    """,
    inp("logits", "position"),
    _TEMPERATURE,
    _tensor(Role.OUT, "chunk_tops", F32, *_CHUNKS, doc="Largest logit of each chunk.", optional=True),
    _tensor(Role.OUT, "chunk_masses", I64, *_CHUNKS, doc="Sum of each chunk's masses.", optional=True),
    _tensor(Role.OUT, "first", I64, "R_cap", "Listed", doc="The part's first elements, as places.", optional=True),
    attrs=(_FIRST_TOKEN,),
)

PART_SHARES = op(
    "part_shares",
    3,
    "What this rank's chunks have of the row's total, once its largest logit is known.",
    """
    shares: S of each chunk, relative to the largest logit of all ranks. sums: what they add up to.
    """,
    inp("position"),
    _TEMPERATURE,
    _TOPS,
    _tensor(Role.IN, "chunk_masses", I64, *_CHUNKS, doc="Sum of each chunk's masses."),
    _FIRST_OF_RANKS,
    _tensor(Role.OUT, "shares", I64, *_CHUNKS, doc="What each chunk has of the total."),
    _tensor(Role.OUT, "sums", I64, "R_cap", doc="What this rank has of it."),
)

PART_KEPT = op(
    "part_kept",
    3,
    "What filters keep of this rank's chunks.",
    """
    In rows with a filter shares become the sums of kept masses, relative to the row's largest logit: of elements up to
    last_kept in the row's order that weigh at least what min_p asks for. Other rows' shares stay as they are.
    """,
    inp("logits", "row_temperature", "row_top_p", "row_top_k", "row_min_p", "position"),
    _TOPS,
    _FIRST_OF_RANKS,
    _LAST_KEPT,
    _tensor(Role.INOUT, "shares", I64, *_CHUNKS, doc="What each chunk has of the draw's total."),
    attrs=(_FIRST_TOKEN, _VOCAB_SIZE),
)

PART_DRAW = op(
    "part_draw",
    3,
    "Draw in the chunk that holds the row's point, on the rank that has it.",
    """
    The point follows from the row's random word and the ranks' sums, of which this rank's come behind those of the
    ranks before. drawn: the token's place where the point falls on this rank, else -2^63.
    """,
    inp("logits", "row_temperature", "row_top_p", "row_top_k", "row_min_p", "row_seed", "position"),
    _TOPS,
    _FIRST_OF_RANKS,
    _LAST_KEPT,
    _tensor(Role.IN, "shares", I64, *_CHUNKS, doc="What each chunk has of the draw's total."),
    _tensor(Role.IN, "sums_of_ranks", I64, "Ranks", "R_cap", doc="What every rank has of it."),
    _tensor(Role.OUT, "drawn", I64, "R_cap", doc="Place of the row's token."),
    attrs=(_FIRST_TOKEN, _VOCAB_SIZE, AttrSpec("rank", int, "This rank's number.", None, 0, 2**31 - 1), _PURPOSE),
)

PART_LISTED = op(
    "part_listed",
    3,
    "Draw where top_k or top_p cuts within the first elements that the ranks have told.",
    """
    No rank has another element above the last that it told. settled: whether the row is cut by top_k or top_p, and what
    is kept ends where all elements are known, or the row has no distribution (NaN, or all -inf). drawn is the token's
    place, and total what the kept elements weigh; -2^63 and 0 in rows that are not settled or have no token. totals: of
    the rows by chunks, for top_p without top_k; absent: there are no such rows.
    """,
    inp("row_temperature", "row_top_p", "row_top_k", "row_min_p", "row_seed", "position"),
    _FIRST_OF_RANKS,
    _tensor(Role.IN, "totals", I64, "R_cap", doc="Total of each row by its chunks.", optional=True),
    _tensor(Role.OUT, "drawn", I64, "R_cap", doc="Place of the row's token."),
    _tensor(Role.OUT, "total", I64, "R_cap", doc="What it was drawn from."),
    _tensor(Role.OUT, "settled", ("bool",), "R_cap", doc="Whether the row's token is known."),
    attrs=(_VOCAB_SIZE, _PURPOSE),
)

PART_SEARCH = op(
    "part_search",
    3,
    "One digit of the search for the key that a cut ends with.",
    """
    A key is 32 bits, in digits of 4. histogram gains what this rank's elements weigh whose keys begin with the digits
    known so far, by the digit at `shift`, descending; at shift -4, after the last, the number of elements that have
    the key. From shift 16 on, list has the elements whose keys begin so, as places, and listed their number, unless
    there is no room for them. state: the key so far, what larger ones weigh, and what is to be reached; it follows
    from state_before and what the ranks found one digit earlier. Rows without such a cut, settled rows and those
    without a distribution stay as they are. What top_p keeps a part of is `totals`, or where top_k cuts the sum of
    the first histogram.
    """,
    inp("logits", "row_temperature", "row_top_p", "row_top_k", "row_min_p", "position"),
    _TOPS,
    _FIRST_OF_RANKS,
    _SETTLED,
    _tensor(Role.IN, "totals", I64, "R_cap", doc="Total of each row by its chunks.", optional=True),
    _LAST_KEPT,
    _tensor(Role.IN, "state_before", I64, "R_cap", "State", doc="State of the call before.", optional=True),
    _tensor(Role.IN, "histograms_of_ranks", I64, "Ranks", "R_cap", "Digits", doc="Of that call.", optional=True),
    _tensor(Role.OUT, "state", I64, "R_cap", "State", doc="Three numbers."),
    _tensor(Role.INOUT, "histogram", I64, "R_cap", "Digits", doc="Sums of 16 digits; zeros before."),
    _tensor(Role.INOUT, "list", I64, "R_cap", "Room", doc="Elements in no order."),
    _tensor(Role.INOUT, "listed", I64, "R_cap", doc="How many there are; zero before."),
    attrs=(_FIRST_TOKEN, _VOCAB_SIZE, AttrSpec("shift", int, "Bits behind the digit.", None, -4, 28), _BY_MASS),
)

PART_CUT = op(
    "part_cut",
    3,
    "The end of that search: the place of the last element that is kept.",
    """
    Of elements with the key, the first by token are kept: ties_of_ranks says how many every rank has. Where none of
    this rank's is kept, last_kept is the place behind those with larger keys. Rows that were not searched get
    kept_before, or -2^63.
    """,
    inp("logits", "row_temperature", "row_top_p", "row_top_k", "row_min_p", "position"),
    _TOPS,
    _FIRST_OF_RANKS,
    _SETTLED,
    _tensor(Role.IN, "kept_before", I64, "R_cap", doc="What top_k keeps.", optional=True),
    _tensor(Role.IN, "state", I64, "R_cap", "State", doc="Of the last call of `part_search`."),
    _tensor(Role.IN, "ties_of_ranks", I64, "Ranks", "R_cap", doc="Elements of every rank that have the key."),
    _tensor(Role.OUT, "last_kept", I64, "R_cap", doc="Place of the last that is kept here."),
    attrs=(_FIRST_TOKEN, _VOCAB_SIZE, AttrSpec("rank", int, "This rank's number.", None, 0, 2**31 - 1), _BY_MASS),
)

LN_TOTALS = op(
    "ln_totals",
    3,
    "Logarithms of totals.",
    """
    ln(total / 2^40), by the contract's integer logarithm; 0 for totals below 2^40.
    """,
    _tensor(Role.IN, "totals", I64, "R_cap", doc="Sums of masses."),
    _tensor(Role.OUT, "logarithms", F32, "R_cap", doc="Natural logarithms."),
)

_OPS = (PART_CHUNKS, PART_SHARES, PART_KEPT, PART_DRAW, PART_LISTED, PART_SEARCH, PART_CUT, LN_TOTALS)
PART_OPS: Mapping[str, OpSpec] = {spec.name: spec for spec in _OPS}
