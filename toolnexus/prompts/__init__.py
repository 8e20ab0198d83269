"""Ready interpreters of requests: whom `wait_for` asks.

from toolnexus.prompts import terminal

rt = AgentRuntime(registry=[clerk], wait_for=terminal())
"""

from toolnexus.prompts.person import terminal

__all__ = ["terminal"]
