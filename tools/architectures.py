"""Run every causal language model of the installed `transformers`, each as a tiny random checkpoint.

    .venv/bin/python tools/architectures.py [--write] [MODEL_TYPE ...]

Prints the outcomes that are not those of tests/models/architectures.json. --write corrects that file, and the table in
docs/use/models.md. Status 1 if a model computes something else than the library.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.architectures import PAGE, RECORD, outcome, recorded, with_table  # noqa: E402
from tests.support.tiny_configs import types_of_models  # noqa: E402


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="correct the record and the table")
    parser.add_argument("kinds", nargs="*", metavar="MODEL_TYPE", help="these alone; default: all")
    arguments = parser.parse_args()

    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    before, wrong = recorded(), []
    known = types_of_models()
    after = {kind: before[kind] for kind in known if kind in before}
    for kind in arguments.kinds or known:
        with tempfile.TemporaryDirectory() as folder:
            try:
                after[kind] = outcome(kind, Path(folder))
            except Exception as error:
                wrong.append(kind)
                print(f"{kind}: WRONG: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
                continue
        if after[kind] != before.get(kind):
            print(f"{kind}: {after[kind]} (was: {before.get(kind)})", flush=True)
    if arguments.write:
        RECORD.write_text(json.dumps(dict(sorted(after.items())), indent=1) + "\n")
        PAGE.write_text(with_table(PAGE.read_text(), after))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
