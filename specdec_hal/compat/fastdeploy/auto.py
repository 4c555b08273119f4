"""Importing this module installs the layer, on the backend of SPECDEC_HAL_BACKEND or the best one.

One import, for programs that start FastDeploy: ``import specdec_hal.compat.fastdeploy.auto``.
"""

from specdec_hal.compat.fastdeploy.install import install

install()
