"""Reads a checkpoint folder into a model of `paddleformers`."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import paddle
from paddle.distributed.flex_checkpoint.dcp import load_state_dict

from specdec_hal.errors import SpecDecError
from specdec_hal.models.checkpoint import CONFIG, checkpoint_error
from specdec_hal.models.mtp import ModuleFiles, find_module
from specdec_hal.models.paddleformers.importing import lock
from specdec_hal.models.paddleformers.interface import NAME, set_attention
from specdec_hal.models.survey import check_config, check_finite, refused
from specdec_hal.models.weights import shards
from specdec_hal.text import describe

_PADDLE = logging.getLogger("paddle.distributed.fleet.utils.log_util")
HINT = "download it again, or use model.framework transformers"


def load_folder(folder: Path, architecture: Any, dtype: str | None, place: Any) -> tuple[Any, ModuleFiles | None]:
    """A model of a checkpoint on a device, in evaluation mode, which calls our attention function; the MTP module
    beside it."""
    device = "cpu" if isinstance(place, paddle.CPUPlace) else f"gpu:{place.gpu_device_id()}"
    before = paddle.get_device()
    try:
        with lock, _linked(folder) as links:
            paddle.set_device(device)
            config = architecture.config_class.from_pretrained(links)
            module = find_module(folder, config)
            check_config(architecture.__name__, config)
            _check_rotary(architecture.__name__, config)
            config.fuse_rms_norm = device != "cpu"
            if hasattr(config, "num_nextn_predict_layers"):
                config.num_nextn_predict_layers = 0  # these are the engine's
            with _quiet(module.files if module else ()):
                model = architecture.from_pretrained(
                    links, config=config, dtype=dtype or config.dtype, load_checkpoint_format="flex_checkpoint"
                ).eval()
    except SpecDecError:
        raise
    except Exception as error:
        got = describe(error)
        raise checkpoint_error(folder, "a checkpoint that paddleformers loads", got, HINT) from error
    finally:
        paddle.set_device(before)
    set_attention(model, NAME)
    _fix_rotary(model)
    check_finite(folder, dict(model.named_parameters()))
    return model, module


def _check_rotary(name: str, config: Any) -> None:
    """UnsupportedError for rotary embeddings by type of layer: the library's Gemma 3 has one for all layers."""
    rope, local = getattr(config, "rope_parameters", None) or {}, getattr(config, "rope_local_base_freq", None)
    apart = local is not None and local != getattr(config, "rope_theta", local)
    if apart or any(isinstance(part, dict) for part in rope.values()):
        raise refused(name, "its types of layers have rotary embeddings of their own, and paddleformers computes one")


def _fix_rotary(model: Any) -> None:
    """Frequencies must not depend on the longest position of a step: "dynamic" ones are as trained."""
    for module in model.sublayers():
        kind = getattr(module, "rope_type", "default")
        if kind == "longrope":
            raise refused(model, "its rotary embeddings (longrope) depend on the longest text of a step")
        if "dynamic" in kind:
            module.rope_type = "default"


@contextmanager
def _linked(folder: Path) -> Iterator[str]:
    """A folder with links to the files: the library writes an index beside them."""
    with TemporaryDirectory() as name:
        for file in (folder / CONFIG, *shards(folder), *folder.glob("*.index.json")):
            (Path(name) / file.name).symlink_to(file.resolve())
        yield name


@contextmanager
def _quiet(known: Collection[str]) -> Iterator[None]:
    """Context without messages of Paddle's loader, except warnings of other unused weights than the `known` ones, those
    of an MTP module."""

    def keep(record: logging.LogRecord) -> bool:
        names = re.findall(r"'([\w.]+)'", record.getMessage())
        return record.levelno >= logging.WARNING and not (names and {*names} <= {*known})

    _PADDLE.addFilter(keep)
    try:
        yield
    finally:
        _PADDLE.removeFilter(keep)
        load_state_dict._metadata_manager.clear()  # else a load that failed decides about the next
