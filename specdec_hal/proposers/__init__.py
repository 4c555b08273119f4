"""Where drafts come from. A proposer sets `draft_tokens[:, 1:]` and `seq_lens_this_time` for the next step.

`protocol` the interface, which is all that a runner knows; `ngram` look-up in the request's own history, of which
`naive` (no drafts, K = 0) is the limit case; `plugin` announces both. Others come through the same hook:
docs/adding_a_proposer.md.
"""
