"""Loads a checkpoint folder, or a GGUF file, with `transformers`."""

from __future__ import annotations

import copy
import logging
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from specdec_hal.errors import CheckpointError, UnsupportedError
from specdec_hal.models.checkpoint import read_token_ids
from specdec_hal.models.from_host import gpu
from specdec_hal.models.paged import launchers
from specdec_hal.models.transformers.decoder import Decoder
from specdec_hal.models.transformers.interface import NAME
from specdec_hal.models.transformers.mtp import find_module
from specdec_hal.models.transformers.survey import check_class, refused
from specdec_hal.plugin.model import ModelConfig, ModelMemory
from specdec_hal.text import describe

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # others: a byte
_log = logging.getLogger("specdec_hal")


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    batch_invariant: bool | None = None,
    threads: int | None = None,
) -> Any:
    """A :class:`~.host.HostTransformers` on a CPU, a :class:`~.device.DeviceTransformers` on a GPU.

    `dtype` None: float32 on CPUs, the checkpoint's own on GPUs. CheckpointError for what `transformers` cannot load;
    UnsupportedError, with the reason, for a model that cannot run over our KV cache.
    """
    on_host = device == "cpu"
    if not on_host:
        device = gpu(device)
    decoder = load_decoder(path, device, dtype or ("float32" if on_host else "auto"))
    module = find_module(Path(path), decoder.model.config)
    if on_host:
        from specdec_hal.models.transformers.host import HostTransformers

        made: Any = HostTransformers(decoder, batch_invariant=batch_invariant, threads=threads, module=module)
    else:
        from specdec_hal.models.transformers.device import DeviceTransformers

        made = DeviceTransformers(
            decoder, make_launcher=launchers(torch.device(device)), batch_invariant=batch_invariant, module=module
        )
    _log.info("%s: %s", type(decoder.model).__name__, made.describe())
    return made


def load_decoder(path: str | Path, device: str, dtype: str) -> Decoder:
    """The model of a checkpoint after its trial; `dtype`: one of :data:`~specdec_hal.models.checkpoint.DTYPES`, or
    "auto".
    """
    where, options = _where(path)
    try:
        config = transformers.AutoConfig.from_pretrained(where, local_files_only=True, **options)
        known = transformers.AutoModelForCausalLM._model_mapping
        architecture = known[type(config)] if type(config) in known.keys() else None  # noqa: SIM118
    except Exception as error:
        raise _unreadable(path, error) from error
    if config.is_encoder_decoder:
        raise refused(
            (config.architectures or [config.model_type])[0],
            "it is an encoder-decoder model, and drafts are verified by a decoder alone",
        )
    if architecture is None:
        raise UnsupportedError(
            f"{config.model_type}: transformers {transformers.__version__} has no decoder "
            "alone for it (AutoModelForCausalLM); choose another model"
        )
    if isinstance(architecture, tuple):
        architecture = architecture[0]
    check_class(config, architecture)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            where, config=copy.deepcopy(config), dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=NAME, local_files_only=True, **options,
        )  # fmt: skip
    except Exception as error:
        raise _unreadable(path, error) from error
    return Decoder(model.eval().to(device), _config(path, model))


def memory(path: str | Path, *, device: str) -> ModelMemory | None:
    """Memory that :func:`load` needs, by the files' headers and config.json; None for a GGUF file."""
    where, options = _where(path)
    if options:
        return None
    try:
        config = transformers.AutoConfig.from_pretrained(where, local_files_only=True).get_text_config()
    except Exception as error:
        raise _unreadable(path, error) from error
    weights, itemsize = 0, 4
    for file in sorted(where.glob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (no mapping)
                part = tensors.get_slice(name)
                if device != "cpu":
                    itemsize = _BYTES.get(part.get_dtype(), 1)
                weights += prod(part.get_shape()) * itemsize
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if getattr(config, "kv_lora_rank", None):  # keys and values of each head, as wide as keys
        heads, width = config.num_attention_heads, config.qk_nope_head_dim + config.qk_rope_head_dim
    cache = 0 if device == "cpu" else 2 * config.num_hidden_layers * heads * width * itemsize
    return ModelMemory({"weights": weights}, cache, config.hidden_size * itemsize)


def _where(path: str | Path) -> tuple[Path, dict[str, str]]:
    """The folder, and the name of a GGUF file in it."""
    file = Path(path)
    return (file.parent, {"gguf_file": file.name}) if file.suffix == ".gguf" else (file, {})


def _unreadable(path: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path}: expected a checkpoint that transformers {transformers.__version__} loads, got "
        f"{describe(error)}; download it again, or use another version of transformers"
    )


def _config(path: str | Path, model: Any) -> ModelConfig:
    text = model.config.get_text_config()
    if Path(path).is_dir():
        tokens = read_token_ids(path)
        vocabulary, bos, ends = tokens.vocab_size, tokens.bos_token_id, tokens.eos_token_ids
    else:
        ended = model.generation_config.eos_token_id
        ends = () if ended is None else tuple(ended) if isinstance(ended, list) else (ended,)
        vocabulary, bos = text.vocab_size, text.bos_token_id
    return ModelConfig(
        vocab_size=vocabulary,
        hidden_size=text.hidden_size,
        max_position_embeddings=text.max_position_embeddings,
        eos_token_ids=ends,
        bos_token_id=bos,
    )
