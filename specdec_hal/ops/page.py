"""Op contracts as Markdown, from the OpSpecs.

``python -m specdec_hal.ops.page`` prints the page, which the site has;
``specdec-hal explain OP`` shows one op.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from enum import Enum

from specdec_hal.ops import OPS, OpSpec
from specdec_hal.ops.enums import ENUMERATIONS
from specdec_hal.ops.spec import AttrSpec, Dim, Operand, Role
from specdec_hal.ops.vocabulary import MAXIMUM, MINIMUM, SYMBOLS

SECTIONS = {
    1: "The packed batch",
    2: "Row order and row selection",
    3: "Sampling",
    4: "Verification",
    5: "Advancing the slots",
    6: "Proposing by n-gram look-up",
    7: "Accepted tokens and log-probabilities",
    8: "Scheduling and stop sequences",
    9: "Draft models that read hidden states",
    10: "Masks of allowed tokens",
    11: "Trained drafters",
    12: "Recurrent layers",
}
"""Titles by the section numbers of OpSpecs."""

CONVENTIONS = """
Every backend computes what this page says, bit for bit. A backend that differs is wrong.

Marks in brackets that start with # are rule ids: the conformance suite has a named case for each of these statements.

**Calls.** Tensors are passed in the order shown or by name, attributes by name. Tensors are C-contiguous and on the
backend's device, and no written tensor shares memory with another. `[N, 1]` is accepted for `[N]` [#column]. A call
that breaks these rules raises `ArgumentError` before anything is written, naming op, backend, argument, the expected
and the received value, and a hint [#refusal]. Ids are int64; lengths, offsets and row numbers int32; flags bool;
probabilities float32. bfloat16 is uint16 in NumPy. In a flag, any byte but 0 is true; ops write 0 or 1 [#flag].

**Ops hold no state.** They allocate nothing, read no device value on the host and keep nothing between calls
[#stateless], so each can be captured in a graph and replayed [#replay]. Outputs are written completely, whatever they
held [#defined]; nothing else is written [#inside]. The caller owns outputs and workspaces; `backend.workspace` gives
their sizes.

**Values are never trusted.** Any value of the right dtype gives a defined, in-bounds result. A prompt length is
clamped to [0, L], a generated count to [0, L - prompt length], other counts to [0, S], rows and offsets to their
arrays; positions and running counts wrap at their width [#any-value]. Sizes, and products of a row number and a
width, are 64-bit: tensors may have more than 2^31 elements [#sizes]. Debug mode checks the column "values".

**Slots.** enc, dec and slt are a slot's `seq_lens_encoder`, `seq_lens_decoder` and `seq_lens_this_time`.

| state | condition |
|---|---|
| prefill | enc > 0: the step's input is enc prompt tokens; dec tokens are already in the KV cache |
| decode | enc == 0, dec > 0, slt >= 1: the input is the base token and slt - 1 drafts |
| idle | otherwise: stopped or free (`stop_flags`), or without input |
| paused | `is_block_step` |
| padding | the slot number is B or more, whatever the slot's values |

`draft_tokens[b, 0]` is the base token: the last accepted token, not yet in the KV cache. `step_idx[b]` is a count:
generated token g is `token_ids_all[b, prompt_lens[b] + g]`. A result never depends on the request's slot, on B or on
other requests, except through the n-gram token budget [#independent].

### Randomness

Philox4x32-10, one call per decision. The key is the request's `seed` (low, high 32 bits). The counter is (position low,
position high, purpose, 0), with position = prompt length + number of tokens generated before the one to decide. U32 is
word 0, U64 is word 1 << 32 | word 0 [#philox]. Batch, slot, step number and draft history do not enter: with equal
logits, `TARGET_MATCH` emits the tokens of plain decoding, whatever was drafted [#random].

### Arithmetic

Weights are computed in floating point, decisions in integers.

- A probability or weight w has the mass floor(w * 2^40), a uint64; w is clamped to [0, 1], and NaN has mass 0 [#mass].
  Sums of masses are exact, so their order is free; V < 2^24 keeps them in 64 bits.
- The mass of a requested fraction (top_p) is the same, except that NaN counts as 1 everywhere: without a valid fraction
  nothing is filtered [#fraction].
- Softmax weight of a logit: t = ((logit - row max) * (1 / temperature)) * log2(e), three float32 operations, each
  rounded, no fused multiply-add; t = 0 for a logit equal to the maximum. 2^t by exponent shift and one float32
  polynomial (Horner, each step rounded), within 2^-22 of the exact value [#weight].
- A draw from masses in a given order with total m: the first whose inclusive prefix sum exceeds high64(U64 *
  m) [#draw].
- A row of logits is cut into chunks of 1,024 consecutive ids, from id 0 on [#chunk]. m_c is the largest logit of chunk
  c, M the mass of an element relative to m_c, W_c the mass of m_c relative to the row's largest logit; S_c = (sum of M
  over the chunk) * W_c >> 40, of the exact product, and the row's total is the sum of S_c [#total]. A chunk of only
  -inf has S_c = 0 [#empty-chunk].
- The part f (top_p, min_p) of a total is floor(f * 2^24) * total >> 24; NaN counts as 1 [#part].
- e^x of activations: n = x * log2(e), rounded half to even; f = ((x - n * 0x1.62e4p-1) - n * 0x1.7f7d1cp-20) * log2(e);
  the polynomial of f, times 2^n, within 2^-22 of the exact value; float32, each operation rounded. It is inf for x > 88
  and 0 for x < -87 [#exp].
- ln of a total: log2 of the integer in Q32, then one rounding to float32 [#logarithm].
- Equal logits or scores: the smaller token id comes first, always [#ties].
"""


def render_op(spec: OpSpec) -> str:
    """One op: summary, signature, attributes, relations and semantics."""
    operands = table(
        ("argument", "role", "dtype", "shape", "meaning", "values"),
        ((f"`{o.name}`", _role(o), _dtype(o), _shape(o), o.tensor.doc, _values(o)) for o in spec.operands),
    )
    parts = [f"### `{spec.name}`", spec.summary, operands]
    if spec.attrs:
        rows = ((f"`{a.name}`", a.allowed(), _default(a), a.doc) for a in spec.attrs)
        parts.append(table(("attribute", "allowed", "default", "meaning"), rows))
    if spec.relations:
        parts.append("Relations: " + "; ".join(f"`{relation}`" for relation in spec.relations) + ".")
    parts.append(spec.doc)
    return "\n\n".join(parts) + "\n"


def render_contracts() -> str:
    """The whole page: conventions, then every op by section."""
    parts = [
        "# Op contracts",
        "## 0. Conventions",
        CONVENTIONS.strip(),
        "### Symbols",
        table(("symbol", "meaning", "smallest", "largest"), map(_symbol_row, SYMBOLS)),
        "### Enumerations",
        "The integers are part of the contract; compiled backends receive them.",
        table(("name", "values", "meaning"), map(_enum_row, ENUMERATIONS)),
    ]
    for number, title in SECTIONS.items():
        parts.append(f"## {number}. {title}")
        parts += [render_op(spec).rstrip() for spec in OPS.values() if spec.section == number]
    return "\n\n".join(parts) + "\n"


def _symbol_row(symbol: str) -> tuple[str, ...]:
    return symbol, SYMBOLS[symbol], str(MINIMUM.get(symbol, 0)), str(MAXIMUM.get(symbol, ""))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(head), *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _enum_row(kind: type[Enum]) -> tuple[str, str, str]:
    doc = (inspect.getdoc(kind) or "").splitlines()[0]
    return f"`{kind.__name__}`", ", ".join(f"{member.name} = {member.value}" for member in kind), doc


def _role(operand: Operand) -> str:
    notes = [operand.role.value]
    if operand.when is not None:
        notes.append(f"only if {operand.when}")
    if operand.optional:
        notes.append("optional")
    return ", ".join(notes)


def _dtype(operand: Operand) -> str:
    like = operand.tensor.dtype_of
    return f"that of `{like}`" if like else ", ".join(operand.tensor.dtypes)


def _shape(operand: Operand) -> str:
    if operand.shape_by is None:
        return _extents(operand.tensor.dims)
    attr, shapes = operand.shape_by
    return "; ".join(f"{_extents(map(Dim.parse, shape))} if {attr} = {value}" for value, shape in shapes.items())


def _extents(dims: Iterable[Dim]) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def _values(operand: Operand) -> str:
    rule = operand.tensor.values
    return "" if rule is None or operand.role is Role.OUT else rule.doc


def _default(attr: AttrSpec) -> str:
    if attr.from_backend:
        return "the backend's"
    if attr.default is None:
        return "required"
    return attr.default.name if isinstance(attr.default, Enum) else str(attr.default)


if __name__ == "__main__":
    print(render_contracts(), end="")
