"""Parts of this distribution outside the core: the emulator, the conformance suite and the FastDeploy layer.

A part is a package of its own that announces commands (group ``specdec_hal.commands``) and plug-ins (group
``specdec_hal``) by entry point. The core imports none of them, and runs without them.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys

DISTRIBUTION = "specdec-hal"
"""The name under which pip knows this project."""
_RUN = """\
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """What the installed parts announce in a group; nothing in a source tree that is not installed."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return []
    return [entry for entry in distribution.entry_points if entry.group == group]


def is_own(distribution: importlib.metadata.Distribution | None) -> bool:
    """Whether entry points of this distribution are those of a part."""
    return distribution is not None and distribution.metadata["Name"] == DISTRIBUTION


def command(module: str, *arguments: str) -> list[str]:
    """The command line of a process that runs `module`, with this process's import path.

    ``python -m`` would put the working directory first. Its files, such as a random.py or this project's sources, would
    replace what is installed.
    """
    path = json.dumps([os.path.abspath(folder) for folder in sys.path])
    return [sys.executable, "-c", _RUN, path, module, *arguments]
