"""FastDeploy's ``fastdeploy.model_executor.ops.gpu``."""

from specdec_hal_fastdeploy.surface import surface

__getattr__, __dir__ = surface("gpu")
