"""Section 3 got wrong: parameters, penalties, sampling."""

from __future__ import annotations

from functools import partial

from tests.conformance.mutants.editing import Edit
from tests.conformance.mutants.making import edited, undefined

_edit = partial(Edit, "sampling")
_BOTH = "processed_probs sample_target"
_KEPT = partial(_edit, within="distribution")
_LEAST = "masses[masses < mass_threshold(min_p, one)] = 0"

_PARAMS = (
    edited("position-without-the-row", "build_sampling_params",
           "all rows of a slot draw with one random number: drafts are accepted together or not at all",
           _edit("prompt_lens[b] + step_idx[b] + row_in_slot", "prompt_lens[b] + step_idx[b]")),
    edited("position-without-the-prompt", "build_sampling_params",
           "positions count generated tokens only: a request resumed with its output as prompt draws other tokens",
           _edit("prompt_lens[b] + step_idx[b] + row_in_slot", "step_idx[b] + row_in_slot")),
    edited("seed-by-row", "build_sampling_params",
           "seeds are offset by the row: the tokens depend on where in the batch the request sits (FastDeploy)",
           _edit("np.where(used, seed[b], 0)", "np.where(used, seed[b] + np.arange(len(b)), 0)")),
    edited("params-of-the-row-number", "build_sampling_params",
           "parameters are read by row number, as if every slot had one row: right until the first draft",
           _edit("temperature[b]", "temperature[np.arange(len(b)) % len(temperature)]", "build_sampling_params")),
    edited("row-seeds-after-the-advance", "build_sampling_params",
           "rows take infer_seed when it has advanced: each step draws with the next one's seeds",
           _edit("advanced % seed_modulus", "(advanced + np.array([seed_increment], np.int64)) % seed_modulus")),
    edited("idle-seeds-stay", "build_sampling_params", "the seed of a slot without rows does not advance",
           _edit("in_use[:] = (in_use + np.array([seed_increment], np.int64)) % seed_modulus",
                 "in_use[b] = (in_use[b] + np.array([seed_increment], np.int64)) % seed_modulus",
                 given="advanced = infer_seed[b] + np.array([row_seed_step], np.int64) * row_in_slot")),
    edited("all-seeds-advance", "build_sampling_params", "the seeds of slots that are not in use advance, too",
           _edit("infer_seed[: len(cu_seqlens_q_output) - 1]", "infer_seed[:]")),
    *(
        undefined("build_sampling_params", output, fill, f"the tail of {output} is uninitialised")
        for output, fill in (
            ("row_temperature", 1), ("row_top_p", 1), ("row_top_k", 0), ("row_min_p", 0), ("row_seed", 0),
            ("position", -1),
        )
    ),
)  # fmt: skip

_PENALTIES = (
    edited("penalties-ignore-drafts", "apply_penalties",
           "row i does not see the drafts before it: speculative output differs from plain decoding",
           _edit("draft_tokens[b, 1 : i + 1]", "draft_tokens[b, 1:1]")),
    edited("penalties-see-the-judged-draft", "apply_penalties",
           "row i already counts the draft that it judges, which is then always a little less likely",
           _edit("draft_tokens[b, 1 : i + 1]", "draft_tokens[b, 1 : i + 2]")),
    edited("repetition-divides-negatives", "apply_penalties",
           "negative logits are divided too, so that the penalty makes repeated tokens more likely",
           _edit("np.where(values > 0, values / repetition[b], values * repetition[b])", "values / repetition[b]")),
    edited("frequency-counts-the-prompt", "apply_penalties",
           "frequency and presence run over prompt and output, as in some engines",
           _edit("token_ids_all[b, prompt_len:end]", "token_ids_all[b, :end]")),
    edited("presence-per-occurrence", "apply_penalties", "the presence penalty is subtracted once for each occurrence",
           _edit("(values[at] - counts.astype(np.float32) * frequency[b]) - presence[b]",
                 "(values[at] - counts.astype(np.float32) * frequency[b]) - counts.astype(np.float32) * presence[b]")),
    edited("minimum-length-by-slot", "apply_penalties",
           "the minimum length looks at the slot and not at the row: end tokens among drafts stay forbidden too long",
           _edit("int(step_idx[b]) + i < min_dec_len[b]", "int(step_idx[b]) < min_dec_len[b]")),
    edited("minimum-length-plus-one", "apply_penalties", "off by one at the minimum length",
           _edit("int(step_idx[b]) + i < min_dec_len[b]", "int(step_idx[b]) + i <= min_dec_len[b]")),
    edited("ids-wrap-into-the-vocabulary", "apply_penalties",
           "padding of -1 among the bad tokens forbids the last token of the vocabulary",
           _edit("inside: I64 = ids[(ids >= 0) & (ids < vocabulary)]", "inside: I64 = ids % vocabulary")),
    edited("bfloat16-cut-off", "apply_penalties", "bfloat16 results are cut off instead of rounded to nearest even",
           Edit("floats", "(bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16", "bits >> 16")),
    edited("penalties-contracted", "apply_penalties",
           "count * frequency + presence in one fused operation: the last bit differs from other hardware",
           _edit("(values[at] - counts.astype(np.float32) * frequency[b]) - presence[b]",
                 "(values[at] - counts * np.float64(frequency[b])).astype(np.float32) - presence[b]")),
)  # fmt: skip

