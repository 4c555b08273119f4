"""Checkpoints by their name on a Hugging Face hub, ``ORG/NAME`` or ``ORG/NAME@REVISION``.

They are looked up in the cache that `huggingface_hub` keeps and fetched only on request. HF_HOME, HF_HUB_CACHE,
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean to the library.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from specdec_hal.errors import SpecDecError
from specdec_hal.text import describe

_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)
_SNAPSHOT = re.compile(r"models--(?P<org>.+?)--(?P<name>.+)")
_FILES = ["*.json", "*.jinja", "*.model", "*.safetensors", "*.txt"]
"""The files of a repository that the loaders read."""


class DownloadError(SpecDecError):
    """A checkpoint cannot be fetched from its hub."""


def is_name(path: str) -> bool:
    """Whether the text may name a checkpoint on a hub."""
    return _NAME.fullmatch(path) is not None


def find(name: str, download: bool = False) -> Path | None:
    """The local folder of a checkpoint of this name; None if the cache has none.

    `download`: fetch what the cache lacks first. DownloadError if that fails, or without `huggingface_hub`.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        import huggingface_hub
    except ImportError as error:
        if download:
            raise DownloadError(f"cannot download {name}: {error}; pip install huggingface_hub") from error
        return None
    repo, revision = match["repo"], match["revision"]
    try:
        if download:
            return Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=_FILES))
        config = huggingface_hub.try_to_load_from_cache(repo, "config.json", revision=revision)
    except Exception as error:  # of HTTP, of the cache, of a name that the library refuses
        if download:
            raise DownloadError(f"cannot download {name}: {describe(error)}") from error
        return None
    return Path(config).parent if isinstance(config, str) else None


def command(name: str) -> str:
    """The shell command that fetches a checkpoint into the cache."""
    repo, _, revision = name.partition("@")
    return f"hf download {repo}" + (f" --revision {revision}" if revision else "")


def name_of(folder: str | os.PathLike[str]) -> str:
    """How clients name a checkpoint: ``ORG/NAME`` for a folder of the cache, else the name of the folder or file."""
    path = Path(folder)
    if path.parent.name == "snapshots" and (match := _SNAPSHOT.fullmatch(path.parent.parent.name)):
        return f"{match['org']}/{match['name']}"
    return path.name.removesuffix(".gguf")
