"""Section 12: layers with a recurrent state, whose position names the state."""

from __future__ import annotations

from specdec_hal.ops.build import inout, inp, op, out
from specdec_hal.ops.enums import Activation, Storage
from specdec_hal.ops.spec import AttrSpec, Operand, Relation, Role, When
from specdec_hal.ops.vocabulary import SERVED, tensor

_STATES_KEPT, _REPLAYED = When("storage", (Storage.STATES,)), When("storage", (Storage.REPLAY,))
_STORAGE = AttrSpec("storage", Storage, "What is kept of earlier positions.", Storage.STATES)

_ROWS = """
    Slot b < B has rows m_b .. m_(b+1) - 1, where m_b is the largest of cu_seqlens_q[0 .. b], clamped to [0, T_cap]
    [#rows]; row m_b + i is at position p + i, p = dec clamped to >= 0 [#position]. Rows of no slot are 0 in the output
    [#tail]. Slots without rows, and slots >= B, keep their {ring} [#idle].
"""

CAUSAL_CONV1D = op(
    "causal_conv1d",
    12,
    "Depthwise causal convolution over the tokens of each slot, with earlier inputs by position.",
    _ROWS.format(ring="conv_ring")
    + """
    The input at position j is row m_b + j - p of conv_x if j >= p [#step], entry j % R of conv_ring if 0 <= j < p
    [#ring], and 0 if j < 0, whatever conv_ring holds [#zero]. After the step, entry j % R holds the input at position
    j, bit for bit, of the slot's last R rows (all rows if there are fewer); other entries are untouched [#stored].

    At position j the sum starts with the bias, or 0 without one [#bias]. Then conv_weight[c, i] times the input at
    position j - Taps + 1 + i is added for i = 0 .. Taps - 1, product and sum rounded to float32 [#taps]. With SILU the
    result is sum / (1 + exp(-sum)) by section 0's e^x [#silu]; with NONE it is the sum [#none]. It is rounded once to
    the dtype of conv_out [#rounded].

    Nothing is committed, copied or reset when drafts are rejected: a step reads the inputs of the positions before its
    first, which are those of accepted tokens. For steps with up to K drafts, R >= K + Taps keeps every input that the
    next step may read; also, the same step may run again. A step loses an input only if more than
    R - Taps + 1 of its rows are rejected, as those of a padded chunk of a prompt would be.
    """,
    inp("conv_x", "conv_weight"),
    inp("conv_bias", optional=True),
    inp("cu_seqlens_q", "seq_lens_decoder"),
    inout("conv_ring"),
    out("conv_out"),
    attrs=(AttrSpec("activation", Activation, "Applied to each sum.", Activation.SILU),),
    relations=(Relation("Taps", "R"),),
)

_STATES = """
    Value head h reads key head floor(h H_k / H_v) [#heads]. With STATES, the state before position p is entry
    (p - 1) % R of states [#state], or 0 if p is 0, whatever states holds [#zero]. Each token takes the state before it
    to the state after it [#sequence]. After the step, entry j % R is the state after position j, of the slot's last R
    rows (all rows if there are fewer); other entries are untouched [#stored].

    With REPLAY, half = floor(R / 2), and c is checkpoint_lens[b] clamped to [max(p - half, 0), p] [#checkpoint-clamp].
    The state before position c is checkpoint, or 0 if c is 0 [#checkpoint]. The state before position p follows from it
    by the decay and the update below, with entries j % R of replay_k (of its key head), replay_u and replay_decay for
    j = c .. p - 1, ascending [#fold]. A step of n <= half rows leaves in entry j % R the key (as it is used below), the
    update and the decay at position j of each row [#recorded]; if p + n - c > half, checkpoint becomes the state before
    position p [#moved]. After a step of more rows, which are all accepted, checkpoint is the state before position
    p + n, and no entry is written [#long]. Everything else is untouched [#unmoved]. `advance_checkpoints` then moves
    checkpoint_lens, once for all layers; until then the step may not run again. Both storages give the same bits: the
    fold repeats the same rounded operations.
"""

_DOT = """
    All values are widened to float32, and every operation below is rounded to float32; none is fused [#unfused]. The
    dot product of two vectors over D_k has eight partial sums: sum j starts at 0 and adds the products of elements j,
    j + 8, j + 16, ... in this order. The result is ((s_0 + s_4) + (s_2 + s_6)) + ((s_1 + s_5) + (s_3 + s_7)) [#dot].
"""

_REJECTED = """
    Nothing is committed, copied or reset when drafts are rejected: a step at position p reads the state after position
    p - 1, which every accepted token has taken part in and no rejected one. For steps with up to K drafts, R >= K + 2
    keeps every state that the next step may read; also, the same step may run again. A step loses the state only
    if R or more of its rows are rejected, as those of a padded chunk of a prompt would be. A prefix of a prompt is
    resumed with a copy of the entry of its last position, or with REPLAY by that state as the checkpoint. REPLAY needs
    R >= 2 (K + 1), so that what a step writes is never what it reads; the larger R is, the more seldom the checkpoint
    is written.
    Source of REPLAY: ReplaySSM (vLLM 47572, FlashInfer 4081), whose parallel form has other bits.
"""

