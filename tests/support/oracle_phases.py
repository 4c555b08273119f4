"""Thinking limits, the reasoning constraint, and the draft model's reported rows by brute force. See `oracle_slots`."""

from __future__ import annotations

from typing import Any

Inputs = dict[str, Any]
MASKED = {"float32": -1e10, "float16": -1e4, "uint16": 0xD015}
"""-1e10 in bfloat16 has these bits."""


def write_accepted(a: Inputs) -> dict[str, Any]:
    history = a["token_ids_all"].tolist()
    for b in range(len(a["seq_lens_this_time"])):
        fed = a["seq_lens_encoder"][b] > 0 or a["seq_lens_decoder"][b] > 0
        if not fed or a["stop_flags"][b]:
            continue
        # Backwards from the newest token.
        column = int(a["prompt_lens"][b]) + int(a["step_idx"][b]) - (0 if a["last_index"] else 1)
        for token in reversed(a["accept_tokens"][b].tolist()[: int(a["accept_num"][b])]):
            if int(a["prompt_lens"][b]) <= column < len(history[b]):
                history[b][column] = token
            column -= 1
    return {"token_ids_all": history}


def clear_accept_num(a: Inputs) -> dict[str, Any]:
    return {"accept_num": [n if dec > 0 else 0 for n, dec in zip(a["accept_num"], a["seq_lens_decoder"], strict=True)]}


def _reported(a: Inputs, first: list[Any], rows: list[Any]) -> tuple[list[Any], list[int], list[int]]:
    """Items that the slots report, and how many of each are the draft model's and theirs."""
    items, own, all_of = [], [], []
    taken = 0
    for b, slt in enumerate(a["seq_lens_this_time"].tolist()):
        prefill = a["seq_lens_encoder"][b] > 0
        count = 1 if prefill else min(slt, len(rows))
        mine = rows[taken : taken + count]
        items += ([first[b]] if prefill else []) + mine + [None] * (count - len(mine))
        taken += count
        own.append(count)
        all_of.append(count + int(prefill))
    return items, own, all_of


def _put(target: list[Any], items: list[Any]) -> list[Any]:
    """`target` with the items that are there in front."""
    there = [old if new is None else new for old, new in zip(target, items, strict=False)]
    return there + target[len(there) :]


def gather_draft_logits(a: Inputs) -> dict[str, Any]:
    items, own, all_of = _reported(a, a["first_token_logits"].tolist(), a["logits"].tolist())
    b_count = len(own)
    return {
        "draft_logits": _put(a["draft_logits"].tolist(), items),
        "next_token_num": own,
        "batch_token_num": all_of,
        "cu_next_token_offset": [sum(own[:b]) for b in range(b_count + 1)],
        "cu_batch_token_offset": [sum(all_of[:b]) for b in range(b_count + 1)],
    }


def insert_first_token(a: Inputs) -> dict[str, Any]:
    items, _, _ = _reported(a, a["accept_tokens"][:, 0].tolist(), a["next_tokens"].tolist())
    return {"draft_token_ids": _put(a["draft_token_ids"].tolist(), items)}


class ThinkingRequest:
    """One request token by token, as plain decoding sees it. Negative limits: none."""

    def __init__(
        self, text: list[int], end_id: int, ends: list[int], max_think: int, max_reply: int, status: int = 0,
        fastdeploy: bool = False,
    ) -> None:  # fmt: skip
        self.text, self.end_id, self.ends = text if text or fastdeploy else [end_id], end_id, ends
        self.fastdeploy = fastdeploy
        self.max_think, self.max_reply = max_think, max_reply
        status = max(status, 0)
        self.thinking = status == 0
        self.left = self.text[status - 1 :] if 0 < status <= len(self.text) else []
        self.answered = max(status - len(self.text) - 1, 0)

    def next(self, token: int, before: int) -> int:
        """The token that is emitted where `token` was drawn after `before` others."""
        if self.thinking and token == self.end_id:
            self.thinking = False
            if self.fastdeploy and self.max_reply >= 0:
                self.max_reply = min(self.max_reply + 2, 2**31 - 1)
            return token
        past = before == self.max_think or (before > self.max_think and not (self.fastdeploy and self.max_think))
        if self.thinking and self.max_think >= 0 and (past or (token in self.ends and self.text)):
            self.thinking, self.left = False, list(self.text)
            if not self.text:
                return token
        if self.thinking:
            return token
        if self.left:
            return int(self.left.pop(0))
        if 0 <= self.max_reply <= self.answered and self.ends and token not in self.ends:
            return int(self.ends[0])
        self.answered += 1
        return token

    @property
    def status(self) -> int:
        if self.thinking:
            return 0
        return len(self.text) + 1 + self.answered - len(self.left)


