"""The tools of the emulator: compile kernels, create and test operators, count the lines that ran."""

from __future__ import annotations

from specdec_hal_xpu.commands import cc, coverage, new, test

HELP = "kernels for Kunlun XPUs on the emulator: cc, new, test, coverage"
COMMANDS = {"cc": cc, "new": new, "test": test, "coverage": coverage}
