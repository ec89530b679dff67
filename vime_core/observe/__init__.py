"""What a user sees of a run: progress, metrics, the run folder, the summary, and what Ctrl-C does."""
