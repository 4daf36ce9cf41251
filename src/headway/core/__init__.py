"""The nouns every other part speaks: jobs, views, plans, the fill rule, the ledger and records."""
