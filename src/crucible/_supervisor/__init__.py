"""The inside of a pool, in the user's process: one reactor, clients of the helpers, the stock."""
