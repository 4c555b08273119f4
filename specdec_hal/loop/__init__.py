"""Drafts, `verify` and `sample` for the decode loops of other engines."""