_DECISIONS = (
    edited("greedy-at-temperature-one", _BOTH,
           "without a native sampler the backend silently falls back to argmax (FastDeploy off NVIDIA)",
           _KEPT("not temperature > 0", "not temperature > 0 or temperature == 1")),
    edited("temperature-zero-samples", _BOTH,
           "temperature 0 is replaced by a tiny one: a tie is drawn where greedy decoding takes the first",
           _KEPT("if not temperature > 0: ...", "temperature = max(temperature, 1e-5)\nif not temperature > 0: ...")),
    edited("argmax-takes-the-last", _BOTH,
           "equal logits: the larger id wins, as with a reduction that compares with >=",
           _KEPT("np.argmax(row)", "len(row) - 1 - np.argmax(row[::-1])")),
    edited("top-k-ties-by-larger-id", _BOTH,
           "the last place among the top k goes to the larger of two equal ids (bfloat16 logits tie often)",
           _edit('ids[np.argsort(-row[ids], kind="stable")]', 'ids[::-1][np.argsort(-row[ids][::-1], kind="stable")]',
                 "first_of_order")),
    edited("top-p-exclusive", _BOTH, "the token that reaches top_p exactly is followed by one more (> for >=)",
           _edit('np.searchsorted(sums, need, side="left")', 'np.searchsorted(sums, need, side="right")', "nucleus")),
    edited("top-p-of-everything", _BOTH, "top_p is a part of the whole vocabulary's mass and not of what top_k kept",
           _KEPT("mass_threshold(top_p, masses[best].sum(dtype=np.uint64))",
                 "mass_threshold(top_p, masses.sum(dtype=np.uint64))")),
    edited("top-k-off-by-one", _BOTH, "k + 1 tokens are kept",
           _KEPT("first_of_order(row, np.partition(row, -top_k)[-top_k])[:top_k]",
                 "first_of_order(row, np.partition(row, -top_k - 1)[-top_k - 1])[: top_k + 1]")),
    edited("min-p-against-the-total", _BOTH, "min_p is compared with the total and not with the largest mass",
           _KEPT(_LEAST, "masses[masses < mass_threshold(min_p, masses.sum(dtype=np.uint64))] = 0")),
    edited("min-p-exclusive", _BOTH, "a token whose mass is exactly min_p of the largest is dropped",
           _KEPT(_LEAST, "masses[masses <= mass_threshold(min_p, one)] = 0\nmasses[np.argmax(row)] = one",
                 given="kept[np.argmax(row)] = one")),
    edited("nan-row-chosen", _BOTH,
           "a NaN row gives a token: comparisons with NaN are false, so the scan keeps what it started with",
           _KEPT("row.max()", "np.fmax.reduce(row)")),
    edited("all-forbidden-row-chosen", _BOTH, "a row of all -inf gives token 0",
           _KEPT("np.isnan(row_max) or row_max == -np.inf", "np.isnan(row_max)")),
    edited("tail-rows-computed", _BOTH, "rows after the last one are sampled from stale logits",
           _edit("np.flatnonzero(position >= 0)", "range(len(position))", "sample_target"),
           _edit("np.flatnonzero(position >= 0)", "range(len(position))", "processed_probs")),
)  # fmt: skip

