"""The simulator: the engine's own policies, ledger and fill rule on a virtual clock."""
