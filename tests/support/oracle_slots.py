"""Sections 1, 2, 4, 5, 8 and 9 by brute force: plain loops over Python numbers, written from the contract alone.

An oracle takes an op's arguments by name and returns what every written tensor must hold afterwards.
"""

from __future__ import annotations

from typing import Any

from specdec_hal.ops import AcceptPolicy, Purpose, SlotAction, Strategy, TokenOrder
from tests.support import exact

Inputs = dict[str, Any]


def prepare_inputs(a: Inputs) -> dict[str, Any]:
    tokens, token_slots, row_slots = [], [], []
    cu_q, cu_k, cu_out = [0], [0], [0]
    for b, slt in enumerate(a["seq_lens_this_time"].tolist()):
        enc, dec = int(a["seq_lens_encoder"][b]), int(a["seq_lens_decoder"][b])
        source = (a["input_ids"] if enc > 0 else a["draft_tokens"])[b].tolist()
        fed = source[:slt]
        tokens += fed
        token_slots += [b] * len(fed)
        if slt == 0:
            rows = 0
        elif slt == 1 or enc > 0:
            rows = 1
        else:
            rows = len(fed)
        row_slots += [b] * rows
        cu_q.append(cu_q[-1] + len(fed))
        cu_k.append(cu_k[-1] + (slt + dec if slt > 0 else 0))
        cu_out.append(cu_out[-1] + rows)
    t_cap, r_cap = len(a["ids_remove_padding"]), len(a["batch_id_per_token_output"])
    return {
        "ids_remove_padding": (tokens + [0] * t_cap)[:t_cap],
        "batch_id_per_token": (token_slots + [-1] * t_cap)[:t_cap],
        "cu_seqlens_q": cu_q,
        "cu_seqlens_k": cu_k,
        "cu_seqlens_q_output": cu_out,
        "batch_id_per_token_output": (row_slots + [-1] * r_cap)[:r_cap],
        "num_tokens": [len(tokens), len(row_slots)],
    }


def backend_order(a: Inputs) -> list[int]:
    """Slot-order rows in the order a backend wants them."""
    prefill, decode, rows = [], [], []
    for b, slt in enumerate(a["seq_lens_this_time"].tolist()):
        mine = [int(a["cu_seqlens_q"][b]) + i for i in range(slt)]
        rows += mine
        (prefill if a["seq_lens_encoder"][b] > 0 else decode).extend(mine)
    return rows if a["token_order"] is TokenOrder.SLOT else prefill + decode


def adjust_batch(a: Inputs) -> dict[str, Any]:
    out = [[0] * a["x"].shape[1] for _ in a["x"]]
    for token_row, row in enumerate(backend_order(a)):
        out[token_row] = a["x"][row].tolist()
    return {"out": out}


def recover_batch(a: Inputs) -> dict[str, Any]:
    out = [[0] * a["x"].shape[1] for _ in a["x"]]
    for token_row, row in enumerate(backend_order(a)):
        out[row] = a["x"][token_row].tolist()
    return {"out": out}


def gather_next_token(a: Inputs) -> dict[str, Any]:
    order = backend_order(a)
    out = [[0] * a["out"].shape[1] for _ in a["out"]]

    def hidden(b: int, i: int) -> list[Any]:
        return a["x"][order.index(int(a["cu_seqlens_q"][b]) + i)].tolist()

    r = 0
    for b, slt in enumerate(a["seq_lens_this_time"].tolist()):
        if slt == 0:
            continue
        if not a["is_speculative"]:
            out[b] = hidden(b, slt - 1)
        elif a["seq_lens_encoder"][b] > 0:
            out[r] = hidden(b, slt - 1)
            r += 1
        else:
            for i in range(slt):
                out[r] = hidden(b, i)
                r += 1
    return {"out": out}


