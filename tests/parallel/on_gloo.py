"""A rank that samples from random logits and compares with whole rows: arguments rank, size, file to meet at."""

from __future__ import annotations

import sys

import numpy as np

from specdec_hal.ops import LogprobMode, Purpose
from specdec_hal.tensors.group import ProcessGroup
from tests.parallel.test_vocabulary import KINDS, check, on_parts, on_whole_rows, params_of, rows_of


def main(rank: int, size: int, rendezvous: str) -> None:
    """Ends with an assertion if a bit differs."""
    group = ProcessGroup(rank, size, rendezvous, timeout_s=60)
    kinds, vocab = list(KINDS), 4096
    logits = rows_of(vocab)
    params = params_of(kinds, len(logits), vocab)
    logits = np.repeat(logits, len(kinds), 0)
    options = {"purpose": Purpose.SAMPLE, "logprob_mode": LogprobMode.RAW}
    wanted = on_whole_rows(logits, params, **options)
    for look in (True, False):
        check([on_parts(group, logits, params, look, **options)], wanted, kinds)
    group.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
