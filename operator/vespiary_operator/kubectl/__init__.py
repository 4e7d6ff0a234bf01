"""`kubectl vespiary`: what the user's own rights let them see of Brokers, in one place."""