_ARITHMETIC = (
    edited("sums-in-float32", _BOTH,
           "top_p by a float32 running sum, whose result depends on the order of the additions",
           _edit("np.cumsum(masses[best], dtype=np.uint64)",
                 "np.cumsum(masses[best], dtype=np.float32).astype(np.uint64)", "nucleus")),
    edited("exponent-reassociated", _BOTH,
           "fast-math multiplies 1 / temperature with log2(e) first: the exponent differs in the last bit",
           Edit("primitives",
                "t = np.asarray((x - top) * np.asarray(scale, np.float32)[..., None], np.float32)\nt *= LOG2E",
                "t = np.asarray((x - top) * (np.asarray(scale, np.float32)[..., None] * LOG2E), np.float32)")),
    edited("polynomial-contracted", _BOTH,
           "the compiler fuses the polynomial's multiplications and additions (no -ffp-contract=off)",
           Edit("primitives", "p = x * EXP2_COEFFICIENTS[-1]",
                "x = x.astype(np.float64)\np = x * EXP2_COEFFICIENTS[-1]"),
           Edit("primitives", "p += EXP2_COEFFICIENTS[0]", "p += EXP2_COEFFICIENTS[0]\np = p.astype(np.float32)")),
    edited("divides-by-temperature", _BOTH,
           "logits are divided by the temperature and not multiplied by its reciprocal: one rounding less",
           Edit("primitives", "(x - top) * np.asarray(scale, np.float32)[..., None]",
                "(x - top) / np.asarray(scale, np.float32)[..., None]"),
           _KEPT("softmax_t(row, row_max, inv_temperature)", "softmax_t(row, row_max, np.float32(temperature))",
                 given="inv_temperature = np.float32(1) / np.float32(temperature)")),
    edited("exp2-of-the-library", _BOTH,
           "the exponential of the platform's mathematical library instead of the project's polynomial",
           Edit("primitives", "p += EXP2_COEFFICIENTS[0]", "p = np.exp2(x)", given="p = x * EXP2_COEFFICIENTS[-1]")),
    edited("ratio-by-reciprocal", "processed_probs",
           "probabilities by multiplying with 1 / total: two roundings for one",
           Edit("primitives", "part / np.where(n > 0, n, np.float32(np.inf))",
                "part * (np.float32(1) / np.where(n > 0, n, np.float32(np.inf)))")),
    edited(
        "probs-not-renormalised",
        "processed_probs",
        "probabilities of the kept tokens do not add up to 1: rejection sampling loses the rest",
        _edit("mass_ratio(masses, found.total)",
              "mass_ratio(masses, "
              "exp2_mass(softmax_t(row, found.row_max, found.inv_temperature)).sum(dtype=np.uint64))",
              "processed_probs", "row = to_f32(logits[r])"),
    ),
)  # fmt: skip

