"""``python -m tests.runner.killed JOURNAL OUT``: decodes or resumes :data:`PROMPTS`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from specdec_hal.runner import ModelRunner, Request, SamplingParams
from specdec_hal.runner.journal import read
from tests.runner.conftest import make_runner

PROMPTS = {str(n): [n + 1, 5, 6, 5, 6] for n in range(6)}


def params(n: int) -> SamplingParams:
    """Every kind of state that a request carries from step to step."""
    return SamplingParams(
        temperature=0.9, seed=n, max_new_tokens=30 + n, bad_token_ids=[0], stop=["qz"], logprobs=n % 3,
        repetition_penalty=1.1, return_drafts=True, prompt_logprobs=n % 2 or None, logit_bias={9: 1.5, 5 + n: -2.0},
    )  # fmt: skip


def main(journal: str, out: str) -> None:
    """Slowly, so that a kill finds it at work."""
    keys = {"max_num_seqs": 3, "prefill_chunk": 4, "journal": journal, "journal_interval": 3}
    runner: ModelRunner = make_runner(runner=keys)
    saved = read(journal) if Path(journal).exists() else []
    runner.restore(saved)
    for name in PROMPTS.keys() - {record["request_id"] for record in saved}:
        runner.add_request(Request(name, PROMPTS[name], params(int(name))))
    print("ready", flush=True)
    streamed: dict[str, list[int]] = {name: [] for name in PROMPTS}
    while runner.has_requests:
        for delta in runner.step():
            streamed[delta.request_id] += delta.token_ids
        time.sleep(0.002)
    outputs = runner.take_finished()
    found = {
        name: [
            list(o.token_ids),
            o.text,
            o.finish_reason,
            [(e.logprob, e.rank) for e in o.logprobs],
            [e and e.rank for e in o.prompt_logprobs],
            streamed[name],
        ]
        for name, o in sorted(outputs.items())
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
