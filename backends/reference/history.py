"""The clamps that keep a slot's history inside its row of `token_ids_all`."""

from __future__ import annotations

from typing import SupportsInt


def history_bounds(row_width: int, prompt_len: SupportsInt, step_idx: SupportsInt) -> tuple[int, int]:
    """Columns (end of the prompt, end of the generated tokens), for any input values."""
    prompt_end = min(max(int(prompt_len), 0), row_width)
    return prompt_end, prompt_end + min(max(int(step_idx), 0), row_width - prompt_end)
