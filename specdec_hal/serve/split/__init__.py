"""The server as three processes: HTTP, engine and token processor, each of which may be killed at any moment.

::

    clients <-> http  -- commands -->  engine  -- frames -->  tokens (the token processor)
                 ^  ^-- refusals, counts --+                     |
                 +------------------- deltas --------------------+

`messages` is what they tell each other, `engine`, `tokens` and `remote` (HTTP's end) are the three, `supervisor` starts
them and starts them again. Tokens depend on nothing but prompt, parameters and seed, so whoever is started again asks
for everything again, and whoever has had a part of it leaves that out.
"""
