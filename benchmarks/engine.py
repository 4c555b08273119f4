"""The engine end to end: prefill, admission, decoding and streaming, beside transformers in the same process, in turns.

``python benchmarks/engine.py --out benchmarks/results/NAME.json [PART...]``. Parts: throughput (tokens per second by
requests, dtype and drafts), overlap, needs (log-probabilities, penalties), latency (a long prompt beside decoding
requests), large (a Llama of 1.2 B random parameters: step time beside its kernels'). Needs a GPU, or ``--device cpu``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine_latency import measure
from record import write

from specdec_hal import load
from specdec_hal.engine.runtime import Runtime
from specdec_hal.runner import ModelRunner, Request, SamplingParams, build_runner
from specdec_hal.tensors.memory import freeze_heap

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "models/tiny-py-lm"
PROMPTS = ("edit_function", "completion", "prose", "unique")
TURNS = 3


class Bench:
    """One run: settings, models and results."""

    def __init__(self, device: str, new_tokens: int, out: Path | None) -> None:
        self.cuda, self.new_tokens, self.out = device == "cuda", new_tokens, out
        self.results: list[dict[str, Any]] = []

    def note(self, **row: Any) -> None:
        """Keep and print a result."""
        self.results.append(row)
        print(json.dumps(row), flush=True)

    # ---- ours

    def runtime(self, slots: int, k: int, dtype: str, *more: str) -> Runtime:
        """The embedded model under the GPU's configuration, or the CPU's."""
        config = "configs/cuda.yaml" if self.cuda else "configs/reference.yaml"
        keys = [f"runner.max_num_seqs={slots}"]
        if self.cuda:
            keys += ["model.framework=torch", f"model.dtype={dtype}", "runner.prefill_chunk=1024"]
            keys.append(f"runner.max_num_batched_tokens={slots * (k + 1) + 2048}")
        if k:
            keys.append(f"speculative.num_speculative_tokens={k}")
        runtime = load(ROOT / config, [*keys, *more])
        return runtime if k else runtime.naive()

    def runner(self, runtime: Runtime) -> ModelRunner:
        """A runner with a model of its own: a model has one KV cache."""
        return runtime.runner()

    def prompts(self, runner: ModelRunner, count: int) -> list[list[int]]:
        """The example prompts over and over, each time with two tokens less at the head."""
        assert runner.tokenizer is not None
        texts = [(ROOT / f"examples/prompts/{name}.txt").read_text().removesuffix("\n") for name in PROMPTS]
        ids = [runner.tokenizer.encode(text) for text in texts]
        return [ids[i % 4][2 * (i // 4) :] for i in range(count)]

    def decode(
        self, runner: ModelRunner, prompts: list[list[int]], **params: Any
    ) -> tuple[float, list[tuple[int, ...]], int]:
        """Seconds, the tokens of every request, and how many were streamed."""
        streamed = 0

        def count(delta: Any) -> None:
            nonlocal streamed
            streamed += len(delta.token_ids)

        wanted = SamplingParams(**{"max_new_tokens": self.new_tokens, **params})
        start = time.perf_counter()
        for i, prompt in enumerate(prompts):
            runner.add_request(Request(str(i), prompt, wanted, count))
        outputs = runner.run()
        seconds = time.perf_counter() - start
        return seconds, [outputs[str(i)].token_ids for i in range(len(prompts))], streamed

    def engine(self, slots: int, k: int, dtype: str, *more: str, **params: Any) -> Callable[[], dict[str, Any]]:
        """A warm engine; what is returned decodes the prompts once."""
        runner = self.runner(self.runtime(slots, k, dtype, *more))
        prompts = self.prompts(runner, slots)
        for _ in range(2):  # compile, then capture
            self.decode(runner, prompts, **params)
        freeze_heap()  # as a server does

        def once() -> dict[str, Any]:
            before = runner.summary()
            seconds, tokens, streamed = self.decode(runner, prompts, **params)
            after = runner.summary()
            steps = after["steps"] - before["steps"]
            stages = {
                name: value - before["seconds_by_stage"].get(name, 0.0)
                for name, value in after["seconds_by_stage"].items()
            }
            host = sum(value for name, value in stages.items() if name != "wait")
            total = sum(map(len, tokens))
            assert streamed == total
            return {
                "tokens_per_s": total / seconds,
                "tokens": total,
                "steps": steps,
                "us_per_step": 1e6 * seconds / steps,
                "host_us_per_step": 1e6 * host / steps,
                "us_by_stage": {name: 1e6 * value / steps for name, value in stages.items()},
                "graphs": after["graphs"],
                "failed_steps": after["failed_steps"],
                "output": tokens,
            }

        return once

    # ---- the peer

    def transformers(self, slots: int, dtype: str) -> Callable[[], dict[str, Any]]:
        """`generate` of transformers on the same prompts: greedy, one static batch, padded on the left."""
        import torch
        from transformers import AutoModelForCausalLM

        device = "cuda" if self.cuda else "cpu"
        model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=getattr(torch, dtype)).to(device).eval()
        runner = self.runner(self.runtime(slots, 0, dtype))
        prompts, end = self.prompts(runner, slots), min(runner.end_tokens)
        longest = max(map(len, prompts))
        ids = torch.zeros((slots, longest), dtype=torch.long, device=device)
        seen = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            seen[row, longest - len(prompt) :] = 1

        def once() -> dict[str, Any]:
            start = time.perf_counter()
            with torch.inference_mode():
                rows = model.generate(
                    ids, attention_mask=seen, max_new_tokens=self.new_tokens, do_sample=False, pad_token_id=end
                )
            output = [tuple(row[: row.index(end) + 1] if end in row else row) for row in rows[:, longest:].tolist()]
            seconds = time.perf_counter() - start
            return {"tokens_per_s": sum(map(len, output)) / seconds, "output": output}

        once()
        return once

    # ---- parts

    def throughput(self) -> None:
        """Tokens per second, plain and with drafts, in turns with transformers."""
        for dtype in ("float32", "bfloat16") if self.cuda else ("float32",):
            for slots in (1, 8, 64) if self.cuda else (1, 4):
                runs = {
                    "plain": self.engine(slots, 0, dtype),
                    "drafts": self.engine(slots, 8, dtype),
                    "transformers": self.transformers(slots, dtype),
                }
                rows = in_turns(runs, TURNS)
                outputs = {name: row.pop("output") for name, row in rows.items()}
                for name, row in rows.items():
                    same = sum(a == b for a, b in zip(outputs[name], outputs["plain"], strict=True))
                    self.note(part="throughput", dtype=dtype, requests=slots, run=name, equal_to_plain=same, **row)

    def overlap(self) -> None:
        """The same engine with and without overlap, and without graphs."""
        slots = 64 if self.cuda else 4
        for k in (0, 8):
            runs = {
                "overlap": self.engine(slots, k, "float32"),
                "no overlap": self.engine(slots, k, "float32", "runner.overlap=false"),
            }
            if self.cuda:
                runs["no graph"] = self.engine(slots, k, "float32", "runner.graph=false")
            for name, row in in_turns(runs, TURNS).items():
                row.pop("output")
                self.note(part="overlap", requests=slots, drafts=k, run=name, **row)

    def needs(self) -> None:
        """What log-probabilities and penalties cost."""
        slots = 64 if self.cuda else 4
        runs = {
            "nothing": self.engine(slots, 0, "float32"),
            "logprobs": self.engine(slots, 0, "float32", logprobs=0),
            "penalties": self.engine(slots, 0, "float32", repetition_penalty=1.1, frequency_penalty=0.1),
            "sampled": self.engine(slots, 0, "float32", temperature=0.8, top_p=0.95, seed=1),
        }
        for name, row in in_turns(runs, TURNS).items():
            row.pop("output")
            self.note(part="needs", requests=slots, run=name, **row)

    def latency(self) -> None:
        """First token of a long prompt alone and beside decoding requests, and the delays of these by cause."""
        slots = 64 if self.cuda else 4
        for chunk in (128, 256, 512):
            for run, more in (("overlap", []), ("no overlap", ["runner.overlap=false"])):
                sizes = [f"runner.prefill_chunk={chunk}", f"runner.max_num_batched_tokens={slots + chunk}"]
                sizes.append("runner.enable_prefix_caching=false")  # the long prompt comes again and again
                runtime = self.runtime(slots, 0, "float32", "runner.max_model_len=2047", *sizes, *more)
                runner = self.runner(runtime)
                prompts = self.prompts(runner, slots)
                for row in measure(runner, runtime.registry, prompts, (prompts[0] * 40)[:2000]):
                    self.note(part="latency", prefill_chunk=chunk, run=run, **row)

    def large(self) -> None:
        """Step time of a Llama of 1.2 B parameters beside the sum of its kernels' times."""
        import torch

        with tempfile.TemporaryDirectory() as folder:
            write_large(Path(folder))
            for slots in (1, 8, 64):
                keys = ["model.framework=torch", "model.dtype=bfloat16", f"model.path={folder}"]
                keys += [f"runner.max_num_seqs={slots}", "runner.max_model_len=2048", "runner.prefill_chunk=512"]
                runtime = load(ROOT / "configs/cuda.yaml", keys).naive()
                runner = build_runner(runtime.config, runtime.backend, runtime.load_model(), None)
                params = SamplingParams(max_new_tokens=600)
                prompt = torch.randint(0, 128_000, (500,), generator=torch.Generator().manual_seed(0)).tolist()
                for i in range(slots):
                    runner.add_request(Request(str(i), [i, *prompt], params))
                for _ in range(slots + 60):
                    runner.step()
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(100):
                    runner.step()
                torch.cuda.synchronize()
                step = 1e4 * (time.perf_counter() - start)
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                    for _ in range(20):
                        runner.step()
                    torch.cuda.synchronize()
                kernels, busy = device_time(profile.events())
                ratio = step * 20 / kernels
                self.note(part="large", requests=slots, step_us=step, kernels_us=kernels / 20, ratio=ratio, busy=busy)


