"""Python processes that import the same packages as this one."""

from __future__ import annotations

import json
import os
import sys

_RUN = """\
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def command(module: str, *arguments: str) -> list[str]:
    """The command line of a process that runs `module`, with this process's import path.

    ``python -m`` would put the working directory first. Its files, such as a random.py or this project's sources, would
    replace what is installed.
    """
    path = json.dumps([os.path.abspath(folder) for folder in sys.path])
    return [sys.executable, "-c", _RUN, path, module, *arguments]
