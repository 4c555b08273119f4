"""What several tests share: exact arithmetic, oracles, running an op on copies, moving slots around, red zones."""
