"""Suffix decoding: continue the text as after earlier occurrences, here or in earlier responses.

Source: SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975), as in Snowflake's ArcticInference (not used: it builds
against PyTorch and vLLM).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, NamedTuple

from pydantic import Field

from specdec_hal.config.schema import Section
from specdec_hal.plugin.proposer import Proposer, ProposerContext, RunsOn, SlotView, StepView

Context = tuple[int, ...]


class SuffixSettings(Section):
    """`max_depth`: most tokens of context to match. `max_cached_requests`: size of the LRU cache of earlier responses;
    0: only the request's own text. `max_factor`: most drafts per matched token of context. `min_probability`: least
    product of frequencies of a draft and all earlier ones.
    """

    max_depth: Annotated[int, Field(ge=1, le=64)] = 8
    max_cached_requests: Annotated[int, Field(ge=0, le=1 << 20)] = 256
    max_factor: Annotated[float, Field(gt=0, le=64)] = 2.0
    min_probability: Annotated[float, Field(gt=0, le=1)] = 0.1


@dataclass(slots=True)
class _Node:
    """Counts of the tokens after a context, the latest token last, and the latest text."""

    followers: dict[int, int] = field(default_factory=dict)
    source: int = 0


class Found(NamedTuple):
    """A look-up's drafts, the expected number of accepted ones, and the latest text with them."""

    expected: float = 0.0
    drafts: Sequence[int] = ()
    source: int = 0


class SuffixCounts:
    """Counts of each token after each context of up to `depth` tokens, in a changing set of texts.

    Equivalent to a suffix tree of that depth with counts, stored as one dictionary of contexts.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._nodes: dict[Context, _Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, text: Sequence[int], start: int = 0, source: int = 0) -> None:
        """Count the tokens of a text from `start` on, each after those before it. `source`: a number of the text."""
        nodes = self._nodes
        for context, token in self._edges(text, start):
            node = nodes.get(context)
            if node is None:
                node = nodes[context] = _Node()
            node.followers[token] = node.followers.pop(token, 0) + 1
            node.source = source

    def remove(self, text: Sequence[int]) -> None:
        """Remove a whole text."""
        for context, token in self._edges(text, 0):
            followers = self._nodes[context].followers
            followers[token] -= 1
            if not followers[token]:
                del followers[token]
                if not followers:
                    del self._nodes[context]

    def _edges(self, text: Sequence[int], start: int) -> Iterator[tuple[Context, int]]:
        for at in range(max(start, 1), len(text)):
            for size in range(1, min(self._depth, at) + 1):
                yield tuple(text[at - size : at]), text[at]

    def continuation(self, text: Sequence[int], most: int, factor: float, least: float) -> Found:
        """The most frequent next tokens after the suffix of `text` with the most expected accepted drafts.

        At most `most` and `factor` times the suffix's length, while the product of frequencies is at least `least`.
        """
        best = Found()
        for size in range(min(self._depth, len(text)), 0, -1):
            context = tuple(text[-size:])
            if context in self._nodes:
                best = max(best, self._follow(context, min(most, int(factor * size)), least), key=lambda one: one[0])
        return best

    def _follow(self, context: Context, most: int, least: float) -> Found:
        source, drafts = self._nodes[context].source, list[int]()
        probability, expected = 1.0, 0.0
        while len(drafts) < most:
            while context and context not in self._nodes:  # no continuation: try fewer tokens
                context = context[1:]
            if not context:
                break
            followers = self._nodes[context].followers
            token = max(reversed(followers), key=followers.__getitem__)
            probability *= followers[token] / sum(followers.values())
            if probability < least:
                break
            expected += probability
            drafts.append(token)
            context = (*context, token)[-self._depth :]
        return Found(expected, drafts, source)


@dataclass
class _Owner:
    """A slot's request: its text, fully counted, and the length of its prompt."""

    counts: SuffixCounts
    text: list[int]
    prompt_len: int


class SuffixProposer(Proposer):
    """Looks up the request's last tokens in its text and in responses of finished requests.

    A response enters the cache when another request takes its slot. The look-up with more expected accepted drafts
    wins; drafting from a response marks it as used.
    """

    runs_on: RunsOn = "host"
    hidden_layers: tuple[int, ...] = ()
    gives_draft_probs = False

    def __init__(self, context: ProposerContext) -> None:
        self._settings: SuffixSettings = context.settings
        self._numbers = count(1)
        self.forget()

    def forget(self) -> None:
        """Empty the cache, and do not cache the slots' previous requests."""
        self._owners: dict[int, _Owner] = {}
        self._earlier = SuffixCounts(self._settings.max_depth)
        self._responses: OrderedDict[int, list[int]] = OrderedDict()  # by number, the least recently used first

    def reset(self, slots: list[int]) -> None:
        """Cache the responses of the slots' previous requests."""
        for slot in slots:
            owner = self._owners.pop(slot, None)
            if owner is not None:
                self._remember(owner.text[owner.prompt_len :])

    def propose(self, step: StepView) -> None:
        """Look up every slot's continuation."""
        step.draft({view.slot: self._draft(view) for view in step.slots})

    def _draft(self, view: SlotView) -> Sequence[int]:
        owner = self._owner(view)
        start = len(owner.text)
        owner.text += view.token_ids[start - owner.prompt_len :]
        owner.counts.add(owner.text, start)
        if not view.max_drafts:
            return []
        settings = self._settings
        end = owner.text[-settings.max_depth :]
        limits = view.max_drafts, settings.max_factor, settings.min_probability
        own, earlier = owner.counts.continuation(end, *limits), self._earlier.continuation(end, *limits)
        if own.expected >= earlier.expected:
            return own.drafts
        if earlier.source in self._responses:
            self._responses.move_to_end(earlier.source)
        return earlier.drafts

    def _owner(self, view: SlotView) -> _Owner:
        owner = self._owners.get(view.slot)
        if owner is None:
            prompt = list(view.prompt_token_ids)
            owner = self._owners[view.slot] = _Owner(SuffixCounts(self._settings.max_depth), prompt, len(prompt))
            owner.counts.add(prompt)
        return owner

    def _remember(self, response: list[int]) -> None:
        """Add a response to the cache, evicting the least recently used one."""
        if not self._settings.max_cached_requests:
            return
        number = next(self._numbers)
        self._responses[number] = response
        self._earlier.add(response, source=number)
        while len(self._responses) > self._settings.max_cached_requests:
            self._earlier.remove(self._responses.popitem(last=False)[1])
