"""Figures of the operator on a real API server: how soon, how often, how much memory."""
