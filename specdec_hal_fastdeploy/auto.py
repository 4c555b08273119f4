"""Importing this module installs the layer, on the backend of SPECDEC_HAL_BACKEND or the best one.

One import, for programs that start FastDeploy: ``import specdec_hal_fastdeploy.auto``.
"""

from specdec_hal_fastdeploy.install import install

install()
