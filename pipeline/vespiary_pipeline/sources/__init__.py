"""Parts in, Arrow batches out: what runs on executors."""
