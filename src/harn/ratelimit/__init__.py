"""Rate limits that hold across processes."""
