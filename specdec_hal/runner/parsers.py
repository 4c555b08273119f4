"""The old name of :mod:`specdec_hal.output.parsers`."""

from specdec_hal.plugin.moved import moved

moved(__name__, "specdec_hal.output.parsers")