GATED_DELTA_RULE = op(
    "gated_delta_rule",
    12,
    "Gated delta rule (Qwen3-Next, Qwen3.5, OLMo Hybrid; by channel Kimi's KDA), with states by position.",
    _ROWS.format(ring="states")
    + _STATES
    + _DOT
    + """
    With `qk_l2norm`, a query or key x becomes x * (1 / sqrt(x . x + 1e-6)), where x . x is a dot product [#l2norm];
    without it, it is unchanged [#no-l2norm]. Queries are then multiplied by 1 / sqrt(D_k) [#scale]. With the token's
    decay a (of the head, or with `decay_per_channel` of each key channel i) and beta, in this order, for key channel i
    and value channel c:

    - S[i, c] = a[i] * S[i, c] [#decay]
    - u[c] = beta * (v[c] - S[., c] . k) [#correction]
    - S[i, c] = S[i, c] + k[i] * u[c] [#update]
    - core_out[c] = S[., c] . q, rounded once to its dtype [#output]
"""
    + _REJECTED
    + """
    Sources: torch_recurrent_gated_delta_rule of transformers (g = -exp(A_log) softplus(a + dt_bias), decay = exp(g),
    beta = sigmoid(b)); arXiv:2412.06464; arXiv:2510.26692 for KDA.
    """,
    inp("q", "k", "v"),
    (
        Operand(
            tensor("decay"),
            Role.IN,
            shape_by=("decay_per_channel", {False: ("T_cap", "H_v"), True: ("T_cap", "H_v", "D_k")}),
        ),
    ),
    inp("beta", "cu_seqlens_q", "seq_lens_decoder"),
    inout("states", when=_STATES_KEPT),
    out("core_out"),
    inp("checkpoint_lens", when=_REPLAYED),
    inout("checkpoint", "replay_k", "replay_u", when=_REPLAYED),
    (
        Operand(
            tensor("replay_decay"),
            Role.INOUT,
            when=_REPLAYED,
            shape_by=("decay_per_channel", {False: ("M", "R", "H_v"), True: ("M", "R", "H_v", "D_k")}),
        ),
    ),
    attrs=(
        AttrSpec("qk_l2norm", bool, "Whether queries and keys are normalised here.", True),
        AttrSpec("decay_per_channel", bool, "Whether each key channel has a decay of its own.", False),
        _STORAGE,
    ),
    relations=(Relation("H_k", "H_v"),),
)

MAMBA2_STEP = op(
    "mamba2_step",
    12,
    "Mamba-2 recurrence (Nemotron-H, Granite 4, Falcon-H1, Bamba, Zamba2), with states by position.",
    _ROWS.format(ring="states")
    + _STATES
    + _DOT
    + """
    v is x, k is B, q is C and skip is D of the paper. With the head's decay a (exp(dt A)) and dt of the token, in this
    order, for state channel i and value channel c:

    - S[i, c] = a * S[i, c] [#decay]
    - S[i, c] = S[i, c] + k[i] * (dt * v[c]) [#update]
    - y[c] = S[., c] . q [#output]; with skip, y[c] = y[c] + skip * v[c] [#skip]; rounded once to core_out's dtype
      [#rounded].
"""
    + _REJECTED
    + """
    Sources: Mamba2Mixer.torch_forward of transformers; arXiv:2405.21060. Bias, softplus and limits of dt, and
    exp(dt A), are computed before.
    """,
    inp("q", "k", "v", "decay", "dt"),
    inp("skip", optional=True),
    inp("cu_seqlens_q", "seq_lens_decoder"),
    inout("states", when=_STATES_KEPT),
    out("core_out"),
    inp("checkpoint_lens", when=_REPLAYED),
    inout("checkpoint", "replay_k", "replay_u", "replay_decay", when=_REPLAYED),
    attrs=(_STORAGE,),
    relations=(Relation("H_k", "H_v"),),
)

ADVANCE_CHECKPOINTS = op(
    "advance_checkpoints",
    12,
    "Move the positions of checkpoints, after all recurrent layers of a step (storage REPLAY).",
    """
    Slots, their rows n and their position p are those of `gated_delta_rule`, whose rings have `ring` entries. For a
    slot with rows, half = floor(ring / 2), and c is checkpoint_lens[b] clamped to [max(p - half, 0), p] [#clamp]. It
    becomes p + n if n > half [#long], otherwise p if p + n - c > half [#moved], otherwise c [#kept]; saturated at
    2^31 - 1 [#saturate]. Slots without rows, and slots >= B, keep theirs [#idle].
    """,
    inp("cu_seqlens_q", "seq_lens_decoder"),
    inout("checkpoint_lens"),
    attrs=(
        AttrSpec("ring", int, "Entries of the layers' rings, R.", minimum=1, maximum=SERVED["R"]),
        AttrSpec("num_rows", int, "Rows of the packed batch, T_cap.", minimum=0, maximum=2**31 - 1),
    ),
)

OPS = (CAUSAL_CONV1D, GATED_DELTA_RULE, MAMBA2_STEP, ADVANCE_CHECKPOINTS)
