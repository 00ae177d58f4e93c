"""Decides holds and releases, acts on schedulers, keeps the ledger."""