def _accepts(a: Inputs, b: int, i: int, slt: int) -> int:
    """How many drafts from position i on the strategy lets pass."""
    r = int(a["cu_seqlens_q_output"][b]) + i
    draft = int(a["draft_tokens"][b, i + 1])
    if a["strategy"] in (Strategy.GREEDY, Strategy.TARGET_MATCH):
        return 1 if a["target_tokens"][r] == draft else 0
    if a["strategy"] is Strategy.TOPP:
        ids, scores = a["candidate_ids"], a["candidate_scores"][r].tolist()
        weighed = [int(token) if exact.mass(score) else None for token, score in zip(ids[r], scores, strict=True)]
        if draft in weighed[: int(a["candidate_lens"][r])]:
            return 1
        window = a["verify_window"]
        if weighed[1:2] != [draft] or i + 1 + window > slt - 1:
            return 0
        for ahead in range(1, window + 1):
            if ids[r + ahead, 0] != a["draft_tokens"][b, i + 1 + ahead]:
                return 0
        return 1 + window
    if not 0 <= draft < a["target_probs"].shape[1]:
        return 0
    q = exact.ONE if a.get("draft_probs") is None else exact.mass(float(a["draft_probs"][b, i, draft]))
    p = exact.mass(float(a["target_probs"][r, draft]))
    bits = exact.u32(int(a["seed"][b]), int(a["prompt_lens"][b] + a["step_idx"][b]) + i, Purpose.ACCEPT)
    return 1 if bits * q >> 32 < p else 0


def _last_token(a: Inputs, b: int, i: int, rejected: bool) -> int:
    r = int(a["cu_seqlens_q_output"][b]) + i
    seed, position = int(a["seed"][b]), int(a["prompt_lens"][b] + a["step_idx"][b]) + i
    if a["strategy"] in (Strategy.GREEDY, Strategy.TARGET_MATCH):
        return int(a["target_tokens"][r])
    if a["strategy"] is Strategy.TOPP:
        count = max(int(a["candidate_lens"][r]), 1)
        ids = a["candidate_ids"][r].tolist()[:count]
        masses = [exact.mass(score) for score in a["candidate_scores"][r].tolist()[:count]]
        total = min(exact.fraction_mass(float(a["top_p"][b])), sum(masses))
        return ids[exact.draw(exact.u64(seed, position, Purpose.CANDIDATE), masses, total)] if total else ids[0]
    p = [exact.mass(w) for w in a["target_probs"][r].tolist()]
    q = [0] * len(p)
    if rejected:
        draft = int(a["draft_tokens"][b, i + 1])
        if a.get("draft_probs") is not None:
            q = [exact.mass(w) for w in a["draft_probs"][b, i].tolist()]
        elif 0 <= draft < len(p):
            q[draft] = exact.ONE
    residual = [max(0, x - y) for x, y in zip(p, q, strict=True)]
    if sum(residual) == 0:
        return p.index(max(p))
    return exact.draw(exact.u64(seed, position, Purpose.RESIDUAL), residual, sum(residual))


def verify_draft_tokens(a: Inputs) -> dict[str, Any]:
    m, s = a["draft_tokens"].shape
    tokens, counts = [[-1] * s for _ in range(m)], [0] * m
    policy = a["accept_policy"]
    for b, slt in enumerate(a["seq_lens_this_time"].tolist()):
        enc, dec, step = (int(a[n][b]) for n in ("seq_lens_encoder", "seq_lens_decoder", "step_idx"))
        if a["stop_flags"][b] or a["is_block_step"][b] or slt == 0:
            continue
        if enc > 0 and dec + enc < a["prompt_lens"][b]:
            continue
        emitted: list[int] = []
        ended = rejected = False

        def emit(token: int, emitted: list[int] = emitted, b: int = b, step: int = step) -> bool:
            """Whether the slot stops there."""
            emitted.append(token)
            end = token in a["end_tokens"].tolist()
            limit = step + len(emitted) >= a["max_dec_len"][b]
            if limit and a["end_at_limit"] and not end and len(a["end_tokens"]):
                emitted[-1] = int(a["end_tokens"][0])
            return limit or (end and policy is not AcceptPolicy.ACCEPT_ALL)

        i = 0
        testing = policy is not AcceptPolicy.REJECT_ALL and enc == 0 and a["reasoning_status"][b] != 1
        while testing and not ended and not rejected and i <= slt - 2:
            passed = 1 if policy is AcceptPolicy.ACCEPT_ALL else _accepts(a, b, i, slt)
            rejected = passed == 0
            for _ in range(passed):
                if not ended:
                    ended = emit(int(a["draft_tokens"][b, i + 1]))
                    i += 1
        if not ended:
            emit(_last_token(a, b, i, rejected))
        tokens[b][: len(emitted)] = emitted
        counts[b] = len(emitted)
    return {"accept_tokens": tokens, "accept_num": counts}


