"""The old name of :mod:`specdec_hal_fastdeploy`."""

from specdec_hal.plugin.moved import moved

moved(__name__, "specdec_hal_fastdeploy")
