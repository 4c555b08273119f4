"""Drafts from a corpus: the phrases that a text file holds."""
