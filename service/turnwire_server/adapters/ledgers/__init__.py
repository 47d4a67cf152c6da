"""Usage ledgers."""
