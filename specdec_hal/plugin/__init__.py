"""What plug-ins implement (backend, proposer, model), and how they are found."""
