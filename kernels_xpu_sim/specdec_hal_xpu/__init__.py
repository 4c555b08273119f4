"""The simulated Kunlun XPU: this project's kernels in the XPU dialect, run by the emulator of `kernels_xpu_sim/sim`.

`options` checks the backend's options; `backend` binds the kernels of ``libspecdec_xpu_sim.so``; `plugin` is the hook.
"""