_TOTAL = "mass_product(masses.sum(1, dtype=np.uint64), weights)"
_CHUNKS = (
    edited("chunks-of-1023", _BOTH, "chunks are cut one id early, as by a tile with a place for something else",
           Edit("primitives", "np.full((-(-len(row) // CHUNK), CHUNK), -np.inf, np.float32)",
                "np.full((-(-len(row) // 1023), 1023), -np.inf, np.float32)"),
           Edit("primitives", "c * CHUNK", "c * 1023")),
    edited("weight-of-the-next-chunk", _BOTH,
           "a chunk's sum is taken with the weight of the chunk before it: sums are one stage ahead in a pipeline",
           Edit("primitives", _TOTAL, "mass_product(masses.sum(1, dtype=np.uint64), np.roll(weights, 1))")),
    edited("masses-of-the-row-weighted-again", _BOTH,
           "masses relative to the row's maximum where those relative to the chunk's belong",
           Edit("primitives", "softmax_t(chunks, tops, inverse)",
                "softmax_t(chunks, np.full_like(tops, tops.max()), inverse)")),
    edited("last-chunk-filled-with-zeros", _BOTH, "the elements after the end of the last chunk count as logits of 0",
           Edit("primitives", "np.full((-(-len(row) // CHUNK), CHUNK), -np.inf, np.float32)",
                "np.zeros((-(-len(row) // CHUNK), CHUNK), np.float32)")),
    edited(
        "elements-rounded-one-by-one",
        "sample_target",
        "each element's product with its chunk's weight is rounded down, and not that of the prefix sum",
        Edit("primitives", _TOTAL, "mass_product(masses, weights[:, None]).sum(1, dtype=np.uint64)"),
        Edit("primitives", 'np.searchsorted(prefixes, np.uint64(least), side="left")',
             "np.searchsorted("
             "np.cumsum(mass_product(row.masses[c], row.weights[c]), dtype=np.uint64), np.uint64(rest), side='right')",
             given="rest = r - int(ends[c] - row.shares[c])"),
    ),
    edited("point-compared-inclusively", "sample_target", "a prefix sum that equals the point wins (>= for >)",
           Edit("primitives", "(rest + 1) << MASS_BITS", "rest << MASS_BITS")),
    edited("unfiltered-rows-as-in-version-1", "sample_target",
           "a row without filters is drawn by masses relative to its maximum",
           _KEPT("if not (a or b or c): ...", "pass")),
    edited("a-tiny-min-p-is-no-filter", "sample_target",
           "a min_p whose share is 0 masses is taken for none: the row is drawn by chunks",
           _KEPT("not min_p <= 0", "mass_threshold(min_p, np.uint64(MASS_ONE)) > 0")),
)  # fmt: skip

_SCORES = (
    edited("raw-at-the-temperature", "sample_target",
           "raw log-probabilities are those of the row at its temperature, after its filters",
           _edit("logprob_mode is LogprobMode.RAW", "False")),
    edited("processed-at-temperature-one", "sample_target", "the mode has no effect: log-probabilities are raw",
           _edit("logprob_mode is LogprobMode.RAW", "True")),
    edited("rank-from-zero", "sample_target",
           "the rank counts larger logits only: 0 is the best, and ties share a rank",
           _edit("row >= row[token]", "row > row[token]", "sample_target")),
    edited("undefined-rows-are-certain", "sample_target", "a row without a distribution has a log-probability of 0",
           _edit("below_max[r] = LOWEST", "below_max[r] = 0")),
    *(
        undefined("sample_target", output, fill, f"the tail of {output} is uninitialised")
        for output, fill in (("logprobs", 0), ("ranks", -1))
    ),
)  # fmt: skip

_DRAW = partial(_edit, "philox_u64(row_seed, position, purpose)", within="sample_target")
_RANDOM = (
    edited("u-is-zero", "sample_target",
           "the random number is a constant: every draw gives the first token that has any mass (FastDeploy XPU)",
           _DRAW("np.zeros(len(position), np.uint64)")),
    edited("seed-ignored", "sample_target", "a process-wide seed: the request's own has no effect",
           _DRAW("philox_u64(0, position, purpose)")),
    edited("seed-cut-to-32-bits", "sample_target", "seeds that differ in the upper half only give one stream",
           _DRAW("philox_u64(row_seed & 0xFFFFFFFF, position, purpose)")),
    edited("seed-by-slot", "sample_target",
           "the row number is mixed into the seed: a request draws other tokens in another slot (FastDeploy)",
           _DRAW("philox_u64(row_seed ^ np.arange(len(row_seed)), position, purpose)")),
    edited("position-ignored", "sample_target",
           "one random number for the whole request: a loop in the text never ends",
           _DRAW("philox_u64(row_seed, 0, purpose)")),
    edited("purpose-shared", "sample_target",
           "draws of different purposes share their random number and are correlated",
           _DRAW("philox_u64(row_seed, position, Purpose.ACCEPT)")),
    edited("drafts-drawn-as-samples", "sample_target",
           "drafts are drawn with the target model's random numbers, whatever they are drawn for",
           _DRAW("philox_u64(row_seed, position, Purpose.SAMPLE)")),
    edited("random-words-swapped", "sample_target",
           "the 64 random bits are put together in the other order: as random, and no other backend's tokens",
           Edit("primitives", "w1.astype(np.uint64) << _32 | w0", "w0.astype(np.uint64) << _32 | w1")),
    edited(
        "draws-in-sorted-order",
        "sample_target",
        "the draw walks the tokens by probability and not by id: right distribution, other tokens than other hardware",
        _edit("int(draw(random, self.kept))",
              "int(np.argsort(self.kept, kind='stable')[int(draw(random, np.sort(self.kept)))])"),
    ),
)  # fmt: skip

