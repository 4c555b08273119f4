"""Proposers. Each sets `draft_tokens[:, 1:]` and `seq_lens_this_time` for the next step.

`ngram`: look-up in the request's history; `naive` is its limit case (no drafts, K = 0). `suffix`: look-up in earlier
responses too, by frequency. `mtp`: the checkpoint's module, which `hybrid` continues by look-up. `eagle3`: a trained
head; `dflash`: one that fills in a block (all three are a `module_chain`). `calibration` checks that a head is loaded
as trained. `draft_model`: a smaller model, possibly with another `vocabulary`. `draft_sampler` draws drafts from
logits. `plugin` announces the methods. Others come through the same hook: docs/extend/proposer.md.
"""
