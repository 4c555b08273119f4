"""Causal language models of transformers behind specdec_hal's TargetModel."""