_LENS = 'min(int(np.searchsorted(sums, fraction_mass(top_p[b]), side="left")) + 1, c)'
_CANDIDATES = (
    edited("no-candidates-when-not-reached", "top_p_candidates",
           "lens is 0 where the candidates do not reach top_p, so that even the best draft is rejected (FastDeploy)",
           _edit(_LENS, f"{_LENS} if sums[-1] >= fraction_mass(top_p[b]) else 0")),
    edited("candidates-exclusive", "top_p_candidates",
           "the candidate that reaches top_p exactly is followed by one more",
           _edit(_LENS, _LENS.replace("left", "right"))),
    edited("first-probability-twice", "top_p_candidates",
           "the first probability enters the running sum twice (FastDeploy XPU)",
           _edit("np.cumsum(prob_mass(row[best]), dtype=np.uint64)",
                 "np.cumsum(prob_mass(row[best]), dtype=np.uint64) + prob_mass(row[best[0]])")),
    edited("candidate-ties-by-larger-id", "top_p_candidates", "equal probabilities come with the larger id first",
           _edit('np.argsort(-row, kind="stable")[:c]', '(len(row) - 1 - np.argsort(-row[::-1], kind="stable"))[:c]',
                 "top_p_candidates")),
    edited(
        "only-the-candidates-that-count",
        "top_p_candidates",
        "ids and scores after lens are garbage, and the verifier's window looks at the second (FastDeploy)",
        _edit("candidate_ids[r], candidate_scores[r] = best, row[best]",
              "ids, scores = candidate_ids[r].copy(), candidate_scores[r].copy()\n"
              "candidate_ids[r], candidate_scores[r] = best, row[best]"),
        _edit(f"candidate_lens[r] = {_LENS}",
              f"n = candidate_lens[r] = {_LENS}\n"
              "candidate_ids[r, n:], candidate_scores[r, n:] = ids[n:], scores[n:]",
              given="ids, scores = candidate_ids[r].copy(), candidate_scores[r].copy()"),
    ),
    edited("nan-is-the-best-candidate", "top_p_candidates", "a NaN probability is sorted in front of all others",
           _edit("np.where(np.isnan(probs[r]), np.float32(0), probs[r])",
                 "np.where(np.isnan(probs[r]), np.float32(np.inf), probs[r])")),
    edited("top-p-of-the-row-number", "top_p_candidates", "top_p is read by row and not by the row's slot",
           _edit(f"candidate_lens[r] = {_LENS}", f"candidate_lens[r] = {_LENS.replace('[b]', '[r % len(top_p)]')}")),
    *(
        undefined("top_p_candidates", output, fill, f"the tail of {output} is garbage (FastDeploy)")
        for output, fill in (("candidate_scores", 0), ("candidate_ids", -1), ("candidate_lens", 0))
    ),
)  # fmt: skip

MUTANTS = (*_PARAMS, *_PENALTIES, *_DECISIONS, *_ARITHMETIC, *_CHUNKS, *_SCORES, *_RANDOM, *_CANDIDATES)
