"""Thinking limits and the beginning of an answer, token by token and by the whole text."""

from __future__ import annotations


class ThinkingRequest:
    """One request token by token, as plain decoding sees it. Negative limits: none."""

    def __init__(self, text: list[int], end_id: int, ends: list[int], max_think: int, max_reply: int) -> None:
        self.text, self.end_id, self.ends = text or [end_id], end_id, ends
        self.max_think, self.max_reply = max_think, max_reply
        self.thinking, self.left, self.answered = True, list[int](), 0

    def next(self, token: int, before: int) -> int:
        """The token that is emitted where `token` was drawn after `before` others."""
        if self.thinking and token == self.end_id:
            self.thinking = False
            return token
        if self.thinking and self.max_think >= 0 and (before >= self.max_think or token in self.ends):
            self.thinking, self.left = False, list(self.text)
        if self.thinking:
            return token
        if self.left:
            return self.left.pop(0)
        if 0 <= self.max_reply <= self.answered and self.ends and token not in self.ends:
            return self.ends[0]
        self.answered += 1
        return token


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