def device_time(events: Any) -> tuple[float, float]:
    """Microseconds of all kernels and copies, and the share of the time from first to last in which any was running."""
    import torch

    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, reached = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return sum(end - start for start, end in spans), busy / (reached - spans[0][0])


def in_turns(runs: dict[str, Callable[[], dict[str, Any]]], turns: int) -> dict[str, dict[str, Any]]:
    """All runs in turn, `turns` times; the fastest of each, with the spread."""
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            rows[name].append(run())
    best = {name: max(samples, key=lambda row: row["tokens_per_s"]) for name, samples in rows.items()}
    return {name: {**row, "all_tokens_per_s": [r["tokens_per_s"] for r in rows[name]]} for name, row in best.items()}


def write_large(folder: Path, vocab_size: int = 128_256) -> None:
    """A checkpoint of random parameters in the shape of a Llama of 1.2 B; 1 B of them are not of its vocabulary.

    The last two tokens begin and end a text.
    """
    import torch
    from safetensors.torch import save_file

    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab_size, "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "max_position_embeddings": 8192, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": vocab_size - 2,
        "eos_token_id": vocab_size - 1, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator(device="cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32)
        return (values * 0.02 if len(shape) > 1 else 1 + values * 0.02).to(torch.bfloat16).cpu()

    weights = {"model.embed_tokens.weight": random(vocab_size, 2048), "model.norm.weight": random(2048)}
    for i in range(16):
        layer = f"model.layers.{i}."
        shapes = {
            "input_layernorm": (2048,), "post_attention_layernorm": (2048,), "self_attn.q_proj": (2048, 2048),
            "self_attn.k_proj": (512, 2048), "self_attn.v_proj": (512, 2048), "self_attn.o_proj": (2048, 2048),
            "mlp.gate_proj": (8192, 2048), "mlp.up_proj": (8192, 2048), "mlp.down_proj": (2048, 8192),
        }  # fmt: skip
        weights |= {f"{layer}{name}.weight": random(*shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")


def versions() -> Iterator[tuple[str, str]]:
    """Of what takes part."""
    import importlib.metadata

    for name in ("torch", "triton", "transformers", "paddlepaddle", "numpy"):
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def main() -> int:
    """Run the named parts, or all that the device supports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    bench = Bench(options.device, options.new_tokens, options.out)
    for part in options.parts or ("throughput", "overlap", "needs", "latency", *(["large"] if bench.cuda else [])):
        print(f"== {part}", flush=True)
        getattr(bench, part)()
        if options.out is not None:
            write({"versions": dict(versions()), "results": bench.results}, options.out)
    return 0


if __name__ == "__main__":
    status = main()
    # Without destructors: PyTorch's profiler (2.11) frees buffers of CUPTI twice when the context goes at exit.
    sys.stdout.flush()
    os._exit(status)
