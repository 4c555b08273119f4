"""Benchmarks of a backend's ops: ``specdec-hal bench --suite ngram --backend cuda``.

A suite is a module with ``cases(quick) -> Iterator[Case]`` (`case`). `timing` takes times, `floor` measures the
device's limits in the same run, `runner` combines both, `record` writes the header. Tests take no times.
"""

from __future__ import annotations

SUITES = {
    "ngram": "n-gram look-up over lengths, batches, hits and budgets",
    "verify": "verification of drafts and the updates of slots",
    "slots": "state of slots: the draft model's, scheduling, stop sequences, limits of thinking",
    "sampling": "from logits to tokens: sampling, probabilities, candidates, penalties",
    "logprobs": "log-probabilities of accepted tokens",
    "recurrent": "layers with a recurrent state",
    "step": "the captured token plane of a whole decode step, and the host's cost of a call",
}
"""The suites by module name, with a description."""
