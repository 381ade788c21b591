"""Limits of sandboxes: each ends a call in time, with the right status, and only its own sandbox."""
