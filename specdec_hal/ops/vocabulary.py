"""The tensors that ops exchange. A name has the same dtypes, shape and meaning in every op."""

from __future__ import annotations

from specdec_hal.ops.spec import FLOATS, NO_NAN, OFFSETS, TensorSpec, ValueRule, between

I64, I32, F32, BOOL = ("int64",), ("int32",), ("float32",), ("bool",)
_ALL: dict[str, TensorSpec] = {}

SYMBOLS = {
    "M": "slots allocated (`max_num_seqs`)",
    "B": "slots in use this step, at most M; slots from B on are padding",
    "S": "K + 1: the base token and up to K drafts",
    "L": "`max_model_len`",
    "P": "width of `pre_ids`",
    "V": "vocabulary size",
    "V_draft": "size of a draft model's own vocabulary",
    "D": "row width, such as the hidden size",
    "C": "candidates kept per row",
    "C_draft": "candidates of each draft",
    "E": "end tokens",
    "W": "bad tokens per slot",
    "N": "1 + the requested top log-probabilities",
    "Q": "stop sequences per slot",
    "Z": "width of a stop sequence",
    "J": "tokens of the text that ends thinking",
    "H": "tokens allowed after thinking",
    "G": "KV blocks per slot",
    "U": "masks of allowed tokens",
    "Y": "32-bit words of a mask",
    "X": "bytes of one slot's n-gram index",
    "R": "positions whose states (or inputs) a slot keeps",
    "Taps": "taps of a convolution: the current row and the rows before it",
    "H_k": "key heads (groups) of a recurrent layer",
    "H_v": "value heads of a recurrent layer",
    "D_k": "width of a key head: the state's size in Mamba-2",
    "D_v": "width of a value head",
    "I_cap": "width of `input_ids`: the longest prefill chunk",
    "T_cap": "capacity for packed input tokens",
    "R_cap": "capacity for output (logit) rows",
    "A_cap": "capacity for accepted tokens",
    "D_cap": "capacity for reported tokens of a draft model",
    "F_cap": "capacity for rows of a drafter's blocks",
}
"""Meanings of the symbols."""

MINIMUM = dict.fromkeys(
    ("M", "S", "L", "V", "V_draft", "D", "C", "C_draft", "N", "Y", "R", "Taps", "H_k", "H_v", "D_k", "D_v"), 1
)
"""Smallest extents of symbols that may not be 0."""

MAXIMUM = {"V": 2**24 - 1}
"""Largest extents of symbols: V masses of up to 2^40 must add up to less than 2^64."""

SERVED = {"M": 8192, "S": 32, "L": 1 << 20, "V": 1 << 18, "R": 1 << 20, "Taps": 8, "D_k": 256, "C_draft": 32}
"""Largest extents supported by this package: limits of settings and CUDA kernels."""


def _tensor(
    name: str,
    dtypes: tuple[str, ...],
    shape: str,
    doc: str,
    values: ValueRule | None = None,
    dtype_of: str = "",
) -> None:
    extents = tuple(int(extent) if extent.isdigit() else extent for extent in shape.split())
    _ALL[name] = TensorSpec(name, dtypes, extents, doc, values, dtype_of)


# Slot state
_tensor("input_ids", I64, "M I_cap", "Prompt tokens of this step's prefill chunk, from column 0.")
_tensor("draft_tokens", I64, "M S", "Column 0: the last accepted token, not yet in the KV cache; columns 1..: drafts.")
_tensor(
    "seq_lens_this_time",
    I32,
    "B",
    "Tokens fed this step (slt): the chunk of a prefill slot; 1 + drafts of a decode slot; 0 idle.",
    between(0, None),
)
_tensor("seq_lens_encoder", I32, "M", "Prompt tokens of this step's chunk (enc); 0 if not prefill.", between(0, None))
_tensor("seq_lens_decoder", I32, "M", "Tokens already in the KV cache (dec).", between(0, "L"))
_tensor("token_ids_all", I64, "M L", "Prompt, then generated tokens: token g is at column prompt_lens + g.")
_tensor("prompt_lens", I64, "M", "Prompt length.", between(0, "L"))
_tensor("step_idx", I64, "M", "Number of tokens generated so far.", between(0, "L"))
_tensor("max_dec_len", I64, "M", "Most tokens to generate.", between(0, None))
_tensor("min_dec_len", I64, "M", "End tokens are forbidden before this many generated tokens.", between(0, None))
_tensor("stop_flags", BOOL, "M", "The slot has stopped or is free.")
_tensor("is_block_step", BOOL, "M", "The slot is paused (preempted).")
_tensor(
    "reasoning_status",
    I32,
    "M",
    "0: thinking; 1: thinking has ended, no drafts accepted; 2: the next token is constrained; 3: finished.",
)
_tensor("draft_token_num", I32, "M", "Most drafts for this request; 0: none.", between(0, None))
_tensor("end_tokens", I64, "E", "Token ids that end a generation; E may be 0.")
_tensor("ignore_end", BOOL, "M", "No token ends the generation of this slot.")
_tensor("bad_tokens", I64, "M W", "Forbidden token ids; entries outside [0, V) are padding.")
_tensor("has_running", BOOL, "1", "Whether any slot < B still runs.")

