"""Tenants: their declared quotas, what holds links to them, and the account of their use."""
