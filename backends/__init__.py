"""The built-in backends, one folder each. All register through the public hooks, as a third party's would."""