# Step index
_tensor("ids_remove_padding", I64, "T_cap", "The step's tokens, packed; 0 in the tail.")
_tensor("batch_id_per_token", I32, "T_cap", "Slot of each packed token; -1 in the tail.", between(-1, "M-1"))
_tensor("cu_seqlens_q", I32, "B+1", "Exclusive prefix sum of slt.", OFFSETS)
_tensor("cu_seqlens_k", I32, "B+1", "Exclusive prefix sum of slt + dec over slots with slt > 0.", OFFSETS)
_tensor("cu_seqlens_q_output", I32, "B+1", "Exclusive prefix sum of output (logit) rows per slot.", OFFSETS)
_tensor("batch_id_per_token_output", I32, "R_cap", "Slot of each output row; -1 in the tail.", between(-1, "M-1"))
_tensor("num_tokens", I32, "2", "(T, R): input tokens and output rows of this step.", between(0, None))
_tensor("x", (*FLOATS, "int64", "int32"), "T_cap D", "One row per packed token.")
_tensor("out", (*FLOATS, "int64", "int32"), "T_cap D", "Rows of x, rearranged.", dtype_of="x")

# Sampling
_tensor("temperature", F32, "M", "0 (or not positive) means argmax.", between(0, None))
_tensor("top_p", F32, "M", "Nucleus mass, clamped to [0, 1].", between(0, 1))
_tensor("top_k", I32, "M", "Largest logits kept; 0 = all.", between(0, None))
_tensor("min_p", F32, "M", "Least mass kept, as a fraction of the largest, clamped to [0, 1].", between(0, 1))
_tensor("seed", I64, "M", "The request's seed; never modified.")
_tensor("infer_seed", I64, "M", "FastDeploy's seeds, which advance with each step.")
_tensor("row_temperature", F32, "R_cap", "`temperature` per output row; 1 in the tail.", between(0, None))
_tensor("row_top_p", F32, "R_cap", "`top_p` per output row; 1 in the tail.", between(0, 1))
_tensor("row_top_k", I32, "R_cap", "`top_k` per output row; 0 in the tail.", between(0, None))
_tensor("row_min_p", F32, "R_cap", "`min_p` per output row; 0 in the tail.", between(0, 1))
_tensor("row_seed", I64, "R_cap", "`seed` per output row; 0 in the tail.")
_tensor("position", I64, "R_cap", "Position of the row's token in prompt ++ generated; -1 in the tail.")
_tensor("logits", FLOATS, "R_cap V", "Row r: logits after packed output row r.", NO_NAN)
_tensor("repetition", F32, "M", "Repetition penalty over prompt and generated; 1 = off.")
_tensor("frequency", F32, "M", "Frequency penalty over generated; 0 = off.")
_tensor("presence", F32, "M", "Presence penalty over generated; 0 = off.")
_tensor(
    "target_tokens",
    I64,
    "R_cap",
    "The target model's token per row; -1 in the tail and where undefined.",
    between(-1, "V-1"),
)
_tensor("bitmask", I32, "U Y", "Masks of allowed tokens: bit t % 32 of word t / 32 is 1 for an allowed token t.")
_tensor("bitmask_rows", I32, "R_cap", "Row of `bitmask` for each output row; -1: none.", between(-1, "U-1"))
_tensor("probs", F32, "R_cap V", "Probabilities per row; 0 outside the kept set and in the tail.", between(0, 1))

# Verification
_tensor("candidate_scores", F32, "R_cap C", "The C largest probabilities, descending.")
_tensor("candidate_ids", I64, "R_cap C", "Token ids of the scores; equal scores by ascending id.", between(-1, "V-1"))
_tensor("candidate_lens", I32, "R_cap", "Number of candidates that reach top_p; C if they do not.", between(0, "C"))
_tensor("target_probs", F32, "R_cap V", "The target's processed probabilities per output row.", between(0, 1))
_tensor("draft_probs", F32, "M S-1 V", "The proposer's probabilities per draft.", between(0, 1))
_tensor("accept_tokens", I64, "M S", "Tokens emitted this step, -1 after them.", between(-1, "V-1"))
_tensor("accept_num", I32, "M", "Number of tokens that each slot emitted.", between(0, "S"))

