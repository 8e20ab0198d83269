"""What users write: agents declared in one call, and the task tool."""
