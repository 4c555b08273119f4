"""The n-gram look-up by brute force: compare the query with every place of the text."""

from __future__ import annotations

from specdec_hal.ops import MatchPolicy


def lookup(
    prompt: list[int], rest: list[int], sizes: range, policy: MatchPolicy, skip: int = 0, cycles: int = 0
) -> list[int]:
    """All tokens that follow the match of the last n of `rest` (LATEST: of both), n from the longest size down.

    The last `skip` tokens of `rest` are not searched. `cycles`: drafts to make, one by one.
    """
    searched = rest[: len(rest) - skip]
    known = prompt + rest if policy is MatchPolicy.LATEST and rest else rest
    for n in sizes:
        if n > len(known):
            continue
        query = known[len(known) - n :]
        haystacks = [prompt + searched] if policy is MatchPolicy.LATEST else [prompt, searched]
        for before, haystack in zip((0, len(prompt)), haystacks, strict=False):
            columns = [at for at in range(len(haystack)) if haystack[at : at + n] == query and at + n < len(haystack)]
            if columns:
                at = columns[-1] if policy is MatchPolicy.LATEST else columns[0]
                text = prompt + rest
                for i in range(cycles):
                    text.append(text[before + at + n + i])
                return text[len(prompt + rest) :] if cycles else haystack[at + n :]
    return []