# Proposing
_tensor("index", ("uint8",), "M X", "Opaque n-gram index, one row a slot; `backend.workspace` gives X.")
_tensor("reset_slots", BOOL, "M", "Slots whose index becomes empty.")

# Scheduling
_tensor("slot_actions", I32, "M", "The scheduler's decision for each slot: 0 KEEP, 1 PREFILL, 2 WAIT, 3 STOP.")
_tensor("chunk_lens", I32, "M", "Length of a PREFILL slot's chunk.", between(0, "I_cap"))
_tensor("chunk_starts", I32, "M", "Position of the chunk's first token.", between(0, "L"))
_tensor("chunk_step_idx", I64, "M", "Generated tokens up to the chunk's end; 0 in a prompt.", between(0, "L"))
_tensor("stop_seqs", I64, "M Q Z", "Token sequences that end a request; unused ones have length 0.")
_tensor("stop_seqs_lens", I32, "M Q", "Lengths of the stop sequences.", between(0, "Z"))
_tensor("max_think_lens", I32, "M", "Most tokens of thinking; negative: no limit.")
_tensor("max_reply_lens", I32, "M", "Most tokens of the answer after thinking; negative: no limit.")
_tensor(
    "limit_status", I32, "M", "Phase of a request with limits, as in `limit_thinking`; initially 0.", between(0, None)
)
_tensor("reasoning_seen", I64, "M", "Generated tokens covered by reasoning_status; initially -1.", between(-1, "L"))
_tensor("inject_token_ids", I64, "J", "The text that ends thinking at its limit.")
_tensor("allowed_tokens", I64, "H", "Tokens allowed right after thinking.")
_tensor("enable_thinking", BOOL, "M", "Whether the request thinks.")
_tensor("block_tables", I32, "M G", "KV blocks of each slot, in the order of its positions.")

# Draft models
_tensor("base_model_draft_tokens", I64, "M S", "The target's `draft_tokens`; -1 after the drafts made so far.")
_tensor("pre_ids", I64, "M P", "FastDeploy's history of a draft model: generated tokens, then drafts.")
_tensor("base_model_cu_seqlens_q", I32, "B+1", "`cu_seqlens_q` of the target's step.", OFFSETS)
_tensor("base_model_seq_lens_decoder", I32, "M", "The target's `seq_lens_decoder`, this step's tokens included.")
_tensor("base_model_step_idx", I64, "M", "The target's `step_idx`, this step's tokens included.", between(0, "L"))
_tensor("base_model_stop_flags", BOOL, "M", "The target's `stop_flags`.")
_tensor("inter_next_tokens", I64, "R_cap", "The draft model's tokens, packed by active slot; -1 where undefined.")
_tensor("last_hidden", (*FLOATS, "int64", "int32"), "B D", "One row of x per active slot, packed.", dtype_of="x")
_tensor("output_token_num", I32, "1", "Number of rows in use of `last_hidden`.")
_tensor("block_token_ids", I64, "F_cap", "The tokens of a drafter's blocks, packed; 0 in the tail.")
_tensor("block_batch_ids", I32, "F_cap", "Slot of each block token; -1 in the tail.", between(-1, "M-1"))
_tensor(
    "block_source_rows",
    I32,
    "F_cap",
    "Index of each block token in `ids_remove_padding`; -1: masked, or the tail.",
    between(-1, "T_cap-1"),
)
_tensor("block_cu_seqlens_q", I32, "B+1", "Exclusive prefix sum of the blocks' rows.", OFFSETS)
_tensor("block_seq_lens_decoder", I32, "B", "Position of each block's first row.", between(0, "L"))
_tensor("own_logits", FLOATS, "R_cap V_draft", "Logits of the draft model's own ids.", NO_NAN, dtype_of="logits")
_tensor("target_to_draft", I32, "V", "The draft model's id of each target token; -1: none.", between(-1, "V_draft-1"))
_tensor("draft_confidence", F32, "M S-1", "Probability that the target accepts a draft after all earlier ones.")
_tensor("min_confidence", F32, "M", "Least probability of kept drafts; 0: keep all.")
_tensor("anchor_tokens", I64, "B", "The token before each slot's first draft.")
_tensor("path_logits", F32, "R_cap C_draft", "Logits of each draft's candidates.", NO_NAN)
_tensor(
    "path_ids",
    I64,
    "R_cap C_draft",
    "Candidates of each draft by (logit descending, id ascending); -1: none.",
    between(-1, "V-1"),
)
_tensor("path_hidden", FLOATS, "R_cap D", "The drafter's row of each draft, projected to the width of the codes.")
_tensor("predecessor_codes", FLOATS, "V D", "Each token's code as the token before a draft.", dtype_of="path_hidden")
_tensor("successor_codes", FLOATS, "V D", "Each token's code as a draft.", dtype_of="path_hidden")
_tensor("path_tokens", I64, "R_cap", "The draft of each row; -1 in the tail and where undefined.", between(-1, "V-1"))

