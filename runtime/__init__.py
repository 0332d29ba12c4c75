"""Device side: engine, KV cache, sampling and conversation. Imports are light and lazy."""
