"""The interface of a proposer."""

from __future__ import annotations

from typing import Protocol


class Proposer(Protocol):
    """Drafts for all slots at once. Built by a ProposerSpec's factory(backend, state, settings)."""

    def reset(self, slots: list[int]) -> None:
        """New requests have taken these slots: forget what was known of them."""

    def propose(self) -> None:
        """After `update_model_status`: write drafts and the next step's `seq_lens_this_time`.

        Prefill slots (enc > 0) are left alone, decode slots get 1 + drafts, all others 0.
        """
