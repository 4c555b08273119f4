"""PaddlePaddle FastDeploy's op names, served by this project's ops.

    import specdec_hal_fastdeploy as layer
    print(layer.install(config="configs/cuda.yaml"))    # or SPECDEC_HAL_BACKEND, or install("cuda")

before FastDeploy starts. Its runners then find `verify_draft_tokens`, `ngram_match` and the others in the modules where
they look, with their positional arguments, in-place outputs and return values, on Paddle tensors.
docs/use/fastdeploy.md has the ops, what differs, and what is left to FastDeploy. The modules `gpu` and `xpu`
have the ops alone.

Adding an op. In the module of its family (or a new one, listed in `gpu` and `xpu`), write a function of FastDeploy's
name. Its first parameter is the :class:`~specdec_hal_fastdeploy.plan.Plan`; the others are FastDeploy's, in its
order, annotated ``Tensor``, ``Tensor | None``, ``int``, ``float`` or ``bool``:

    @adaptor("gpu", "xpu", returns="accept_num")
    def speculate_clear_accept_nums(plan: Plan, accept_num: Tensor, seq_lens_decoder: Tensor) -> None:
        plan.run("clear_accept_num", **plan.given("accept_num", "seq_lens_decoder"))

It computes nothing itself. It is called once for given tensors and says with ``plan.run`` which ops to launch; if it
returns nothing, later calls with the same tensors launch them again without asking it. What it returns is what
FastDeploy's op returns: fresh tensors from ``plan.empty``. An in-place op names the outputs that FastDeploy's callers
get back by ``returns``: one tensor, or a list. ``plan.first`` cuts whole buffers to the slots in use,
``plan.constant`` stands in for what FastDeploy does not hand over, ``plan.refuse`` and ``plan.fail`` raise errors under
FastDeploy's names; those of our ops are renamed by themselves. ``@older(newest)`` adds another version's signature,
chosen by the number of arguments. Then take the name out of `unserved.LEFT`, add a test against a NumPy model to
tests/fastdeploy/, and a line to docs/use/fastdeploy.md.
"""

from specdec_hal_fastdeploy.adaptor import ADAPTORS, use_backend
from specdec_hal_fastdeploy.install import Installed, install, uninstall

__all__ = ["ADAPTORS", "Installed", "install", "uninstall", "use_backend"]
