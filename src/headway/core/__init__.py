"""The shared nouns: jobs, views, plans, the fill rule, the ledger and records."""