def update_model_status(a: Inputs) -> dict[str, Any]:
    names = ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "stop_flags", "step_idx", "token_ids_all")
    now = {n: a[n].tolist() for n in (*names, "draft_tokens", "accept_tokens", "accept_num")}
    length = a["token_ids_all"].shape[1]
    running = False
    for b in range(len(a["seq_lens_this_time"])):
        if now["stop_flags"][b] or a["is_block_step"][b]:
            now["stop_flags"][b] = True
            for name in ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "accept_num"):
                now[name][b] = 0
            continue
        emitted = now["accept_tokens"][b][: now["accept_num"][b]]
        for i, token in enumerate(emitted if a["end_at_limit"] else []):
            ends = token in a["end_tokens"].tolist()
            if ends or now["step_idx"][b] + i + 1 >= a["max_dec_len"][b]:
                if not ends and len(a["end_tokens"]):
                    emitted[i] = now["accept_tokens"][b][i] = int(a["end_tokens"][0])
                emitted = emitted[: i + 1]
                now["accept_num"][b] = i + 1
                break
        column = int(a["prompt_lens"][b]) + now["step_idx"][b]
        for token in emitted:
            if column < length:
                now["token_ids_all"][b][column] = token
            column += 1
            now["draft_tokens"][b][0] = token
        now["step_idx"][b] += len(emitted)
        if now["seq_lens_encoder"][b] > 0:
            now["seq_lens_decoder"][b] += now["seq_lens_encoder"][b]
            now["seq_lens_encoder"][b] = 0
        elif now["seq_lens_decoder"][b] > 0:
            now["seq_lens_decoder"][b] += len(emitted)
        if emitted and emitted[-1] in a["end_tokens"].tolist():
            now["stop_flags"][b] = True
        if now["step_idx"][b] >= a["max_dec_len"][b]:
            now["stop_flags"][b] = True
        running = running or not now["stop_flags"][b]
    return {**now, "has_running": [running]}


def schedule_slots(a: Inputs) -> dict[str, Any]:
    names = ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "step_idx", "stop_flags", "is_block_step")
    now = {n: a[n].tolist() for n in (*names, "input_ids")}
    for b in range(len(a["seq_lens_this_time"])):
        changes: dict[str, Any] = {}
        if a["slot_actions"][b] == SlotAction.PREFILL:
            start = int(a["chunk_starts"][b])
            chunk = a["token_ids_all"][b].tolist()[start:][: int(a["chunk_lens"][b])]
            now["input_ids"][b][: len(chunk)] = chunk
            changes = {"seq_lens_encoder": len(chunk), "seq_lens_this_time": len(chunk), "seq_lens_decoder": start}
            changes |= {"step_idx": int(a["chunk_step_idx"][b]), "stop_flags": False, "is_block_step": False}
        elif a["slot_actions"][b] == SlotAction.WAIT:
            changes = {"seq_lens_encoder": 0, "seq_lens_this_time": 0}
        elif a["slot_actions"][b] == SlotAction.STOP:
            changes = {"seq_lens_encoder": 0, "seq_lens_this_time": 0, "seq_lens_decoder": 0, "stop_flags": True}
        for name, value in changes.items():
            now[name][b] = value
    return now


