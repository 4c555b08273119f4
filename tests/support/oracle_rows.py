"""Sections 3 and 7 by brute force: what happens to rows of logits. See `oracle_slots`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from specdec_hal.ops import LogprobMode
from tests.support import exact

Inputs = dict[str, Any]
LOWEST = float(np.finfo(np.float32).min)


def _row_table(a: Inputs, row_count: int) -> list[tuple[int, int] | None]:
    """(slot, row within the slot) of every row, None in the tail."""
    slots = a["batch_id_per_token_output"].tolist()
    b_count = len(a["cu_seqlens_q_output"]) - 1
    return [
        (slots[r], r - int(a["cu_seqlens_q_output"][slots[r]])) if 0 <= slots[r] < b_count else None
        for r in range(row_count)
    ]


def build_sampling_params(a: Inputs) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {n: [] for n in ("temperature", "top_p", "top_k", "min_p", "seed", "position")}
    for entry in _row_table(a, len(a["position"])):
        if entry is None:
            row = (1.0, 1.0, 0, 0.0, 0, -1)
        else:
            b, i = entry
            row = (*(a[n][b] for n in list(columns)[:5]), int(a["prompt_lens"][b]) + int(a["step_idx"][b]) + i)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    result = {n if n == "position" else f"row_{n}": column for n, column in columns.items()}
    if a.get("infer_seed") is None:
        return result
    seeds, modulus = a["infer_seed"].tolist(), a["seed_modulus"]

    def advanced(b: int, by: int) -> int:
        wrapped = (seeds[b] + by + 2**63) % 2**64 - 2**63
        return wrapped % modulus  # type: ignore[no-any-return]

    result["row_seed"] = [
        0 if entry is None else advanced(entry[0], a["row_seed_step"] * entry[1])
        for entry in _row_table(a, len(a["position"]))
    ]
    used = len(a["cu_seqlens_q_output"]) - 1
    result["infer_seed"] = [advanced(b, a["seed_increment"]) if b < used else s for b, s in enumerate(seeds)]
    return result


def apply_penalties(a: Inputs) -> dict[str, Any]:
    """Rows as Python floats; compare with `exact.widen` of the op's result."""
    dtype = "bfloat16" if a["logits"].dtype == np.uint16 else str(a["logits"].dtype)
    v = a["logits"].shape[1]
    length = a["token_ids_all"].shape[1]
    result = []
    for r, entry in enumerate(_row_table(a, len(a["logits"]))):
        row = exact.widen(a["logits"][r])
        if entry is not None:
            b, i = entry
            history = a["token_ids_all"][b].tolist()
            prompt_len = int(a["prompt_lens"][b])
            prompt = history[:prompt_len]
            generated = history[prompt_len : min(prompt_len + int(a["step_idx"][b]), length)]
            generated = generated + a["draft_tokens"][b].tolist()[1 : i + 1]
            r_, f_, p_ = (float(a[n][b]) for n in ("repetition", "frequency", "presence"))
            for token in range(v):
                logit, count = row[token], generated.count(token)
                if token in prompt or count:
                    logit = exact.div(logit, r_) if logit > 0 else exact.mul(logit, r_)
                if count:
                    logit = exact.sub(exact.sub(logit, exact.mul(float(count), f_)), p_)
                row[token] = exact.ROUND[dtype](logit)
            banned = a["bad_tokens"][b].tolist()
            if int(a["step_idx"][b]) + i < a["min_dec_len"][b]:
                banned += a["end_tokens"].tolist()
            for token in banned:
                if 0 <= token < v:
                    row[token] = -math.inf
        result.append(row)
    return {"logits": result}


class Kept(NamedTuple):
    """Masses of the tokens that a row's parameters keep, the total of the draw, and the row by chunks if nothing is
    filtered."""

    masses: dict[int, int]
    total: int
    chunks: list[tuple[list[int], int]] | None = None


def kept(a: Inputs, r: int) -> Kept | None:
    """The elements kept by a row's parameters; None without a distribution."""
    row = exact.widen(a["logits"][r])
    if a["position"][r] < 0 or any(map(math.isnan, row)) or all(x == -math.inf for x in row):
        return None
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    temperature, top_p, min_p = (float(a[f"row_{n}"][r]) for n in ("temperature", "top_p", "min_p"))
    if not temperature > 0:
        return Kept({order[0]: exact.ONE}, exact.ONE)
    masses = exact.softmax_masses(row, temperature, max(row))
    parts = exact.chunk_parts(row, temperature)
    top_k = int(a["row_top_k"][r])
    of_chunks = not 0 < top_k < len(row)
    if of_chunks and not top_p < 1 and min_p <= 0:
        return Kept(dict(enumerate(masses)), exact.chunk_total(parts), parts)
    if not of_chunks:
        order = order[:top_k]
    whole = exact.chunk_total(parts) if of_chunks else sum(masses[token] for token in order)
    wanted = exact.part(top_p, whole) if top_p < 1 else math.inf
    nucleus, running = [], 0
    for token in order:
        nucleus.append(token)
        running += masses[token]
        if running >= wanted:
            break
    floor = exact.part(min_p, masses[order[0]])
    left = {token: masses[token] for token in nucleus if masses[token] >= floor}
    return Kept(left, sum(left.values()))


