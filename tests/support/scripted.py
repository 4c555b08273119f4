"""Models of `transformers` whose next tokens are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

V, END = 40, 0


class Scripted:
    """A drafter with given proposals, good or bad; it counts the requests that it still holds."""

    def __init__(self, k: int, propose: Any) -> None:
        self.num_speculative_tokens, self._propose = k, propose
        self.kept: set[Any] = set()
        self.calls = 0

    def propose(self, histories: Any, request_ids: Any, *, num_speculative_tokens: Any) -> list[list[int]]:
        self.kept |= set(request_ids)
        self.calls += 1
        most = num_speculative_tokens
        pairs = zip(histories, [most] * len(histories) if isinstance(most, int) else most, strict=True)
        return [self._propose(list(text))[:most] for text, most in pairs]

    def forget(self, request_id: Any) -> bool:
        known = request_id in self.kept
        self.kept.discard(request_id)
        return known


@contextmanager
def passes() -> Iterator[list[tuple[int, int]]]:
    """Rows and tokens of each pass over the engine's cache meanwhile."""
    from specdec_hal.models.transformers.host import HostTransformers

    found: list[tuple[int, int]] = []
    forward = HostTransformers.forward

    @wraps(forward)
    def noting(self: Any, batch: Any) -> Any:
        found.append((len(batch.segments), len(batch.token_ids)))
        return forward(self, batch)

    HostTransformers.forward = noting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        HostTransformers.forward = forward  # type: ignore[method-assign]


@contextmanager
def watched(model: Any) -> Iterator[list[tuple[int, int]]]:
    """The shapes of what the model is fed meanwhile."""
    shapes: list[tuple[int, int]] = []
    forward = model.forward

    @wraps(forward)  # generate() goes by the signature
    def noting(*args: Any, **kwargs: Any) -> Any:
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    model.forward = noting
    try:
        yield shapes
    finally:
        del model.forward


def padded(prompts: list[list[int]]) -> dict[str, Any]:
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[END] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask}
