"""FastDeploy's ``fastdeploy.model_executor.ops.xpu``."""

from specdec_hal_fastdeploy.surface import surface

__getattr__, __dir__ = surface("xpu")