def sample_target(a: Inputs) -> dict[str, Any]:
    """Log-probabilities in float64, for comparison within a tolerance; the rest exactly."""
    tokens, logprobs, ranks = [], [], []
    for r in range(len(a["logits"])):
        found = kept(a, r)
        if found is None:
            tokens.append(-1)
            logprobs.append(0.0 if a["position"][r] < 0 else LOWEST)
            ranks.append(-1)
            continue
        bits = exact.u64(int(a["row_seed"][r]), int(a["position"][r]), a["purpose"])
        if found.chunks is not None:
            token = exact.draw_from_chunks(bits, found.chunks)
        else:
            ids = sorted(found.masses)
            token = ids[exact.draw(bits, [found.masses[t] for t in ids], found.total)]
        row = exact.widen(a["logits"][r])
        temperature = float(a["row_temperature"][r])
        left: Iterable[int] = range(len(row))
        if a["logprob_mode"] == LogprobMode.RAW:
            temperature = 1.0
        elif found.chunks is None:
            left = (t for t, mass in found.masses.items() if mass > 0)
        tokens.append(token)
        logprobs.append(_logprob(row, token, left, temperature))
        ranks.append(sum(x >= row[token] for x in row))
    outputs = {"target_tokens": tokens, "logprobs": logprobs, "ranks": ranks}
    return {name: value for name, value in outputs.items() if name in a}


def _logprob(row: list[float], token: int, among: Iterable[int], temperature: float) -> float:
    """ln of a token's probability among some, in float64."""
    if not temperature > 0:
        return 0.0
    top = max(row)

    def weight(x: float) -> float:
        return 0.0 if x == top else LOWEST if math.isinf(x - top) else (x - top) / temperature

    return max(weight(row[token]) - math.log(math.fsum(math.exp(weight(row[t])) for t in among)), LOWEST)


def processed_probs(a: Inputs) -> dict[str, Any]:
    rows = []
    for r in range(len(a["logits"])):
        row = [0.0] * a["logits"].shape[1]
        found = kept(a, r)
        for token, m in found.masses.items() if found else ():
            row[token] = exact.div(exact.f32(m), exact.f32(found.total))
        rows.append(row)
    return {"probs": rows}


def top_p_candidates(a: Inputs) -> dict[str, Any]:
    c = a["candidate_ids"].shape[1]
    scores, ids, lens = [], [], []
    for r, row in enumerate(a["probs"].tolist()):
        b = int(a["batch_id_per_token_output"][r])
        if b < 0:
            scores.append([0.0] * c)
            ids.append([-1] * c)
            lens.append(0)
            continue
        best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:c]
        ids.append(best)
        scores.append([row[token] for token in best])
        needed, running, length = exact.fraction_mass(float(a["top_p"][b])), 0, c
        for j, token in enumerate(best, 1):
            running += exact.mass(row[token])
            if running >= needed:
                length = j
                break
        lens.append(length)
    return {"candidate_scores": scores, "candidate_ids": ids, "candidate_lens": lens}


def gather_accepted(a: Inputs) -> dict[str, Any]:
    tokens, rows, offsets = [], [], [0]
    for b, slt in enumerate(a["seq_lens_this_time"].tolist()):
        if slt > 0:
            for i in range(int(a["accept_num"][b])):
                tokens.append(int(a["accept_tokens"][b, i]))
                first = int(a["cu_seqlens_q_output"][b])
                rows.append(first if a["seq_lens_encoder"][b] > 0 else first + i)
        offsets.append(len(tokens))
    cap = len(a["token_ids"])
    return {
        "token_ids": (tokens + [-1] * cap)[:cap],
        "rows": (rows + [-1] * cap)[:cap],
        "cu_batch_token_offset": offsets,
    }


def token_logprobs(a: Inputs) -> dict[str, Any]:
    """Log-probabilities in float64, for comparison within a tolerance; ids and ranks exactly."""
    cap, n = a["ids"].shape
    ids = [[-1] * n for _ in range(cap)]
    logprobs = [[0.0] * n for _ in range(cap)]
    ranks = [-1] * cap
    for j in range(min(int(a["cu_batch_token_offset"][-1]), cap)):
        r, token = int(a["rows"][j]), int(a["token_ids"][j])
        if not (0 <= r < len(a["logits"]) and 0 <= token < a["logits"].shape[1]):
            continue
        row = exact.widen(a["logits"][r])
        ids[j][0] = token
        top = max((x for x in row if not math.isnan(x)), default=math.nan)
        if any(map(math.isnan, row)) or top == -math.inf:
            logprobs[j] = [LOWEST] * n
            continue
        ids[j][1:] = sorted(range(len(row)), key=lambda t: (-row[t], t))[: n - 1]
        ln_total = math.log(math.fsum(1.0 if x == top else math.exp(x - top) for x in row))
        for column, chosen in enumerate(ids[j]):
            below = 0.0 if row[chosen] == top else row[chosen] - top
            logprobs[j][column] = max(below - ln_total, LOWEST)
        ranks[j] = sum(x >= row[token] for x in row)
    return {"ids": ids, "logprobs": logprobs, "ranks": ranks}
