"""Section 8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specdec_hal.ops import SlotAction
from specdec_hal_conformance.case import Case
from specdec_hal_conformance.edges.edge import edge

SCHEDULE = "schedule_slots"
STOP = "set_stop_sequences"
WRITE = "write_accepted"
CLEAR = "clear_accept_num"


def edges() -> Iterator[Case]:
    """All ops of the section."""
    yield from _schedule()
    yield from _stop()
    yield from _write()
    yield edge(
        CLEAR, "slots that are not in the cache", "clear kept", {"accept_num": [0, 7, 0, -2, 2**31 - 1]},
        accept_num=[3, 7, 4, -2, 2**31 - 1], seq_lens_decoder=[0, 1, -5, 9, 2**31 - 1],
    )  # fmt: skip
    yield edge(
        CLEAR, "forty slots", "clear kept", {"accept_num": [b if b % 3 else 0 for b in range(40)]},
        accept_num=list(range(40)), seq_lens_decoder=[b % 3 for b in range(40)],
    )  # fmt: skip


def _schedule() -> Iterator[Case]:
    yield edge(
        SCHEDULE, "each action", "keep prefill chunk wait stop",
        {
            "seq_lens_encoder": [5, 2, 0, 0, 5, 5], "seq_lens_decoder": [7, 1, 7, 0, 7, 7],
            "seq_lens_this_time": [6, 2, 0, 0, 6, 6], "step_idx": [4, 0, 4, 4, 4, 4],
            "stop_flags": [False, False, False, True, False, False],
            "is_block_step": [True, False, True, True, True, True],
            "input_ids": [[9, 9, 9], [12, 13, 9], [9, 9, 9], [9, 9, 9], [9, 9, 9], [9, 9, 9]],
        },
        slot_actions=[*SlotAction, 4, -1], chunk_lens=[2] * 6, chunk_starts=[1] * 6,
        token_ids_all=[[1, 2, 3, 4], [11, 12, 13, 14], *[[1, 2, 3, 4]] * 4], input_ids=[[9] * 3] * 6,
        seq_lens_encoder=[5] * 6, seq_lens_decoder=[7] * 6, seq_lens_this_time=[6] * 6, step_idx=[4] * 6,
        stop_flags=[False] * 6, is_block_step=[True] * 6,
    )  # fmt: skip
    yield edge(
        SCHEDULE, "a stopped slot is prefilled, another waits", "prefill wait",
        {"stop_flags": [False, True], "is_block_step": [False, False], "seq_lens_decoder": [0, 3]},
        slot_actions=[SlotAction.PREFILL, SlotAction.WAIT], chunk_lens=[2, 2], token_ids_all=[[1, 2]] * 2,
        input_ids=[[9, 9]] * 2, stop_flags=[True, True], is_block_step=[True, False], seq_lens_decoder=[3, 3],
        seq_lens_this_time=[0, 0],
    )  # fmt: skip
    yield edge(
        SCHEDULE, "chunks end with the row and with the width", "prefill chunk",
        {
            "seq_lens_encoder": [3, 1, 0, 0], "seq_lens_this_time": [3, 1, 0, 0], "seq_lens_decoder": [0, 3, 4, 4],
            "input_ids": [[1, 2, 3], [4, 9, 9], [9, 9, 9], [9, 9, 9]],
        },
        slot_actions=[SlotAction.PREFILL] * 4, chunk_lens=[4, 3, 3, 3], chunk_starts=[0, 3, 4, 5],
        token_ids_all=[[1, 2, 3, 4]] * 4, input_ids=[[9] * 3] * 4, seq_lens_this_time=[9] * 4,
    )  # fmt: skip
    yield edge(
        SCHEDULE, "negative starts and lengths count as 0", "prefill chunk",
        {
            "seq_lens_encoder": [2, 0], "seq_lens_this_time": [2, 0], "seq_lens_decoder": [0, 2],
            "input_ids": [[1, 2, 9], [9, 9, 9]],
        },
        slot_actions=[SlotAction.PREFILL] * 2, chunk_lens=[2, -2], chunk_starts=[-3, 2],
        token_ids_all=[[1, 2, 3, 4]] * 2, input_ids=[[9] * 3] * 2, seq_lens_this_time=[9] * 2,
    )  # fmt: skip
    yield edge(
        SCHEDULE, "a resumed request counts what its chunk completes", "resume chunk",
        {"step_idx": [2, 2**40], "input_ids": [[3, 21, 22], [3, 21, 22]], "seq_lens_decoder": [2, 2]},
        slot_actions=[SlotAction.PREFILL] * 2, chunk_lens=[3, 3], chunk_starts=[2, 2], chunk_step_idx=[2, 2**40],
        token_ids_all=[[1, 2, 3, 21, 22, 23]] * 2, input_ids=[[0] * 3] * 2, step_idx=[3, 3],
        seq_lens_this_time=[0, 0],
    )  # fmt: skip
    yield edge(
        SCHEDULE, "padding is untouched", "padding",
        {
            "seq_lens_encoder": [0, 5, 5], "seq_lens_decoder": [0, 7, 7], "step_idx": [4, 4, 4],
            "stop_flags": [True, False, False], "is_block_step": [False, True, True], "input_ids": [[9], [9], [9]],
        },
        slot_actions=[SlotAction.STOP, SlotAction.STOP, SlotAction.PREFILL], chunk_lens=[1] * 3,
        token_ids_all=[[1]] * 3, input_ids=[[9]] * 3, seq_lens_encoder=[0, 5, 5], seq_lens_decoder=[0, 7, 7],
        step_idx=[4] * 3, is_block_step=[False, True, True], seq_lens_this_time=[0],
    )  # fmt: skip
    length, many = 5000, 40
    row = [2**40 + i for i in range(length)]
    yield edge(
        SCHEDULE, "a long chunk of 64-bit ids", "chunk",
        {"input_ids": [[*row[3 : length - 1], 9, 9]], "seq_lens_this_time": [length - 4]},
        slot_actions=[SlotAction.PREFILL], chunk_lens=[length - 4], chunk_starts=[3], token_ids_all=[row],
        input_ids=[[9] * (length - 2)], seq_lens_this_time=[0],
    )  # fmt: skip
    yield edge(
        SCHEDULE, "forty slots", "prefill chunk wait",
        {
            "seq_lens_this_time": [1 if b % 3 else 0 for b in range(many)],
            "input_ids": [[100 + b if b % 3 else 9] for b in range(many)],
            "step_idx": [b if b % 3 else -1 for b in range(many)],
        },
        slot_actions=[SlotAction.PREFILL if b % 3 else SlotAction.WAIT for b in range(many)], chunk_lens=[1] * many,
        chunk_starts=[1] * many, chunk_step_idx=list(range(many)), token_ids_all=[[0, 100 + b] for b in range(many)],
        input_ids=[[9]] * many, step_idx=[-1] * many, seq_lens_this_time=[5] * many,
    )  # fmt: skip


def stops(name: str, rules: str, expected: tuple[list[int], int, int], accepted: list[int], **given: Any) -> Case:
    """One slot that emitted `accepted`, but for -1; `expected`: its accept_tokens, accept_num and max_dec_len."""
    tokens, count, limit = expected
    sequences = given.pop("sequences")
    width = max(map(len, sequences))
    return edge(
        STOP, name, rules, {"accept_tokens": [tokens], "accept_num": [count], "max_dec_len": [limit]},
        **{
            "token_ids_all": [[0] * 4], "accept_tokens": [accepted],
            "accept_num": [sum(token != -1 for token in accepted)],
            # After a sequence stands what was emitted last, as if it went on.
            "stop_seqs": [[s + [accepted[-1]] * (width - len(s)) for s in sequences]],
            "stop_seqs_lens": [[len(s) for s in sequences]], "max_dec_len": [99], **given,
        },
    )  # fmt: skip


def _stop() -> Iterator[Case]:
    yield stops("cut after the sequence", "match cut limit", ([5, 6, -1, -1], 2, 2), [5, 6, 7, 8], sequences=[[6]])
    yield stops("the last token keeps the count", "match limit", ([5, 6, -1], 2, 2), [5, 6, -1], sequences=[[5, 6]])
    yield stops(
        "the first token that ends a sequence", "first cut", ([5, -1, -1, -1], 1, 1), [5, 6, 5, 6],
        sequences=[[6], [5, 6], [5]],
    )  # fmt: skip
    yield stops("a repeated sequence ends once", "first", ([5, 5, -1, -1], 2, 2), [5, 5, 5, 5], sequences=[[5, 5]])
    no_match = ([5, 6, 7], 3, 99)
    yield stops(
        "no sequence ends here", "untouched match", no_match, [5, 6, 7],
        sequences=[[5, 7], [6, 6], [4, 5, 6], [8], [7, 6], [5, 6, 8], [2**40 + 6]],
    )  # fmt: skip
    yield stops(
        "lengths of 0 and less are no sequences", "match untouched", no_match, [5, 6, 7], sequences=[[5], [6]],
        stop_seqs_lens=[[0, -1]],
    )  # fmt: skip
    yield stops(
        "lengths end with the width", "match", ([5, 6, -1], 2, 2), [5, 6, 7], sequences=[[5, 6]], stop_seqs_lens=[[9]]
    )
    ended: dict[str, Any] = {"end_tokens": [2, 3], "end_after_stop": True}
    yield stops(
        "an end token after it", "end-token cut limit", ([5, 6, 2, -1], 3, 3), [5, 6, 7, 8], sequences=[[5, 6]], **ended
    )  # fmt: skip
    yield stops("the newest token waits", "wait untouched", no_match, [5, 6, 7], sequences=[[7], [6, 7]], **ended)
    yield stops("no end token without a match", "untouched end-token", no_match, [5, 6, 7], sequences=[[9]], **ended)
    yield stops(
        "no end token after it", "end-token", ([5, 6, -1], 2, 2), [5, 6, 7], sequences=[[6]], end_tokens=[2, 3]
    )  # fmt: skip
    yield stops(
        "there is no end token", "end-token", ([5, 6, -1], 2, 2), [5, 6, 7], sequences=[[6]], end_tokens=[],
        end_after_stop=True,
    )  # fmt: skip
    yield stops(
        "end tokens left out", "end-token", ([5, 6, -1], 2, 2), [5, 6, 7], sequences=[[6]], end_after_stop=True
    )  # fmt: skip
    yield stops(
        "what follows the cut stays", "tail", ([5, 6, 7], 2, 2), [5, 6, 7], sequences=[[6]], keep_tail=True
    )  # fmt: skip
    yield stops(
        "what follows the end token stays", "tail end-token", ([5, 2, 7], 2, 2), [5, 6, 7], sequences=[[5]],
        keep_tail=True, **ended,
    )  # fmt: skip
    # Prompt 1 2, generated 3 4.
    older: dict[str, Any] = {"token_ids_all": [[1, 2, 3, 4, 5, 9]], "prompt_lens": [2], "step_idx": [2]}
    for name, sequence in (("one", [4, 5]), ("all", [3, 4, 5])):
        yield stops(
            f"a sequence that began in earlier steps with {name} of their tokens", "history limit", ([5, -1], 1, 3),
            [5, 6], sequences=[sequence], **older,
        )  # fmt: skip
    yield stops(
        "a sequence across the step's border, not at its first token", "history", ([5, 6, -1], 2, 4), [5, 6, 7],
        sequences=[[4, 5, 6]], **older,
    )  # fmt: skip
    yield stops(
        "a sequence of earlier steps alone", "history untouched", ([5, 6], 2, 99), [5, 6], sequences=[[3, 4], [4]],
        **older,
    )  # fmt: skip
    for name, sequence in (("one token", [4]), ("all tokens", [3, 4])):
        yield stops(
            f"the newest token of the last step ended {name}", "wait end-token", ([2, -1], 1, 3), [5, 6],
            sequences=[sequence], **older, **ended,
        )  # fmt: skip
    for least, expected in ((2, ([2, -1], 1, 3)), (3, ([4, 2], 2, 4)), (4, ([4, 4], 2, 99))):
        yield stops(
            f"an end token after at least {least} generated tokens", "minimum end-token", expected, [4, 4],
            sequences=[[4]], **older, **ended, min_dec_len=[least],
        )  # fmt: skip
    yield stops(
        "no sequence ends in the prompt", "prompt end-token", ([5, 6], 2, 99), [5, 6], sequences=[[1, 2], [2]],
        token_ids_all=[[1, 2, 5, 6]], prompt_lens=[2], **ended,
    )  # fmt: skip
    yield stops("no part of the prompt counts", "prompt", ([5, 6], 2, 99), [5, 6], sequences=[[2, 3, 4, 5]], **older)
    yield stops(
        "nothing was generated before", "prompt", ([5, -1], 1, 1), [5, 6], sequences=[[1, 2, 5], [5]],
        token_ids_all=[[1, 2, 5, 6]], prompt_lens=[2],
    )  # fmt: skip
    for least, expected in (
        (3, ([5, -1, -1], 1, 3)), (4, ([5, 5, -1], 2, 4)), (5, ([5, 5, 5], 3, 5)), (6, ([5, 5, 5], 3, 99)),
        (-(2**63), ([5, -1, -1], 1, 3)), (2**63 - 1, ([5, 5, 5], 3, 99)),
    ):  # fmt: skip
        yield stops(
            f"at least {least} generated tokens", "minimum", expected, [5, 5, 5], sequences=[[5]], **older,
            min_dec_len=[least],
        )  # fmt: skip
    for count, expected in ((0, ([5, 6], 0, 99)), (-1, ([5, 6], -1, 99)), (9, ([5, -1], 1, 1))):
        yield stops(
            f"{count} tokens emitted", "untouched" if count < 1 else "match", expected, [5, 6], sequences=[[5]],
            accept_num=[count],
        )  # fmt: skip
    yield stops(
        "a text longer than its row", "history limit", ([5, -1], 1, 3), [5, 6], sequences=[[2, 3, 5]],
        token_ids_all=[[1, 2, 3]], prompt_lens=[1], step_idx=[8],
    )  # fmt: skip
    yield edge(
        STOP, "each slot has its own", "match untouched cut",
        {
            "accept_tokens": [[5, 6], [5, -1], [5, 6]], "accept_num": [2, 1, 2], "max_dec_len": [10, 1, 2],
        },
        token_ids_all=[[0]] * 3, accept_tokens=[[5, 6]] * 3, accept_num=[2] * 3, max_dec_len=[10, 11, 12],
        stop_seqs=[[[7]], [[5]], [[6]]], stop_seqs_lens=[[1]] * 3,
    )  # fmt: skip
    for name, options in (("without sequences", {"Q": 0, "Z": 3}), ("without width", {"Q": 3, "Z": 0})):
        yield edge(
            STOP, name, "untouched", {"accept_tokens": [[5, 6]], "accept_num": [2], "max_dec_len": [10]}, options,
            token_ids_all=[[0]], accept_tokens=[[5, 6]], accept_num=[2], max_dec_len=[10],
        )  # fmt: skip
    many = [[100 + q] for q in range(70)]
    yield stops("the last of many sequences", "match first", ([5, 169, -1], 2, 2), [5, 169, 100], sequences=many)
    text = list(range(100, 200))
    yield stops(
        "a long sequence", "history limit", ([6, 7, -1], 2, 102), [6, 7, 8],
        sequences=[[*text[1:], 6, 7], [*text[:50], 1, *text[51:], 6]], token_ids_all=[[0, *text, 9]], prompt_lens=[1],
        step_idx=[100],
    )  # fmt: skip


def writes(name: str, rules: str, history: list[int], *, count: int = 3, **given: Any) -> Case:
    """One decoding slot: prompt 1 2, accepted 5 6 7, of which `count` are said to be; `history`: its row then."""
    return edge(
        WRITE, name, rules, {"token_ids_all": [history]},
        **{
            "token_ids_all": [[1, 2, 0, 0, 0, 0, 0]], "prompt_lens": [2], "accept_tokens": [[5, 6, 7]],
            "accept_num": [count], "seq_lens_this_time": [3], "seq_lens_decoder": [4], "step_idx": [3], **given,
        },
    )  # fmt: skip


def _write() -> Iterator[Case]:
    untouched = [1, 2, 0, 0, 0, 0, 0]
    yield writes("the first tokens", "columns untouched", [1, 2, 5, 6, 7, 0, 0])
    yield writes("later tokens", "columns", [1, 2, 0, 0, 5, 6, 0], count=2, step_idx=[4])
    yield writes("the place of the last token", "last-index", [1, 2, 0, 5, 6, 7, 0], last_index=True)
    yield writes("the first place is 0", "last-index", [1, 2, 5, 0, 0, 0, 0], count=1, step_idx=[0], last_index=True)
    yield writes("a prefilled slot", "idle", [1, 2, 5, 6, 7, 0, 0], seq_lens_encoder=[1], seq_lens_decoder=[0])
    yield writes("an idle slot", "idle", untouched, seq_lens_decoder=[0])
    yield writes("a stopped slot", "stopped", untouched, stop_flags=[True])
    yield writes("no step", "before", untouched, step_idx=[-1], last_index=True, count=1)
    yield writes("more tokens than steps", "clamp", [1, 2, 6, 7, 0, 0, 0], step_idx=[2])
    yield writes("up to the end of the row", "columns clamp", [1, 2, 0, 0, 5, 6, 7], step_idx=[5])
    yield writes("across the end of the row", "clamp", [1, 2, 0, 0, 0, 5, 6], step_idx=[6])
    for step in (8, 9, 10, 2**31, 2**63 - 1):
        yield writes(f"after the row, at {step}", "clamp", untouched, step_idx=[step], last_index=True)
    yield writes("a prompt beyond its row", "clamp columns", untouched, prompt_lens=[2**62])
    yield writes("a prompt of less than nothing", "columns", [5, 6, 7, 0, 0, 0, 0], prompt_lens=[-9])
    for count in (0, -4):
        yield writes(f"{count} tokens", "untouched", untouched, count=count)
    yield writes("counts end with the width", "columns", [1, 2, 5, 6, 7, 0, 0], count=99)
    many = 40
    yield edge(
        WRITE, "forty slots, and padding", "columns untouched",
        {"token_ids_all": [[-1, 100 + b, 200 + b] if b < many else [-1] * 3 for b in range(many + 2)]},
        token_ids_all=[[-1] * 3] * (many + 2), prompt_lens=[1] * (many + 2), accept_num=[2] * (many + 2),
        accept_tokens=[[100 + b, 200 + b] for b in range(many + 2)], seq_lens_this_time=[1] * many,
        seq_lens_decoder=[5] * (many + 2), step_idx=[2] * (many + 2),
    )  # fmt: skip