def set_stop_sequences(a: Inputs) -> dict[str, Any]:
    now = {n: a[n].tolist() for n in ("accept_tokens", "accept_num", "max_dec_len")}
    for b, count in enumerate(a["accept_num"].tolist()):
        row = a["token_ids_all"][b].tolist()
        older = row[int(a["prompt_lens"][b]) :][: int(a["step_idx"][b])]
        sequences = [
            tokens[:length]
            for tokens, length in zip(a["stop_seqs"][b].tolist(), a["stop_seqs_lens"][b].tolist(), strict=True)
            if length
        ]
        ends = a["end_tokens"].tolist()[:1] if a["end_after_stop"] and a.get("end_tokens") is not None else []
        row = now["accept_tokens"][b]
        for last in range(count):
            text = older + (row[:last] if ends else row[: last + 1])
            stops = any(text[max(len(text) - len(s), 0) :] == s for s in sequences)
            if stops and len(text) >= a["min_dec_len"][b]:
                now["accept_num"][b], now["max_dec_len"][b] = last + 1, len(older) + last + 1
                tail = row[last + 1 :] if a["keep_tail"] else [-1] * len(row[last + 1 :])
                now["accept_tokens"][b] = row[:last] + (ends or [row[last]]) + tail
                break
    return now


def draft_model_preprocess(a: Inputs) -> dict[str, Any]:
    names = ("draft_tokens", "input_ids", "stop_flags", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder")
    history = a.get("pre_ids")
    more = ("step_idx", "base_model_draft_tokens", *(["pre_ids"] if history is not None else []))
    state = {n: a[n].tolist() for n in (*names, *more)}
    running = False
    for b in range(len(a["seq_lens_this_time"])):
        state["base_model_draft_tokens"][b][1:] = [-1] * (a["draft_tokens"].shape[1] - 1)
        generated = int(a["base_model_step_idx"][b])
        accepted = a["accept_tokens"][b].tolist()[: int(a["accept_num"][b])]
        enc = min(int(a["seq_lens_encoder"][b]), a["input_ids"].shape[1])
        useful = a["draft_token_num"][b] > 0 and generated + a["min_room"] <= a["max_dec_len"][b]
        if a["base_model_stop_flags"][b] or not useful or not (enc or accepted or history is not None):
            slot = {"stop_flags": True, "step_idx": 0}
            slot |= dict.fromkeys(("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder"), 0)
        else:
            running = True
            slot = {"stop_flags": False, "step_idx": generated, "seq_lens_encoder": enc}
            if history is not None:
                begins = generated - 1 if enc else generated - len(accepted)
                slot["step_idx"] = begins
                accepted = a["accept_tokens"][b].tolist()[:1] if enc else accepted
                for i, token in enumerate(accepted):
                    if 0 <= (at := i + (0 if enc else begins)) < history.shape[1]:
                        state["pre_ids"][b][at] = token
            if enc:
                slot["seq_lens_this_time"] = enc
                state["input_ids"][b][enc - 1 : enc] = accepted[:1] or [state["input_ids"][b][enc - 1]]
            else:
                state["draft_tokens"][b][: len(accepted)] = accepted
                slot["seq_lens_this_time"] = len(accepted)
                slot["seq_lens_decoder"] = max(0, int(a["base_model_seq_lens_decoder"][b]) - len(accepted))
        for name, value in slot.items():
            state[name][b] = value
    return {**state, "has_running": [running]}


def draft_model_update(a: Inputs) -> dict[str, Any]:
    names = ("draft_tokens", "seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "step_idx")
    state = {n: a[n].tolist() for n in (*names, "base_model_draft_tokens")}
    if a.get("pre_ids") is not None:
        return _update_history(a, {**state, "pre_ids": a["pre_ids"].tolist()})
    tokens, column = a["inter_next_tokens"].tolist(), a["substep"] + 1
    for b, fed in enumerate(a["seq_lens_this_time"].tolist()):
        if fed <= 0:
            continue
        token = tokens.pop(0) if tokens else -1
        state["seq_lens_decoder"][b] += fed
        state["seq_lens_encoder"][b] = 0
        step = int(a["step_idx"][b])
        # Drafts that this slot may still make, this one included.
        left = min(int(a["draft_token_num"][b]), a["draft_tokens"].shape[1] - 1) - a["substep"]
        left = min(left, int(a["max_dec_len"][b]) - step - 1)
        drafts = token >= 0 and step > 0 and left > 0 and not a["stop_flags"][b]
        if column < a["draft_tokens"].shape[1]:
            state["base_model_draft_tokens"][b][column] = token if drafts else -1
        if drafts:
            state["draft_tokens"][b][0] = token
            state["step_idx"][b] = step + 1
        state["seq_lens_this_time"][b] = int(drafts and left > 1)
    return {**state, "has_running": [any(length > 0 for length in state["seq_lens_this_time"])]}


def _update_history(a: Inputs, state: dict[str, Any]) -> dict[str, Any]:
    """With FastDeploy's second history: written from its side, in which a slot is a row of named numbers."""
    tokens, column = a["inter_next_tokens"].tolist(), a["substep"] + 1
    for b, fed in enumerate(a["seq_lens_this_time"].tolist()):
        if fed <= 0:
            continue
        token, step, enc = tokens.pop(0) if tokens else -1, int(a["step_idx"][b]), int(a["seq_lens_encoder"][b])
        draft, state["seq_lens_encoder"][b] = -1, 0
        if token < 0 or a["stop_flags"][b]:
            state["seq_lens_this_time"][b], state["draft_tokens"][b][0] = 0, -1
        else:
            state["seq_lens_this_time"][b] = 1
            if step < a["max_dec_len"][b] - 1:
                draft = token
            if enc > 0 or draft == token:
                step += 1 if enc > 0 else fed
                state["seq_lens_decoder"][b] += enc if enc > 0 else fed
                state["step_idx"][b], state["draft_tokens"][b][0] = step, token
                if (at := 1 if enc > 0 else step) < len(state["pre_ids"][b]):
                    state["pre_ids"][b][at] = token
        if column < a["draft_tokens"].shape[1]:
            state["base_model_draft_tokens"][b][column] = draft
    return {**state, "has_running": [any(length > 0 for length in state["seq_lens_this_time"])]}


def draft_model_postprocess(a: Inputs) -> dict[str, Any]:
    lengths = a["seq_lens_this_time"].tolist()
    for b in range(len(lengths)):
        if a["stop_flags"][b] or (a["seq_lens_encoder"][b] == 0 and a["seq_lens_decoder"][b] == 0):
            lengths[b] = 0
        elif a["seq_lens_encoder"][b] == 0:
            lengths[b] = 1
            for draft in a["draft_tokens"][b, 1:]:
                if draft < 0:
                    break
                lengths[b] += 1
    return {"seq_lens_this_time": lengths}


def eagle_get_hidden_states(a: Inputs) -> dict[str, Any]:
    x = a["x"].tolist()
    own, base = a["cu_seqlens_q"].tolist(), a["base_model_cu_seqlens_q"].tolist()
    rows = []
    for b in range(len(own) - 1):
        rows += [x[base[b] + i] for i in range(own[b + 1] - own[b])]
    zeros = [[0] * a["x"].shape[1]] * len(x)
    return {"out": (rows + zeros)[: len(x)]}


def _packed(a: Inputs, active: list[int]) -> dict[str, Any]:
    rows = []
    for b in active:
        own = a["x"][int(a["cu_seqlens_q"][b]) : int(a["cu_seqlens_q"][b + 1])].tolist()
        rows.append(own[-1] if own else [0] * a["x"].shape[1])
    idle = [[0] * a["x"].shape[1]] * (len(a["last_hidden"]) - len(active))
    return {"last_hidden": rows + idle, "output_token_num": [len(active)]}


def eagle_gather_hidden_states(a: Inputs) -> dict[str, Any]:
    lengths = a["cu_seqlens_q"][1:] - a["cu_seqlens_q"][:-1]
    return _packed(a, [b for b, length in enumerate(lengths) if length > 0])


def eagle_get_self_hidden_states(a: Inputs) -> dict[str, Any]:
    return _packed(a, [b for b, length in enumerate(a["seq_lens_this_time"]) if length > 0])