def awaits_answer(generated: list[int], thinks: bool, end_id: int, line_break: int) -> bool:
    """Whether the next token of a request is the first of its answer, by the whole text: after the prompt, or where
    the text between thinking and answer has just ended for the first time."""
    if not thinks:
        return not generated
    for length in range(1, len(generated) + 1):
        window = generated[max(length - 4, 0) : length]
        if end_id not in generated[:length] or length < 4:
            continue
        if window == [line_break, end_id, line_break, line_break]:
            return length == len(generated)
        if end_id not in window:
            return False
    return False


def limit_thinking(a: Inputs) -> dict[str, Any]:
    now = {n: a[n].tolist() for n in ("accept_tokens", "accept_num", "limit_status", "max_reply_lens")}
    for b, count in enumerate(a["accept_num"].tolist()):
        limits = int(a["max_think_lens"][b]), int(a["max_reply_lens"][b]), int(a["limit_status"][b])
        text, ends = a["inject_token_ids"].tolist(), a["end_tokens"].tolist()
        request = ThinkingRequest(text, a["think_end_id"], ends, *limits, a["fastdeploy"])
        if a["stop_flags"][b] or count == 0 or (request.max_think < 0 and request.max_reply < 0):
            continue
        emitted: list[int] = []
        for i, token in enumerate(a["accept_tokens"][b].tolist()[:count]):
            emitted.append(request.next(token, int(a["step_idx"][b]) + i))
            if emitted[-1] != token:
                now["accept_num"][b] = i + 1
                tail = now["accept_tokens"][b][i + 1 :]
                now["accept_tokens"][b] = emitted + (tail if a["keep_tail"] else [-1] * len(tail))
                break
        now["limit_status"][b], now["max_reply_lens"][b] = request.status, request.max_reply
    return now


def _next_status(status: int, generated: list[int], unthinking: bool, end: int, new_line: int) -> int:
    """After one more token than `status`."""
    newest = generated[-4:]
    if status == 0:
        if unthinking and not generated:
            return 2
        status = 1 if end in newest else 0
    elif status == 2:
        return 3
    if status == 1 and len(newest) == 4:
        if newest == [new_line, end, new_line, new_line]:
            return 2
        return 1 if end in newest else 3
    return status


def reasoning_constraint(a: Inputs) -> dict[str, Any]:
    status, logits = a["reasoning_status"].tolist(), a["logits"].tolist()
    rows, special = a["cu_seqlens_q_output"].tolist(), (a["think_end_id"], a["line_break_id"])
    known, drafts = a.get("reasoning_seen"), a.get("draft_tokens")
    seen = None if known is None else known.tolist()
    for b in range(len(rows) - 1):
        if a["stop_flags"][b] or rows[b] == rows[b + 1]:
            continue
        step, first = int(a["step_idx"][b]), int(a["prompt_lens"][b])
        generated = a["token_ids_all"][b, first : first + step].tolist()
        prefill = a["seq_lens_encoder"][b] > 0
        unthinking = prefill and not a["enable_thinking"][b]
        lengths = [len(generated)] if seen is None else range(max(seen[b], -1) + 1, len(generated) + 1)
        for length in lengths:
            status[b] = _next_status(status[b], generated[:length], unthinking, *special)
        if seen is not None:
            seen[b] = len(generated)
        own = status[b]
        for i in range(rows[b + 1] - rows[b]):
            if i > 0:
                if drafts is None or prefill or i >= drafts.shape[1]:
                    break
                own = _next_status(own, generated + drafts[b, 1 : i + 1].tolist(), False, *special)
            row = rows[b] + i
            if own == 2 and len(a["allowed_tokens"]) and row < len(logits):
                masked = MASKED[str(a["logits"].dtype)]
                allowed = a["allowed_tokens"].tolist()
                logits[row] = [x if v in allowed else masked for v, x in enumerate(logits[row])]
    return {"reasoning_status": status, "logits": logits, **({} if seen is None else {"reasoning_seen": seen})}
