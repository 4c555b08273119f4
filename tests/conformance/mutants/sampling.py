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
    edited("params-of-the-row-number", "build_sampling_params",
           "parameters are read by row number, as if every slot had one row: right until the first draft",
           _edit("temperature[b]", "temperature[np.arange(len(b)) % len(temperature)]", "build_sampling_params")),
    edited("row-seeds-after-the-advance", "build_sampling_params",
           "rows take infer_seed when it has advanced: each step draws with the next one's seeds",
           _edit("advanced % seed_modulus", "(advanced + np.array([seed_increment], np.int64)) % seed_modulus")),
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
    edited("repetition-divides-negatives", "apply_penalties",
           "negative logits are divided too, so that the penalty makes repeated tokens more likely",
           _edit("np.where(values > 0, values / repetition[b], values * repetition[b])", "values / repetition[b]")),
    edited("minimum-length-by-slot", "apply_penalties",
           "the minimum length looks at the slot and not at the row: end tokens among drafts stay forbidden too long",
           _edit("int(step_idx[b]) + i < min_dec_len[b]", "int(step_idx[b]) < min_dec_len[b]")),
    edited("bfloat16-cut-off", "apply_penalties", "bfloat16 results are cut off instead of rounded to nearest even",
           Edit("floats", "(bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16", "bits >> 16")),
    edited("penalties-contracted", "apply_penalties",
           "count * frequency + presence in one fused operation: the last bit differs from other hardware",
           _edit("(values[at] - counts.astype(np.float32) * frequency[b]) - presence[b]",
                 "(values[at] - counts * np.float64(frequency[b])).astype(np.float32) - presence[b]")),
)  # fmt: skip

_DECISIONS = (
    edited("temperature-zero-samples", _BOTH,
           "temperature 0 is replaced by a tiny one: a tie is drawn where greedy decoding takes the first",
           _KEPT("if not temperature > 0: ...", "temperature = max(temperature, 1e-5)\nif not temperature > 0: ...")),
    edited("top-p-exclusive", _BOTH, "the token that reaches top_p exactly is followed by one more (> for >=)",
           _edit('np.searchsorted(sums, need, side="left")', 'np.searchsorted(sums, need, side="right")', "nucleus")),
    edited("top-p-of-everything", _BOTH, "top_p is a part of the whole vocabulary's mass and not of what top_k kept",
           _KEPT("mass_threshold(top_p, masses[best].sum(dtype=np.uint64))",
                 "mass_threshold(top_p, masses.sum(dtype=np.uint64))")),
    edited("min-p-exclusive", _BOTH, "a token whose mass is exactly min_p of the largest is dropped",
           _KEPT(_LEAST, "masses[masses <= mass_threshold(min_p, one)] = 0\nmasses[np.argmax(row)] = one",
                 given="kept[np.argmax(row)] = one")),
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
                "x = x.astype(np.float64)\np = x * EXP2_COEFFICIENTS[-1]", within="_exp2_mass"),
           Edit("primitives", "p += EXP2_COEFFICIENTS[0]", "p += EXP2_COEFFICIENTS[0]\np = p.astype(np.float32)")),
    edited("divides-by-temperature", _BOTH,
           "logits are divided by the temperature and not multiplied by its reciprocal: one rounding less",
           Edit("primitives", "(x - top) * np.asarray(scale, np.float32)[..., None]",
                "(x - top) / np.asarray(scale, np.float32)[..., None]"),
           _KEPT("softmax_t(row, row_max, inv_temperature)", "softmax_t(row, row_max, np.float32(temperature))",
                 given="inv_temperature = np.float32(1) / np.float32(temperature)")),
    edited("exp2-of-the-library", _BOTH,
           "the exponential of the platform's mathematical library instead of the project's polynomial",
           Edit("primitives", "p += EXP2_COEFFICIENTS[0]", "p = np.exp2(x)", within="_exp2_mass",
                given="p = x * EXP2_COEFFICIENTS[-1]")),
    edited("ratio-by-reciprocal", "processed_probs",
           "probabilities by multiplying with 1 / total: two roundings for one",
           Edit("primitives", "part / np.where(n > 0, n, np.float32(np.inf))",
                "part * (np.float32(1) / np.where(n > 0, n, np.float32(np.inf)))")),
)  # fmt: skip


_CHUNKS = (
    edited("chunks-of-1023", _BOTH, "chunks are cut one id early, as by a tile with a place for something else",
           Edit("primitives", "np.full((-(-len(row) // CHUNK), CHUNK), -np.inf, np.float32)",
                "np.full((-(-len(row) // 1023), 1023), -np.inf, np.float32)"),
           Edit("primitives", "c * CHUNK", "c * 1023")),
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
    edited("undefined-rows-are-certain", "sample_target", "a row without a distribution has a log-probability of 0",
           _edit("below_max[r] = LOWEST", "below_max[r] = 0")),
    *(
        undefined("sample_target", output, fill, f"the tail of {output} is uninitialised")
        for output, fill in (("logprobs", 0), ("ranks", -1))
    ),
)  # fmt: skip

_DRAW = partial(_edit, "philox_u64(row_seed, position, purpose)", within="sample_target")
_RANDOM = (
    edited("seed-cut-to-32-bits", "sample_target", "seeds that differ in the upper half only give one stream",
           _DRAW("philox_u64(row_seed & 0xFFFFFFFF, position, purpose)")),
    edited("position-cut-to-32-bits", "sample_target", "positions that differ in the upper half only draw alike",
           _DRAW("philox_u64(row_seed, position & 0xFFFFFFFF, purpose)")),
    edited("drafts-drawn-as-samples", "sample_target",
           "drafts are drawn with the target model's random numbers, whatever they are drawn for",
           _DRAW("philox_u64(row_seed, position, Purpose.SAMPLE)")),
)  # fmt: skip

_LENS = 'min(int(np.searchsorted(sums, fraction_mass(top_p[b]), side="left")) + 1, c)'
_CANDIDATES = (
    edited("no-candidates-when-not-reached", "top_p_candidates",
           "lens is 0 where the candidates do not reach top_p, so that even the best draft is rejected (FastDeploy)",
           _edit(_LENS, f"{_LENS} if sums[-1] >= fraction_mass(top_p[b]) else 0")),
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
