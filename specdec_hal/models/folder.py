"""Checks a checkpoint's files before anything opens them, and names those that are not applied."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from specdec_hal.errors import CheckpointError
from specdec_hal.models.checkpoint import (
    CONFIG,
    TOKENIZER_CONFIG,
    check_file,
    checkpoint_error,
    read_json,
    read_optional,
)
from specdec_hal.text import short

ADAPTER = "adapter_config.json"
_ADAPTER_WEIGHTS = "adapter_model"
_WEIGHTS = (".safetensors", ".bin")
_READ = (*_WEIGHTS, ".gguf", ".jinja", ".json")
_PART = re.compile(r"-\d{5}-of-")
_TOKENIZERS = {
    "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "SentencePieceBackend", "MistralCommonBackend",
    "AlbertTokenizer", "BartTokenizer", "BarthezTokenizer", "BertTokenizer", "BigBirdTokenizer",
    "BlenderbotSmallTokenizer", "BlenderbotTokenizer", "BloomTokenizer", "CamembertTokenizer", "CodeGenTokenizer",
    "CodeLlamaTokenizer", "CohereTokenizer", "CpmTokenizer", "CTRLTokenizer", "DebertaTokenizer",
    "DebertaV2Tokenizer", "ElectraTokenizer", "FNetTokenizer", "GemmaTokenizer", "GPT2Tokenizer",
    "GPTNeoXJapaneseTokenizer", "GPTNeoXTokenizer", "GPTSw3Tokenizer", "HerbertTokenizer", "LlamaTokenizer",
    "MBart50Tokenizer", "MBartTokenizer", "MPNetTokenizer", "NllbTokenizer", "OpenAIGPTTokenizer",
    "PegasusTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "ReformerTokenizer", "RemBertTokenizer",
    "RobertaTokenizer", "RoFormerTokenizer", "SiglipTokenizer", "SplinterTokenizer", "T5Tokenizer", "UdopTokenizer",
    "WhisperTokenizer", "XGLMTokenizer", "XLMRobertaTokenizer", "XLNetTokenizer",
}  # fmt: skip
"""Classes of `transformers` whose tokenizer.json says all, without the suffix Fast."""

_log = logging.getLogger("specdec_hal")


def check_files(path: str | Path) -> None:
    """CheckpointError for a checkpoint folder or GGUF file with a FIFO, a socket or a device among its files, which
    would be waited for, and for a folder with nothing but an adapter, such as LoRA's.
    """
    path = Path(path)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix in _READ]
    else:  # GGUF files may have several parts
        files = [path, *(file for file in _parts(path) if file != path)]
    for file in files:
        if file.exists() and not (file.is_file() or file.is_dir()):
            check_file(file.parent, file.name)
    weights = [file for file in files if file.suffix in _WEIGHTS and not file.name.startswith(_ADAPTER_WEIGHTS)]
    if path.is_dir() and not weights and (path / ADAPTER).exists():
        raise _adapter(path)


def _parts(path: Path) -> list[Path]:
    """The files that a GGUF file of several parts stands for."""
    if not _PART.search(path.name) or not path.parent.is_dir():
        return []
    name = _PART.sub("-*-of-", path.name)
    return sorted(file for file in path.parent.iterdir() if file.match(name))


def _adapter(folder: Path) -> CheckpointError:
    """The error for a folder with an adapter alone."""
    settings = read_json(folder, ADAPTER)
    kind = settings.get("peft_type", "LORA")
    name, base = "LoRA" if kind == "LORA" else short(kind), settings.get("base_model_name_or_path")
    of = f" of {short(base)}" if base else ""
    hint = "merge it into its base model (merge_and_unload of the package peft) and give the folder of the result"
    return checkpoint_error(folder, "a whole model", f"a {name} adapter{of} ({ADAPTER}) without one", hint)


def warn_unapplied(folder: str | Path) -> None:
    """Log a warning for each file or key of a checkpoint folder that would change the model and is not applied."""
    folder = Path(folder)
    settings = read_optional(folder, TOKENIZER_CONFIG)
    if (folder / ADAPTER).exists():
        _log.warning("%s: this adapter is not applied; merge it into the weights", folder / ADAPTER)
    for name, raw in ((CONFIG, read_json(folder, CONFIG)), (TOKENIZER_CONFIG, settings)):
        if raw.get("auto_map"):
            _log.warning("%s: auto_map names code, which is not run: %s", folder / name, short(raw["auto_map"]))
    if (folder / "custom_generate").exists():
        _log.warning("%s: this code for decoding is not run", folder / "custom_generate")
    kind = settings.get("tokenizer_class")
    if kind is not None and not (isinstance(kind, str) and kind.removesuffix("Fast") in _TOKENIZERS):
        _log.warning(
            "%s: tokenizer_class %s is unknown and not applied; tokenizer.json alone encodes texts",
            folder / TOKENIZER_CONFIG, short(kind),
        )  # fmt: skip
