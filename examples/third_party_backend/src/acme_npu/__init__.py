"""The backend `acme_npu` for specdec-hal: `plugin` announces it, `backend` binds it, `kernels` computes."""
