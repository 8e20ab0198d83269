"""The LLM client: a loop of model calls and tool calls over one wire."""
