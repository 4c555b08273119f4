"""Where drafts come from. A proposer sets `draft_tokens[:, 1:]` and `seq_lens_this_time` for the next step.

`protocol`: the interface, which is all that a runner knows. `ngram`: look-up in the request's own history; `naive` is
its limit case (no drafts, K = 0). `suffix`: look-up in earlier responses too, by frequency. `mtp`: the checkpoint's own
module, which `hybrid` continues by look-up. `eagle3`: a trained head; `dflash`: another that fills in a block (all
three are a `module_chain`). `calibration` finds out whether a head is read as it was trained. `draft_model`: a smaller
model, whose `vocabulary` may be another. `draft_sampler` draws drafts from logits. `plugin` announces the methods.
Others come through the same hook: docs/extend/proposer.md.
"""
