"""A decoder that `transformers` does not have, written as its models are, for specdec_hal."""
