"""What a run of `kvspec.model.conform` says: what counts as seen, what was known before, and the report as text."""
