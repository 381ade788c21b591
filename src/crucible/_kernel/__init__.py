"""One module per kernel concern; each probes, applies and explains itself. Imports nothing of crucible."""
