"""Coherent random inputs of ops, drawn from their OpSpecs."""
