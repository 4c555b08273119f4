"""The server under more load than it takes, or under kills, for as long as you like.

``python tools/soak_serving.py --seconds 1800``: half again as many clients as the server takes requests, decoding and
waiting; every answer must be whole and always the same text, every refusal a 429, and memory must stay flat.
``python tools/soak_serving.py --kills 100``: HTTP and engine of a server are killed at random
moments under load; every client must get the tokens of plain decoding, or see its connection end.
``python tools/soak_serving.py --rank-kills 20 --rank-stops 8``: ranks of tensor-parallel servers are killed (any) or
stopped (any but the first) under load; every client must have an answer or an error in time, every process must end,
and the next server must give the same tokens. ``--device cuda``: two GPUs, over NCCL; else the CPU, over gloo.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import record
from serving import bodies
from serving_load import ask, resident_mb, server

from tests.support.killing import kill_under_load
from tests.support.rank_server import Texts, disturb

SLOTS, WAITING = 8, 16
CLIENTS = (SLOTS + WAITING) * 3 // 2
GROWTH = 1.1
"""Most that memory may grow from the first half of the time to the second; the first tenth warms up."""


async def overload(url: str, pid: int, seconds: float) -> dict[str, Any]:
    """Ask for so long; what came of it."""
    end, outcomes, texts, memory = time.monotonic() + seconds, Counter[str](), dict[str, str](), list[float]()
    asked = bodies(4, 64, logprobs=1) + bodies(4, 48, temperature=0.8, seed=5)

    async def client(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            body = rng.choice(asked)
            answer = await ask(url, body)
            if answer.ok:
                outcomes["whole"] += 1
                key = repr(sorted(body.items()))
                outcomes["another text"] += texts.setdefault(key, answer.text) != answer.text
            else:
                outcomes[f"status {answer.status} {answer.error}"] += 1
                await asyncio.sleep(rng.uniform(0.05, 0.2))

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(resident_mb(pid))
            await asyncio.sleep(seconds / 200)

    await asyncio.gather(watch(), *(client(number) for number in range(CLIENTS)))
    warm = memory[len(memory) // 10 :]
    early, late = max(warm[: len(warm) // 2]), max(warm[len(warm) // 2 :])
    return {"outcomes": dict(+outcomes), "resident_mb": {"first_half": early, "second_half": late}}


def overloaded(seconds: float, *arguments: str) -> dict[str, Any]:
    """A server under load; AssertionError if it does not stand it."""
    limits = [f"runner.max_num_seqs={SLOTS}", f"runner.max_waiting_requests={WAITING}"]
    limits.append("runner.queue_timeout_s=600")  # how fast the machine is must not decide
    keys = [word for limit in limits for word in ("--set", limit)]
    with server(*keys, *arguments) as (pid, url):
        found = asyncio.run(overload(url, pid, seconds))
    outcomes, memory = found["outcomes"], found["resident_mb"]
    assert outcomes.keys() <= {"whole", "status 429 "}, outcomes
    assert outcomes["whole"] and outcomes["status 429 "], outcomes
    assert memory["second_half"] <= GROWTH * memory["first_half"], memory
    return found


RANK_TIMEOUT_S = {"cpu": 4.0, "cuda": 6.0}


def ranks_under_load(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """What came of ranks that were killed and stopped, and what was wrong with any."""
    rng, device, end = random.Random(args.seed), args.device, time.monotonic() + args.limit_s
    config = {"cpu": "configs/reference.yaml", "cuda": "configs/cuda.yaml"}[device]
    wanted = ["model.framework=transformers", f"engine.tensor_parallel={args.ranks}", "serve.drain_timeout_s=1"]
    command = ["--no-split", "--config", config, *(word for one in wanted for word in ("--set", one))]
    signals = [(rng.randrange(args.ranks), signal.SIGKILL) for _ in range(args.rank_kills)]
    signals += [(rng.randrange(1, args.ranks), signal.SIGSTOP) for _ in range(args.rank_stops)]
    rng.shuffle(signals)
    texts = Texts()

    def one(number: int) -> dict[str, Any] | None:
        if time.monotonic() > end:
            return None
        rank, how = signals[number]
        try:
            found = disturb(command, rank, how, RANK_TIMEOUT_S[device], texts, args.seed + number)
        except AssertionError as error:
            found = {"signal": how.name, "rank": rank, "findings": [str(error)]}
        print(f"{number}: {found}", flush=True)
        return found

    with ThreadPoolExecutor(args.lanes) as lanes:
        done = [found for found in lanes.map(one, range(len(signals))) if found is not None]
    findings = [finding for found in done for finding in found["findings"]] + texts.findings
    if len(done) < len(signals):
        findings.append(f"{len(done)} of {len(signals)} signals were sent in {args.limit_s:g} s")
    outcomes = sum((Counter(found.get("outcomes")) for found in done), Counter[str]())
    return {
        "device": device,
        "ranks": args.ranks,
        "rank_timeout_s": RANK_TIMEOUT_S[device],
        "lanes": args.lanes,
        "kills": sum(found["signal"] == "SIGKILL" for found in done),
        "stops": sum(found["signal"] == "SIGSTOP" for found in done),
        "longest_until_clients_heard_s": {
            how: max((found.get("clients_heard_s") or 0 for found in done if found["signal"] == how), default=None)
            for how in ("SIGKILL", "SIGSTOP")
        },
        "longest_until_all_had_ended_s": max((found.get("all_ended_s", 0) for found in done), default=None),
        "outcomes": dict(outcomes),
        "texts_compared": len(texts.known),
        "each": done,
        "findings": findings,
    }, findings


def main() -> int:
    """Run what was asked for; 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0, help="under more load than the server takes")
    parser.add_argument("--no-split", action="store_true", help="with HTTP and engine in one process")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--http-workers", type=int, default=1, help="of the server that is killed")
    parser.add_argument("--rank-kills", type=int, default=0)
    parser.add_argument("--rank-stops", type=int, default=0)
    parser.add_argument("--device", choices=RANK_TIMEOUT_S, default="cpu", help="of the ranks")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lanes", type=int, default=1, help="servers whose ranks are killed side by side")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="after which no more ranks are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--out", type=Path, help="record the figures with their circumstances")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.seconds:
        found["overload"] = overloaded(args.seconds, *(["--no-split"] if args.no_split else []))
    findings = list[str]()
    if args.kills:
        outcomes, findings = kill_under_load(args.kills, 6, args.seed, args.http_workers)
        found["kills"] = {
            "kills": args.kills,
            "http_workers": args.http_workers,
            "outcomes": dict(outcomes),
            "findings": findings,
        }
    if args.rank_kills or args.rank_stops:
        found["ranks"], wrong = ranks_under_load(args)
        findings += wrong
        print(*wrong, sep="\n")
    record.write(found, args.out)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
