"""The tools of the emulator: compile kernels, create and test operators, count the lines that ran, list builtins."""

from __future__ import annotations

from specdec_hal_xpu.commands import builtins, cc, coverage, new, test

HELP = "kernels for Kunlun XPUs on the emulator: cc, new, test, coverage, builtins"
COMMANDS = {"cc": cc, "new": new, "test": test, "coverage": coverage, "builtins": builtins}