# Recurrent layers
_tensor("conv_x", FLOATS, "T_cap D", "Input of the convolution: one row per packed token.")
_tensor("conv_weight", FLOATS, "D Taps", "Taps of each channel, the oldest row's first.", dtype_of="conv_x")
_tensor("conv_bias", FLOATS, "D", "Bias of each channel.", dtype_of="conv_x")
_tensor("conv_ring", FLOATS, "M R D", "Inputs by position: that of position p is entry p % R.", dtype_of="conv_x")
_tensor("conv_out", FLOATS, "T_cap D", "Output of the convolution; 0 in rows without a slot.", dtype_of="conv_x")
_tensor("q", FLOATS, "T_cap H_k D_k", "Queries of each packed token; C of Mamba-2.")
_tensor("k", FLOATS, "T_cap H_k D_k", "Keys of each packed token; B of Mamba-2.", dtype_of="q")
_tensor("v", FLOATS, "T_cap H_v D_v", "Values of each packed token; x of Mamba-2.", dtype_of="q")
_tensor("decay", F32, "T_cap H_v", "Factor of the state before each token, such as exp(g) or exp(dt A).")
_tensor("beta", F32, "T_cap H_v", "Share of the correction that each token writes, such as sigmoid(b).")
_tensor("dt", F32, "T_cap H_v", "Step size of each token, after bias, softplus and limits.")
_tensor("skip", F32, "H_v", "Weight of the value that is added to the output; D of Mamba-2.")
_tensor("states", F32, "M R H_v D_k D_v", "States by position: that after position p is entry p % R.")
_tensor("checkpoint_lens", I32, "M", "Tokens that `checkpoint` has taken: it is the state before this position.")
_tensor("checkpoint", F32, "M H_v D_k D_v", "The state before position `checkpoint_lens`.")
_tensor("replay_k", F32, "M R H_k D_k", "Keys by position, as they update the state.")
_tensor("replay_u", F32, "M R H_v D_v", "Updates by position: what the key is multiplied with.")
_tensor("replay_decay", F32, "M R H_v", "Decays by position.")
_tensor("core_out", FLOATS, "T_cap H_v D_v", "Output of the recurrence; 0 in rows without a slot.", dtype_of="q")

# Output
_tensor("token_ids", I64, "A_cap", "Accepted tokens, packed in slot order; -1 in the tail.", between(-1, None))
_tensor(
    "rows", I32, "A_cap", "The logit row that predicts each accepted token; -1 in the tail.", between(-1, "R_cap-1")
)
_tensor("cu_batch_token_offset", I32, "B+1", "Exclusive prefix sum of reported tokens per slot.", OFFSETS)
_tensor("batch_token_num", I32, "B", "Number of tokens that each slot reports.", between(0, None))
_tensor("next_token_num", I32, "B", "Number of the draft model's rows of each slot.", between(0, None))
_tensor("cu_next_token_offset", I32, "B+1", "Exclusive prefix sum of `next_token_num`.", OFFSETS)
_tensor("next_tokens", I64, "R_cap", "The draft model's token of each of its rows.")
_tensor("first_token_logits", FLOATS, "M V", "The target's row after each slot's prompt.", dtype_of="logits")
_tensor("draft_logits", FLOATS, "D_cap V", "Rows of target and draft model, packed by slot.", dtype_of="logits")
_tensor("draft_token_ids", I64, "D_cap", "The token of each row of `draft_logits`.")
_tensor("ids", I64, "A_cap N", "Column 0: the chosen token; then the top N-1; -1 where undefined.", between(-1, None))
_tensor("logprobs", F32, "A_cap N", "Natural-log probabilities of `ids`, at least the lowest float32.")
_tensor(
    "ranks",
    I64,
    "A_cap",
    "Entries of the row at least as large as the chosen one; -1 where undefined.",
    between(-1, "V"),
)


def tensor(name: str) -> TensorSpec:
    """The vocabulary's tensor of that name (KeyError if there is none)."""
    return _ALL[name]


def names() -> tuple[str, ...]:
    """All names, in reading order."""
    return tuple(_ALL)
