"""Engines behind a server: OpenAI's dialects and SGLang."""
