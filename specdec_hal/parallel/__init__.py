"""Tensor parallelism: one model over several processes, each with a part of every weight.

Every rank has a whole runner and makes all decisions itself, from the same integers and Philox keys, so ranks do not
exchange tokens. `runner`: rank 0's runner, which repeats its calls on the others and compares decisions. `rank`: a
process of another rank. `team`: rank 0's view of the others.
"""
