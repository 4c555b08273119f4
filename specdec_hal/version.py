"""The version of the installed package, which tools/version.py takes from the tag when it is built."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("specdec-hal")
except PackageNotFoundError:  # a source tree on PYTHONPATH
    __version__ = "0+unknown"
