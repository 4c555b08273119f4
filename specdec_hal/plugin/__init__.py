"""Interfaces of plug-ins (backend, proposer, model), and their discovery."""
