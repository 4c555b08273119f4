"""The server as three processes: HTTP, engine and token processor, each of which may be killed at any moment.

::

    clients <-> http  -- commands -->  engine  -- frames -->  tokens (the token processor)
                 ^  ^-- refusals, counts --+                     |
                 +------------------- deltas --------------------+

`messages` is what they send each other, `engine`, `tokens` and `remote` (HTTP's end) are the three, `supervisor` starts
and restarts them. Tokens depend on nothing but prompt, parameters and seed, so a restarted process asks for everything
again, and its reader leaves out what it has had.
"""
